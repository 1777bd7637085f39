"""Hysteresis of the planner: small gains move nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from braid_sdn.fabric.model import Arc, Graph, PortId
from braid_sdn.fabric.plan.mdi import Thresholds
from braid_sdn.fabric.plan.plan import Edge, Host, Pair, Plan
from braid_sdn.fabric.plan.planner import NetworkState, make
from braid_sdn.fabric.plan.policies import Policies
from braid_sdn.fabric.tenants import NOBODY, TAGS

HA, HB = Edge("ha", PortId(1, 9)), Edge("hb", PortId(2, 9))

#: However alike two paths are, one is used.
ONE = Thresholds(tolerable_skew=0.0, leave_out_mdi=0.0)


@dataclass(frozen=True)
class Way:
    """A way from switch 1 to switch 2: Mbit/s that are free on it, and its latency, ms."""

    mbit: float
    ms: float
    #: ms by which that may be wrong.
    uncertain: float = 0.0


def pair(before: Pair | None, by_3: Way, by_4: Way, limits: Thresholds) -> Pair:
    """Plan how the first edge's traffic goes to the second, by switch 3 and by switch 4."""
    arcs = []
    for middle, way in ((3, by_3), (4, by_4)):
        for one, other in ((1, middle), (middle, 2)):
            ends = PortId(one, other), PortId(other, one)
            used = 20e6 - 1e6 * way.mbit
            arcs += [
                Arc(*each, 20e6, used, way.ms / 2000, uncertainty=way.uncertain / 2000) for each in (ends, ends[::-1])
            ]
    plan = Plan(pairs={before.key: before} if before else {})
    return make(plan, NetworkState(Graph.of(arcs), edges=(HA, HB), limits=limits)).pairs["ha", "hb"]


def used(made: Pair) -> list[int]:
    return [path.switches[1] for path in made.selection.paths]


@pytest.mark.parametrize(
    ("by_4", "after"),
    [
        # Alone it would be taken from 10.5 on: of paths in use, a tenth more is wanted.
        (Way(10.8, 30), [3]),
        (Way(11.2, 30), [4]),
        # As much, and sooner: by a fifth and a millisecond.
        (Way(10, 16.5), [3]),
        (Way(10, 14), [4]),
        # Sooner, and a little less.
        (Way(9.6, 14), [4]),
        # Sooner, and clearly less.
        (Way(9, 14), [3]),
    ],
)
def test_another_path_must_carry_clearly_more_or_as_much_clearly_sooner(by_4: Way, after: list[int]) -> None:
    by_3 = Way(10, 20)
    before = pair(None, by_3, Way(1, 30), ONE)
    assert used(before) == [3]
    assert used(pair(before, by_3, by_4, ONE)) == after


def test_a_path_in_use_may_be_a_little_beyond_the_bound_and_carries_on() -> None:
    limits = Thresholds(leave_out_skew=0.020)
    both = pair(None, Way(10, 20), Way(10, 38), limits)
    assert used(both) == [3, 4]
    # The quicker one alone is clearly sooner, and half as much.
    assert used(pair(both, Way(10, 20), Way(10, 41), limits)) == [3, 4]
    assert used(pair(both, Way(10, 20), Way(10, 43), limits)) == [3]
    assert used(pair(None, Way(10, 20), Way(10, 41), limits)) == [3]


def test_a_path_is_left_out_for_a_reason_also_in_plans_that_change_nothing() -> None:
    limits = Thresholds(leave_out_skew=0.020)
    made = pair(None, Way(10, 20), Way(10, 43), limits)
    for _ in range(3):
        assert used(made) == [3]
        (left,) = made.selection.left_out
        assert (left.path.switches, left.reason) == (
            (1, 4, 2),
            "23.0 ms slower than the quickest, above 20 ms (skew)",
        )
        made = pair(made, Way(10, 20), Way(10, 43), limits)
    # Within the bound for paths in use one stays, and is not left out at the same time.
    both = pair(pair(None, Way(10, 20), Way(10, 38), limits), Way(10, 20), Way(10, 41), limits)
    assert used(both) == [3, 4]
    assert both.selection.left_out == ()


