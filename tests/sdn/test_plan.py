"""Changes of a plan that are distributed to edges."""

from __future__ import annotations

from dataclasses import replace

from braid_sdn.fabric.model import Arc, Graph, Path, PortId
from braid_sdn.fabric.plan.mdi import DeliveryOrder, Thresholds, select
from braid_sdn.fabric.plan.plan import Edge, Pair, Plan, differs_for_edges
from braid_sdn.fabric.plan.planner import NetworkState, make

HA, HB = Edge("ha", PortId(1, 9)), Edge("hb", PortId(2, 9))


def two_ways(*gone: int) -> Graph:
    """From switch 1 to 2 by 3 and by 4, but for those that are gone."""
    arcs = []
    for middle in {3, 4} - set(gone):
        for one, other in ((1, middle), (middle, 2)):
            ends = PortId(one, other), PortId(other, one)
            arcs += [Arc(*ends, 10e6, 0.0, 0.01), Arc(*ends[::-1], 10e6, 0.0, 0.01)]
    return Graph.of(arcs, (1, 2, 3, 4))


def planned(before: Plan, graph: Graph, *dead: Path) -> Plan:
    return make(before, NetworkState(graph, edges=(HA, HB), dead=frozenset(path.hops for path in dead)))


def pair() -> Pair:
    return planned(Plan(), two_ways()).pairs["ha", "hb"]


def test_free_capacity_is_no_business_of_edges_but_shares_are() -> None:
    was = pair()
    paths = [replace(path, capacity=7e6) for path in was.selection.paths]
    chosen = select(paths, Thresholds())
    assert chosen is not None
    assert not differs_for_edges(was, replace(was, selection=chosen))
    assert differs_for_edges(was, replace(was, slots=was.slots[::-1]))
    assert differs_for_edges(was, replace(was, selection=replace(was.selection, order=DeliveryOrder.RESEQUENCE)))
    assert differs_for_edges(None, was)
    assert differs_for_edges(was, None)
    assert not differs_for_edges(was, was)


def test_latencies_are_told_when_waits_depend_on_them() -> None:
    was = pair()

    def later(seconds: float) -> Pair:
        first, *others = was.selection.paths
        arc = replace(first.arcs[0], latency=first.arcs[0].latency + seconds)
        slower = replace(first, arcs=(arc, *first.arcs[1:]))
        return replace(was, selection=replace(was.selection, paths=(slower, *others)))

    assert not differs_for_edges(was, later(0.002))
    assert differs_for_edges(was, later(0.004))


def test_edges_are_told_when_a_path_is_given_up_and_not_when_it_is_only_left() -> None:
    was = planned(Plan(), two_ways())
    first = was.pairs["ha", "hb"].selection.paths[0]
    died = planned(was, two_ways(), first)
    assert len(died.pairs["ha", "hb"].paths) == 1
    assert died.pairs["ha", "hb"].path_withdrawn
    assert planned(was, two_ways(3)).pairs["ha", "hb"].path_withdrawn
    assert not planned(died, two_ways()).pairs["ha", "hb"].path_withdrawn
    assert not was.pairs["ha", "hb"].path_withdrawn


def test_a_path_was_given_up_for_a_far_edge_that_still_counts_on_it() -> None:
    was = planned(Plan(), two_ways())
    first = was.pairs["ha", "hb"].selection.paths[0]
    died = planned(was, two_ways(), first)

    def again(known: Plan, *dead: Path) -> bool:
        """Plan once more, however many plans there were since the one that it knows."""
        hops = frozenset(path.hops for path in dead)
        made = make(died, NetworkState(two_ways(), edges=(HA, HB), dead=hops, known=known.pairs))
        return made.pairs["ha", "hb"].path_withdrawn

    assert again(was, first)
    assert not again(died, first)
    # It works again, whether it is used or not.
    assert not again(was)
