"""Rates that arrive by paths, by the byte counters of the edges at their ends. Times are seconds, rates bit/s.

A busy machine hands reports over late: by the time at which they come, a line of 50 Mbit/s has brought 25 in one
period and 120 in the next. So spans are those of the edge's own clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Shortest time over which a rate is measured: edges may be asked 20 times a second.
MIN_SPAN = 0.4
#: Age from which on a rate says nothing any more.
LIFETIME = 3.0


@dataclass
class PathRates:
    """Rates by tag."""

    #: Counts, and when the edge counted.
    _marks: dict[int, tuple[float, int]] = field(default_factory=dict)
    _rates: dict[int, tuple[float, float]] = field(default_factory=dict)

    def handle_bytes(self, now: float, counted: float, counts: Mapping[int, int]) -> None:
        """Take in the bytes that an edge had received by each path at a time of its own clock."""
        for tag, count in counts.items():
            at, before = self._marks.get(tag, (counted, count))
            if count < before or not 0 <= counted - at <= LIFETIME:
                # The edge has restarted, or was not asked for long.
                at, before = counted, count
            if counted - at >= MIN_SPAN:
                self._rates[tag] = now, 8 * (count - before) / (counted - at)
                at, before = counted, count
            self._marks[tag] = at, before

    def get(self, now: float, tag: int) -> float:
        """Return a path's rate; 0 if unknown."""
        at, rate = self._rates.get(tag, (float("-inf"), 0.0))
        return rate if now - at <= LIFETIME else 0.0

    def keep(self, tags: set[int]) -> None:
        """Forget all other paths."""
        for known in (self._marks, self._rates):
            for tag in known.keys() - tags:
                del known[tag]
