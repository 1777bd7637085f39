"""Makes a plan from the state of the network. The plan stays close to the last one: small gains move nothing.

Pure: graph, hosts and edges in, plan out. Unchanged paths keep their tags, so that their rules stay.
"""

from __future__ import annotations

import bisect
import contextlib
import heapq
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from braid_sdn.fabric.model import Arc, Graph, Path, PortId
from braid_sdn.fabric.pieces import at_once
from braid_sdn.fabric.plan import slot_table
from braid_sdn.fabric.plan.mdi import (
    UNCERTAINTY_HYSTERESIS,
    Selection,
    Thresholds,
    select,
    uncertain_difference,
)
from braid_sdn.fabric.plan.paths import (
    HOP_COST,
    MIN_FLOW_BIT_S,
    Flow,
    arcs_to_root,
    decompose,
    detour_towards,
    max_flow_pieces,
    tree_towards,
)
from braid_sdn.fabric.plan.plan import Edge, Flood, Host, Pair, PinnedPath, Plan, TaggedPath, Tree, tree_key
from braid_sdn.fabric.plan.policies import Hop, Policies, along
from braid_sdn.fabric.tenants import TAGS, Tenants

#: Factor by which other paths must carry more to replace those in use.
MIN_CAPACITY_GAIN = 1.1
#: Change of a share from which on a slot table is made anew.
MIN_SHARE_CHANGE = 0.05
#: Added latency of a link that leads on from a drained switch, seconds: longer than any other way.
DRAINED_PENALTY = 10.0
#: Another tree must be quicker by this factor and this many seconds, and by more than what is uncertain about both.
MIN_TREE_GAIN = 1.2
MIN_TREE_GAIN_SECONDS = 0.001

#: Trees times switches up to which trees get detours: these take up to two rules more at each switch for each tree.
#: Those that have some keep them until there are twice as many.
MAX_DETOUR_RULES = 16_384
#: Other detours must serve more than the present ones by this factor.
MIN_DETOUR_GAIN = 1.1

Hops = tuple[tuple[PortId, PortId], ...]


class TagsExhaustedError(Exception):
    """All tags of a tenant are in use: 4093 where there is one."""


@dataclass
class _Tags:
    """Assigns tags that no switch knows."""

    taken: set[int]
    tenants: Tenants
    #: The tag to try next of each tenant.
    cursors: dict[int, int]

    def new(self, tenant: int) -> int:
        """Return an unused tag of a tenant; raises TagsExhaustedError."""
        own = self.tenants.tags(tenant)
        first = bisect.bisect_left(own, self.cursors.get(tenant, TAGS.start))
        for step in range(len(own)):
            tag = own[(first + step) % len(own)]
            if tag not in self.taken:
                self.taken.add(tag)
                self.cursors[tenant] = tag + 1
                return tag
        raise TagsExhaustedError


@dataclass(frozen=True)
class NetworkState:
    """The planner's input."""

    graph: Graph
    hosts: tuple[Host, ...] = ()
    edges: tuple[Edge, ...] = ()
    outside: Mapping[int, frozenset[int]] = field(default_factory=dict)
    #: Tags that rules of some switch still know.
    tags_in_use: frozenset[int] = frozenset()
    #: Paths that are dead although their links seem to work.
    dead: frozenset[Hops] = frozenset()
    #: Switches that take no more rules: no tagged path leads through them.
    full: frozenset[int] = frozenset()
    #: Edges that answer no probes: they get no tagged paths.
    silent: frozenset[str] = frozenset()
    #: Pairs that their targets have acknowledged; of others, the last plan counts.
    known: Mapping[tuple[str, str], Pair] = field(default_factory=dict)
    limits: Thresholds = field(default_factory=Thresholds)
    #: Learned capacities of paths, bit/s.
    learned: Mapping[Hops, float] = field(default_factory=dict)
    #: Switches that lost the controller and keep their rules.
    unreachable: frozenset[int] = frozenset()
    #: Tags of trees whose repair some switch may not follow.
    doubtful: frozenset[int] = frozenset()
    #: Roots whose trees are compared with the best ones, and how many trees are made and compared at most.
    review: tuple[int, ...] = ()
    most_trees: int = sys.maxsize
    policies: Policies = field(default_factory=Policies)
    #: Switches that have fast failover groups: detours lead over these alone.
    failover: frozenset[int] = frozenset()
    #: Directions of forbidden links, and of those that may work or not.
    forbidden: frozenset[Hop] = frozenset()
    stale: frozenset[Hop] = frozenset()
    tenants: Tenants = field(default_factory=Tenants)
    #: The tenant of each switch's ports for hosts; empty where there are none.
    port_tenants: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    #: Tenants by VIDs of each switch's trunks.
    trunks: Mapping[int, Mapping[int, Mapping[int, int]]] = field(default_factory=dict)
    #: The graph as a pair sees it: its own traffic does not count as load.
    seen_by: Callable[[Graph, Pair], Graph] = lambda graph, _: graph
    #: Asked before each pair; true if one that works stays as it is, as while something urgent waits.
    keeps_pairs: Callable[[], bool] = lambda: False


