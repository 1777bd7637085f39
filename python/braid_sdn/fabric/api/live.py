"""The stream for those who watch: one snapshot a second for all of them together, and events as they are noticed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from braid_sdn.fabric.api.events import Event, Journal


class Live:
    """Snapshots and the journal of one controller. Nobody watching, no snapshot is made."""

    def __init__(self, snapshot: Callable[[], dict[str, Any]], began_unix_ms: int) -> None:
        """Make snapshots by `snapshot`.

        Events are numbered from the start's time on, so that they follow those of the controller before.
        """
        self.journal = Journal(began_unix_ms)
        self._snapshot = snapshot
        self._made: tuple[int, bytes] | None = None
        self._turn = 0
        self._next: asyncio.Future[None] | None = None

    def note(self, unix_ms: int, event: Event) -> None:
        """Keep an event; the next turn tells it to those who watch."""
        self.journal.add(unix_ms, event)

    def turn(self) -> None:
        """Begin the next turn: whoever waits gets its frame."""
        self._turn += 1
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None

    async def frame(self, seen: int, number: int) -> tuple[int, int, bytes]:
        """Wait for a turn after `seen`. Returns it, the last event's number, and a piece of a stream.

        The piece has the events after `number`, and the snapshot of this turn.
        """
        while self._turn <= seen:
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
            # Others wait for the same future.
            await asyncio.shield(self._next)
        if self._made is None or self._made[0] != self._turn:
            self._made = self._turn, _message("snapshot", self._snapshot())
        events = [_message("event", event, event["number"]) for event in self.journal.after(number)]
        return self._turn, self.journal.last, b"".join([*events, self._made[1]])


def _message(kind: str, content: dict[str, Any], number: int | None = None) -> bytes:
    """Return a message of server-sent events."""
    known = "" if number is None else f"id: {number}\n"
    return f"event: {kind}\n{known}data: {json.dumps(content)}\n\n".encode()
