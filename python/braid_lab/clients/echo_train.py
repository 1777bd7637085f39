"""Small datagrams at a steady beat to echo servers: which came back, and when, on CLOCK_MONOTONIC.

Run as `python -m braid_lab.clients.echo_train SPACING_MS BYTES ADDRESS…`; all servers are asked at every beat, until SIGTERM.
Prints `ready` at the first answer of each of them, and at the end a list for each: [sent s, answered s, address that
the server saw], the last two null if no answer came.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import signal
import socket
import struct
import sys
import time

from braid_lab.servers.catalog import ECHO_PORT

SEQUENCE = struct.Struct("!I")

#: How long answers are waited for after the last beat.
DRAIN_SECONDS = 1.0

#: Room for an answer: the beat, and whom the server saw.
MAX_REPLY_BYTES = 2048


class EchoTrain:
    """One server's beats."""

    def __init__(self, address: str, size: int) -> None:
        """Nothing is sent yet."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.connect((address, ECHO_PORT))
        self._filler = bytes(size - SEQUENCE.size)
        self.sent: list[float] = []
        self.answered: dict[int, tuple[float, str]] = {}

    def send(self) -> None:
        """Ask once. A network that is being repaired may refuse for a moment: that beat is lost."""
        number = len(self.sent)
        self.sent.append(time.monotonic())
        with contextlib.suppress(OSError):
            self.socket.send(SEQUENCE.pack(number) + self._filler)

    def receive(self) -> None:
        """Take an answer; of a copy the first one counts."""
        with contextlib.suppress(OSError):
            answer = self.socket.recv(MAX_REPLY_BYTES)
            seen = answer.rsplit(b" ", 2)[1].decode()
            self.answered.setdefault(SEQUENCE.unpack_from(answer)[0], (time.monotonic(), seen))

    def results(self) -> list[tuple[float, float | None, str | None]]:
        """Return what became of every beat."""
        return [(sent, *self.answered.get(number, (None, None))) for number, sent in enumerate(self.sent)]


def main() -> None:
    """Beat and print."""
    spacing, size, addresses = float(sys.argv[1]) / 1000, int(sys.argv[2]), sys.argv[3:]
    over = False

    def end(*_: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, end)
    trains = [EchoTrain(address, size) for address in addresses]
    said = False
    with selectors.DefaultSelector() as selector:
        for train in trains:
            selector.register(train.socket, selectors.EVENT_READ, train)
        next_at = time.monotonic()
        until: float | None = None
        while until is None or time.monotonic() < until:
            if over and until is None:
                until = time.monotonic() + DRAIN_SECONDS
            if until is None and time.monotonic() >= next_at:
                for train in trains:
                    train.send()
                next_at = max(next_at + spacing, time.monotonic())
            for key, _ in selector.select(max(0.0, min(next_at, until or next_at) - time.monotonic())):
                key.data.receive()
            if not said and all(train.answered for train in trains):
                said = True
                sys.stdout.write("ready\n")
                sys.stdout.flush()
    json.dump([train.results() for train in trains], sys.stdout)


if __name__ == "__main__":
    main()
