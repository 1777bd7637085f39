"""Pairs that work stay as they are while something urgent waits, or a plan is the rest of another; others do not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from braid_lab.fabric.shapes import east_asia, fat_tree, generated
from braid_sdn.fabric.model import Graph, PortId
from braid_sdn.fabric.plan.plan import Edge, Pair, Plan
from braid_sdn.fabric.plan.planner import NetworkState, Work, make
from braid_sdn.fabric.plan.policies import Policies

from .virtual import Network, graph_of, ready


def is_working(pair: Pair, state: NetworkState) -> bool:
    """True if all paths of a pair can be used in a state of the network."""
    wiring = {(arc.source, arc.target) for arc in state.graph.arcs} - state.forbidden
    return all(
        path.hops not in state.dead
        and wiring.issuperset(path.hops)
        and not set(path.switches[1:-1]) & (state.full | state.policies.drained | state.unreachable)
        for path in pair.selection.paths
    )


def disturbed(state: NetworkState, plan: Plan, rnd: random.Random) -> NetworkState:
    """Return the same network with a few failures and policies of all sorts."""
    switches = sorted(state.graph.switches)
    arcs = list(state.graph.arcs)
    for _ in range(rnd.randrange(3)):
        gone = rnd.choice(arcs)
        arcs = [arc for arc in arcs if {arc.source, arc.target} != {gone.source, gone.target}]
    ways = [path.hops for pair in plan.pairs.values() for path in pair.selection.paths]
    forbidden = rnd.choice(arcs)
    return replace(
        state,
        # All of them have other loads by now.
        graph=Graph.of((replace(arc, used=rnd.uniform(0, arc.capacity / 2)) for arc in arcs), switches),
        dead=frozenset(rnd.sample(ways, rnd.randrange(3))),
        full=frozenset(rnd.sample(switches, rnd.randrange(2))),
        unreachable=frozenset(rnd.sample(switches, rnd.randrange(2))),
        silent=frozenset(edge.name for edge in rnd.sample(state.edges, rnd.randrange(2))),
        policies=Policies(drained=frozenset(rnd.sample(switches, rnd.randrange(2)))),
        forbidden=frozenset({(forbidden.source, forbidden.target)} if rnd.random() < 0.5 else ()),
    )


@pytest.mark.parametrize("seed", range(40))
def test_of_random_failures_those_pairs_alone_are_split_anew_that_they_concern(seed: int) -> None:
    rnd = random.Random(seed)
    graph = graph_of(generated(10, seed=seed))
    edges = tuple(Edge(f"e{number}", PortId(number, 99)) for number in (1, 3, 5, 7))
    state = NetworkState(graph, edges=edges)
    before = make(Plan(), state)
    assert not before.has_kept_pairs
    after = disturbed(state, before, rnd)
    plan = make(before, replace(after, keeps_pairs=lambda: True))
    whole = make(before, after)
    assert not whole.has_kept_pairs
    assert plan.pairs.keys() == whole.pairs.keys()
    assert plan.unserved == whole.unserved
    kept = 0
    for key, pair in plan.pairs.items():
        known = before.pairs.get(key)
        if known is not None and is_working(known, after):
            kept += 1
            assert pair == replace(known, path_withdrawn=False)
        else:
            # But for its tags, which are as new as the others are many.
            assert (pair.selection, pair.path_withdrawn) == (
                whole.pairs[key].selection,
                whole.pairs[key].path_withdrawn,
            )
    assert plan.has_kept_pairs == (kept > 0)


def test_a_pair_that_is_pinned_is_looked_at_each_time() -> None:
    graph = graph_of(fat_tree(4, hosts=2))
    ends = sorted(graph.switches)[-2:]
    edges = tuple(Edge(name, PortId(switch, 99)) for name, switch in zip(("ha", "hb"), ends, strict=True))
    state = NetworkState(graph, edges=edges)
    before = make(Plan(), state)
    way = before.pairs["ha", "hb"].selection.paths[0].switches
    pinned = replace(state, policies=Policies(pinned={("ha", "hb"): way}), keeps_pairs=lambda: True)
    plan = make(before, pinned)
    assert plan.pairs == make(before, replace(pinned, keeps_pairs=lambda: False)).pairs
    assert len(plan.pairs["ha", "hb"].paths) == 1


def test_what_becomes_urgent_leaves_the_other_pairs_for_the_next_plan_where_they_come_first() -> None:
    graph = graph_of(generated(10, seed=1))
    edges = tuple(Edge(f"e{number}", PortId(number, 99)) for number in (1, 3, 5))
    state = NetworkState(graph, edges=edges)
    before = make(Plan(), state)
    is_urgent = False
    work = Work(before, replace(state, keeps_pairs=lambda: is_urgent))
    # The first pair is begun with the first piece: no tree is there, nor another flood.
    assert work.poll() is None
    is_urgent = True
    while (plan := work.poll()) is None:
        pass
    first, *others = before.pairs
    assert [*plan.pairs] == [*others, first]
    assert plan.has_kept_pairs


def until_split(net: Network) -> float:
    """Let time pass until the traffic of all pairs was split anew; return how long that took."""
    return net.run_until(lambda: not net.controller.plan.has_kept_pairs, within=2)


def test_after_a_failure_the_pairs_that_it_does_not_concern_are_split_by_the_next_plan() -> None:
    net = ready(east_asia())
    pairs = net.controller.plan.pairs
    net.unplug("BEJ", "SHA")
    net.run_until(lambda: net.controller.plan.pairs is not pairs, within=0.1)
    plan = net.controller.plan
    assert plan.has_kept_pairs
    assert all(is_working(each, NetworkState(net.controller.graph)) for each in plan.pairs.values())
    assert any(plan.pairs[key] == each for key, each in pairs.items())
    assert any(plan.pairs[key].paths != each.paths for key, each in pairs.items())
    assert until_split(net) < 1.0
