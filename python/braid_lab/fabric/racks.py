"""Racks of hosts in place of a network's stations: a plain bridge, and hosts with lines of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from braid_lab.fabric.ovs import OvsNetwork, Station
from braid_lab.net.links import End, LinkSpec, emulated
from braid_lab.net.namespace import Namespace, namespace

#: Hosts of station n have 10.77.(RACKS + n).1 and on; stations themselves have 10.77.0.n.
RACKS = 100


@dataclass(frozen=True)
class RackHost:
    """A host."""

    place: Namespace
    address: str


def rack_network(station: int) -> str:
    """Return the addresses of a rack's hosts, by its station's place among all, counted from 1."""
    return f"10.77.{RACKS + station}.0/24"


def fill_racks(stack: contextlib.ExitStack, net: OvsNetwork, hosts: int, line: LinkSpec) -> list[list[RackHost]]:
    """Put `hosts` behind each station, each by a line of its own; the station's own address stays in use."""
    return [
        _fill(stack, net, number, station, hosts, line)
        for number, station in enumerate(net.stations.values(), start=1)
    ]


def _fill(
    stack: contextlib.ExitStack, net: OvsNetwork, number: int, station: Station, hosts: int, line: LinkSpec
) -> list[RackHost]:
    rack = station.place
    rack.ip(
        "address flush dev eth0",
        f"link add rack address {station.mac} type bridge mcast_snooping 0",
        "link set eth0 master rack",
        "link set rack up",
        f"address add {station.address}/16 dev rack",
    )
    filled = []
    for host in range(1, hosts + 1):
        place = stack.enter_context(namespace(f"{station.name}-{host}"))
        port = End(rack, f"host{host}")
        stack.enter_context(emulated(End(place, "eth0"), port, line, scratch=net.folder))
        address = f"10.77.{RACKS + number}.{host}"
        rack.ip(f"link set {port.device} master rack")
        place.ip(f"address add {address}/16 dev eth0")
        filled.append(RackHost(place, address))
    return filled


def hash_over_spines(net: OvsNetwork, leaves: Sequence[str], spines: Sequence[str]) -> None:
    """Install rules by which each flow keeps to the spine that a hash of its addresses and ports chooses (ECMP).

    The stations are the leaves' racks, in their order.
    """
    racks = dict(zip(leaves, net.stations, strict=True))
    networks = {leaf: rack_network(number) for number, leaf in enumerate(leaves, start=1)}
    for leaf in leaves:
        buckets = ",".join(f"bucket=actions=output:{leaf}-{spine}" for spine in spines)
        net.ofctl("add-group", leaf, f"group_id=1,type=select,{buckets}")
        for other, network in networks.items():
            here = other == leaf
            net.ofctl("add-flow", leaf, f"ip,nw_dst={network},actions={_output(racks[leaf]) if here else 'group:1'}")
            # Requests for addresses need one way only.
            way = racks[leaf] if here else f"{leaf}-{spines[0]}"
            net.ofctl("add-flow", leaf, f"arp,arp_tpa={network},actions={_output(way)}")
    for spine in spines:
        for leaf, network in networks.items():
            for match in (f"ip,nw_dst={network}", f"arp,arp_tpa={network}"):
                net.ofctl("add-flow", spine, f"{match},actions={_output(f'{spine}-{leaf}')}")


def _output(port: str) -> str:
    return f"output:{port}"
