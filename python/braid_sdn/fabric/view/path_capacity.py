"""Capacity of paths for which none is configured, learned from what they carry while a queue stands in front of them.

Ports' speeds say little: a link of 10 Gbit/s may lead over a line of 10 Mbit/s. While the least queueing delay of a
period's probes is above QUEUE_FLOOR, a path is the bottleneck of its flow, so what it brings is what it can carry.
Times are seconds, rates bit/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from braid_sdn.fabric.plan.planner import Hops

#: Least queueing delay of a period from which on a queue stands, and below which there was none at some time.
QUEUE_FLOOR = 0.005
QUEUE_NONE = 0.002
#: Less than this says nothing of a line.
MIN_LEARNED_RATE = 0.5e6
#: Growth a period of a path that carries nearly its learned capacity without a queue.
GROWTH = 1.1
LOADED_RATIO = 0.8
#: Seconds for which the capacity of an unused path is remembered.
MEMORY = 600.0


@dataclass
class PathCapacity:
    """Learned capacities."""

    limits: dict[Hops, float] = field(default_factory=dict)
    _used: dict[Hops, float] = field(default_factory=dict)

    def handle_period(self, now: float, path: Hops, rate: float, queue: float | None) -> bool:
        """Take in a period of a path: what it brought, and its least queueing delay; True if the limit changed."""
        before = self.limits.get(path)
        if rate >= MIN_LEARNED_RATE:
            self._used[path] = now
            if (queue is not None and queue >= QUEUE_FLOOR) or (before is not None and rate > before):
                self.limits[path] = rate
            elif before is not None and queue is not None and queue < QUEUE_NONE and rate > LOADED_RATIO * before:
                self.limits[path] = GROWTH * before
        return self.limits.get(path) != before

    def expire(self, now: float) -> None:
        """Forget paths that were not used for long."""
        for path in [path for path in self.limits if now - self._used[path] > MEMORY]:
            del self.limits[path], self._used[path]
