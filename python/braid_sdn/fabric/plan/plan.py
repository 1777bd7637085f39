"""What the network should do, before it is put into rules: trees for single paths, tagged paths between edges."""

from __future__ import annotations

from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.mdi import Selection

#: VIDs that may be path tags; 0 and 4095 are reserved, 1 is many switches' default VLAN.
TAGS = range(2, 4095)

#: A latency that moved by more than this much, seconds and as a share, is told to the edges.
MIN_LATENCY_CHANGE = 0.001
MIN_LATENCY_CHANGE_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a splitter and resequencer sits: it sends and takes tagged packets at this port."""

    name: str
    port: PortId


@dataclass(frozen=True, slots=True)
class Host:
    """A host that was seen at a port."""

    mac: str
    port: PortId
    addresses: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Tree:
    """Single paths from every switch to `root`, under one tag."""

    root: int
    tag: int
    #: Out of which port each switch sends on.
    onward: dict[int, int]


@dataclass(frozen=True)
class Flood:
    """A spanning tree that broadcasts travel, under one tag."""

    tag: int
    #: Each switch's ports on the tree.
    ports: dict[int, frozenset[int]]


@dataclass(frozen=True)
class TaggedPath:
    """A way through the network under one tag, from switch to switch, and out to an edge at its end."""

    tag: int
    #: Each switch and the port it sends on to; the last one's is the edge's.
    steps: tuple[PortId, ...]

    @property
    def first(self) -> int:
        """The switch it begins at."""
        return self.steps[0].switch

    @property
    def last(self) -> int:
        """The switch it ends at."""
        return self.steps[-1].switch


@dataclass(frozen=True)
class Pair:
    """How one edge's traffic to another is split."""

    source: Edge
    target: Edge
    selection: Selection
    #: As `selection.paths`.
    paths: tuple[TaggedPath, ...]
    #: What the source walks: tags.
    slots: tuple[int, ...]
    #: Whether a path that the target counts on was taken out because it is dead: nothing more is to come by it.
    path_withdrawn: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Whose it is."""
        return (self.source.name, self.target.name)

    @property
    def ceiling(self) -> float:
        """bit/s that its paths carry at the most, whoever else uses them; more where two share a link."""
        return sum(path.ceiling for path in self.selection.paths)

    def share(self, tag: int) -> float:
        """The part of the packets that a path gets."""
        return self.slots.count(tag) / len(self.slots)


def differs_for_edges(before: Pair | None, after: Pair | None) -> bool:
    """Whether edges have to know: other paths, shares or order, or latencies that they would wait differently for.

    What a path could carry besides changes with every look, and is no business of theirs.
    """
    if before is None or after is None:
        return before is not after
    if (before.paths, before.slots, before.selection.order) != (after.paths, after.slots, after.selection.order):
        return True
    latencies = (
        (was.latency, now.latency) for was, now in zip(before.selection.paths, after.selection.paths, strict=True)
    )
    return any(abs(now - was) > MIN_LATENCY_CHANGE + MIN_LATENCY_CHANGE_RATIO * was for was, now in latencies)


@dataclass(frozen=True)
class Plan:
    """All of it."""

    #: Ports that lead to other switches.
    internal: dict[int, frozenset[int]] = field(default_factory=dict)
    #: Ports that broadcasts are handed to hosts on.
    outside: dict[int, frozenset[int]] = field(default_factory=dict)
    trees: dict[int, Tree] = field(default_factory=dict)
    flood: Flood | None = None
    pairs: dict[tuple[str, str], Pair] = field(default_factory=dict)
    #: Pairs that cannot be served, and why.
    unserved: dict[tuple[str, str], str] = field(default_factory=dict)
