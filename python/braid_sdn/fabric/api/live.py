"""The stream for those who watch: one snapshot a second for all of them together, and events as they are noticed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from braid_sdn.fabric.api.events import Event, Journal
from braid_sdn.fabric.api.report import MAX_MADE_AT_ONCE
from braid_sdn.fabric.pieces import at_once

Pieces = Generator[None, None, bytes]


async def _at_once(pieces: Pieces) -> bytes:
    return at_once(pieces)


class Live:
    """Snapshots and the journal of one controller. Nobody watching, no snapshot is made."""

    def __init__(
        self,
        snapshot: Callable[[], Generator[None, None, dict[str, Any]]],
        began_unix_ms: int,
        make: Callable[[Pieces], Awaitable[bytes]] = _at_once,
    ) -> None:
        """Make snapshots by the pieces of `snapshot`; `make` says when.

        Events are numbered from the start's time on, so that they follow those of the controller before.
        """
        self.journal = Journal(began_unix_ms)
        self._snapshot = snapshot
        self._make = make
        self._making = asyncio.Lock()
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
        turn = self._turn
        async with self._making:
            # The first to come made it for all, and turns may have begun meanwhile.
            if self._made is None or self._made[0] < turn:
                turn = self._turn
                self._made = turn, await self._make(_in_pieces(self._snapshot()))
            turn, made = self._made
        events = [_message("event", event, event["number"]) for event in self.journal.after(number)]
        return turn, self.journal.last, b"".join([*events, made])


def _in_pieces(snapshot: Generator[None, None, dict[str, Any]]) -> Pieces:
    """Make the message of a snapshot: long lists are encoded in parts."""
    content = yield from snapshot
    words = []
    for name, value in content.items():
        parts = [value]
        if isinstance(value, list) and len(value) > MAX_MADE_AT_ONCE:
            parts = [value[at : at + MAX_MADE_AT_ONCE] for at in range(0, len(value), MAX_MADE_AT_ONCE)]
        texts = []
        for part in parts:
            texts.append(json.dumps(part))
            yield
        text = texts[0] if len(texts) == 1 else f"[{', '.join(each[1:-1] for each in texts)}]"
        words.append(f"{json.dumps(name)}: {text}")
    return _framed("snapshot", f"{{{', '.join(words)}}}")


def _message(kind: str, content: dict[str, Any], number: int | None = None) -> bytes:
    """Return a message of server-sent events."""
    return _framed(kind, json.dumps(content), number)


def _framed(kind: str, text: str, number: int | None = None) -> bytes:
    known = "" if number is None else f"id: {number}\n"
    return f"event: {kind}\n{known}data: {text}\n\n".encode()
