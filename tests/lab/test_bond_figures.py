"""Pure parts of the bond experiments: theoretical goodput, and figures from traces."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from braid_lab.experiments.bond import aggregate, latency
from braid_lab.experiments.bond.cases import BY_NAME, CASES, QUIC, TCP, UDP, Case, DelayWalk, Link
from braid_lab.experiments.bond.failure import FaultTrial
from braid_lab.experiments.bond.figures import EchoProbe, GoodputTrace, outage_ms, round_trips
from braid_lab.process import LabError


def trace(*mbit: float) -> GoodputTrace:
    """Return a trace of these goodputs, one per bin of 0.1 s."""
    return GoodputTrace(0.1, tuple(round(each * 1e6 / 8 * 0.1) for each in mbit))


def test_headers_leave_what_is_on_the_wire_less_headers() -> None:
    one = Case("x", {"one": Link(100, 5)})
    # 1471 bytes on the wire: Ethernet 14, IPv4 20, UDP 8, bond 32, inner IPv4 and TCP 15 of their 52.
    assert one.ceiling_mbit(TCP) == pytest.approx(100 * 1382 / 1471)
    # IPv4 and UDP headers take 6 of their 28 bytes.
    assert one.ceiling_mbit(UDP) == pytest.approx(100 * 1412 / 1492)
    # QUIC's datagrams have 1406 bytes; its headers, the AEAD tag and a STREAM frame's header take 35 of them.
    assert one.ceiling_mbit(QUIC) == pytest.approx(100 * 1371 / (14 + 20 + 8 + 32 + 6 + 1406))
    lossy = Case("x", {"one": Link(50, 5), "two": Link(50, 5, loss=0.1)})
    assert lossy.ceiling_mbit(TCP) == pytest.approx(95 * 1382 / 1471)


def test_the_best_link_is_the_fastest_that_loses_nothing() -> None:
    assert Case("x", {"slow": Link(10, 5), "fast": Link(20, 5)}).best == "fast"
    lossy = Case("x", {"clean": Link(10, 5), "lossy": Link(20, 5, loss=0.02)})
    assert (lossy.best, lossy.fastest) == ("clean", "lossy")


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for case in CASES]
    assert len(BY_NAME) == len(names)
    assert set(aggregate.QUICK_TRIALS) <= set(aggregate.TRIALS)
    assert set(latency.QUICK_CASES) <= set(names)


def test_a_link_says_to_the_emulator_what_it_is() -> None:
    options = " ".join(Link(64, 6.5, loss=0.02, queue_ms=300).line(7).options())
    assert options == "--rate 64Mbit/s --delay 6.5ms --loss 2% --queue 300ms --seed 7"


def test_a_wandering_delay_stays_within_its_bounds_and_is_always_the_same() -> None:
    delay_walk = DelayWalk(12.5, 22.5)
    walk = list(itertools.islice(delay_walk.trace(random.Random(1)), 2000))
    assert walk == list(itertools.islice(delay_walk.trace(random.Random(1)), 2000))
    assert min(walk) == 12.5
    assert max(walk) == 22.5
    assert all(abs(later - earlier) <= delay_walk.step_ms for earlier, later in itertools.pairwise(walk))


def test_ninety_percent_is_reached_when_a_half_second_has_it() -> None:
    slow_start = trace(0, 0, 20, 60, 90, 90, 90, 90, 90, 90)
    assert slow_start.reaches(90) == pytest.approx(0.9)
    assert slow_start.reaches(91) == pytest.approx(slow_start.seconds), "never"
    one_burst = trace(*[0] * 5, 400, *[0] * 5)
    assert one_burst.reaches(90) == pytest.approx(1.1), "400 Mbit/s in one bin are 80 in a half-second"


def test_the_warm_up_does_not_count() -> None:
    assert trace(*[0] * 20, *[50] * 10).steady_mbit == pytest.approx(50)


def test_an_outage_is_the_longest_pause_that_ends_after_the_fault() -> None:
    arrivals = [0.0, 0.1, 0.2, 0.5, 0.6, 0.7]
    assert outage_ms(arrivals, 0.25, 0.1) == pytest.approx(200)
    assert outage_ms(arrivals, 0.55, 0.1) == pytest.approx(0)
    assert outage_ms([0.0, 1.0, 1.1], 1.05, 0.1) == pytest.approx(0), "the pause before was over"
    with pytest.raises(ValueError, match="nothing arrived"):
        outage_ms([0.0, 0.1], 0.2, 0.1)


def test_what_a_host_slept_through_is_no_outage() -> None:
    probes = {"ordered": [EchoProbe(6.9, 6.95, None), EchoProbe(10.02, 10.09, None), EchoProbe(10.03, 10.1, None)]}
    asleep = FaultTrial(began=10.0, ended=12.0, usual_s=0.01, probes=probes, asleep=True)
    assert asleep.outages() == {"ordered": pytest.approx(80)}
    assert dataclasses.replace(asleep, asleep=False).outages() == {"ordered": pytest.approx(3130)}


def test_a_silence_is_a_run_of_bins_with_nothing_from_then_on() -> None:
    stream = trace(0, 0, 0, 5, 5, 0, 0, 5, 0)
    assert stream.longest_silence(0) == pytest.approx(0.3)
    assert stream.longest_silence(0.3) == pytest.approx(0.2)
    assert trace(5, 5).longest_silence(0) == 0


def test_round_trips_are_those_of_what_was_sent_meanwhile() -> None:
    times = [(0.0, 0.010), (1.0, 1.020), (1.1, None), (1.2, 1.240), (2.0, 2.001)]
    probes = [EchoProbe(sent, answered, None) for sent, answered in times]
    found = round_trips(probes, 0.5, 1.5)
    assert found.ms == pytest.approx((20, 40))
    assert found.at == pytest.approx((0.5, 0.7))
    assert found.lost == pytest.approx(1 / 3)
    assert found.jitter() == pytest.approx(20)


def test_a_stream_that_broke_is_no_measurement() -> None:
    told = {"bin_s": 0.1, "bytes": [1000, 3000], "broken": None}
    assert GoodputTrace.unbroken(told, "a stream") == GoodputTrace.of(told) == GoodputTrace(0.1, (1000, 3000))
    with pytest.raises(LabError, match="a stream broke off: reset"):
        GoodputTrace.unbroken(told | {"broken": "reset"}, "a stream")
