"""Forecasts of paths, by which edges choose the path on which a packet arrives first."""

from __future__ import annotations

import math

import pytest

from braid_sdn.fabric.plan.forecast import MIN_RATE, Forecasts, PathForecast, PathSample, forecasts
from braid_sdn.fabric.view.path_rates import LIFETIME, PathRates


def sample(tag: int = 2, **what: float) -> PathSample:
    """Return a path of 20 ms and 10 Mbit/s, with some things otherwise."""
    values: dict[str, float] = {"latency": 0.02, "free": 10e6, "line": 10e6}
    return PathSample(tag, **{**values, **what})


def forecast(path: PathSample) -> PathForecast:
    """Return the forecast of a path beside one without a queue."""
    return forecasts([path, sample(1)])[path.tag]


def test_a_path_without_a_queue_takes_its_latency() -> None:
    assert forecast(sample()) == PathForecast(10e6, 0.02, 0.02)
    assert forecast(sample(rate=9e6, queue=0.0)) == PathForecast(10e6, 0.02, 0.02)


def test_the_queue_of_the_flow_itself_is_known_to_its_edge() -> None:
    assert forecast(sample(rate=9.5e6, queue=0.09)).delay == 0.02
    # Of a period in which the machine was busy.
    assert forecast(sample(rate=8.1e6, queue=0.09)).delay == 0.02


@pytest.mark.parametrize(("rate", "delay"), [(0.0, 0.1), (2e6, 0.08), (4e6, 0.06)])
def test_a_queue_is_others_as_far_as_the_line_is(rate: float, delay: float) -> None:
    assert forecast(sample(rate=rate, queue=0.08)).delay == pytest.approx(delay)


def test_a_queue_counts_in_full_while_the_lines_rate_is_unknown() -> None:
    """Then the edge does not know its own queue either, and the delay alone keeps its flow off a full path."""
    assert forecast(sample(line=math.inf, rate=9e6, queue=0.08)).delay == pytest.approx(0.1)


def test_late_probes_of_a_busy_machine_are_no_queue() -> None:
    assert forecast(sample(queue=0.004)).delay == 0.02


def test_what_delays_the_probes_of_all_paths_changes_no_choice() -> None:
    """A machine that is held up, or others on all paths alike."""
    told = forecasts([sample(2, queue=0.48), sample(3, latency=0.05, queue=0.52)])
    assert told[2].delay == 0.02
    assert told[3].delay == pytest.approx(0.09)


def test_a_line_that_others_hardly_use_is_free() -> None:
    assert forecast(sample(free=8.6e6)).rate == 10e6
    assert forecast(sample(free=8e6)).rate == 8e6
    # Nobody told what the line carries.
    assert forecast(sample(free=8.6e6, line=math.inf)).rate == 8.6e6


def test_a_path_without_free_capacity_has_a_rate() -> None:
    assert forecast(sample(free=0.0)).rate == MIN_RATE


def test_an_edge_is_told_the_latency_beside_others_queue() -> None:
    """Its own probes may tell it the queue."""
    assert forecast(sample(queue=0.08)) == PathForecast(10e6, 0.1, 0.02)
    told = Forecasts()
    told.handle_period("ha", [sample(1), sample(2, queue=0.08)])
    told.handle_period("ha", [sample(1), sample(2, queue=0.05, latency=0.05)])
    assert (told.changes, told.known[2]) == (2, PathForecast(10e6, 0.1, 0.05))


def test_an_edge_is_told_what_matters() -> None:
    told = Forecasts()
    told.handle_period("ha", [sample(2), sample(3, latency=0.05)])
    told.handle_period("hb", [sample(4)])
    assert (told.versions, told.changes) == ({"ha": 1, "hb": 2}, 2)
    # Measurements that vary a little are no news.
    told.handle_period("ha", [sample(2, free=9.3e6), sample(3, latency=0.053)])
    assert told.changes == 2
    told.handle_period("ha", [sample(2, free=8e6), sample(3, latency=0.05)])
    assert (told.versions["ha"], told.versions["hb"]) == (3, 2)
    assert told.known[2] == PathForecast(8e6, 0.02, 0.02)
    told.handle_period("ha", [sample(2, free=8e6), sample(3, latency=0.05, queue=0.04)])
    assert told.known[3].delay == pytest.approx(0.09)
    told.keep({3, 4})
    assert told.known.keys() == {3, 4}


def test_rates_are_measured_between_reports() -> None:
    rates = PathRates()
    for number in range(21):
        # 50 ms apart, 10 Mbit/s.
        rates.handle_bytes(0.05 * number, 0.05 * number, {2: 62_500 * number, 3: 7})
    assert rates.get(1.0, 2) == pytest.approx(10e6)
    assert rates.get(1.0, 3) == 0.0
    assert rates.get(1.0, 4) == 0.0
    assert rates.get(1.0 + 2 * LIFETIME, 2) == 0.0


def test_a_report_that_comes_late_changes_no_rate() -> None:
    """By arrival, lines of 10 Mbit/s brought 5 in one period and 50 in the next."""
    rates = PathRates()
    late = [0.0, 0.5, 0.1, 0.5]
    for number, by in enumerate(late):
        now = 100 + 0.5 * number + by
        rates.handle_bytes(now, 0.5 * number, {2: 625_000 * number})
        if number:
            assert rates.get(now, 2) == pytest.approx(10e6)


def test_a_restarted_edge_and_a_long_silence_make_no_rate() -> None:
    rates = PathRates()
    rates.handle_bytes(0.0, 10.0, {2: 1_000_000, 3: 0, 4: 0})
    # The machine itself has, so its clock begins anew.
    rates.handle_bytes(1.0, 0.5, {4: 1_000_000})
    assert rates.get(1.0, 4) == 0.0
    rates.handle_bytes(1.0, 11.0, {2: 5_000, 3: 0})
    assert rates.get(1.0, 2) == 0.0
    rates.handle_bytes(1.5, 11.5, {2: 67_500})
    assert rates.get(1.5, 2) == pytest.approx(1e6)
    rates.handle_bytes(1.5 + 2 * LIFETIME, 11.5 + 2 * LIFETIME, {3: 1_000_000})
    assert rates.get(1.5 + 2 * LIFETIME, 3) == 0.0
    rates.keep({3})
    assert rates.get(1.5, 2) == 0.0
