"""Load and capacity of links, and the windowed minimum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid_sdn.fabric.model import Arc, Graph, PortId
from braid_sdn.fabric.switches.rules import PATHS
from braid_sdn.fabric.view.latency import SAMPLE_LIFETIME, WindowedMinimum, link_latency
from braid_sdn.fabric.view.load import (
    COUNTER_PERIOD,
    SATURATION_LIFETIME,
    UNKNOWN_CAPACITY,
    Saturation,
    capacity,
    observe,
    rates,
)
from braid_sdn.fabric.view.topology import LinkDirection
from braid_sdn.fabric.view.traffic import Traffic
from braid_sdn.openflow.messages import FlowStats, Match, Output, PortCounters, Rule


def test_rates_are_by_the_switchs_own_clock_and_directions_are_apart() -> None:
    seen = rates(PortCounters(1, 1000, 5000, 0, 10.0), PortCounters(1, 3000, 5000, 0, 12.0))
    assert seen is not None
    assert (seen.received, seen.sent) == (8000.0, 0.0)


def test_counters_that_begin_anew_say_nothing() -> None:
    assert rates(PortCounters(1, 1000, 5000, 0, 10.0), PortCounters(1, 10, 20, 0, 12.0)) is None
    assert rates(PortCounters(1, 1000, 5000, 0, 10.0), PortCounters(1, 1000, 5000, 0, 10.0)) is None


def test_a_full_link_shows_its_limit_and_is_believed_for_a_while() -> None:
    state = observe(Saturation(), 0, sent=20e6, received=10e6)
    # Once may be chance.
    assert state.limit is None
    state = observe(state, 2, sent=20e6, received=9.9e6)
    assert state.limit == 9.9e6
    assert observe(state, 4, sent=5e6, received=5e6).limit == 9.9e6
    # It carries more than that: whatever it was, it is over.
    assert observe(state, 4, sent=12e6, received=12e6).limit is None
    assert observe(state, 3 + SATURATION_LIFETIME, sent=5e6, received=5e6).limit is None


@pytest.mark.parametrize(("sent", "received"), [(10e6, 9.5e6), (1000.0, 0.0)])
def test_a_little_loss_or_a_lost_packet_on_an_idle_link_is_no_limit(sent: float, received: float) -> None:
    state = observe(observe(Saturation(), 0, sent, received), 2, sent, received)
    assert state.limit is None


def test_who_knows_best_says_the_capacity() -> None:
    assert capacity(5e6, 3e6, 1e9) == 5e6
    assert capacity(None, 3e6, 1e9) == 3e6
    assert capacity(None, None, 1e9, 1e8) == 1e8
    assert capacity(None, None, 0.0, 0.0) == UNKNOWN_CAPACITY


def test_our_own_paths_are_no_use_by_others() -> None:
    """Otherwise a path that is full of its own traffic would be left for being full."""
    a, b, c = PortId(1, 1), PortId(2, 2), PortId(3, 3)
    graph = Graph.of([Arc(a, PortId(2, 1), 10e6, 9e6), Arc(b, PortId(3, 1), 10e6, 9e6)])
    traffic = Traffic()
    # 8 Mbit/s came to switch 2 by tag 7, and 5 went on to switch 3.
    traffic.tagged = {(2, 7): 8e6, (3, 7): 5e6}
    seen = traffic.without_own(graph, {7: (a, b, c)})
    assert [arc.used for arc in seen.arcs] == [1e6, 4e6]


def test_rules_that_are_counted_late_make_no_others() -> None:
    """10 Mbit/s, all ours, of which the switch counted 7 in this period, and 13 in the previous one."""
    here, there = PortId(1, 1), PortId(2, 2)
    graph = Graph.of([Arc(here, PortId(2, 1), 10e6, 10e6)])
    traffic = Traffic(tagged={(2, 7): 7e6}, tagged_before={(2, 7): 13e6}, before={here: 10e6})
    assert [arc.used for arc in traffic.without_own(graph, {7: (here, there)}).arcs] == [0.0]
    # Load seen in both periods is real.
    traffic.tagged_before = {(2, 7): 6e6}
    assert [arc.used for arc in traffic.without_own(graph, {7: (here, there)}).arcs] == [3e6]
    # Ten times what the link carries is sent into it: that is nobody's lateness.
    full = Graph.of([Arc(here, PortId(2, 1), 10e6, 100e6)])
    traffic.tagged_before = {(2, 7): 13e6}
    assert [arc.used for arc in traffic.without_own(full, {7: (here, there)}).arcs] == [93e6]
    # Without traffic of ours no counter is late, and one period is enough.
    traffic.before = {here: 1e6}
    assert [arc.used for arc in traffic.without_own(graph, {7: (PortId(3, 3), there)}).arcs] == [10e6]


def test_tags_that_a_switch_has_no_rule_of_any_more_are_forgotten() -> None:
    """Each plan takes other tags, until they begin anew."""
    traffic = Traffic()
    for number, tag in enumerate((7, 7, 7, 8, 8, 8)):
        rule = Rule(PATHS, 10, Match(vlan=tag), (Output(1),))
        for switch in (1, 2):
            now = COUNTER_PERIOD * number
            traffic.handle_rules(now, switch, [FlowStats(rule, number, 1000 * number, now)])
    for known in (traffic._rules, traffic.tagged, traffic.tagged_before):
        assert known.keys() == {(1, 8), (2, 8)}
    traffic.forget(1)
    for known in (traffic._rules, traffic.tagged, traffic.tagged_before):
        assert known.keys() == {(2, 8)}


def test_counters_that_were_asked_for_in_between_make_no_rate() -> None:
    traffic = Traffic()
    for age, octets in ((0.0, 0), (2.0, 2000), (2.05, 9000), (4.0, 4000)):
        traffic.handle_ports(1, [PortCounters(1, octets, octets, 0, age)])
        if age == 2.05:
            assert traffic.rates[PortId(1, 1)].sent == 8000.0
    assert traffic.rates[PortId(1, 1)].sent == 8000.0
    assert traffic.before[PortId(1, 1)] == 8000.0


@pytest.mark.parametrize("period", [COUNTER_PERIOD, 5.0, 20.0])
def test_a_rule_that_was_added_since_the_last_reading_counted_in_that_time(period: float) -> None:
    traffic, rule = Traffic(), Rule(PATHS, 10, Match(vlan=7), (Output(1),))
    for number in range(3):
        traffic.observe(period * number, [])
    now = period * 2
    traffic.handle_rules(now, 1, [FlowStats(rule, 1, 1000, 0.9 * period)])
    traffic.handle_rules(now, 2, [FlowStats(rule, 1, 1000, 1.1 * period)])
    assert traffic.tagged == {(1, 7): pytest.approx(8000 / period)}


@pytest.mark.parametrize("period", [COUNTER_PERIOD, 5.0, 20.0])
def test_frames_that_measure_hide_no_loss_however_rarely_counters_are_read(period: float) -> None:
    here, there = PortId(1, 1), PortId(2, 1)
    traffic, link = Traffic(), LinkDirection(here, there, 0.0, 0.0)
    for number in range(4):
        now = period * number
        traffic.handle_ports(1, [PortCounters(1, 0, int(2e6 / 8 * now), 0, now)])
        traffic.handle_ports(2, [PortCounters(1, int(1.5e6 / 8 * now), 0, 0, now)])
        traffic.observe(now, [link])
        # Those of two periods count: a tenth of what is sent.
        traffic.handle_measuring(here, int(0.1e6 / 8 * period))
    assert link.saturation.losing
    assert link.saturation.limit == pytest.approx(1.5e6)


@given(st.lists(st.tuples(st.floats(0.01, 20), st.floats(0, 1)), min_size=1, max_size=60))
def test_the_smallest_of_the_window_is_that_of_a_plain_list(steps: list[tuple[float, float]]) -> None:
    minimum, kept, now = WindowedMinimum(), list[tuple[float, float]](), 0.0
    for pause, value in steps:
        now += pause
        kept.append((now, value))
        minimum.add(now, value)
        assert minimum.get(now) == min(each for at, each in kept if at >= now - SAMPLE_LIFETIME)


def test_a_link_takes_what_is_left_of_a_probe() -> None:
    assert link_latency(0.029, 0.002, 0.006) == pytest.approx(0.025)
    assert link_latency(0.001, 0.004, 0.004) == 0.0
