"""Two gateways between the same client and the same internet, for measuring A and B in turn.

              ┌ lan-braid ─ gateway with braid ─ dsl, lte, sat ┐
    client ───┤                                                ├─── internet
              └ lan-nft ── gateway with nftables ─ dsl, lte, sat ┘

A packet's gateway depends only on its destination: the internet's servers have one set of addresses per side. While
one side is loaded the other is idle, and nothing is rebuilt between two measurements, so A and B can follow each
other within a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from braid_lab.net import scratch
from braid_lab.net.links import End, set_offload, veth
from braid_lab.net.namespace import Namespace, namespace
from braid_lab.net.topology import RESOLVERS

SideName = Literal["braid", "nft"]

#: Uplinks of both gateways and their weights, 5:3:1.
WEIGHTS = {"dsl": 5, "lte": 3, "sat": 1}

#: Servers per side; with the load generator's 16 ports each, a client has four million possible flows.
SERVERS = 4


@dataclass(frozen=True)
class Uplink:
    """One uplink of one side."""

    name: str
    address: str
    gateway: str
    near: End
    far: End


@dataclass(frozen=True)
class Side:
    """One gateway, with its LAN and its uplinks."""

    name: SideName
    gateway: Namespace
    uplinks: tuple[Uplink, ...]
    #: Addresses of the internet's servers that are reached through this side.
    servers: tuple[str, ...]
    #: An address behind this side that silently drops packets.
    hole: str
    #: The client's network on this side.
    lan: str
    lan_ends: tuple[End, End]

    def ends(self) -> Iterator[End]:
        """Return every device that this side's packets pass through."""
        yield from self.lan_ends
        for uplink in self.uplinks:
            yield from (uplink.near, uplink.far)


@dataclass(frozen=True)
class AbTestbed:
    """The network with both sides."""

    client: Namespace
    internet: Namespace
    braid: Side
    nft: Side
    scratch: Path

    def sides(self) -> tuple[Side, Side]:
        """Return both sides, Braid's first."""
        return (self.braid, self.nft)

    def offload(self, *, on: bool) -> None:
        """Switch checksum and segmentation offloads of every device on the path."""
        for side in self.sides():
            for end in side.ends():
                set_offload(end, on=on)


@contextlib.contextmanager
def ab_testbed() -> Iterator[AbTestbed]:
    """Build the network; neither gateway balances yet."""
    with contextlib.ExitStack() as stack:
        internet = stack.enter_context(namespace("internet"))
        client = stack.enter_context(namespace("client"))
        _prepare(internet, client)
        braid = _side(stack, client, internet, "braid", number=0, servers="198.51.100")
        nft = _side(stack, client, internet, "nft", number=1, servers="203.0.113")
        yield AbTestbed(client, internet, braid, nft, scratch.directory())


def _prepare(internet: Namespace, client: Namespace) -> None:
    """Raise limits at both ends to allow more simultaneous connections than the defaults."""
    internet.sysctl(
        # Strict: a packet that leaves by another uplink than its source's is dropped, as real providers do.
        ipv4__conf__all__rp_filter=1,
        core__somaxconn=65535,
        ipv4__tcp_max_syn_backlog=65535,
    )
    internet.ip(*(f"address add {address}/32 dev lo" for address in RESOLVERS[4]))
    client.sysctl(ipv4__ip_local_port_range="1024 65535")


def _side(
    stack: contextlib.ExitStack,
    client: Namespace,
    internet: Namespace,
    name: SideName,
    *,
    number: int,
    servers: str,
) -> Side:
    gateway = stack.enter_context(namespace(name))
    gateway.sysctl(ipv4__ip_forward=1)
    inner, outer = End(gateway, "lan0"), End(client, f"to-{name}")
    stack.enter_context(veth(inner, outer))
    lan = f"10.{64 + number}"
    gateway.ip(f"address add {lan}.0.1/16 dev lan0")
    client.ip(f"address add {lan}.0.2/16 dev {outer.device}", f"route add {servers}.0/24 via {lan}.0.1")
    uplinks = tuple(
        _uplink(stack, gateway, internet, name, uplink, f"100.{64 + number}.{index}", index)
        for index, uplink in enumerate(WEIGHTS, start=1)
    )
    addresses = tuple(f"{servers}.{host}" for host in range(1, SERVERS + 1))
    hole = f"{servers}.66"
    internet.ip(*(f"address add {address}/32 dev lo" for address in addresses), f"route add blackhole {hole}/32")
    return Side(name, gateway, uplinks, addresses, hole, f"{lan}.0.0/16", (inner, outer))


def _uplink(
    stack: contextlib.ExitStack,
    gateway: Namespace,
    internet: Namespace,
    side: SideName,
    name: str,
    network: str,
    index: int,
) -> Uplink:
    near, far = End(gateway, name), End(internet, f"{side}-{name}")
    stack.enter_context(veth(near, far))
    uplink = Uplink(name, f"{network}.2", f"{network}.1", near, far)
    gateway.ip(
        f"address add {uplink.address}/24 dev {name}",
        f"route add default via {uplink.gateway} dev {name} metric {100 * index}",
    )
    internet.ip(f"address add {uplink.gateway}/24 dev {far.device}")
    return uplink
