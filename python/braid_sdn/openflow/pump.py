"""Drives decisions that do no I/O: sends their messages, and calls them when they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from braid_sdn.openflow.turns import Turns


class Pump:
    """One run for all events in a turn of the loop, and one after each time that the last run returned."""

    def __init__(
        self, send: Callable[[], float | None], handle_timeout: Callable[[float], None], turns: Turns
    ) -> None:
        """Create it in a running loop. `send` sends messages and returns the time of the next timeout, if any.

        The timeout has its turn after all that came before it was due: what has arrived is not missing.
        """
        self._send, self._handle_timeout, self._turns = send, handle_timeout, turns
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_soon = self._is_due = False
        self._is_stopped = False

    def run_soon(self) -> None:
        """Run once in the next turn of the loop."""
        if not self._is_soon:
            self._is_soon = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Send what there is, and wait for the next timeout."""
        self._is_soon = False
        if self._is_stopped:
            return
        self._turns.begin()
        due = self._send()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None or self._is_due else self._loop.call_at(due, self._due)

    def stop(self) -> None:
        """Send nothing any more, and stop the timer."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        self._is_due = True
        self._turns.add(self._time_out)

    def _time_out(self) -> bool:
        self._is_due = False
        if not self._is_stopped:
            try:
                self._handle_timeout(self._loop.time())
            finally:
                # An error ends no later timeout.
                self.run_soon()
        return True