def test_a_path_is_left_out_if_it_is_slower_by_more_than_is_uncertain() -> None:
    limits = Thresholds()
    assert used(pair(None, Way(10, 0.2), Way(10, 5.2), limits)) == [3]
    assert used(pair(None, Way(10, 0.2, 2.0), Way(10, 5.2, 2.9), limits)) == [3]
    both = pair(None, Way(10, 0.2, 2.0), Way(10, 5.2, 3.1), limits)
    assert used(both) == [3, 4]
    # The uncertainty varies. The path stays until that is half of the difference, and out until that is all of it.
    assert used(pair(both, Way(10, 0.2, 2.0), Way(10, 5.2, 0.6), limits)) == [3, 4]
    alone = pair(both, Way(10, 0.2, 2.0), Way(10, 5.2, 0.4), limits)
    assert used(alone) == [3]
    assert used(pair(alone, Way(10, 0.2, 2.0), Way(10, 5.2, 2.9), limits)) == [3]


def square(*by_2_and_by_3: Way) -> Graph:
    """Return a network in which switch 1 reaches switch 4 by 2 and by 3."""
    return Graph.of(
        Arc(PortId(one, other), PortId(other, one), 1e9, 0.0, way.ms / 2000, uncertainty=way.uncertain / 2000)
        for middle, way in enumerate(by_2_and_by_3, 2)
        for one, other in ((1, middle), (middle, 1), (middle, 4), (4, middle))
    )


CORNERS = Edge("ha", PortId(1, 9)), Edge("hb", PortId(4, 9))
CORNER_HOSTS = tuple(Host(f"02:00:00:00:00:0{number}", edge.port) for number, edge in enumerate(CORNERS, 1))


def at_corners(before: Plan, graph: Graph, drained: frozenset[int] = frozenset()) -> Plan:
    policies = Policies(drained=drained)
    return make(before, NetworkState(graph, CORNER_HOSTS, edges=CORNERS, policies=policies, review=(4,)))


@pytest.mark.parametrize(("uncertain", "after"), [(0.0, 3), (2.5, 3), (3.5, 2)])
def test_a_tree_is_not_replaced_by_one_that_may_be_no_quicker(uncertain: float, after: int) -> None:
    tree = at_corners(Plan(), square(Way(10, 20), Way(10, 30)))
    assert tree.trees[4].onward[1] == 2
    now = square(Way(10, 20, 3.0), Way(10, 14, uncertain))
    assert at_corners(tree, now).trees[4].onward[1] == after


@pytest.mark.parametrize("uncertain", [0.0, 1000.0, math.inf])
def test_a_drained_switch_is_left_however_uncertain_latencies_are(uncertain: float) -> None:
    graph = square(Way(10, 20, uncertain), Way(10, 20, uncertain))
    before = at_corners(Plan(), graph)
    assert len(before.pairs["ha", "hb"].paths) == 2
    through = before.trees[4].onward[1]
    after = at_corners(before, graph, frozenset({through}))
    assert after.trees[4].onward[1] == 5 - through
    assert used(after.pairs["ha", "hb"]) == [5 - through]


def test_a_share_that_is_off_by_a_little_moves_no_slot() -> None:
    even = pair(None, Way(10, 20), Way(10, 20), Thresholds())
    assert used(even) == [3, 4]
    # 0.526 instead of 0.5, then 0.588.
    assert pair(even, Way(10, 20), Way(9, 20), Thresholds()).slots == even.slots
    moved = pair(even, Way(10, 20), Way(7, 20), Thresholds())
    assert moved.share(moved.paths[0].tag) == pytest.approx(10 / 17, abs=0.01)


