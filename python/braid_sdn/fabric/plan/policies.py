"""Policies of an operator: switches that are drained, links that are forbidden, pairs that are pinned to a path.

Pure: they are changed by making others, and kept as JSON. Switches are their datapath ids, so that a switch keeps its
policies whatever it is called.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Policies:
    """All policies."""

    #: Switches that no path between others leads through while there is another way.
    drained: frozenset[int] = frozenset()
    #: Links that carry nothing in either direction, the lower end first.
    forbidden: frozenset[Link] = frozenset()
    #: Switches of the only path of each pair of edges' names or of hosts' MACs, the lower one first; both directions.
    pinned: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)

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
        return Policies(self.drained, self.forbidden, others)

    def store(self) -> dict[str, Any]:
        """Return them for JSON."""
        return {
            "drained": [_word(switch) for switch in sorted(self.drained)],
            "forbidden": [
                [{"switch": _word(end.switch), "port": end.port} for end in link] for link in sorted(self.forbidden)
            ],
            "pinned": [
                {"source": source, "target": target, "switches": [_word(switch) for switch in path]}
                for (source, target), path in sorted(self.pinned.items())
            ],
        }

    @classmethod
    def stored(cls, kept: Any) -> Policies:
        """Return those that `store` made; raises ValueError."""
        try:
            made = cls(
                frozenset(int(switch, 16) for switch in kept["drained"]),
                frozenset(
                    link_of(*(LinkEnd(int(end["switch"], 16), str(end["port"])) for end in link))
                    for link in kept["forbidden"]
                ),
            )
            for pin in kept["pinned"]:
                path = tuple(int(switch, 16) for switch in pin["switches"])
                made = made.with_pin(str(pin["source"]), str(pin["target"]), path)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not policies: {error!r}") from error
        return made


def _word(switch: int) -> str:
    return f"{switch:016x}"


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
