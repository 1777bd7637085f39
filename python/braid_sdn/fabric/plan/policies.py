"""Policies of an operator: what is drained, forbidden and pinned, where hosts stay, what links carry.

Pure: they are changed by making others, and kept as JSON. Switches are their datapath ids, so that a switch keeps its
policies whatever it is called.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from braid_sdn.fabric.model import Arc, Graph, PortId
from braid_sdn.fabric.plan.plan import Plan

Hop = tuple[PortId, PortId]


class LinkEnd(NamedTuple):
    """One end of a link."""

    switch: int
    #: Its port's name; empty for all ports that lead to the other end.
    port: str = ""


Link = tuple[LinkEnd, LinkEnd]


@dataclass(frozen=True, slots=True)
class PlacedHost:
    """The place that an operator gave a host."""

    switch: int
    #: The port's name or number there.
    port: str
    addresses: frozenset[str] = frozenset()
    #: The VID of its frames, if the port is a trunk.
    vid: int = 0


@dataclass(frozen=True)
class Policies:
    """All policies."""

    #: Switches that no path between others leads through while there is another way.
    drained: frozenset[int] = frozenset()
    #: Links that carry nothing in either direction, the lower end first.
    forbidden: frozenset[Link] = frozenset()
    #: Switches of the only path of each pair of edges' names or of hosts' MACs, the lower one first; both directions.
    pinned: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    #: Hosts that stay where they are, by their MACs.
    hosts: Mapping[str, PlacedHost] = field(default_factory=dict)
    #: Capacities of links in each direction, bit/s, by their ends.
    capacities: Mapping[Link, float] = field(default_factory=dict)

    @property
    def ways(self) -> tuple[object, ...]:
        """Those of them that decide which ways packets take."""
        return self.drained, self.forbidden, self.pinned

    def pin_of(self, source: str, target: str) -> tuple[int, ...] | None:
        """Return the switches of a pair's path in this direction."""
        if source < target:
            return self.pinned.get((source, target))
        return pinned[::-1] if (pinned := self.pinned.get((target, source))) is not None else None

    def with_pin(self, source: str, target: str, switches: tuple[int, ...] | None) -> Policies:
        """Return these with a pair pinned to a path, or to none."""
        key = min(source, target), max(source, target)
        others = {each: path for each, path in self.pinned.items() if each != key}
        if switches is not None:
            others[key] = switches if source < target else switches[::-1]
        return replace(self, pinned=others)

    def store(self) -> dict[str, Any]:
        """Return them for JSON."""
        return {
            "drained": [_word(switch) for switch in sorted(self.drained)],
            "forbidden": [_stored_ends(link) for link in sorted(self.forbidden)],
            "pinned": [
                {"source": source, "target": target, "switches": [_word(switch) for switch in path]}
                for (source, target), path in sorted(self.pinned.items())
            ],
            "hosts": [
                {
                    "mac": mac,
                    "switch": _word(host.switch),
                    "port": host.port,
                    "addresses": sorted(host.addresses),
                    "vid": host.vid,
                }
                for mac, host in sorted(self.hosts.items())
            ],
            "capacities": [
                {"between": _stored_ends(link), "capacity_bit_s": capacity}
                for link, capacity in sorted(self.capacities.items())
            ],
        }

    @classmethod
    def stored(cls, kept: Any) -> Policies:
        """Return those that `store` made, now or before there were hosts and capacities; raises ValueError."""
        try:
            made = cls(
                frozenset(int(switch, 16) for switch in kept["drained"]),
                frozenset(_link_stored(link) for link in kept["forbidden"]),
                hosts={str(each["mac"]): _host_stored(each) for each in kept.get("hosts", ())},
                capacities={
                    _link_stored(each["between"]): _capacity_stored(each["capacity_bit_s"])
                    for each in kept.get("capacities", ())
                },
            )
            for pin in kept["pinned"]:
                path = tuple(int(switch, 16) for switch in pin["switches"])
                made = made.with_pin(str(pin["source"]), str(pin["target"]), path)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not policies: {error!r}") from error
        return made


def _word(switch: int) -> str:
    return f"{switch:016x}"


def _stored_ends(link: Link) -> list[dict[str, str]]:
    return [{"switch": _word(end.switch), "port": end.port} for end in link]


def _link_stored(ends: Any) -> Link:
    return link_of(*(LinkEnd(int(end["switch"], 16), str(end["port"])) for end in ends))


def _host_stored(each: Any) -> PlacedHost:
    addresses = frozenset(str(address) for address in each["addresses"])
    return PlacedHost(int(each["switch"], 16), str(each["port"]), addresses, int(each["vid"]))


def _capacity_stored(value: Any) -> float:
    capacity = float(value)
    if not 0 < capacity < math.inf:
        raise ValueError(f"not policies: {value!r} is no capacity")
    return capacity


def link_of(one: LinkEnd, other: LinkEnd) -> Link:
    """Return the link between two ends, the lower end first."""
    return min(one, other), max(one, other)


def parts(graph: Graph, *, forbidden: Iterable[Hop] = (), drained: Iterable[int] = ()) -> list[frozenset[int]]:
    """Return the sets of switches that reach one another, the largest first; drained ones are in none."""
    banned, gone = frozenset(forbidden), frozenset(drained)
    around: dict[int, set[int]] = {switch: set() for switch in graph.switches - gone}
    for arc in graph.arcs:
        ends = arc.source.switch, arc.target.switch
        if (arc.source, arc.target) not in banned and not gone.intersection(ends):
            around[ends[0]].add(ends[1])
            around[ends[1]].add(ends[0])
    found = []
    left = set(around)
    while left:
        walk = [left.pop()]
        for here in walk:
            new = around[here] & left
            left -= new
            walk += new
        found.append(frozenset(walk))
    return sorted(found, key=lambda part: (-len(part), min(part)))


def cut_off(before: Iterable[frozenset[int]], after: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """Return the sets of switches that reached others before, and do not after; without each one's largest part."""
    known = list(before)
    rest: dict[int, list[frozenset[int]]] = {}
    for part in after:
        for number, whole in enumerate(known):
            if part & whole:
                rest.setdefault(number, []).append(part & whole)
    return [part for split in rest.values() for part in split[1:]]


def through(plan: Plan, graph: Graph, switch: int) -> int:
    """Return the number of trees, paths and floods by which packets between others pass a switch."""
    arriving = [arc.source for arc in graph.arriving.get(switch, ())]
    trees = sum(
        tree.root != switch and any(tree.onward.get(port.switch) == port.port for port in arriving)
        for tree in plan.trees.values()
    )
    paths = [path.steps for pair in plan.pairs.values() for path in pair.paths]
    passed = sum(any(step.switch == switch for step in steps[1:-1]) for steps in paths)
    passed += sum(any(step.switch == switch for step in path.steps[1:]) for path in plan.pinned.values())
    floods = sum(len(flood.ports.get(switch, ())) > 1 for flood in plan.floods.values())
    return trees + passed + floods


def along(graph: Graph, switches: Iterable[int], used: Iterable[PortId] = ()) -> tuple[Arc, ...] | None:
    """Return the arcs from switch to switch; of several those in use, else the quickest. None if one is missing.

    `used` are the ports at which arcs in use begin.
    """
    kept = frozenset(used)
    way: list[Arc] = []
    for here, there in itertools.pairwise(switches):
        found = [arc for arc in graph.leaving.get(here, ()) if arc.target.switch == there]
        if not found:
            return None
        way.append(min(found, key=lambda arc: (arc.source not in kept, arc.latency, arc.source)))
    return tuple(way)
