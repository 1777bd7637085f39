"""Counting packets at the far side of uplinks, where nothing that Braid does can hide them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from braid_lab.net.topology import Uplink

TABLE = "counting"


@dataclass(frozen=True)
class Tcp:
    """TCP packets of some uplinks so far: SYNs that came, all that came, and all that went back."""

    syns: int
    came: int
    went: int


@contextlib.contextmanager
def counting(uplinks: Sequence[Uplink]) -> Iterator[Callable[[], Tcp]]:
    """Count what passes these uplinks of one internet for the length of a block; yields what reads the counters."""
    internet = uplinks[0].far.namespace
    devices = ", ".join(f'"{each.far.device}"' for each in uplinks)
    ruleset = (
        f"table inet {TABLE} {{\n counter syns {{}}\n counter came {{}}\n counter went {{}}\n"
        f" set counted {{\n  type ifname\n  elements = {{ {devices} }}\n }}\n"
        " chain input {\n  type filter hook input priority -300\n"
        "  iifname @counted tcp flags & (syn | ack) == syn counter name syns\n"
        "  iifname @counted meta l4proto tcp counter name came\n }\n"
        " chain output {\n  type filter hook output priority 300\n"
        "  oifname @counted meta l4proto tcp counter name went\n }\n}\n"
    )
    internet.run(["nft", "-f", "-"], text=ruleset)

    def read() -> Tcp:
        listed = json.loads(internet.run(["nft", "-j", "list", "counters", "table", "inet", TABLE]).stdout)[
            "nftables"
        ]
        return Tcp(**{each["counter"]["name"]: each["counter"]["packets"] for each in listed if "counter" in each})

    try:
        yield read
    finally:
        internet.run(["nft", "delete", "table", "inet", TABLE])
