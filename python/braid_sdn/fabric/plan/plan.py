"""A plan before it is compiled into rules: trees for single paths, tagged paths between edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.mdi import Selection
from braid_sdn.fabric.tenants import DEFAULT, DPID_BITS, NOBODY

#: Ports up to which packets are sent on by another one: two of them fit into the number of a switch's group.
MAX_DETOUR_PORT = 0xFFF

#: A latency that changed by more than this sum, in seconds and relatively, is distributed to edges.
MIN_LATENCY_CHANGE = 0.001
MIN_LATENCY_CHANGE_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class Edge:
    """A splitter and resequencer, which sends and receives tagged packets at this port."""

    name: str
    port: PortId
    #: The tenant of its port; 0 where there are none.
    tenant: int = NOBODY


@dataclass(frozen=True, slots=True)
class Host:
    """A host that was seen at a port."""

    mac: str
    port: PortId
    addresses: frozenset[str] = frozenset()
    #: The tenant of its port; 0 where there are none.
    tenant: int = NOBODY
    #: The VID of its frames at its port, which is a trunk; 0 where they have none.
    vid: int = 0


def tree_key(root: int, tenant: int) -> int:
    """Return the key of a tenant's tree to a switch: that switch, with the tenant above it unless it is the default.

    With tenants no switch is served whose datapath id would reach that far.
    """
    return root if tenant in (NOBODY, DEFAULT) else tenant << DPID_BITS | root


@dataclass(frozen=True)
class Tree:
    """Single paths from every switch to `root`, under one tag."""

    root: int
    tag: int
    #: The output port of each switch.
    onward: dict[int, int]
    #: Number of repairs, which give switches other ports under this tag, and the switches of the last one.
    repairs: int = 0
    repaired: frozenset[int] = frozenset()
    #: Number of links to the root from each switch that got another way there under this tag: those that are nearer
    #: are told first. The others need no order, as the ways from them are those of the tree as it was made.
    hops: dict[int, int] = field(default_factory=dict)
    #: Another tree to the same root, or what is left of it, for packets that met a port that is down; without one of
    #: its own. Where a switch's output port is the same in both, its packets have no detour.
    detour: Tree | None = None
    #: Ports of switches to which their detour leads or has led, and from where they get packets by this tree: these
    #: have a rule of their own, which stays as long as the tag, since one that is deleted too late leads astray.
    turning: dict[int, frozenset[int]] = field(default_factory=dict)
    #: The tenant whose packets take it; 0 where there are none.
    tenant: int = NOBODY

    @property
    def key(self) -> int:
        """Its key among all trees."""
        return tree_key(self.root, self.tenant)

    def detour_port(self, switch: int) -> int | None:
        """Return the port by which a switch sends packets whose output port is down; None if there is none."""
        port = self.detour.onward.get(switch) if self.detour is not None else None
        own = self.onward.get(switch)
        return port if port is not None and port != own and max(port, own or 0) <= MAX_DETOUR_PORT else None


@dataclass(frozen=True)
class Flood:
    """A spanning tree for broadcasts, under one tag."""

    tag: int
    #: Each switch's ports on the tree.
    ports: dict[int, frozenset[int]]


@dataclass(frozen=True)
class TaggedPath:
    """A path through the network under one tag, from switch to switch, and to an edge at its end."""

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
class PinnedPath:
    """The path of packets from one host to another, under a tag, where an operator pinned it."""

    tag: int
    #: MACs, and the source's port at its switch.
    source: str
    target: str
    port: int
    #: Each switch but the last, and the port it sends on to.
    steps: tuple[PortId, ...]
    #: The target's switch.
    last: int
    #: The tenant of both hosts; 0 where there are none.
    tenant: int = NOBODY


@dataclass(frozen=True)
class Pair:
    """Split of one edge's traffic to another."""

    source: Edge
    target: Edge
    selection: Selection
    #: As `selection.paths`.
    paths: tuple[TaggedPath, ...]
    #: The source's slot table: tags.
    slots: tuple[int, ...]
    #: True if a path that the target knows was withdrawn because it is dead: nothing more arrives by it.
    path_withdrawn: bool = False
    #: Maximum flow over what all others leave on links, bit/s, by which the paths were chosen.
    max_flow: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        """Names of source and target."""
        return (self.source.name, self.target.name)

    @property
    def ceiling(self) -> float:
        """Configured capacity of its paths, bit/s, whoever else uses them; too large if two share a link."""
        return sum(path.ceiling for path in self.selection.paths)

    def share(self, tag: int) -> float:
        """Return a path's share of packets."""
        return self.slots.count(tag) / len(self.slots)