class Work:
    """A plan that is made piece by piece, so that other things can be done meanwhile."""

    def __init__(self, before: Plan, state: NetworkState) -> None:
        """Begin a plan for a state of the network."""
        self.state = state
        #: The plan, once all of it is made.
        self.plan: Plan | None = None
        self._pieces = _pieces(before, state)

    def poll(self) -> Plan | None:
        """Make one piece: the flood, a tree, or the split of a pair; return the plan after the last one."""
        if self.plan is None:
            try:
                next(self._pieces)
            except StopIteration as done:
                self.plan = done.value
        return self.plan


def make(before: Plan, now: NetworkState) -> Plan:
    """Return the plan for a state of the network."""
    return at_once(_pieces(before, now))


def _pieces(before: Plan, now: NetworkState) -> Generator[None, None, Plan]:
    cursors = dict(before.next_tags)
    tags = _Tags(set(now.tags_in_use) | _tags_of(before), now.tenants, cursors)
    drained = now.policies.drained & now.graph.switches
    permitted = _permitted(now.graph, now.forbidden)
    wiring = permitted.wiring
    is_same = (wiring, permitted.switches, drained) == (before.wiring, before.switches, before.drained)
    unserved: dict[tuple[str, str], str] = {}
    trees: dict[int, Tree] = {}
    floods = dict(before.floods)
    is_flood_old = before.is_flood_old or not is_same or not floods.keys() >= set(now.tenants.numbers)
    is_flood_old |= now.stale != before.stale
    left: list[int] = []
    tagless: list[int] = []
    if is_flood_old:
        is_flood_old = False
        for tenant in now.tenants.numbers:
            try:
                flood = _flood(floods.get(tenant), permitted, tags, now, tenant)
            except TagsExhaustedError:
                is_flood_old = True
                continue
            if flood is None:
                floods.pop(tenant, None)
            else:
                floods[tenant] = flood
            yield
    around = replace(now, graph=_avoiding(permitted, drained))
    for root, tree in _trees(before, around, tags, wiring, is_same=is_same):
        match tree:
            case Tree():
                trees[root] = tree
            case _NoTree.LATER:
                left.append(root)
            case _NoTree.NO_TAG:
                tagless.append(root)
        yield
    left += [root for root in now.review[now.most_trees :] if root in trees]
    kept, split = dict[tuple[str, str], Pair](), dict[tuple[str, str], Pair]()
    for source, target in _in_turn(before, now.edges):
        key = (source.name, target.name)
        known = before.pairs.get(key)
        if now.keeps_pairs():
            if known is not None and _is_usable(known, source, target, now, wiring):
                kept[key] = _told(known, known, known.max_flow, now)
                continue
            if known is None and key in before.unserved:
                unserved[key] = before.unserved[key]
                continue
        try:
            made = yield from _pair(known, now, source, target, tags)
        except TagsExhaustedError:
            made = f"no tags are left{_of_tenant(now.tenants, source.tenant)}"
        if isinstance(made, Pair):
            split[key] = made
        else:
            unserved[key] = made
        yield
    pinned = _pinned_hosts(before, now, tags)
    internal, outside = now.graph.ports, dict(now.outside)
    switches = now.graph.switches
    return Plan(
        internal,
        outside,
        trees,
        floods,
        kept | split,
        unserved,
        wiring,
        switches,
        tuple(left),
        cursors,
        is_flood_old,
        tuple(tagless),
        drained,
        pinned,
        now.port_tenants,
        now.trunks,
        now.stale,
        has_kept_pairs=bool(kept),
    )


def _of_tenant(tenants: Tenants, number: int) -> str:
    return f" to tenant {tenants.name(number)}: give it a wider range of tags" if tenants else ""


