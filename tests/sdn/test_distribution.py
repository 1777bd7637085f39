"""Distribution of tables: the far edge knows a tag before any packet bears it. And counters of edges."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric.api import report
from braid_sdn.fabric.edges.distribution import ACKNOWLEDGE_TIMEOUT, ACTIVE_EDGE_TIMEOUT, Distributor, Pairs
from braid_sdn.fabric.edges.polling import CounterPoller
from braid_sdn.fabric.monitor.loss import CounterSample
from braid_sdn.fabric.monitor.path_monitor import PathMonitor
from braid_sdn.fabric.monitor.probe_train import FIRST_FRAMES, TRAIN_FRAMES, TRAINS, ProbeTrains
from braid_sdn.fabric.plan.forecast import Scheduler
from braid_sdn.fabric.plan.plan import Plan
from braid_sdn.fabric.view.path_rates import PathRates

from .test_plan import planned, two_ways
from .virtual import Network, frame, mac, ready


def egress(net: Network, edge: str) -> set[int]:
    """The tags that an edge is told to send by."""
    table = report.edge_table(net.controller, edge)
    assert table is not None
    return {tag for each in table["egress"] for tag in each["slots"]}


def ingress(net: Network, edge: str) -> set[int]:
    """The tags that an edge is told to take."""
    table = report.edge_table(net.controller, edge)
    assert table is not None
    return {path["tag"] for each in table["ingress"] for path in each["paths"]}


def asks(net: Network, edge: str) -> bool:
    """Have an edge acknowledge its table; return true if that made a new one."""
    return net.controller.handle_edge(net.now, edge, current=True)


def returning(*following: str) -> Network:
    """One of two paths comes back, under new tags, and these edges had asked since it had gone."""
    net = ready(two_paths())
    net.unplug("A", "P")
    net.run(2)
    for edge in following:
        assert not asks(net, edge)
    net.unplug("A", "P", up=True)
    net.run_until(lambda: len(ingress(net, "hb")) == 2, within=5)
    return net


def test_edges_are_told_what_lines_carry_where_the_configuration_says_so() -> None:
    net = ready(two_paths(mbit=10))

    def ceilings() -> list[int]:
        table = report.edge_table(net.controller, "ha")
        assert table is not None
        return [each["max_rate_bit_s"] for each in table["egress"]]

    assert ceilings() == [20_000_000]
    net.unplug("A", "P")
    net.run(2)
    assert ceilings() == [10_000_000]


def test_what_ports_say_of_their_speed_is_no_word_on_what_lines_carry() -> None:
    net = ready(two_paths(mbit=10), links=())
    table = report.edge_table(net.controller, "ha")
    assert table is not None
    assert [each["max_rate_bit_s"] for each in table["egress"]] == [0]


def test_nobody_sends_by_new_tags_before_the_far_edge_follows() -> None:
    net = returning("ha", "hb")
    old = egress(net, "ha")
    assert len(old) == 1
    net.run(ACKNOWLEDGE_TIMEOUT / 5)
    assert egress(net, "ha") == old
    assert not asks(net, "hb")
    # The other direction's far edge is still to follow.
    assert egress(net, "ha") == old
    generation = net.controller.tables.generation
    assert asks(net, "ha")
    assert net.controller.tables.generation > generation
    assert egress(net, "ha") == ingress(net, "hb") > old
    assert egress(net, "hb") == ingress(net, "ha")
    # Old rules stay until both send so.
    assert not net.controller.updater.idle
    for edge in ("ha", "hb"):
        assert not asks(net, edge)
    net.run(1)
    assert net.controller.updater.idle


def test_an_edge_that_does_not_follow_is_waited_for_with_a_bound() -> None:
    net = returning("ha", "hb")
    assert not asks(net, "hb")
    took = net.run_until(lambda: len(egress(net, "ha")) == 2, within=1)
    assert took == pytest.approx(ACKNOWLEDGE_TIMEOUT, abs=0.05)


def test_an_edge_that_does_not_follow_is_waited_for_once_however_many_plans_there_are() -> None:
    net = returning("ha", "hb")
    assert not asks(net, "hb")
    began, number = net.now, 100
    while len(egress(net, "hb")) < 2:
        assert net.now - began < 2 * ACKNOWLEDGE_TIMEOUT
        # Somebody appears, so another plan is made.
        number += 1
        net.send("ha", frame(mac(number), "ff:ff:ff:ff:ff:ff", b"here I am"))
        net.run(ACKNOWLEDGE_TIMEOUT / 5)
    assert net.now - began >= 0.8 * ACKNOWLEDGE_TIMEOUT


def test_who_has_not_asked_for_long_is_not_waited_for() -> None:
    assert len(egress(returning(), "ha")) == 2
    net = ready(two_paths())
    for edge in ("ha", "hb"):
        asks(net, edge)
    net.run(ACTIVE_EDGE_TIMEOUT + 1)
    net.unplug("A", "P")
    net.run(2)
    net.unplug("A", "P", up=True)
    net.run_until(lambda: len(ingress(net, "hb")) == 2, within=5)
    assert len(egress(net, "ha")) == 2


def test_a_path_that_is_gone_is_left_without_waiting_for_anybody() -> None:
    net = ready(two_paths())
    for edge in ("ha", "hb"):
        asks(net, edge)
    net.run(0.1)
    net.unplug("A", "P")
    assert net.run_until(lambda: len(egress(net, "ha")) == 1, within=1) <= 0.05


def following() -> Distributor:
    """One whose edges have asked at second 0."""
    distributor = Distributor()
    for edge in ("ha", "hb"):
        distributor.handle_request(0.0, edge, current=True)
    return distributor


def test_the_wait_for_several_edges_ends_with_that_for_the_last_one() -> None:
    distributor, pairs = following(), planned(Plan(), two_ways()).pairs
    distributor.handle_plan(1.0, {("ha", "hb"): pairs["ha", "hb"]})
    distributor.handle_plan(1.2, pairs)
    assert distributor.poll_timeout() == 1.2 + ACKNOWLEDGE_TIMEOUT
    distributor.handle_timeout(1.0 + ACKNOWLEDGE_TIMEOUT)
    assert distributor.poll_affected() is None
    assert not distributor.tables.egress
    distributor.handle_timeout(1.2 + ACKNOWLEDGE_TIMEOUT)
    assert distributor.poll_affected() == {"ha", "hb"}
    assert distributor.tables.egress == pairs
    assert distributor.poll_timeout() is None


def test_a_plan_in_which_edges_see_no_change_is_no_news_to_them() -> None:
    distributor, pairs = following(), planned(Plan(), two_ways()).pairs
    distributor.handle_plan(1.0, pairs)
    distributor.handle_timeout(1.0 + ACKNOWLEDGE_TIMEOUT)
    assert distributor.poll_affected() == {"ha", "hb"}
    generation = distributor.tables.generation
    distributor.handle_plan(2.0, dict(pairs))
    assert distributor.tables.generation == generation
    assert distributor.poll_affected() == set()


def polled(pairs: Pairs) -> CounterPoller:
    """One whose edges send by these pairs, whose probes have come until second 1."""
    distributor, monitor = following(), PathMonitor()
    distributor.handle_plan(1.0, pairs)
    ways = [zip(pair.paths, (way.hops for way in pair.selection.paths), strict=True) for pair in pairs.values()]
    monitor.set_targets(1.0, [each for way in ways for each in way], [])
    return CounterPoller(monitor, distributor, PathRates())


@pytest.mark.parametrize(("gone", "asked"), [((), {"ha": 1, "hb": 1}), ((3,), {"hb": 1})])
def test_edges_are_asked_for_counters_of_paths_whose_probes_are_missing(
    gone: tuple[int], asked: dict[str, int]
) -> None:
    """Of a single path nobody asks how much was sent by it."""
    pairs = planned(Plan(), two_ways(*gone)).pairs
    poller = polled(pairs)
    poller.handle_timeout(1.01)
    assert poller.distributor.requests == {}
    missing = pairs["ha", "hb"].paths[0].tag
    for tag in poller.monitor.paths.keys() - {missing}:
        poller.monitor.handle_path_probe(1.1, tag, 0.02)
    poller.handle_timeout(1.1)
    assert poller.distributor.requests == asked


def test_counters_are_of_the_edge_s_own_paths_and_of_the_time_since_it_was_answered() -> None:
    pairs = planned(Plan(), two_ways()).pairs
    poller = polled(pairs)
    monitor = poller.monitor
    poller.handle_response(2.0, "ha")
    poller.handle_response(3.0, "hb")
    for now, packets in ((4.0, 100), (5.0, 130)):
        counts = dict.fromkeys(monitor.paths, packets)
        poller.handle_tx(now, "ha", counts)
        poller.handle_rx(now, "hb", counts)
    for tag in (path.tag for path in pairs["ha", "hb"].paths):
        assert monitor.paths[tag].rx == CounterSample(3.0, 5.0, 130)
        assert monitor.paths[tag].ledger.sent_since(4.0) == 30
    for tag in (path.tag for path in pairs["hb", "ha"].paths):
        assert monitor.paths[tag].rx is None
        assert monitor.paths[tag].ledger.sent_since(4.0) is None


def path_withdrawn(net: Network, edge: str) -> list[bool]:
    """Return for each source if an edge is told that a path was withdrawn."""
    table = report.edge_table(net.controller, edge)
    assert table is not None
    return [each["path_withdrawn"] for each in table["ingress"]]


def test_that_a_path_was_given_up_is_told_until_the_far_edge_has_heard_it() -> None:
    net = ready(two_paths())
    for edge in ("ha", "hb"):
        asks(net, edge)
    assert path_withdrawn(net, "hb") == [False]
    net.unplug("A", "P")
    net.run_until(lambda: len(ingress(net, "hb")) == 1, within=1)
    assert path_withdrawn(net, "hb") == [True]
    # It is slow to ask, and other plans are made meanwhile.
    plans = len(net.controller.planning)
    net.run_until(lambda: len(net.controller.planning) > plans + 1, within=10)
    assert path_withdrawn(net, "hb") == [True]
    asks(net, "hb")
    plans = len(net.controller.planning)
    net.run_until(lambda: len(net.controller.planning) > plans + 1, within=10)
    assert path_withdrawn(net, "hb") == [False]
    assert path_withdrawn(net, "ha") == [True]


def forecasts(net: Network, edge: str) -> list[tuple[float, float]]:
    """The rate and the delay, ms, of each path that an edge is told to send by, the quickest first."""
    table = report.edge_table(net.controller, edge)
    assert table is not None
    told = [(path["rate_bit_s"], path["delay_ms"]) for each in table["egress"] for path in each["paths"]]
    return sorted(told, key=lambda path: path[1])


def test_edges_are_told_what_to_expect_of_their_paths() -> None:
    net = ready(two_paths(mbit=10, delay_ms=20, other_ms=50))
    assert [rate for rate, _ in forecasts(net, "ha")] == [10_000_000] * 2
    assert [delay for _, delay in forecasts(net, "ha")] == pytest.approx([20, 50], abs=1)
    table = report.edge_table(net.controller, "ha")
    assert table is not None
    latencies = [path["latency_ms"] for each in table["egress"] for path in each["paths"]]
    assert sorted(latencies) == pytest.approx([20, 50], abs=1)


def test_with_weighted_round_robin_edges_get_slots_and_no_forecasts() -> None:
    net = ready(two_paths(mbit=10, delay_ms=20, other_ms=50), scheduler=Scheduler.WRR)
    net.run(2)
    assert forecasts(net, "ha") == []
    assert len(egress(net, "ha")) == 2


def test_an_edge_that_sends_is_told_of_a_queue_of_others_within_a_second() -> None:
    net = ready(two_paths(mbit=10, delay_ms=20, other_ms=50))
    revisions = {edge: report.edge_revision(net.controller, edge) for edge in ("ha", "hb")}
    generation = net.controller.tables.generation
    # 30 ms of a queue, from here on one way.
    net.delay[net.port_of("A", "P")] += 0.030
    net.run(1)
    assert [delay for _, delay in forecasts(net, "ha")] == pytest.approx([50, 50], abs=1)
    assert report.edge_revision(net.controller, "ha") != revisions["ha"]
    assert report.edge_revision(net.controller, "hb") == revisions["hb"]
    # No plan was made anew for it, and nothing has to be acknowledged.
    assert net.controller.tables.generation == generation


def test_a_queue_that_stands_for_a_minute_is_no_latency() -> None:
    """A flow's own queue had been taken for its path's latency after 30 s, and the flow moved to a path of others."""
    net = ready(two_paths(mbit=10, delay_ms=20, other_ms=50))
    net.delay[net.port_of("A", "P")] += 0.070
    net.run(60)
    pair = net.controller.tables.pairs["ha", "hb"]
    assert [path.latency for path in pair.selection.paths] == pytest.approx([0.02, 0.05], abs=0.001)


@dataclass
class CountedTrains(ProbeTrains):
    """Counts the frames that arrive."""

    frames: int = 0

    def handle_frame(self, now: float, tag: int, sent: float) -> None:
        self.frames += 1
        super().handle_frame(now, tag, sent)


@pytest.mark.parametrize("configured", [False, True])
def test_trains_are_sent_over_idle_paths_of_unknown_capacity_alone(*, configured: bool) -> None:
    net = Network(two_paths(mbit=10)) if configured else Network(two_paths(mbit=10), links=())
    counted = net.controller.probe_trains = CountedTrains()
    net.connect()
    net.run(20)
    # Nothing is narrow here. Some trains lead up to the longest one, and two of that kind suffice.
    each = FIRST_FRAMES + 2 + 8 + TRAIN_FRAMES * (1 + TRAINS // 2)
    assert counted.frames == (0 if configured else 2 * 2 * each)
