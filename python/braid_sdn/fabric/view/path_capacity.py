"""Capacity of paths for which none is configured, learned from what they carry while a queue stands in front of them.

Ports' speeds say little: a link of 10 Gbit/s may lead over a line of 10 Mbit/s. While the least queueing delay of a
period's probes is above QUEUE_FLOOR, a path is the bottleneck of its flow, so what it brings is what it can carry.
Several periods in a row must show it: in the first the window may have opened only, a busy machine delays probes, and
after a moment in which it ran nothing a line brings more than it can carry. Times are seconds, rates bit/s.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.planner import Hops

#: Least queueing delay of a period from which on a queue stands, and below which there was none at some time.
QUEUE_FLOOR = 0.010
QUEUE_NONE = 0.003
#: Part of the longest of a pair's queues that a path's must have: a busy machine delays the probes of all.
MIN_QUEUE_RATIO = 0.5
#: Less than this says nothing of a line.
MIN_LEARNED_RATE = 0.5e6
#: Periods in a row with a queue that show a limit at the least, and those whose median it is.
MIN_QUEUED_PERIODS = 2
QUEUED_PERIODS = 3
#: Growth in the first period in which a path brings its limit without a queue, beside one with a queue. If it is too
#: much, a queue of 25 ms a period stands in the next ones, which most lines have room for: by a quarter at once a
#: line whose limit was right lost packets. As long as none stands, the step is doubled, up to the greatest.
GROWTH = 1.05
MAX_GROWTH = 1.25
#: Seconds for which a path is not tried with more again after a queue has shown that it was too much.
GROWTH_PAUSE = 30.0
#: Part of its limit that a path brings if it may carry more.
FULL_RATIO = 0.8
#: Seconds for which the capacity of an unused path is remembered.
MEMORY = 600.0


@dataclass(frozen=True, slots=True)
class PathLoad:
    """A path in a period."""

    hops: Hops
    #: Rate that arrived by it.
    rate: float
    #: Least queueing delay of its probes; None if none came.
    queue: float | None


@dataclass
class PathCapacity:
    """Learned capacities."""

    limits: dict[Hops, float] = field(default_factory=dict)
    _used: dict[Hops, float] = field(default_factory=dict)
    #: Rates of paths in front of which a queue has stood, of the last periods in a row.
    _queued: dict[Hops, list[float]] = field(default_factory=dict)
    #: Rates of paths that brought more than their limit in the last period.
    _above: dict[Hops, float] = field(default_factory=dict)
    #: Limits of paths that are tried with more, as they were before.
    _tried: dict[Hops, float] = field(default_factory=dict)
    #: When paths that could not carry more may be tried again.
    _not_before: dict[Hops, float] = field(default_factory=dict)

    def handle_period(self, now: float, paths: Sequence[PathLoad]) -> bool:
        """Take in a period of all paths of a pair; return true if a limit changed."""
        before = dict(self.limits)
        longest = max((path.queue for path in paths if path.queue is not None), default=0.0)
        for path in paths:
            queued, above = self._queued.pop(path.hops, []), self._above.pop(path.hops, None)
            tried = self._tried.pop(path.hops, None)
            if path.rate < MIN_LEARNED_RATE:
                continue
            self._used[path.hops] = now
            limit = self.limits.get(path.hops)
            queue = path.queue if path.queue is not None else QUEUE_NONE
            if queue >= max(QUEUE_FLOOR, MIN_QUEUE_RATIO * longest):
                queued = self._queued[path.hops] = [*queued, path.rate][-QUEUED_PERIODS:]
                if tried is not None:
                    self.limits[path.hops], self._not_before[path.hops] = tried, now + GROWTH_PAUSE
                elif len(queued) >= MIN_QUEUED_PERIODS:
                    self.limits[path.hops] = statistics.median_high(queued)
            elif limit is not None and path.rate > limit:
                self._above[path.hops] = path.rate
                if above is not None:
                    self.limits[path.hops] = min(path.rate, above)
            elif limit is not None and longest >= QUEUE_FLOOR and self._may_carry_more(now, path, limit):
                step = min(2 * (limit / tried - 1), MAX_GROWTH - 1) if tried is not None else GROWTH - 1
                self._tried[path.hops], self.limits[path.hops] = limit, (1 + step) * limit
        return self.limits != before

    def _may_carry_more(self, now: float, path: PathLoad, limit: float) -> bool:
        """Return true if a path brings its limit without a queue, and was not found full of it lately."""
        return (
            path.queue is not None
            and path.queue < QUEUE_NONE
            and path.rate >= FULL_RATIO * limit
            and now >= self._not_before.get(path.hops, now)
        )

    def handle_measured(self, now: float, hops: Hops, rate: float) -> bool:
        """Take in what a train of probes shows of a path; return true if nothing was known of it."""
        if hops in self.limits:
            return False
        self.limits[hops], self._used[hops] = rate, now
        return True

    def forget(self, ports: Collection[PortId]) -> None:
        """Forget what was learned of paths that leave by any of these ports: their lines are other ones now."""
        for known in (self.limits, self._used, self._queued, self._above, self._tried, self._not_before):
            for hops in [hops for hops in known if any(source in ports for source, _ in hops)]:
                del known[hops]

    def expire(self, now: float) -> None:
        """Forget paths that were not used for long."""
        for path in [path for path in self.limits if now - self._used[path] > MEMORY]:
            del self.limits[path], self._used[path]
            self._not_before.pop(path, None)
