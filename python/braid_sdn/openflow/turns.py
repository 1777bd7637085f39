"""Bounds the time for which one turn of the loop handles events, so that all else in the loop gets its turn soon.

A turn of asyncio's loop reads from all sockets that have something, however many: of 1,000 switches that each have a
few messages, that is a second. Here work that comes when a turn has already taken long waits, in the order in which
it came, for the next turns.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

#: Seconds of processor time in one turn of the loop after which further work waits for the next one.
MAX_TURN = 0.01

Work = Callable[[], bool]


class Turns:
    """Work of one loop. A piece of work does what `has_time` permits, and returns true if nothing of it is left."""

    def __init__(self, stopwatch: Callable[[], float] = time.thread_time) -> None:
        """Create it without work. `stopwatch` is the processor's time: that of other processes counts for no turn."""
        self._stopwatch = stopwatch
        self._waiting: deque[Work] = deque()
        #: When this turn began, by the stopwatch; None before its first piece of work.
        self._began: float | None = None
        #: Seconds that the longest turn took.
        self.longest = 0.0

    def has_time(self) -> bool:
        """Return true while this turn has not taken long."""
        return self._stopwatch() - self.begin() < MAX_TURN

    def begin(self) -> float:
        """Count this turn of the loop, from here on at the latest; return when it began."""
        if self._began is None:
            self._began = self._stopwatch()
            asyncio.get_running_loop().call_soon(self._go_on)
        return self._began

    def add(self, work: Work) -> None:
        """Do a piece of work, or have it wait, behind all that waits already."""
        if self._waiting or not self.has_time() or not work():
            self._waiting.append(work)

    def _go_on(self) -> None:
        """End the turn that began, and go on with what has waited."""
        if self._began is not None:
            self.longest = max(self.longest, self._stopwatch() - self._began)
        self._began = None
        # Each has one try in a turn: work that others have to wait for may be at its end.
        for _ in range(len(self._waiting)):
            if not self.has_time():
                return
            work = self._waiting.popleft()
            if not work():
                self._waiting.append(work)
