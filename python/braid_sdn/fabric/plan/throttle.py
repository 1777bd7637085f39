"""Throttles planning: at once after a failure, later after an improvement, and at a bounded rate.

Failures cost packets, so a plan follows as soon as simultaneous ones are gathered. Improvements wait until the
network is quiet. A network that keeps changing is replanned at a bounded rate. While switches are being told of the
last plan, failures alone are followed: a plan aborts that.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds to gather simultaneous failures: both directions of a link, all ports of a switch.
FAILURE_DELAY = 0.005
#: Seconds to gather hosts that appear.
CHANGE_DELAY = 0.02
#: Seconds without further improvements before a plan; at most MAX_QUIET_WAIT after the first one.
QUIET_PERIOD = 1.0
MAX_QUIET_WAIT = 5.0
#: Least time between plans, as a multiple of the time that the last one took: half of the time is for all else.
IDLE_FACTOR = 1.0


@dataclass
class Throttle:
    """Decides when to plan. Times are seconds."""

    _failure: float | None = None
    _change: float | None = None
    _calm: float | None = None
    _first: float | None = None
    _rest: float | None = None
    _load: float | None = None
    _not_before: float = 0.0

    @property
    def urgent(self) -> bool:
        """True if a failure or a change waits for a plan."""
        return self._failure is not None or self._change is not None

    @property
    def calm(self) -> bool:
        """True if something new waits that a plan might use."""
        return self._calm is not None

    @property
    def loaded(self) -> bool:
        """True if the traffic of pairs of edges waits to be split anew."""
        return self._load is not None

    def failure(self, now: float) -> None:
        """Record a failure of something that the plan uses."""
        self._failure = _earlier(self._failure, now + FAILURE_DELAY)

    def change(self, now: float) -> None:
        """Record a host that appeared or moved: it can wait for a moment."""
        self._change = _earlier(self._change, now + CHANGE_DELAY)

    def improvement(self, now: float) -> None:
        """Record something new that a plan might use."""
        self._first = self._first if self._first is not None else now
        self._calm = min(now + QUIET_PERIOD, self._first + MAX_QUIET_WAIT)

    def rest(self, now: float, delay: float = CHANGE_DELAY) -> None:
        """Record something for a plan in `delay` seconds that nobody waits for, such as what the last left."""
        self._rest = _earlier(self._rest, now + delay)

    def load(self, now: float, delay: float = CHANGE_DELAY) -> None:
        """Record that the traffic of pairs of edges is to be split anew, as by new load. Nobody waits for that."""
        self._load = _earlier(self._load, now + delay)

    def poll_timeout(self, *, busy: bool = False) -> float | None:
        """Return when to make a plan. While switches are told of the last one (`busy`), that is after failures."""
        causes = (self._failure,) if busy else (self._failure, self._change, self._calm, self._rest, self._load)
        due = min((at for at in causes if at is not None), default=None)
        return None if due is None else max(due, self._not_before)

    def due(self, now: float, *, busy: bool = False) -> bool:
        """Return true if a plan is due."""
        at = self.poll_timeout(busy=busy)
        return at is not None and now >= at

    def plan_begun(self) -> None:
        """Record that a plan is being made of all that was recorded until now."""
        self._failure = self._change = self._calm = self._first = self._rest = self._load = None

    def plan_made(self, now: float, took: float) -> None:
        """Record that a plan was made, whose last piece of work took this many seconds."""
        self._not_before = now + IDLE_FACTOR * took


def _earlier(known: float | None, at: float) -> float:
    return at if known is None else min(known, at)
