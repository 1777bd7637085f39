"""Throttles planning: at once after a failure, later after an improvement, and at a bounded rate.

Failures cost packets, so a plan follows as soon as simultaneous ones are gathered. Improvements wait until the
network is quiet. A network that keeps changing is replanned at a bounded rate.
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

    _urgent: float | None = None
    _calm: float | None = None
    _first: float | None = None
    _rest: float | None = None
    _not_before: float = 0.0

    @property
    def urgent(self) -> bool:
        """True if a failure or a change waits for a plan."""
        return self._urgent is not None

    @property
    def calm(self) -> bool:
        """True if something new waits that a plan might use."""
        return self._calm is not None

    def failure(self, now: float) -> None:
        """Record a failure of something that the plan uses."""
        self._sooner(now + FAILURE_DELAY)

    def change(self, now: float) -> None:
        """Record a host that appeared or moved, or new load counters: these can wait for a moment."""
        self._sooner(now + CHANGE_DELAY)

    def improvement(self, now: float) -> None:
        """Record something new that a plan might use."""
        self._first = self._first if self._first is not None else now
        self._calm = min(now + QUIET_PERIOD, self._first + MAX_QUIET_WAIT)

    def rest(self, now: float) -> None:
        """Record that the last plan left something for the next one that nobody waits for."""
        self._rest = now + CHANGE_DELAY

    def _sooner(self, at: float) -> None:
        self._urgent = at if self._urgent is None else min(self._urgent, at)

    def poll_timeout(self) -> float | None:
        """Return when to make a plan."""
        due = min((at for at in (self._urgent, self._calm, self._rest) if at is not None), default=None)
        return None if due is None else max(due, self._not_before)

    def due(self, now: float) -> bool:
        """Return true if a plan is due."""
        at = self.poll_timeout()
        return at is not None and now >= at

    def plan_made(self, now: float, took: float) -> None:
        """Record that a plan was made, and took this many seconds."""
        self._urgent = self._calm = self._first = self._rest = None
        self._not_before = now + IDLE_FACTOR * took
