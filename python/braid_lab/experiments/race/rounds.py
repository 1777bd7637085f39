"""Path traces of a round, drawn from a seed: the statistics of [ofrp] §3.1 and §4.2.

Pure: a `Round` gives every path's round-trip time at every moment, and its loss; `dynamics` replays them.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from braid_lab.net.paths import PathKey

UPLINKS = ("tanet", "hinet", "seednet")

#: Usual round-trip times, ms, in the order of `UPLINKS`. [ofrp] Fig. 1 shows that the best uplink differs by
#: destination; the distances are chosen so that round robin comes out near the paper's Fig. 6 (0.69 of the best).
USUAL_RTT_MS: Mapping[str, tuple[float, float, float]] = {
    "de": (430.0, 240.0, 330.0),
    "us": (140.0, 190.0, 280.0),
    "jp": (85.0, 60.0, 40.0),
}

#: Change of paths from one round to the next (ten minutes later in the paper), standard deviation of the logarithm.
DRIFT = 0.28

#: Within a round: "the largest Coefficient-of-variance (CoV) is only 0.045" (§3.1).
COV = 0.045

#: Correlation time of a path's deviation from its mean, s; a fetch lasts a few times as long.
CORRELATION_SECONDS = 1.0

#: Resolution of a trace, s.
STEP_SECONDS = 0.1

#: "the unusual large RTT seriously degrades the throughput provided by one links" (§4.2): the chance that a path has
#: such a period around a round, the factor on its round trip, and the period's mean length, s. As in the paper the
#: period covers whole fetches: those took three minutes there and take twenty seconds at most here.
EXCURSION_CHANCE = 0.1
EXCURSION_FACTOR = (1.5, 2.5)
EXCURSION_SECONDS = 60.0
#: The period begins at most this long before or after the round does.
EXCURSION_WITHIN = 60.0

#: Loss of a path in a round, each way: the median, and the spread between rounds (of the logarithm).
USUAL_LOSS = 1e-4
LOSS_SPREAD = 1.0

#: Length of a trace; after it the path stays unchanged.
TRACE_SECONDS = 120.0


@dataclass(frozen=True)
class PathTrace:
    """A path in a round: its loss each way, and its round trips as (seconds into the round, ms from then)."""

    loss: float
    rtt_ms: tuple[tuple[float, float], ...]

    def at(self, seconds: float) -> float:
        """Return the round trip at a time, ms."""
        return self.rtt_ms[max(0, bisect.bisect_right(self.rtt_ms, (seconds, math.inf)) - 1)][1]

    def between(self, begin: float, end: float) -> list[float]:
        """Return the round trips of a period, one for each step."""
        steps = max(1, round((end - begin) / STEP_SECONDS))
        return [self.at(begin + (end - begin) * (number + 0.5) / steps) for number in range(steps)]

    def mean(self, begin: float, end: float) -> float:
        """Return the mean round trip of a period, ms."""
        return statistics.fmean(self.between(begin, end))

    def cov(self, begin: float, end: float) -> float:
        """Return the coefficient of variation within a period."""
        values = self.between(begin, end)
        return statistics.pstdev(values) / statistics.fmean(values)


@dataclass(frozen=True)
class Round:
    """One round of [ofrp] §4.1: all paths while uplinks are chosen and the best ones determined."""

    number: int
    traces: Mapping[PathKey, PathTrace]
    #: Order of connections to the destinations. With a constant order, round robin would give each of three
    #: destinations a fixed one of the three uplinks.
    order: tuple[str, ...]


def draw(seed: int, number: int) -> Round:
    """Return round `number` of the series `seed`; the same arguments give the same round."""
    generator = random.Random(f"race {seed} {number}")
    traces = {
        (uplink, destination): _path_trace(generator, usual)
        for destination, row in USUAL_RTT_MS.items()
        for uplink, usual in zip(UPLINKS, row, strict=True)
    }
    order = list(USUAL_RTT_MS)
    generator.shuffle(order)
    return Round(number, traces, tuple(order))


def _path_trace(generator: random.Random, usual_ms: float) -> PathTrace:
    base = usual_ms * generator.lognormvariate(0, DRIFT)
    loss = min(0.01, USUAL_LOSS * generator.lognormvariate(0, LOSS_SPREAD))
    begin, end, factor = _excursion(generator)
    steps = itertools.islice(_autoregressive(generator), round(TRACE_SECONDS / STEP_SECONDS))
    points = [
        (at, base * (1 + each) * (factor if begin <= at < end else 1.0))
        for at, each in ((number * STEP_SECONDS, each) for number, each in enumerate(steps))
    ]
    return PathTrace(loss, tuple(points))


def _autoregressive(generator: random.Random) -> Iterator[float]:
    """Yield an autoregressive series of deviations from the mean, with `COV` in the long run."""
    keep = math.exp(-STEP_SECONDS / CORRELATION_SECONDS)
    value = generator.gauss(0, COV)
    while True:
        yield max(-3 * COV, min(3 * COV, value))
        value = keep * value + math.sqrt(1 - keep * keep) * generator.gauss(0, COV)


def _excursion(generator: random.Random) -> tuple[float, float, float]:
    """Return a bad period's start, end and factor; the draws are made even if there is none."""
    begin = generator.uniform(-EXCURSION_WITHIN, EXCURSION_WITHIN)
    end = begin + generator.expovariate(1 / EXCURSION_SECONDS)
    factor = generator.uniform(*EXCURSION_FACTOR)
    return (begin, end, factor) if generator.random() < EXCURSION_CHANCE else (0.0, 0.0, 1.0)


def apart_ms(means: Sequence[float]) -> float:
    """Return the difference between the shortest round trip and the next, ms."""
    first, second, *_ = sorted(means)
    return second - first
