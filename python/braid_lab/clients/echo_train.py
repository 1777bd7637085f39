"""Echo train: small datagrams at a fixed interval to echo servers, with the arrival time of each reply.

Run as `python -m braid_lab.clients.echo_train SPACING_MS BYTES ADDRESS…`; it sends to all servers at every interval,
until SIGTERM. For `ADDRESS@SOURCE` it sends from that one of the host's addresses. Prints `ready` once each of them
has replied, and at the end a list for each: [sent s, answered s, address that the server saw], the last two null
without a reply. Times are CLOCK_MONOTONIC.
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

#: Wait for replies after the last probe.
DRAIN_SECONDS = 1.0

#: Largest reply: the probe, and the address that the server saw.
MAX_REPLY_BYTES = 2048


class EchoTrain:
    """The probes to one server."""

    def __init__(self, address: str, size: int) -> None:
        """Send nothing yet."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        server, _, source = address.partition("@")
        if source:
            self.socket.bind((source, 0))
        self.socket.connect((server, ECHO_PORT))
        self._filler = bytes(size - SEQUENCE.size)
        self.sent: list[float] = []
        self.answered: dict[int, tuple[float, str]] = {}

    def send(self) -> None:
        """Send a probe. A network under repair may refuse for a moment: that probe is lost."""
        number = len(self.sent)
        self.sent.append(time.monotonic())
        with contextlib.suppress(OSError):
            self.socket.send(SEQUENCE.pack(number) + self._filler)

    def receive(self) -> None:
        """Receive a reply; of duplicates the first one counts."""
        with contextlib.suppress(OSError):
            answer = self.socket.recv(MAX_REPLY_BYTES)
            seen = answer.rsplit(b" ", 2)[1].decode()
            self.answered.setdefault(SEQUENCE.unpack_from(answer)[0], (time.monotonic(), seen))

    def results(self) -> list[tuple[float, float | None, str | None]]:
        """Return the outcome of every probe."""
        return [(sent, *self.answered.get(number, (None, None))) for number, sent in enumerate(self.sent)]


def main() -> None:
    """Send probes and print the results."""
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