def differs_for_edges(before: Pair | None, after: Pair | None) -> bool:
    """Return true if edges need the change: other paths, shares or order, or notably other latencies.

    The free capacity of paths changes with every measurement, and does not matter to edges; a configured one does.
    """
    if before is None or after is None:
        return before is not after
    if (before.paths, before.slots, before.selection.order) != (after.paths, after.slots, after.selection.order):
        return True
    if before.ceiling != after.ceiling:
        return True
    latencies = (
        (was.latency, now.latency) for was, now in zip(before.selection.paths, after.selection.paths, strict=True)
    )
    return any(abs(now - was) > MIN_LATENCY_CHANGE + MIN_LATENCY_CHANGE_RATIO * was for was, now in latencies)


@dataclass(frozen=True)
class Plan:
    """A plan for the whole network."""

    #: Ports that lead to other switches.
    internal: dict[int, frozenset[int]] = field(default_factory=dict)
    #: Ports on which hosts get broadcasts.
    outside: dict[int, frozenset[int]] = field(default_factory=dict)
    #: By their keys.
    trees: dict[int, Tree] = field(default_factory=dict)
    #: By their tenants: nobody's is that of all packets where there are none.
    floods: dict[int, Flood] = field(default_factory=dict)
    #: Those whose traffic was split longest ago come first.
    pairs: dict[tuple[str, str], Pair] = field(default_factory=dict)
    #: Pairs that cannot be served, and why.
    unserved: dict[tuple[str, str], str] = field(default_factory=dict)
    #: Links, by both ports, and switches for which trees and flood were made.
    wiring: frozenset[tuple[PortId, PortId]] = frozenset()
    switches: frozenset[int] = frozenset()
    #: Roots whose trees are still to be made, or to be compared with the best ones.
    left: tuple[int, ...] = ()
    #: Tag of each tenant to try next: one that was given up lately may be known to a slow switch still.
    next_tags: dict[int, int] = field(default_factory=dict)
    #: True if no tag was left for a flood: it is that of the wiring before.
    is_flood_old: bool = False
    #: Switches with hosts for whose trees no tag was left: packets to these are flooded.
    tagless: tuple[int, ...] = ()
    #: Switches that trees and flood avoid.
    drained: frozenset[int] = frozenset()
    #: Paths of pairs of hosts, by their MACs.
    pinned: dict[tuple[str, str], PinnedPath] = field(default_factory=dict)
    #: The tenant of each switch's ports for hosts; empty where there are none.
    port_tenants: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    #: Tenants by VIDs of each switch's trunks.
    trunks: Mapping[int, Mapping[int, Mapping[int, int]]] = field(default_factory=dict)
    #: Directions of links that may work or not, which the flood avoids.
    stale: frozenset[tuple[PortId, PortId]] = frozenset()
    #: True if pairs stayed as they were, without a look at what their paths have free.
    has_kept_pairs: bool = False

    def outside_of(self, switch: int, tenant: int) -> frozenset[int]:
        """Return a switch's ports on which a tenant's hosts get broadcasts."""
        ports = self.outside.get(switch, frozenset())
        if tenant == NOBODY:
            return ports
        known = self.port_tenants.get(switch, {})
        return frozenset(port for port in ports if known.get(port, NOBODY) == tenant)

    def trunks_of(self, switch: int, tenant: int) -> tuple[tuple[int, int], ...]:
        """Return a switch's trunks on which a tenant's hosts get broadcasts, each with their VID."""
        ports = self.outside.get(switch, frozenset())
        known = self.trunks.get(switch, {})
        trunks = sorted(ports & known.keys())
        return tuple((port, vid) for port in trunks for vid, each in known[port].items() if each == tenant)
