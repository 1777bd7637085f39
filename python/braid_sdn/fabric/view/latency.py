"""How long a link takes, by the controller's messages alone ([mpsdn] §III-A, after Bouet).

A probe goes controller → A → B → controller; half of A's echo round trip and half of B's are taken off:

    latency(A→B) = T(probe) - RTT(A)/2 - RTT(B)/2

Anything that delays a message adds to one of the three, so for each the smallest of a window counts. The window also
lets a line that became slower show.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: Seconds a sample counts: some ten probes at the slowest pace.
SAMPLE_LIFETIME = 30.0


@dataclass
class WindowedMinimum:
    """The smallest sample of the last SAMPLE_LIFETIME seconds. Samples that can never be it any more are not kept."""

    window: float = SAMPLE_LIFETIME
    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, now: float, value: float) -> None:
        """Take a sample in; `now` never goes back."""
        while self._samples and self._samples[-1][1] >= value:
            self._samples.pop()
        self._samples.append((now, value))
        self._expire(now)

    def get(self, now: float) -> float | None:
        """Return the smallest sample of the window; the last one of all if the window has none; None without any."""
        self._expire(now)
        return self._samples[0][1] if self._samples else None

    def _expire(self, now: float) -> None:
        while len(self._samples) > 1 and self._samples[0][0] < now - self.window:
            self._samples.popleft()


def link_latency(probe: float, echo_source: float, echo_target: float) -> float:
    """Return a link's one-way latency, seconds: a probe's time less half of both echo round trips; at least 0."""
    return max(0.0, probe - echo_source / 2 - echo_target / 2)
