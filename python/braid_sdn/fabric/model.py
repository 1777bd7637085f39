"""What decisions are made from: a picture of the network at one moment, as plain data.

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
    #: What it can carry, bit/s.
    capacity: float
    #: What others than the paths of this controller send over it, bit/s.
    used: float = 0.0
    #: Seconds, one way; 0 while nothing was measured.
    latency: float = 0.0
    #: What the configuration says that it carries, bit/s; infinite where it says nothing.
    promised: float = math.inf

    @property
    def free(self) -> float:
        """What is left of it, bit/s; never below 0."""
        return max(0.0, self.capacity - self.used)

    def __str__(self) -> str:
        return f"{self.source} → {self.target}"


@dataclass(frozen=True)
class Graph:
    """The network as it is known: switches, and links that work in both directions."""

    switches: frozenset[int]
    arcs: tuple[Arc, ...]

    @classmethod
    def of(cls, arcs: Iterable[Arc], switches: Iterable[int] = ()) -> Graph:
        """Make a graph from its arcs and, beside their ends, lone switches."""
        kept = tuple(sorted(arcs, key=lambda arc: (arc.source, arc.target)))
        ends = {end.switch for arc in kept for end in (arc.source, arc.target)}
        return cls(frozenset(ends | set(switches)), kept)

    @cached_property
    def leaving(self) -> dict[int, list[Arc]]:
        """Every switch's arcs that lead away from it, by port."""
        out: dict[int, list[Arc]] = {switch: [] for switch in sorted(self.switches)}
        for arc in self.arcs:
            out[arc.source.switch].append(arc)
        return out

    @cached_property
    def arriving(self) -> dict[int, list[Arc]]:
        """Every switch's arcs that lead to it, by their source."""
        into: dict[int, list[Arc]] = {switch: [] for switch in sorted(self.switches)}
        for arc in self.arcs:
            into[arc.target.switch].append(arc)
        return into


@dataclass(frozen=True, slots=True)
class Path:
    """A way from one switch to another, and what it may carry of one pair's traffic."""

    arcs: tuple[Arc, ...]
    #: bit/s: at most what is free on each of its arcs.
    capacity: float

    @property
    def ceiling(self) -> float:
        """bit/s that it carries at the most, whoever else uses it; infinite where no arc's limit is configured."""
        return min(arc.promised for arc in self.arcs)

    @property
    def latency(self) -> float:
        """Seconds from end to end."""
        return sum(arc.latency for arc in self.arcs)

    @property
    def switches(self) -> tuple[int, ...]:
        """Every switch on the way, both ends included."""
        return (self.arcs[0].source.switch, *(arc.target.switch for arc in self.arcs))

    @property
    def hops(self) -> tuple[tuple[PortId, PortId], ...]:
        """The way as ports, without figures: two paths with the same hops are the same way."""
        return tuple((arc.source, arc.target) for arc in self.arcs)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be, by name. The rest goes on."""

    #: Stable, for programs: `one-way-link`, `loop`, ….
    code: str
    #: What it is about: a link, a switch, an edge.
    subject: str
    #: For people: what it means, and what to do.
    text: str
