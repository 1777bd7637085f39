"""Rates that arrive by paths, by the byte counters of the edges at their ends. Times are seconds, rates bit/s."""

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

    _marks: dict[int, tuple[float, int]] = field(default_factory=dict)
    _rates: dict[int, tuple[float, float]] = field(default_factory=dict)

    def handle_bytes(self, now: float, counts: Mapping[int, int]) -> None:
        """Take in the bytes that an edge has received by each path."""
        for tag, count in counts.items():
            at, before = self._marks.get(tag, (now, count))
            if count < before or now - at > LIFETIME:
                # The edge has restarted, or was not asked for long.
                at, before = now, count
            if now - at >= MIN_SPAN:
                self._rates[tag] = now, 8 * (count - before) / (now - at)
                at, before = now, count
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
