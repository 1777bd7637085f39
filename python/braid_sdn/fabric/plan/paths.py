"""Paths for one pair of switches: a minimum-cost maximum flow, decomposed into few paths.

[mpsdn] §III-B looks for paths "with an algorithm similar to the Edmonds-Karp algorithm", which finds any maximum
flow. Ours is the one with the least sum of flow times latency, because `mdi` then compares paths by latency. Method:
successive shortest paths with potentials (Ahuja, Magnanti and Orlin, "Network Flows", §9.7), which is exact for real
costs and needs one Dijkstra per augmentation: a handful in networks of a few links per switch.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass

from braid_sdn.fabric.model import Arc, Graph, Path, PortId
from braid_sdn.fabric.pieces import at_once

#: More paths gain little, and each adds its jitter to the far edge's reordering.
MAX_PATHS = 4

#: A path that would carry less than this share of a pair's flow is not worth its rules and its reordering.
MIN_PATH_SHARE = 0.05

#: Flows below this, bit/s, are rounding, not capacity.
MIN_FLOW_BIT_S = 1.0

#: Added cost of each hop, seconds, so that links with no or unknown latency make a path longer too.
HOP_COST = 1e-6


@dataclass(frozen=True)
class Flow:
    """A flow: bit/s on each arc, and in all."""

    on: dict[Arc, float]
    value: float

    @property
    def cost(self) -> float:
        """Sum of flow times latency: bits in flight."""
        return sum(amount * arc.latency for arc, amount in self.on.items())


@dataclass(slots=True)
class _Edge:
    """An arc's residual in one direction; `twin` is the other one."""

    target: int
    left: float
    cost: float
    arc: Arc | None
    twin: int


def max_flow(graph: Graph, source: int, target: int) -> Flow:
    """Return the maximum flow of least latency from one switch to another over free capacity."""
    return at_once(max_flow_pieces(graph, source, target))


def max_flow_pieces(graph: Graph, source: int, target: int) -> Generator[None, None, Flow]:
    """Find the same piece by piece: an augmentation takes some ms among 1,000 switches."""
    if source == target or source not in graph.switches or target not in graph.switches:
        return Flow({}, 0.0)
    edges: list[_Edge] = []
    at: dict[int, list[int]] = {switch: [] for switch in graph.switches}
    for arc in graph.arcs:
        if arc.free < MIN_FLOW_BIT_S:
            continue
        cost = arc.latency + HOP_COST
        at[arc.source.switch].append(len(edges))
        edges.append(_Edge(arc.target.switch, arc.free, cost, arc, len(edges) + 1))
        at[arc.target.switch].append(len(edges))
        edges.append(_Edge(arc.source.switch, 0.0, -cost, None, len(edges) - 1))
    yield
    potential = dict.fromkeys(graph.switches, 0.0)
    value = 0.0
    while (way := _shortest(edges, at, potential, source, target)) is not None:
        amount = min(edges[number].left for number in way)
        for number in way:
            edges[number].left -= amount
            edges[edges[number].twin].left += amount
        value += amount
        yield
    flow = {edge.arc: edges[edge.twin].left for edge in edges if edge.arc is not None}
    return Flow({arc: amount for arc, amount in flow.items() if amount >= MIN_FLOW_BIT_S}, value)


def _shortest(
    edges: list[_Edge], at: dict[int, list[int]], potential: dict[int, float], source: int, target: int
) -> list[int] | None:
    """Return the cheapest augmenting path as edge numbers, and update the potentials that keep costs non-negative."""
    distance = {source: 0.0}
    came: dict[int, int] = {}
    done: set[int] = set()
    queue = [(0.0, source)]
    while queue:
        so_far, here = heapq.heappop(queue)
        if here in done:
            continue
        done.add(here)
        for number in at[here]:
            edge = edges[number]
            if edge.left < MIN_FLOW_BIT_S or edge.target in done:
                continue
            # Rounding may leave a reduced cost a little below zero.
            there = so_far + max(0.0, edge.cost + potential[here] - potential[edge.target])
            if there < distance.get(edge.target, float("inf")):
                distance[edge.target] = there
                came[edge.target] = number
                heapq.heappush(queue, (there, edge.target))
    if target not in distance:
        return None
    furthest = max(distance.values())
    for switch in potential:
        potential[switch] += distance.get(switch, furthest)
    way = []
    here = target
    while here != source:
        way.append(came[here])
        here = edges[edges[came[here]].twin].target
    return way[::-1]