def _tags_of(plan: Plan) -> set[int]:
    used = {tree.tag for tree in plan.trees.values()}
    used |= {path.tag for pair in plan.pairs.values() for path in pair.paths}
    used |= {path.tag for path in plan.pinned.values()}
    return used | {flood.tag for flood in plan.floods.values()}


# Policies.


def _permitted(graph: Graph, forbidden: frozenset[Hop]) -> Graph:
    if not forbidden:
        return graph
    arcs = (arc for arc in graph.arcs if (arc.source, arc.target) not in forbidden)
    return Graph.of(arcs, graph.switches)


def _avoiding(graph: Graph, drained: frozenset[int]) -> Graph:
    """Return a graph in which all ways through drained switches are long; those from there are so alike."""
    if not drained:
        return graph
    return Graph.of(
        (
            replace(arc, latency=arc.latency + DRAINED_PENALTY, uncertainty=0.0)
            if arc.source.switch in drained
            else arc
            for arc in graph.arcs
        ),
        graph.switches,
    )


def _pinned_hosts(before: Plan, now: NetworkState, tags: _Tags) -> dict[tuple[str, str], PinnedPath]:
    """Return the paths of pinned hosts, as far as their links are there and no tag is missing."""
    hosts = {host.mac: host for host in now.hosts} if now.policies.pinned else {}
    found = {}
    for one, other in now.policies.pinned:
        for source, target in ((one, other), (other, one)):
            switches = now.policies.pin_of(source, target) or ()
            here, there = hosts.get(source), hosts.get(target)
            if here is None or there is None or len(switches) < 2 or here.tenant != there.tenant:
                continue
            if (here.port.switch, there.port.switch) != (switches[0], switches[-1]):
                continue
            known = before.pinned.get((source, target))
            used = known.steps if known is not None else ()
            way = along(_usable(now.graph, now, {switches[0], switches[-1]}), switches, used)
            if way is None:
                continue
            steps = tuple(arc.source for arc in way)
            with contextlib.suppress(TagsExhaustedError):
                is_known = known is not None and (known.steps, known.tenant) == (steps, here.tenant)
                tag = known.tag if known is not None and is_known else tags.new(here.tenant)
                port, last = here.port.port, switches[-1]
                found[source, target] = PinnedPath(tag, source, target, port, steps, last, here.tenant)
    return found


# Trees.


class _NoTree(Enum):
    """Reasons why a switch with hosts has no tree."""

    LATER = "as many as allowed were made already"
    NO_TAG = "no tag is left"


def _trees(
    before: Plan, now: NetworkState, tags: _Tags, wiring: frozenset[tuple[PortId, PortId]], *, is_same: bool
) -> Iterator[tuple[int, Tree | _NoTree]]:
    """Yield the tree to each switch with hosts. New ones are made up to `most_trees`.

    A tree that lost a link is repaired at once: that costs next to nothing, and changes few rules. One that leads to
    a switch without controller is in its turn, where there is another way.
    """
    doubted = {
        there for there, end in now.stale if end.switch in now.unreachable and there.switch not in now.unreachable
    }
    lost = {source for source, _ in before.wiring - wiring}
    review = set(now.review[: now.most_trees])
    made = 0
    wanted = {(host.tenant, host.port.switch) for host in now.hosts}
    detours = _Detours(now, {root for _, root in wanted}, len(wanted))
    for tenant, root in sorted(wanted):
        key = tree_key(root, tenant)
        known = before.trees.get(key)
        made += known is None
        if known is None and made > now.most_trees:
            yield key, _NoTree.LATER
            continue
        try:
            if known is None or known.tag in now.doubtful:
                yield key, _new_tree(now.graph, root, tags, detours, tenant)
                continue
            tree = known if is_same or _is_whole(known, now.graph, lost) else _repaired(known, now.graph, lost, root)
            around = _repaired(tree, now.graph, doubted, root) if key in review and doubted else tree
            # A switch without controller goes on by its old rule.
            is_changed = around is not tree and not any(_differs(around, tree, there) for there in now.unreachable)
            tree = detours.mended(around if is_changed else tree, lost, is_same=is_same and not is_changed)
            if tree is not known and any(_differs(tree, known, switch) for switch in now.unreachable):
                # It would go on by its old rule, and might lead packets of the same tag round.
                tree = _new_tree(now.graph, root, tags, detours, tenant)
        except TagsExhaustedError:
            # Also where there was a tree: it cannot be used any more, and without it there is a tag again.
            yield key, _NoTree.NO_TAG
            continue
        if key in review:
            with contextlib.suppress(TagsExhaustedError):
                tree = _reviewed(tree, now, root, tags, detours)
        yield key, tree


