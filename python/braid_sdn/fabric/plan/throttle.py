"""When a new plan is made: at once when something broke, later when something may be better, and never in a rush.

What breaks costs packets, so it is followed as soon as its like has been gathered. What appears, or a load that
moved, can wait until it is quiet; and a network that keeps changing is followed at a bounded pace.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds to gather what breaks together: both directions of a link, all ports of a switch.
FAILURE_DELAY = 0.005
#: Seconds to gather hosts that appear.
CHANGE_DELAY = 0.02
#: Seconds without further news before what is better is followed; at most MAX_QUIET_WAIT after the first of it.
QUIET_PERIOD = 1.0
MAX_QUIET_WAIT = 5.0
#: The next plan comes at the earliest this many times later than the last one took to make.
IDLE_FACTOR = 4.0


@dataclass
class Throttle:
    """Says when. Times are seconds."""

    _urgent: float | None = None
    _calm: float | None = None
    _first: float | None = None
    _not_before: float = 0.0

    @property
    def urgent(self) -> bool:
        """Whether something waits that cannot wait long."""
        return self._urgent is not None

    def failure(self, now: float) -> None:
        """Something that plans stand on is no more."""
        self._sooner(now + FAILURE_DELAY)

    def change(self, now: float) -> None:
        """A host appeared or moved, or loads were counted: nobody loses by waiting for a moment."""
        self._sooner(now + CHANGE_DELAY)

    def improvement(self, now: float) -> None:
        """Something appeared that plans might use."""
        self._first = self._first if self._first is not None else now
        self._calm = min(now + QUIET_PERIOD, self._first + MAX_QUIET_WAIT)

    def _sooner(self, at: float) -> None:
        self._urgent = at if self._urgent is None else min(self._urgent, at)

    def poll_timeout(self) -> float | None:
        """Return when to make a plan."""
        due = min((at for at in (self._urgent, self._calm) if at is not None), default=None)
        return None if due is None else max(due, self._not_before)

    def due(self, now: float) -> bool:
        """Whether to make one now."""
        at = self.poll_timeout()
        return at is not None and now >= at

    def plan_made(self, now: float, took: float) -> None:
        """A plan was made, and took this many seconds."""
        self._urgent = self._calm = self._first = None
        self._not_before = now + IDLE_FACTOR * took
