"""TCP packet counters at the far end of uplinks, out of Braid's reach."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from braid_lab.net.topology import Uplink

TABLE = "counting"


@dataclass(frozen=True)
class TcpCounts:
    """TCP packets of some uplinks so far: received SYNs, all received, and all sent."""

    syns: int
    received: int
    sent: int


@contextlib.contextmanager
def tcp_counters(uplinks: Sequence[Uplink]) -> Iterator[Callable[[], TcpCounts]]:
    """Count packets on these uplinks of one internet for the length of a block; yields a function to read them."""
    internet = uplinks[0].far.namespace
    devices = ", ".join(f'"{each.far.device}"' for each in uplinks)
    ruleset = (
        f"table inet {TABLE} {{\n counter syns {{}}\n counter received {{}}\n counter sent {{}}\n"
        f" set counted {{\n  type ifname\n  elements = {{ {devices} }}\n }}\n"
        " chain input {\n  type filter hook input priority -300\n"
        "  iifname @counted tcp flags & (syn | ack) == syn counter name syns\n"
        "  iifname @counted meta l4proto tcp counter name received\n }\n"
        " chain output {\n  type filter hook output priority 300\n"
        "  oifname @counted meta l4proto tcp counter name sent\n }\n}\n"
    )
    internet.run(["nft", "-f", "-"], text=ruleset)

    def read() -> TcpCounts:
        listed = json.loads(internet.run(["nft", "-j", "list", "counters", "table", "inet", TABLE]).stdout)[
            "nftables"
        ]
        return TcpCounts(
            **{each["counter"]["name"]: each["counter"]["packets"] for each in listed if "counter" in each}
        )

    try:
        yield read
    finally:
        internet.run(["nft", "delete", "table", "inet", TABLE])