def _new_tree(
    graph: Graph, root: int, tags: _Tags, detours: _Detours, tenant: int, best: Mapping[int, Arc] | None = None
) -> Tree:
    arcs = best if best is not None else tree_towards(graph, root)
    return detours.added(replace(_tree(root, tags.new(tenant), arcs), tenant=tenant), arcs)


def _tree(root: int, tag: int, arcs: Mapping[int, Arc]) -> Tree:
    onward = {switch: arc.source.port for switch, arc in sorted(arcs.items())}
    return Tree(root, tag, onward)


def _reviewed(tree: Tree, now: NetworkState, root: int, tags: _Tags, detours: _Detours) -> Tree:
    """Return a tree, or the best one if that is clearly quicker, reaches more switches, or has better detours."""
    graph, away = now.graph, now.unreachable
    kept = {switch: graph.by_port[switch][port] for switch, port in tree.onward.items()}
    best = tree_towards(graph, root)
    if any(arc.target.switch in away and switch not in away for switch, arc in best.items()):
        # There it would have no rules.
        return tree
    is_whole = kept.keys() >= best.keys()
    if not (is_whole and _near(kept, best, root)):
        return _new_tree(graph, root, tags, detours, tree.tenant, best)
    return tree if not detours.is_better(tree, kept) else _new_tree(graph, root, tags, detours, tree.tenant, kept)


def _is_whole(tree: Tree, graph: Graph, lost: Iterable[PortId]) -> bool:
    """Return true if a tree reaches its root from everywhere, without links that are lost."""
    reaches = len(tree.onward) == len(graph.switches) - 1
    return reaches and all(tree.onward.get(port.switch) != port.port for port in lost)


def _differs(one: Tree, other: Tree, switch: int) -> bool:
    """Return true if a switch forwards by two trees in different ways."""
    if one.onward.get(switch) != other.onward.get(switch):
        return True
    ours, theirs = one.detour, other.detour
    return (ours and ours.onward.get(switch)) != (theirs and theirs.onward.get(switch))


