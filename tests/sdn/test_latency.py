"""Latencies with their uncertainty: what is slower, and what a busy machine only makes seem so."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid_lab.fabric.shapes import Shape, parallel
from braid_sdn.fabric.api import report
from braid_sdn.fabric.view.latency import (
    ERROR_PROBABILITY,
    LOWEST_SAMPLES,
    Estimate,
    LowestSamples,
    link_latency,
    link_uncertainty,
)

from .virtual import Network

WINDOW = 10.0


@given(st.lists(st.tuples(st.floats(0, 4), st.integers(0, 30)), min_size=1, max_size=60))
def test_the_lowest_samples_of_a_window_are_kept(steps: list[tuple[float, int]]) -> None:
    samples, now, seen = LowestSamples(WINDOW), 0.0, list[tuple[float, int]]()
    for wait, value in steps:
        now += wait
        samples.add(now, value)
        seen.append((now, value))
        in_window = sorted(value for at, value in seen if at >= now - WINDOW)
        assert samples._lowest == in_window[:LOWEST_SAMPLES]
        assert samples.get(now) == in_window[0]
    # The last one counts until there is another.
    assert samples.get(now + 2 * WINDOW) == seen[-1][1]


def estimate(values: list[float]) -> Estimate:
    samples = LowestSamples()
    for number, value in enumerate(values):
        samples.add(number, value)
    made = samples.estimate(len(values))
    assert made is not None
    return made


def test_samples_that_are_alike_are_certain_and_a_single_one_is_not() -> None:
    assert LowestSamples().estimate(0) is None
    assert estimate([0.004]) == Estimate(0.004, 0.004)
    assert estimate([0.004] * LOWEST_SAMPLES) == Estimate(0.004, 0.0)
    least, excess = estimate([0.0040, 0.0041, 0.0040, 0.0042, 0.0041])
    assert least == 0.004
    assert excess == pytest.approx((ERROR_PROBABILITY ** (-1 / 4) - 1) * 0.0002)
    # Two samples say little of how far they are above the end.
    assert estimate([0.0040, 0.0041]).excess == 0.004
    assert estimate([0.040, 0.0401]).excess == pytest.approx(99 * 0.0001)


@pytest.mark.parametrize("count", [3, 5, 10, 100])
@pytest.mark.parametrize("kind", ["even", "exponential"])
def test_an_estimate_is_wrong_by_more_than_it_says_as_rarely_as_it_says(count: int, kind: str) -> None:
    rng, wrong, trials = random.Random(count), 0, 3000
    for _ in range(trials):
        delays = [rng.uniform(0, 0.01) if kind == "even" else rng.expovariate(1000) for _ in range(count)]
        least, excess = estimate([0.5 + delay for delay in delays])
        wrong += least - excess > 0.5
    # Delays that are rather short than long are kinder.
    assert wrong / trials <= 1.6 * ERROR_PROBABILITY


@given(st.tuples(*[st.floats(0, 0.1)] * 3), st.tuples(*[st.floats(0, 1)] * 3))
def test_a_links_latency_is_wrong_by_its_uncertainty_at_most(
    real: tuple[float, float, float], parts: tuple[float, float, float]
) -> None:
    """If none of its three times is too high by more than its estimate says, and a probe takes as long as it must."""
    latency, source, target = real
    times = latency + source / 2 + target / 2, source, target
    delays = [0.03 * part for part in parts]
    made = [Estimate(time + delay, delay) for time, delay in zip(times, delays, strict=True)]
    found = link_latency(*(each.least for each in made))
    assert abs(found - latency) <= link_uncertainty(*made) + 1e-9


def test_no_latency_is_more_uncertain_than_it_is_long_unless_echoes_are() -> None:
    certain = Estimate(0.001, 0.0)
    assert link_uncertainty(Estimate(0.003, 0.003), certain, certain) == pytest.approx(0.002)
    assert link_uncertainty(Estimate(0.003, 0.0), Estimate(0.001, 0.001), certain) == pytest.approx(0.0005)


class Delays(dict[int, float]):
    """Seconds by which each message between controller and switches takes longer: as on a machine with other work."""

    def __init__(self, seed: int, mean: float) -> None:
        super().__init__()
        self.mean = mean
        self._rng = random.Random(seed)

    def get(self, _: int, default: float = 0.0) -> float:  # type: ignore[override]
        return default + self._rng.expovariate(1 / self.mean)


class Delayed(Network):
    """A network whose messages are delayed by chance; it notes the paths of a pair in each plan."""

    def __init__(self, shape: Shape, seed: int, mean: float) -> None:
        super().__init__(shape)
        self.control = Delays(seed, mean)
        self.connect()

    def paths(self) -> int:
        return len(self.controller.tables.pairs["ha", "hb"].paths)

    def watch(self, seconds: float) -> list[int]:
        """Return the number of used paths, once a second."""
        counts = []
        for _ in range(round(seconds)):
            self.run(1)
            counts.append(self.paths())
        return counts


@pytest.mark.parametrize("seed", range(5))
def test_a_busy_machine_makes_no_path_slower(seed: int) -> None:
    """One of four paths of 0.2 ms measured 0.1 ms, others 1.1 ms and more: these were left out as slower."""
    net = Delayed(parallel([(10, 0.2)] * 4), seed, 0.002)
    net.run(3)
    assert set(net.watch(60)) == {4}


@pytest.mark.parametrize("seed", range(5))
def test_a_path_that_is_slower_by_5_ms_is_left_out_at_once_on_an_idle_machine(seed: int) -> None:
    net = Delayed(parallel([(10, 0.2), (10, 5.2)]), seed, 0.00005)
    net.run_until(lambda: ("ha", "hb") in net.controller.tables.pairs, within=5)
    assert net.paths() == 1
    (left,) = net.controller.tables.pairs["ha", "hb"].selection.left_out
    assert "(mdi)" in left.reason
    assert set(net.watch(20)) == {1}


@pytest.mark.parametrize("seed", range(3))
def test_a_path_that_is_slower_is_left_out_once_the_machine_is_idle_and_stays_out(seed: int) -> None:
    net = Delayed(parallel([(10, 0.2), (10, 5.2)]), seed, 0.003)
    net.run(5)
    net.control = Delays(seed, 0.00005)
    counts = net.watch(30)
    assert counts[-15:] == [1] * 15
    # The low samples of the quiet machine still count once it is busy.
    net.control = Delays(seed, 0.003)
    assert set(net.watch(60)) == {1}


def test_the_uncertainty_is_shown_beside_each_latency() -> None:
    net = Delayed(parallel([(10, 0.2), (10, 5.2)]), 1, 0.00005)
    net.run(5)
    told = report.status(net.controller, net.now)
    assert all(0 < link["latency_uncertainty_ms"] < 0.5 for link in told["links"])
    assert report._uncertainty_ms(math.inf) is None
    (pair,) = [each for each in report.paths(net.controller, net.now)["pairs"] if each["source"] == "ha"]
    for path in (*pair["paths"], *pair["left_out"]):
        assert 0 < path["latency_uncertainty_ms"] < 1.0