def decompose(flow: Flow, source: int, target: int, *, most: int = MAX_PATHS) -> list[Path]:
    """Decompose a flow into at most `most` paths, the widest first, each with its part of the flow.

    Paths below MIN_PATH_SHARE of the flow are left out. Two paths may share arcs, but never exceed the flow on them.
    """
    left = dict(flow.on)
    paths: list[Path] = []
    while len(paths) < most and (way := _widest(left, source, target)) is not None:
        amount = min(left[arc] for arc in way)
        if amount < max(MIN_FLOW_BIT_S, MIN_PATH_SHARE * flow.value):
            break
        for arc in way:
            left[arc] -= amount
        paths.append(Path(tuple(way), amount))
    return paths


def _widest(left: dict[Arc, float], source: int, target: int) -> list[Arc] | None:
    """Return the widest path, of equally wide ones the quickest."""
    leaving: dict[int, list[Arc]] = {}
    for arc, amount in left.items():
        if amount >= MIN_FLOW_BIT_S:
            leaving.setdefault(arc.source.switch, []).append(arc)
    came: dict[int, Arc] = {}
    done: set[int] = set()
    queue = [(-float("inf"), 0.0, source)]
    best = {source: (-float("inf"), 0.0)}
    while queue:
        width, latency, here = heapq.heappop(queue)
        if here in done:
            continue
        done.add(here)
        if here == target:
            break
        for arc in leaving.get(here, ()):
            there = arc.target.switch
            offer = (max(width, -left[arc]), latency + arc.latency + HOP_COST)
            if there not in done and offer < best.get(there, (0.0, 0.0)):
                best[there] = offer
                came[there] = arc
                heapq.heappush(queue, (*offer, there))
    if target not in came:
        return None
    way = []
    here = target
    while here != source:
        way.append(came[here])
        here = came[here].source.switch
    return way[::-1]


def candidates(graph: Graph, source: int, target: int, *, most: int = MAX_PATHS) -> list[Path]:
    """Return the paths that a pair could use at once, the widest first."""
    return decompose(max_flow(graph, source, target), source, target, most=most)


def tree_towards(graph: Graph, root: int, *, without: Iterable[Arc] = ()) -> dict[int, Arc]:
    """Return the next arc of every switch that can reach `root`, by latency, then hops.

    Load is ignored, so that single paths do not move with it.
    """
    banned = frozenset(without)
    best: dict[int, tuple[float, int]] = {root: (0.0, root)}
    chosen: dict[int, Arc] = {}
    done: set[int] = set()
    queue = [(0.0, root)]
    while queue:
        so_far, here = heapq.heappop(queue)
        if here in done:
            continue
        done.add(here)
        for arc in graph.arriving.get(here, ()):
            there = arc.source.switch
            offer = so_far + arc.latency + HOP_COST
            if there in done or arc in banned or arc.capacity < MIN_FLOW_BIT_S:
                continue
            if there not in best or offer < best[there][0]:
                best[there] = (offer, there)
                chosen[there] = arc
                heapq.heappush(queue, (offer, there))
    return chosen


def detour_towards(graph: Graph, root: int, tree: Mapping[int, Arc], weight: Mapping[int, int]) -> dict[int, Arc]:
    """Return a second tree to `root` in which few switches send on by the arc that they use in `tree`.

    A packet that meets a broken link at a switch, and goes on by this tree, does not come to that link again where
    the switch's two arcs differ: the way from there to the root does not pass the switch twice. Where all links to
    the root are in `tree`, one switch beside it at least has but one arc: the one of least `weight`, and so on. Of
    other arcs the quickest way is taken.
    """
    chosen: dict[int, Arc] = {}
    distance = {root: 0.0}
    others: list[tuple[float, PortId, Arc]] = []
    own: list[tuple[int, PortId, Arc]] = []
    here = root
    while True:
        for arc in graph.arriving.get(here, ()):
            there = arc.source.switch
            if there in distance or arc.capacity < MIN_FLOW_BIT_S:
                continue
            used = tree.get(there)
            if used is not None and used.source == arc.source:
                heapq.heappush(own, (weight.get(there, 0), arc.source, arc))
            else:
                heapq.heappush(others, (distance[here] + arc.latency + HOP_COST, arc.source, arc))
        arc_found: Arc | None = None
        while (others or own) and arc_found is None:
            _, source, arc = heapq.heappop(others) if others else heapq.heappop(own)
            arc_found = arc if source.switch not in distance else None
        if arc_found is None:
            return chosen
        here = arc_found.source.switch
        chosen[here] = arc_found
        distance[here] = distance[arc_found.target.switch] + arc_found.latency + HOP_COST


def arcs_to_root(tree: dict[int, Arc], source: int, root: int) -> tuple[Arc, ...] | None:
    """Return the arcs from `source` to the root of a tree, or None if there is no path."""
    arcs: list[Arc] = []
    here = source
    while here != root:
        if here not in tree:
            return None
        arcs.append(tree[here])
        here = tree[here].target.switch
    return tuple(arcs)
