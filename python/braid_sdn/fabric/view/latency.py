"""Latency of links, measured by the controller's messages alone ([mpsdn] §III-A, after Bouet).

A probe travels controller → A → B → controller; half of A's echo round trip and half of B's are subtracted:

    latency(A→B) = T(probe) - RTT(A)/2 - RTT(B)/2

Any delay of a message adds to one of the three, so each is the minimum over a window. The window also makes a line
that has become slower visible. It is long, since the queue of one flow may stand in front of a line for minutes.

A minimum is too high by what delayed even the quickest message. That shows in how far the quickest ones are apart: on
an idle machine they are alike, on a busy one they are not. Where times are spread evenly above the one that is looked
for, this is farther below the least one than c times the distance from that to the k-th one with the probability
(1 + c)^(1-k) (after Robson and Whitlock, "Estimation of a truncation point", Biometrika 51, 1964). So `Estimate` says
by how much a minimum may be too high, and `link_uncertainty` what follows for the latency. A delay that all messages
have alike does not show.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

#: Seconds for which a sample counts: some ten probes at the longest interval.
SAMPLE_LIFETIME = 30.0
#: Seconds over which the latency of what may have a queue is looked for.
BASE_WINDOW = 300.0
#: Samples that show how far the least one may be too high: the lowest ones.
LOWEST_SAMPLES = 5
#: Probability that it is too high by more than that: a pair has some paths, and a network many pairs.
ERROR_PROBABILITY = 0.01


@dataclass
class WindowedMinimum:
    """The minimum of the samples of the last `window` seconds (a monotonic queue)."""

    window: float = SAMPLE_LIFETIME
    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, now: float, value: float) -> None:
        """Take a sample in; `now` never goes back."""
        while self._samples and self._samples[-1][1] >= value:
            self._samples.pop()
        self._samples.append((now, value))
        self._expire(now)

    def get(self, now: float) -> float | None:
        """Return the minimum of the window; the last sample if the window has none; None without any."""
        self._expire(now)
        return self._samples[0][1] if self._samples else None

    def _expire(self, now: float) -> None:
        while len(self._samples) > 1 and self._samples[0][0] < now - self.window:
            self._samples.popleft()


class Estimate(NamedTuple):
    """A time without delays, seconds, by the least of some samples."""

    least: float
    #: Seconds by which it may be too high.
    excess: float


@dataclass
class LowestSamples:
    """The lowest LOWEST_SAMPLES of the samples of the last `window` seconds."""

    window: float = BASE_WINDOW
    #: In the order of time: when each was taken, the sample, and how many later ones are as low or lower. It is of no
    #: more use once these are LOWEST_SAMPLES.
    _samples: list[tuple[float, float, int]] = field(default_factory=list)
    #: The lowest ones by value.
    _lowest: list[float] = field(default_factory=list)

    def add(self, now: float, value: float) -> None:
        """Take a sample in; `now` never goes back."""
        kept = [(at, other, lower + (other >= value)) for at, other, lower in self._samples]
        self._samples = [each for each in kept if each[2] < LOWEST_SAMPLES]
        self._samples.append((now, value, 0))
        bisect.insort(self._lowest, value)
        del self._lowest[LOWEST_SAMPLES:]
        self._expire(now)

    def get(self, now: float) -> float | None:
        """Return the least sample of the window; the last one if the window has none; None without any."""
        self._expire(now)
        return self._lowest[0] if self._lowest else None

    def estimate(self, now: float) -> Estimate | None:
        """Return the least sample, and by how much it may be too high: by all of it if it is the only one."""
        self._expire(now)
        if not self._lowest:
            return None
        least, count = self._lowest[0], len(self._lowest)
        if count == 1:
            return Estimate(least, least)
        factor = ERROR_PROBABILITY ** (-1 / (count - 1)) - 1
        return Estimate(least, min(least, factor * (self._lowest[-1] - least)))

    def _expire(self, now: float) -> None:
        if len(self._samples) < 2 or self._samples[0][0] >= now - self.window:
            return
        last = self._samples[-1]
        self._samples = [each for each in self._samples if each[0] >= now - self.window] or [last]
        self._lowest = sorted(value for _, value, _ in self._samples)[:LOWEST_SAMPLES]


def link_latency(probe: float, echo_source: float, echo_target: float) -> float:
    """Return a link's one-way latency, seconds: a probe's time minus half of both echo round trips; at least 0."""
    return max(0.0, probe - echo_source / 2 - echo_target / 2)


def link_uncertainty(probe: Estimate, echo_source: Estimate, echo_target: Estimate) -> float:
    """Return by how much a link's latency may be wrong, seconds, upwards or downwards.

    It is too high by what the probe's time is, which is not more than all of it, and too low by half of what the
    echoes' times are.
    """
    too_high = min(probe.excess, link_latency(probe.least, echo_source.least, echo_target.least))
    return max(too_high, (echo_source.excess + echo_target.excess) / 2)