class _Detours:
    """Makes the detours of trees."""

    def __init__(self, now: NetworkState, roots: Collection[int], trees: int) -> None:
        #: Switches with hosts, or with ports for some.
        self._inhabited = frozenset(roots) | {switch for switch, ports in now.outside.items() if ports}
        self._failover = now.failover & now.graph.switches
        self._whole = self._graph = now.graph
        # One that lost the controller gets no rule of a new tag, but keeps what it has.
        usable = self._failover - now.unreachable
        size = trees * len(now.graph.switches)
        self._are_made = bool(self._failover) and size <= MAX_DETOUR_RULES
        self._are_kept = bool(self._failover) and size <= 2 * MAX_DETOUR_RULES
        if self._are_kept and usable != now.graph.switches:
            arcs = (arc for arc in now.graph.arcs if {arc.source.switch, arc.target.switch} <= usable)
            self._graph = Graph.of(arcs, usable)

    def added(self, tree: Tree, arcs: Mapping[int, Arc]) -> Tree:
        """Return a new tree with its detour, if there is one that serves any switch with hosts."""
        best = self._best(tree, arcs)
        return self._with(tree, best) if best is not None else tree

    def mended(self, tree: Tree, lost: Collection[PortId], *, is_same: bool) -> Tree:
        """Return a tree with what is left of its detour; only new trees get another one.

        A change that is urgent does not wait for detours then, and packets on one under a tag have one way for ever.
        """
        detour = tree.detour
        if detour is None:
            return tree
        if not is_same:
            arcs = self._whole.by_port
            left = {
                switch: port
                for switch, port in detour.onward.items()
                if port in arcs.get(switch, ()) and PortId(switch, port) not in lost
            }
            detour = detour if len(left) == len(detour.onward) else replace(detour, onward=left)
        if not self._are_kept or not self._has_groups(detour):
            return replace(tree, detour=None)
        return tree if is_same else self._with(tree, detour)

    def is_better(self, tree: Tree, arcs: Mapping[int, Arc]) -> bool:
        """Return true if a tree could have a detour that serves clearly more."""
        best = self._best(tree, arcs)
        if best is None:
            return False
        weight = self._weights(tree.root, arcs)
        return self._served(replace(tree, detour=best), weight) > MIN_DETOUR_GAIN * self._served(tree, weight)

    def _has_groups(self, detour: Tree) -> bool:
        """Return true if all switches that packets on a detour come to have groups."""
        if self._failover == self._whole.switches:
            return True
        arcs = self._whole.by_port
        targets = {arcs[switch][port].target.switch for switch, port in detour.onward.items()}
        return targets | detour.onward.keys() | {detour.root} <= self._failover

    def _best(self, tree: Tree, arcs: Mapping[int, Arc]) -> Tree | None:
        if not self._are_made or tree.root not in self._failover:
            return None
        weight = self._weights(tree.root, arcs)
        made = _tree(tree.root, tree.tag, detour_towards(self._graph, tree.root, arcs, weight))
        found = replace(made, tenant=tree.tenant)
        return found if self._served(replace(tree, detour=found), weight) else None

    def _weights(self, root: int, arcs: Mapping[int, Arc]) -> dict[int, int]:
        """Return the number of switches with hosts whose packets pass each switch of a tree."""
        passing = dict.fromkeys(arcs, 0)
        for switch in self._inhabited & arcs.keys():
            here = switch
            while here != root:
                passing[here] += 1
                here = arcs[here].target.switch
        return passing

    def _served(self, tree: Tree, weight: Mapping[int, int]) -> int:
        """Return for how many switches with hosts there is a detour, each counted at each switch that it sends by."""
        onward = tree.detour.onward if tree.detour is not None else {}
        reaching = {tree.root}
        walk = [tree.root]
        for here in walk:
            for arc in self._whole.arriving[here]:
                there = arc.source.switch
                if onward.get(there) == arc.source.port and there not in reaching:
                    reaching.add(there)
                    walk.append(there)
        return sum(weight.get(switch, 0) for switch in reaching if tree.detour_port(switch) is not None)

    def _with(self, tree: Tree, detour: Tree) -> Tree:
        arcs, turning = self._whole.by_port, dict(tree.turning)
        for switch, port in detour.onward.items():
            target = arcs[switch][port].target
            if tree.onward.get(target.switch) == target.port and tree.onward.get(switch) != port:
                turning[switch] = turning.get(switch, frozenset()) | {port}
        made = replace(tree, detour=detour, turning=turning)
        return tree if made == tree else made


def _repaired(before: Tree, graph: Graph, lost: Iterable[PortId], root: int) -> Tree:
    """Return a tree with other arcs for the switches that do not reach its root any more, or did not yet.

    All others keep theirs, and so the tag stays. No packet goes round meanwhile if switches are told in the order of
    their hops: each then sends to one that reaches the root already, and the others' old arcs form no loop.
    """
    gone = before.onward.keys() - graph.switches
    is_whole = not gone and len(before.onward) == len(graph.switches) - 1
    orphans = frozenset() if is_whole else graph.switches - before.onward.keys() - {root}
    cut = [port.switch for port in lost if before.onward.get(port.switch) == port.port]
    orphans |= _subtrees(before, graph, cut)
    # A copy as a whole, of which little is taken away: hundreds of trees may have led by one link.
    onward = before.onward.copy()
    for switch in (*orphans, *gone):
        onward.pop(switch, None)
    ways, hops = {root: (0.0, 0)}, dict[int, int]()
    queue: list[tuple[float, int, PortId, Arc]] = []
    for switch in orphans:
        for arc in graph.leaving[switch]:
            there = arc.target.switch
            if (there in onward or there == root) and arc.capacity >= MIN_FLOW_BIT_S:
                so_far = _way(there, onward, graph, ways)[0] + arc.latency + HOP_COST
                queue.append((so_far, switch, arc.source, arc))
    heapq.heapify(queue)
    while queue:
        so_far, here, port, arc = heapq.heappop(queue)
        if here in onward:
            continue
        there = arc.target.switch
        onward[here], hops[here] = port.port, (hops[there] if there in hops else ways[there][1]) + 1
        for farther in graph.arriving[here]:
            there = farther.source.switch
            if there in orphans and there not in onward and farther.capacity >= MIN_FLOW_BIT_S:
                heapq.heappush(queue, (so_far + farther.latency + HOP_COST, there, farther.source, farther))
    changed = frozenset(switch for switch in (*orphans, *gone) if onward.get(switch) != before.onward.get(switch))
    if not changed:
        return before
    known = {switch: count for switch, count in before.hops.items() if switch in onward}
    return replace(before, onward=onward, repairs=before.repairs + 1, repaired=changed, hops=known | hops)