def test_a_flood_for_which_no_tag_was_left_is_made_when_there_is_one() -> None:
    """A triangle loses a link of its flood, and all tags are in use meanwhile."""
    wires = [(PortId(one, other), PortId(other, one)) for one, other in ((1, 2), (2, 3), (1, 3))]
    arcs = [Arc(*ends, 1e9) for wire in wires for ends in (wire, wire[::-1])]
    switches = frozenset({1, 2, 3})
    whole = make(Plan(), NetworkState(Graph.of(arcs, switches)))
    link = next(wire for wire in wires if wire[0].port in whole.floods[NOBODY].ports[wire[0].switch])
    cut = Graph.of([arc for arc in arcs if {arc.source, arc.target} != set(link)], switches)
    short = make(whole, NetworkState(cut, tags_in_use=frozenset(TAGS)))
    assert short.is_flood_old
    made = make(short, NetworkState(cut))
    assert {switch: set(ports) for switch, ports in made.floods[NOBODY].ports.items()} == {
        switch: set(cut.ports[switch]) for switch in switches
    }
    assert make(made, NetworkState(cut)).floods[NOBODY] is made.floods[NOBODY]


def test_a_switch_whose_only_link_had_no_capacity_joins_the_trees_when_it_has() -> None:
    def graph(capacity: float) -> Graph:
        wires = (((PortId(1, 2), PortId(2, 1)), 1e9), ((PortId(2, 3), PortId(3, 2)), capacity))
        return Graph.of(Arc(*ends, each) for wire, each in wires for ends in (wire, wire[::-1]))

    hosts = (Host("02:00:00:00:00:01", PortId(1, 9)),)
    before = make(Plan(), NetworkState(graph(0.0), hosts))
    assert before.trees[1].onward == {2: 1}
    assert make(before, NetworkState(graph(1e9), hosts, review=(1,))).trees[1].onward == {2: 1, 3: 2}


def test_so_many_new_trees_are_made_at_a_time_and_those_that_are_there_do_not_count() -> None:
    wires = [(PortId(one, other), PortId(other, one)) for one, other in ((1, 2), (2, 3), (3, 4))]
    graph = Graph.of([Arc(*ends, 1e9) for wire in wires for ends in (wire, wire[::-1])])
    hosts = tuple(Host(f"02:00:00:00:00:0{number}", PortId(number, 9)) for number in (1, 2, 3, 4))
    plan, made = Plan(), []
    for _ in range(3):
        plan = make(plan, NetworkState(graph, hosts, most_trees=2))
        made.append((set(plan.trees), plan.left))
    assert made == [({1, 2}, (3, 4)), ({1, 2, 3, 4}, ()), ({1, 2, 3, 4}, ())]


def test_where_tags_are_used_up_those_who_have_one_keep_it_and_those_who_do_not_are_named() -> None:
    wires = [(PortId(one, other), PortId(other, one)) for one, other in ((1, 2), (2, 3), (3, 4))]
    graph = Graph.of([Arc(*ends, 1e9) for wire in wires for ends in (wire, wire[::-1])])
    hosts = [Host(f"02:00:00:00:00:0{number}", PortId(number, 9)) for number in (1, 2, 3, 4)]
    before = make(Plan(), NetworkState(graph, (hosts[0], hosts[2])))
    short = make(before, NetworkState(graph, tuple(hosts), tags_in_use=frozenset(TAGS)))
    assert short.trees == before.trees
    assert short.tagless == (2, 4)
    # One tag becomes free.
    free = frozenset(TAGS) - {TAGS[-1]}
    after = make(short, NetworkState(graph, tuple(hosts), tags_in_use=free))
    assert (set(after.trees), after.tagless) == ({1, 2, 3}, (4,))


def test_a_pair_for_whose_better_path_no_tag_is_left_keeps_the_one_it_has() -> None:
    def graph(ms: float) -> Graph:
        arcs = []
        for middle, latency in ((3, 20.0), (4, ms)):
            for one, other in ((1, middle), (middle, 2)):
                ends = PortId(one, other), PortId(other, one)
                arcs += [Arc(*each, 10e6, 0.0, latency / 2000) for each in (ends, ends[::-1])]
        return Graph.of(arcs)

    before = make(Plan(), NetworkState(graph(500), edges=(HA, HB), limits=ONE))
    assert used(before.pairs["ha", "hb"]) == [3]
    state = NetworkState(graph(1), edges=(HA, HB), limits=ONE, tags_in_use=frozenset(TAGS))
    short = make(before, state)
    assert short.pairs["ha", "hb"].paths == before.pairs["ha", "hb"].paths
    assert not short.unserved
