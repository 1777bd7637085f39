"""Maximum flow of least latency and its decomposition, against networkx on generated networks."""

from __future__ import annotations

import networkx as nx  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from braid_sdn.fabric.model import Arc, Graph, Path, PortId
from braid_sdn.fabric.plan.paths import MAX_PATHS, arcs_to_root, candidates, decompose, max_flow, tree_towards

from .virtual import graph_of

MBIT = 1_000_000


@st.composite
def graphs(draw: st.DrawFn, *, most: int = 8) -> Graph:
    """Networks of up to `most` switches whose links differ in both directions; not all of them connected."""
    count = draw(st.integers(2, most))
    pairs = [(a, b) for a in range(1, count + 1) for b in range(1, count + 1) if a != b]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=3 * count))
    arcs = []
    for number, (a, b) in enumerate(chosen):
        capacity, used = draw(st.integers(0, 20)), draw(st.integers(0, 5))
        latency = draw(st.integers(0, 50)) / 1000
        arcs.append(Arc(PortId(a, 100 + number), PortId(b, 200 + number), capacity * MBIT, used * MBIT, latency))
    return Graph.of(arcs, range(1, count + 1))


def reference(graph: Graph) -> tuple[float, float]:
    """Value and cost of a maximum flow of least cost from 1 to 2 by networkx's network simplex."""
    made = nx.DiGraph()
    made.add_nodes_from(graph.switches)
    for arc in graph.arcs:
        made.add_edge(
            arc.source.switch, arc.target.switch, capacity=round(arc.free / MBIT), weight=round(1000 * arc.latency)
        )
    flow = nx.max_flow_min_cost(made, 1, 2)
    into = sum(each.get(2, 0) for each in flow.values()) - sum(flow[2].values())
    return into * MBIT, nx.cost_of_flow(made, flow) * MBIT / 1000


@given(graphs())
@settings(max_examples=200)
def test_the_flow_is_the_greatest_and_of_those_the_one_of_least_latency(graph: Graph) -> None:
    flow = max_flow(graph, 1, 2)
    value, cost = reference(graph)
    assert abs(flow.value - value) < 10
    # Hops cost a microsecond of their own, which may decide between equals only.
    assert abs(flow.cost - cost) <= 1e-5 * max(1.0, flow.value) * len(graph.switches)


@given(graphs())
@settings(max_examples=200)
def test_what_flows_in_flows_out_and_fits(graph: Graph) -> None:
    flow = max_flow(graph, 1, 2)
    for arc, amount in flow.on.items():
        assert 0 < amount <= arc.free + 1
    for switch in graph.switches - {1, 2}:
        into = sum(amount for arc, amount in flow.on.items() if arc.target.switch == switch)
        out = sum(amount for arc, amount in flow.on.items() if arc.source.switch == switch)
        assert abs(into - out) < 10


@given(graphs())
@settings(max_examples=200)
def test_paths_lead_there_without_loops_and_fit_together(graph: Graph) -> None:
    flow = max_flow(graph, 1, 2)
    paths = decompose(flow, 1, 2)
    assert len(paths) <= MAX_PATHS
    assert bool(paths) == (flow.value >= 1)
    load: dict[Arc, float] = {}
    for path in paths:
        assert (path.switches[0], path.switches[-1]) == (1, 2)
        assert len(set(path.switches)) == len(path.switches)
        assert all(a.target.switch == b.source.switch for a, b in zip(path.arcs, path.arcs[1:], strict=False))
        for arc in path.arcs:
            load[arc] = load.get(arc, 0.0) + path.capacity
    assert all(amount <= arc.free + 1 for arc, amount in load.items())
    assert sum(path.capacity for path in paths) <= flow.value + 1
    assert [path.capacity for path in paths] == sorted((path.capacity for path in paths), reverse=True)
    if len(paths) < MAX_PATHS:
        # The missing part is a handful of paths below MIN_PATH_SHARE each.
        assert sum(path.capacity for path in paths) >= 0.5 * flow.value


@given(graphs())
@settings(max_examples=200)
def test_trees_are_shortest_ways(graph: Graph) -> None:
    tree = tree_towards(graph, 1)
    made = nx.MultiDiGraph()
    made.add_nodes_from(graph.switches)
    for arc in graph.arcs:
        if arc.capacity >= 1:
            made.add_edge(arc.target.switch, arc.source.switch, latency=arc.latency)
    best = nx.single_source_dijkstra_path_length(made, 1, weight="latency")
    assert set(tree) == set(best) - {1}
    for switch in tree:
        way = arcs_to_root(tree, switch, 1)
        assert way is not None
        assert abs(Path(way, 0).latency - best[switch]) < 1e-4


def names(path: Path) -> str:
    return "-".join(str(each) for each in path.switches)


def test_the_papers_paths_are_found() -> None:
    """[mpsdn] Table II, its four paths with their capacities and latencies."""
    from braid_lab.fabric.shapes import east_asia

    shape = east_asia()
    graph = graph_of(shape)

    def found(source: str, target: str) -> set[tuple[str, int, int]]:
        return {
            (
                "-".join(shape.switches[each - 1] for each in path.switches),
                round(path.capacity / 1e6),
                round(1000 * path.latency),
            )
            for path in candidates(graph, shape.dpid(source), shape.dpid(target))
        }

    assert found("BEJ", "HAW") == {("BEJ-SHA-TOK-HAW", 10, 95), ("BEJ-HKG-MAN-HAW", 10, 95)}
    assert found("TOK", "SYD") == {("TOK-SIN-SYD", 10, 60), ("TOK-SYD", 20, 60)}


def test_nothing_leads_nowhere() -> None:
    graph = Graph.of([], {1, 2})
    assert max_flow(graph, 1, 2).value == 0
    assert max_flow(graph, 1, 1).value == 0
    assert candidates(graph, 1, 7) == []
    assert arcs_to_root({}, 1, 2) is None