def _subtrees(tree: Tree, graph: Graph, tops: Iterable[int]) -> frozenset[int]:
    """Return the switches that reach a tree's root by one of these, themselves included, as far as they are there."""
    found = {switch for switch in tops if switch in graph.switches}
    walk = list(found)
    for here in walk:
        for arc in graph.arriving[here]:
            there = arc.source.switch
            if tree.onward.get(there) == arc.source.port and there not in found:
                found.add(there)
                walk.append(there)
    return frozenset(found)


def _way(
    switch: int, onward: Mapping[int, int], graph: Graph, known: dict[int, tuple[float, int]]
) -> tuple[float, int]:
    """Return the cost from a switch of a tree to its root, and the number of links.

    `known` has what is known, and gets it.
    """
    walked: list[Arc] = []
    here = switch
    while here not in known:
        walked.append(graph.by_port[here][onward[here]])
        here = walked[-1].target.switch
    for arc in reversed(walked):
        cost, hops = known[arc.target.switch]
        known[arc.source.switch] = cost + arc.latency + HOP_COST, hops + 1
    return known[switch]


def _near(kept: Mapping[int, Arc], best: Mapping[int, Arc], root: int) -> bool:
    """Return true if a tree still reaches its root from everywhere, about as quickly as the best one."""
    ours, theirs = {root: (0.0, 0.0)}, {root: (0.0, 0.0)}
    for switch in kept:
        mine = _latency(kept, switch, ours)
        if mine is None or switch not in best:
            return False
        if _is_clearly_less(_latency(best, switch, theirs) or (0.0, 0.0), mine):
            return False
    return True


