"""The network as a graph at one moment, as plain data.

Rates are in bit/s, latencies in seconds, one way. A switch is its datapath id.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class PortId(NamedTuple):
    """A port of a switch."""

    switch: int
    port: int

    def __str__(self) -> str:
        return f"{self.switch:016x}:{self.port}"


@dataclass(frozen=True, slots=True)
class Arc:
    """One direction of a link between two switches."""

    source: PortId
    target: PortId
    #: Capacity, bit/s.
    capacity: float
    #: Load by other traffic than this controller's paths, bit/s.
    used: float = 0.0
    #: Seconds, one way; 0 if not measured.
    latency: float = 0.0
    #: Configured capacity, bit/s; infinite if not configured.
    promised: float = math.inf
    #: Seconds by which the latency may be wrong, either way; infinite if it is not measured.
    uncertainty: float = 0.0

    @property
    def free(self) -> float:
        """Free capacity, bit/s; at least 0."""
        return max(0.0, self.capacity - self.used)

    def __str__(self) -> str:
        return f"{self.source} → {self.target}"


@dataclass(frozen=True)
class Graph:
    """The known network: switches, and links that work in both directions."""

    switches: frozenset[int]
    arcs: tuple[Arc, ...]

    @classmethod
    def of(cls, arcs: Iterable[Arc], switches: Iterable[int] = ()) -> Graph:
        """Make a graph from its arcs and from switches without links."""
        kept = tuple(sorted(arcs, key=lambda arc: (arc.source, arc.target)))
        ends = {end.switch for arc in kept for end in (arc.source, arc.target)}
        return cls(frozenset(ends | set(switches)), kept)

    @cached_property
    def wiring(self) -> frozenset[tuple[PortId, PortId]]:
        """The ports of each arc."""
        return frozenset((arc.source, arc.target) for arc in self.arcs)

    @cached_property
    def ports(self) -> dict[int, frozenset[int]]:
        """The ports of each switch that are ends of arcs."""
        found: dict[int, set[int]] = {}
        for arc in self.arcs:
            for end in (arc.source, arc.target):
                found.setdefault(end.switch, set()).add(end.port)
        return {switch: frozenset(ports) for switch, ports in found.items()}

    @cached_property
    def leaving(self) -> dict[int, list[Arc]]:
        """Every switch's arcs that lead away from it, by port."""
        out: dict[int, list[Arc]] = {switch: [] for switch in sorted(self.switches)}
        for arc in self.arcs:
            out[arc.source.switch].append(arc)
        return out

    @cached_property
    def by_port(self) -> dict[int, dict[int, Arc]]:
        """Every arc by the switch and the number of the port at which it begins."""
        found: dict[int, dict[int, Arc]] = {}
        for arc in self.arcs:
            found.setdefault(arc.source.switch, {})[arc.source.port] = arc
        return found

    @cached_property
    def arriving(self) -> dict[int, list[Arc]]:
        """Every switch's arcs that lead to it, by their source."""
        into: dict[int, list[Arc]] = {switch: [] for switch in sorted(self.switches)}
        for arc in self.arcs:
            into[arc.target.switch].append(arc)
        return into


@dataclass(frozen=True, slots=True)
class Path:
    """A path from one switch to another, and its part of one pair's traffic."""

    arcs: tuple[Arc, ...]
    #: bit/s; at most the free capacity of each arc.
    capacity: float

    @property
    def ceiling(self) -> float:
        """Configured capacity, bit/s, whoever else uses it; infinite if none is configured."""
        return min(arc.promised for arc in self.arcs)

    @property
    def latency(self) -> float:
        """Seconds from end to end."""
        return sum(arc.latency for arc in self.arcs)

    @property
    def uncertainty(self) -> float:
        """Seconds by which the latency may be wrong, either way: delays of all its links' messages add up."""
        return sum(arc.uncertainty for arc in self.arcs)

    @property
    def switches(self) -> tuple[int, ...]:
        """All switches of the path, both ends included."""
        return (self.arcs[0].source.switch, *(arc.target.switch for arc in self.arcs))

    @property
    def hops(self) -> tuple[tuple[PortId, PortId], ...]:
        """The path as ports: paths with the same hops are the same path."""
        return tuple((arc.source, arc.target) for arc in self.arcs)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem. The rest of the network works on."""

    #: Stable identifier, for programs: `one-way-link`, `loop`, ….
    code: str
    #: The link, switch or edge concerned.
    subject: str
    #: Meaning and remedy, for people.
    text: str
