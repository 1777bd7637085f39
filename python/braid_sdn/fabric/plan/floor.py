"""The floor: a pair that gets less from its paths together than the best of them would carry tries that one alone.

A split TCP flow is as fragile as its worst path: random loss, others' flows, or reordering on one path hold back all
([mpsdn] §V-3). Which of them it is does not matter here. If a pair brings less than its best path's capacity, each
path is tried alone for a while, the best first. The first that brings clearly more than the split is kept for HOLD,
longer each time that the split is still worse afterwards. A flow that has nothing more to send gains by no trial: it
stays split, and trials become rare. A trial costs it nothing, since what it sends fits on one path.

Pure: rates of periods in, the path to use alone out. Times are seconds, rates bit/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from braid_sdn.fabric.plan.planner import Hops

#: A pair that brings less than this part of its best path's capacity is behind.
BEHIND_RATIO = 0.85
#: A pair that brings less than this part has little to send.
ACTIVE_RATIO = 0.3
#: A pair that brings this much more than in the period before is still opening its window.
GROWING_RATIO = 1.1
#: A path alone must bring this much more than the split did.
GAIN_RATIO = 1.1
#: Periods of a trial that do not count: the change takes effect in the first.
SETTLING_PERIODS = 1
#: Seconds for which a path is kept alone, doubled each time up to MAX_HOLD.
HOLD = 30.0
MAX_HOLD = 240.0
#: Seconds without trials after all paths were tried in vain, doubled each time up to MAX_PAUSE.
PAUSE = 30.0
MAX_PAUSE = 600.0


@dataclass(frozen=True, slots=True)
class PathPeriod:
    """A path in a period."""

    hops: Hops
    #: Rate that arrived by it.
    rate: float
    #: Free capacity of its links, as far as known.
    capacity: float


@dataclass
class _Pair:
    """The state of one pair."""

    #: The path that is used alone.
    alone: Hops | None = None
    #: Until when it is kept; None while it is tried.
    until: float | None = None
    #: Paths that are still to be tried, and what the split brought.
    untried: list[Hops] = field(default_factory=list)
    split_rate: float = 0.0
    periods: int = 0
    active: bool = False
    #: Its rate in the last period.
    last_rate: float = 0.0
    winner: Hops | None = None
    hold: float = HOLD
    pause: float = PAUSE
    not_before: float = 0.0


@dataclass
class Floor:
    """All pairs, by the names of their edges."""

    _pairs: dict[tuple[str, str], _Pair] = field(default_factory=dict)

    def handle_period(self, now: float, key: tuple[str, str], paths: Sequence[PathPeriod]) -> bool:
        """Take in a period of a pair's paths; return true if it should use others now."""
        pair = self._pairs.setdefault(key, _Pair())
        before = pair.alone
        rate = sum(path.rate for path in paths)
        if pair.alone is None:
            self._watch(now, pair, rate, paths)
        elif pair.until is None:
            self._try(now, pair, rate)
        elif now >= pair.until:
            # See whether the split is better by now.
            pair.alone = pair.until = None
            pair.active = False
        return pair.alone != before

    def _watch(self, now: float, pair: _Pair, rate: float, paths: Sequence[PathPeriod]) -> None:
        best = max((path.capacity for path in paths), default=0.0)
        was_active, pair.active = pair.active, rate > ACTIVE_RATIO * best
        growing, pair.last_rate = rate > GROWING_RATIO * pair.last_rate, rate
        if len(paths) < 2 or rate >= BEHIND_RATIO * best:
            if pair.active and was_active:
                # The split is as good as one path by now.
                pair.hold, pair.pause = HOLD, PAUSE
            return
        if not (pair.active and was_active) or growing or now < pair.not_before:
            return
        ordered = sorted(paths, key=lambda path: (path.hops != pair.winner, -path.capacity))
        pair.untried = [path.hops for path in ordered]
        pair.split_rate = rate
        self._next(now, pair)

    def _next(self, now: float, pair: _Pair) -> None:
        pair.periods = 0
        pair.until = None
        if pair.untried:
            pair.alone = pair.untried.pop(0)
            return
        pair.alone = None
        pair.active = False
        pair.not_before = now + pair.pause
        pair.pause = min(2 * pair.pause, MAX_PAUSE)

    def _try(self, now: float, pair: _Pair, rate: float) -> None:
        pair.periods += 1
        if pair.periods <= SETTLING_PERIODS:
            return
        if rate < GAIN_RATIO * pair.split_rate:
            self._next(now, pair)
            return
        pair.winner, pair.untried = pair.alone, []
        pair.until = now + pair.hold
        pair.hold = min(2 * pair.hold, MAX_HOLD)

    def alone(self) -> dict[tuple[str, str], Hops]:
        """Return the path of each pair that uses one alone."""
        return {key: pair.alone for key, pair in self._pairs.items() if pair.alone is not None}