def _is_clearly_less(latency: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return true if a latency is worth a change from another one; with each is its uncertainty."""
    is_worth_it = other[0] > MIN_TREE_GAIN * latency[0] + MIN_TREE_GAIN_SECONDS
    return is_worth_it and other[0] - latency[0] > uncertain_difference(latency[1], other[1])


def _latency(
    tree: Mapping[int, Arc], switch: int, known: dict[int, tuple[float, float]]
) -> tuple[float, float] | None:
    """Return the latency from a switch to the root, and its uncertainty, seconds; None if it cannot reach it."""
    walked: list[int] = []
    here = switch
    while here not in known:
        if here not in tree or len(walked) > len(tree):
            return None
        walked.append(here)
        here = tree[here].target.switch
    for back in reversed(walked):
        latency, uncertainty = known[tree[back].target.switch]
        known[back] = latency + tree[back].latency, uncertainty + tree[back].uncertainty
    return known[switch]


def _flood(before: Flood | None, graph: Graph, tags: _Tags, now: NetworkState, tenant: int) -> Flood | None:
    """Return a spanning forest (Kruskal, by latency) that prefers the links of the last one.

    Links of drained switches come last, so that these are leaves where they can be, and before them those that may
    work or not.
    """
    if not graph.switches:
        return None
    links = {(arc.source, arc.target): arc for arc in graph.arcs if arc.source < arc.target}
    old = {link for link in links if before and all(end.port in before.ports.get(end.switch, ()) for end in link)}
    group = {switch: switch for switch in graph.switches}

    def find(switch: int) -> int:
        while group[switch] != switch:
            group[switch] = group[group[switch]]
            switch = group[switch]
        return switch

    ports: dict[int, set[int]] = {switch: set() for switch in graph.switches}

    drained = now.policies.drained

    def order(link: Hop) -> tuple[bool, bool, bool, float, Hop]:
        is_drained = any(end.switch in drained for end in link)
        is_stale = not now.stale.isdisjoint((link, link[::-1]))
        return is_drained, is_stale, link not in old, links[link].latency, link

    for link in sorted(links, key=order):
        ends = [find(end.switch) for end in link]
        if ends[0] != ends[1]:
            group[ends[0]] = ends[1]
            for end in link:
                ports[end.switch].add(end.port)
    made = {switch: frozenset(each) for switch, each in ports.items()}
    # Adding a link is harmless. Removing one under the same tag could form a loop if it returned while another is
    # added.
    same = before is not None and all(
        each <= made.get(switch, frozenset()) for switch, each in before.ports.items() if switch in graph.switches
    )
    return Flood(before.tag if same and before else tags.new(tenant), made)


# Pairs of edges.


def _in_turn(before: Plan, edges: Iterable[Edge]) -> list[tuple[Edge, Edge]]:
    """Return all pairs of edges: new ones, then those whose traffic was split longest ago."""
    pairs = {
        (source.name, target.name): (source, target)
        for source in edges
        for target in edges
        if source.port.switch != target.port.switch and source.tenant == target.tenant
    }
    known = [key for key in before.pairs if key in pairs]
    return [pairs[key] for key in (*(key for key in pairs if key not in before.pairs), *known)]


def _is_usable(pair: Pair, source: Edge, target: Edge, now: NetworkState, wiring: Collection[Hop]) -> bool:
    """Return true if all paths of a pair work, and no policy is about it."""
    if (pair.source, pair.target) != (source, target) or {source.name, target.name} & now.silent:
        return False
    if now.policies.pin_of(source.name, target.name) is not None:
        return False
    avoided = now.full | now.policies.drained | now.unreachable
    for path in pair.selection.paths:
        if path.hops in now.dead or not all(hop in wiring for hop in path.hops):
            return False
        if avoided and not avoided.isdisjoint(path.switches[1:-1]):
            return False
    return True


def _pair(
    before: Pair | None, now: NetworkState, source: Edge, target: Edge, tags: _Tags
) -> Generator[None, None, Pair | str]:
    """Split a pair's traffic in pieces; return the reason if that is not possible."""
    for edge in (source, target):
        if edge.port.switch not in now.graph.switches:
            return f"the switch of {edge.name} is not connected"
        if edge.name in now.silent:
            return f"{edge.name} answers no probes"
    seen = now.seen_by(now.graph, before) if before else now.graph
    here, there = source.port.switch, target.port.switch
    graph = _usable(seen, now, {here, there})
    yield
    flow = yield from max_flow_pieces(graph, here, there)
    yield
    fresh = _fresh(flow, graph, here, there, now)
    if fresh is None and now.policies.drained:
        graph = _usable(seen, replace(now, policies=replace(now.policies, drained=frozenset())), {here, there})
        flow = yield from max_flow_pieces(graph, here, there)
        fresh = _fresh(flow, graph, here, there, now)
    if fresh is None:
        return f"no way leads from {source.name} to {target.name}"
    pinned = _pinned(before, graph, now, source, target)
    if pinned is not None:
        return _told(_pair_of(before, source, target, pinned, tags), before, flow.value, now)
    yield
    kept = _as_before(before, graph, now) if before else None
    if kept is not None:
        used = {path.hops for path in kept.paths}
        # Only the paths in use were looked at again: those that do not fit the best ones are left out as before.
        kept = replace(kept, left_out=tuple(each for each in fresh.left_out if each.path.hops not in used))
    chosen = kept if kept is not None and not _better(fresh, kept) else fresh
    try:
        made = _pair_of(before, source, target, chosen, tags)
    except TagsExhaustedError:
        if kept is None:
            raise
        made = _pair_of(before, source, target, kept, tags)
    return _told(made, before, flow.value, now)


def _told(made: Pair, before: Pair | None, value: float, now: NetworkState) -> Pair:
    """Return a pair with what its edges, and people, are told about it, among that the maximum flow."""
    is_withdrawn = _is_path_withdrawn(now.known.get(made.key, before), made, now)
    return replace(made, path_withdrawn=is_withdrawn, max_flow=value)


def _fresh(flow: Flow, graph: Graph, here: int, there: int, now: NetworkState) -> Selection | None:
    """Return the best paths of a maximum flow from one switch to another, or the quickest one, whatever its load."""
    fresh = select(_alive(decompose(flow, here, there), now), now.limits)
    if fresh is not None:
        return fresh
    single = _single(graph, here, there, now)
    return select([single], now.limits) if single is not None else None


def _pinned(before: Pair | None, graph: Graph, now: NetworkState, source: Edge, target: Edge) -> Selection | None:
    """Return the path that an operator pinned a pair to; None if there is none, or it cannot be used."""
    switches = now.policies.pin_of(source.name, target.name)
    if switches is None or (switches[0], switches[-1]) != (source.port.switch, target.port.switch):
        return None
    used = [step for path in before.paths for step in path.steps] if before else []
    way = along(graph, switches, used)
    if not way:
        return None
    path = Path(way, max(1.0, min(arc.free for arc in way)))
    return select([_capped(path, now)], now.limits) if path.hops not in now.dead else None


def _is_path_withdrawn(known: Pair | None, made: Pair, now: NetworkState) -> bool:
    """Return true if a path that the far edge knows was withdrawn because it, or a link of it, is dead."""
    ways = zip(known.paths, known.selection.paths, strict=True) if known else ()
    used = {path.tag for path in made.paths}
    gone = [way for path, way in ways if path.tag not in used]
    return any(way.hops in now.dead or not now.graph.wiring.issuperset(way.hops) for way in gone)


def _usable(graph: Graph, now: NetworkState, ends: set[int]) -> Graph:
    """Return what paths between two switches may use."""
    avoided = (now.full | now.policies.drained) - ends
    if not avoided and not now.forbidden:
        return graph
    return Graph.of(
        (
            arc
            for arc in graph.arcs
            if not {arc.source.switch, arc.target.switch} & avoided and (arc.source, arc.target) not in now.forbidden
        ),
        graph.switches - avoided,
    )


def _alive(paths: Iterable[Path], now: NetworkState) -> list[Path]:
    """Return paths that work, with at most their learned capacity."""
    return [_capped(path, now) for path in paths if path.hops not in now.dead]


def _capped(path: Path, now: NetworkState) -> Path:
    limit = now.learned.get(path.hops)
    return path if limit is None or limit >= path.capacity else replace(path, capacity=limit)


def _single(graph: Graph, here: int, there: int, now: NetworkState) -> Path | None:
    """Return the quickest path, whatever its load."""
    way = arcs_to_root(tree_towards(graph, there), here, there)
    if not way:
        return None
    path = Path(way, max(1.0, min(arc.free for arc in way)))
    return path if path.hops not in now.dead else None


def _as_before(before: Pair, graph: Graph, now: NetworkState) -> Selection | None:
    """Return the paths in use with their present capacity, or None if one of them cannot be used any more."""
    hops = {hop for path in before.selection.paths for hop in path.hops}
    arcs = {hop: arc for arc in graph.arcs if (hop := (arc.source, arc.target)) in hops}
    left: dict[tuple[PortId, PortId], float] = {key: arc.free for key, arc in arcs.items()}
    again = []
    for path in before.selection.paths:
        if path.hops in now.dead or not all(hop in arcs for hop in path.hops):
            return None
        room = min(left[hop] for hop in path.hops)
        if room < 1.0:
            return None
        for hop in path.hops:
            left[hop] -= room
        again.append(_capped(Path(tuple(arcs[hop] for hop in path.hops), room), now))
    kept = select(again, now.limits.for_those_in_use(), uncertain=UNCERTAINTY_HYSTERESIS)
    return kept if kept is not None and len(kept.paths) == len(again) else None


def _better(fresh: Selection, kept: Selection) -> bool:
    """Return true if new paths carry clearly more, or as much with clearly less latency."""
    if fresh.capacity > MIN_CAPACITY_GAIN * kept.capacity:
        return True
    slowest, now_slowest = fresh.paths[-1], kept.paths[-1]
    sooner = _is_clearly_less((slowest.latency, slowest.uncertainty), (now_slowest.latency, now_slowest.uncertainty))
    return sooner and fresh.capacity * MIN_CAPACITY_GAIN >= kept.capacity


def _pair_of(before: Pair | None, source: Edge, target: Edge, chosen: Selection, tags: _Tags) -> Pair:
    is_same = before is not None and before.source.tenant == source.tenant
    known = {path.steps: path.tag for path in before.paths} if before is not None and is_same else {}
    paths = []
    for path in chosen.paths:
        steps = (*(arc.source for arc in path.arcs), target.port)
        paths.append(TaggedPath(known.get(steps) or tags.new(source.tenant), steps))
    weights = {tagged.tag: path.capacity for tagged, path in zip(paths, chosen.paths, strict=True)}
    return Pair(source, target, chosen, tuple(paths), _slots(before, weights))


def _slots(before: Pair | None, weights: dict[int, float]) -> tuple[int, ...]:
    if before is None:
        return tuple(slot_table.spread(weights))
    total = sum(weights.values())
    same = set(before.slots) == set(weights)
    if same and all(abs(before.share(tag) - weight / total) < MIN_SHARE_CHANGE for tag, weight in weights.items()):
        return before.slots
    # No flow sticks to an edge's slot, so an even table is worth more than few moves.
    return tuple(slot_table.spread(weights))
