"""Rate and delay of each path, by which an edge chooses the path on which a packet arrives first (`bpf/arrival.h`).

The edge knows the queue of its own packets. The delay it is told is the rest: the path's latency, and what others'
traffic adds there more than on the pair's other paths. A path's queue holds each sender's packets in proportion to
their rates, so others' part of the queueing delay is the part of the line's rate that is not ours.

Pure. Times are seconds, rates bit/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

#: Changes that an edge is told: of a rate, and of a delay, in seconds and relatively. A path whose rate is told too
#: high by a twentieth gets that much more than it carries, and its queue fills.
MIN_RATE_CHANGE_RATIO = 0.03
MIN_DELAY_CHANGE = 0.002
MIN_DELAY_CHANGE_RATIO = 0.1
#: Shorter queueing delays are those of probes on a busy machine.
MIN_OTHERS_DELAY = 0.005
#: Part of a line's rate that a flow brings which fills it alone: headers, and the measurement's error.
FULL_RATIO = 0.8
#: Part of a line's rate that must be free for all of it to count as free: switches count ports and rules at different
#: moments, and a path whose rate is told too low is never filled.
FREE_RATIO = 0.85
#: An edge sends nothing by a path without a rate.
MIN_RATE = 1e5


class Scheduler(Enum):
    """The way in which an edge chooses a path for each packet."""

    #: The path on which the packet arrives first, by forecasts.
    EARLIEST_ARRIVAL = "earliest-arrival"
    #: Weighted round robin, [mpsdn] §III-C: without forecasts, edges walk their slot tables.
    WRR = "wrr"


@dataclass(frozen=True, slots=True)
class PathForecast:
    """A path's free rate and its delay, as an edge is told them."""

    #: Rate that is free.
    rate: float
    #: Time that a packet takes, apart from the queue of this edge's own packets.
    delay: float
    #: Time that a packet takes without any queue, for an edge whose own probes tell the queue.
    latency: float

    def differs(self, other: PathForecast) -> bool:
        """Return true if an edge needs the other one."""
        return (
            abs(other.rate - self.rate) > MIN_RATE_CHANGE_RATIO * self.rate
            or _are_apart(self.delay, other.delay)
            or _are_apart(self.latency, other.latency)
        )


def _are_apart(known: float, fresh: float) -> bool:
    return abs(fresh - known) > MIN_DELAY_CHANGE + MIN_DELAY_CHANGE_RATIO * known


@dataclass(frozen=True, slots=True)
class PathSample:
    """A path in a period."""

    tag: int
    latency: float
    #: Free capacity.
    free: float
    #: Capacity of its narrowest line, whoever uses it; infinite if unknown.
    line: float
    #: Rate that arrived by it.
    rate: float = 0.0
    #: Least queueing delay of its probes; None if none came.
    queue: float | None = None


def forecasts(paths: Sequence[PathSample]) -> dict[int, PathForecast]:
    """Return the forecasts of the paths of a pair, by tag."""
    others = [_others_delay(path) for path in paths]
    # Only differences matter to the choice, and a machine that is held up delays the probes of all.
    common = min(others, default=0.0)
    return {
        path.tag: PathForecast(_rate(path), path.latency + _noticed(delay - common), path.latency)
        for path, delay in zip(paths, others, strict=True)
    }


def _rate(path: PathSample) -> float:
    return path.line if path.free >= FREE_RATIO * path.line else max(MIN_RATE, path.free)


def _others_delay(path: PathSample) -> float:
    return (path.queue or 0.0) * max(0.0, 1.0 - path.rate / (FULL_RATIO * path.line))


def _noticed(delay: float) -> float:
    return delay if delay >= MIN_OTHERS_DELAY else 0.0


@dataclass
class Forecasts:
    """Forecasts of all paths, by tag; every change that an edge must know increments its version."""

    known: dict[int, PathForecast] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    #: Number of changes.
    changes: int = 0

    def handle_period(self, edge: str, paths: Sequence[PathSample]) -> None:
        """Take in a period of the paths of a pair that begin at an edge."""
        fresh = forecasts(paths)
        known = {tag: self.known.get(tag) for tag in fresh}
        changed = {tag for tag, before in known.items() if before is None or before.differs(fresh[tag])}
        if changed:
            self.known |= {tag: fresh[tag] for tag in changed}
            self.changes += 1
            self.versions[edge] = self.changes

    def clear(self) -> None:
        """Forget all: edges are told that there are none."""
        self.known = {}
        self.changes += 1
        self.versions = dict.fromkeys(self.versions, self.changes)

    def keep(self, tags: set[int]) -> None:
        """Forget all other paths."""
        for tag in self.known.keys() - tags:
            del self.known[tag]
