"""Counts of the bytes that leave by a device, by kind, as the other end of its cable sees them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from braid_lab.net.links import End

TABLE = "egress-counts"

#: Packets that ask whether a neighbour or a target is there: ARP, and ICMP of both IP versions.
REACHABILITY = ("meta protocol arp", "meta l4proto { icmp, ipv6-icmp }")


@dataclass
class Egress:
    """Bytes that have left while they were counted, without link headers."""

    #: Of the ports that were named.
    expected: int = 0
    #: Of questions about reachability.
    reachability: int = 0
    #: Of all others.
    other: int = 0


def ruleset(device: str, server: str, ports: Sequence[int]) -> str:
    """Return nftables' rules that count what arrives at a device, first of all towards these ports of a server."""
    numbers = ", ".join(str(port) for port in ports)
    counters = "".join(f" counter {name} {{ }}\n" for name in ("expected", "reachability", "other"))
    asking = "".join(f"  {match} counter name reachability accept\n" for match in REACHABILITY)
    return (
        f"table netdev {TABLE} {{\n{counters} chain out {{\n"
        f'  type filter hook ingress device "{device}" priority 0;\n'
        f"  ip daddr {server} th dport {{ {numbers} }} counter name expected accept\n"
        f"{asking}  counter name other\n }}\n}}\n"
    )


@contextlib.contextmanager
def counted_egress(end: End, server: str, ports: Sequence[int]) -> Iterator[Egress]:
    """Count for a block what arrives at this end of a cable; the result is filled in at its end.

    At the device by which it leaves, nftables sees nothing of what an eBPF program has sent there.
    """
    found = Egress()
    end.namespace.run(["nft", "-f", "-"], text=ruleset(end.device, server, ports))
    try:
        yield found
        listed = end.namespace.run(["nft", "--json", "list", "counters", "table", "netdev", TABLE]).stdout
        for each in json.loads(listed)["nftables"]:
            if "counter" in each:
                setattr(found, each["counter"]["name"], each["counter"]["bytes"])
    finally:
        end.namespace.run(["nft", "delete", "table", "netdev", TABLE], check=False)
