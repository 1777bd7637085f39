"""Latency of links, measured by the controller's messages alone ([mpsdn] §III-A, after Bouet).

A probe travels controller → A → B → controller; half of A's echo round trip and half of B's are subtracted:

    latency(A→B) = T(probe) - RTT(A)/2 - RTT(B)/2

Any delay of a message adds to one of the three, so each is the minimum over a window. The window also makes a line
that has become slower visible. It is long, since the queue of one flow may stand in front of a line for minutes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: Seconds for which a sample counts: some ten probes at the longest interval.
SAMPLE_LIFETIME = 30.0
#: Seconds over which the latency of what may have a queue is looked for.
BASE_WINDOW = 300.0


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


def link_latency(probe: float, echo_source: float, echo_target: float) -> float:
    """Return a link's one-way latency, seconds: a probe's time minus half of both echo round trips; at least 0."""
    return max(0.0, probe - echo_source / 2 - echo_target / 2)
