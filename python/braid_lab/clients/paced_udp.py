"""Numbered datagrams at rates that change step by step, and a receiver that records arrival times and order.

Run `python -m braid_lab.clients.paced_udp receive ADDRESS` first (prints `ready`, and its results as JSON when
SIGTERM ends it), then `python -m braid_lab.clients.paced_udp send ADDRESS BYTES STEP_S FILE` once per flow. FILE
holds packets per second, one number a line, each for one step. Times are CLOCK_MONOTONIC, in s.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

from braid_lab.clients.packet_train import BUFFER_BYTES, SO_RCVBUFFORCE, SO_SNDBUFFORCE

PORT = 7110
SEQUENCE = struct.Struct("!I")

#: A flow's source address and port; an arrival: time, source and sequence number of a datagram.
Source = tuple[str, int]
Arrival = tuple[float, Source, int]

#: Width of an arrival bin, s: the paper's ([l3b] §5.3).
BIN_SECONDS = 0.1

#: The sender makes up for at most this much of a stall, s: less than any queue on the path holds.
MAX_CATCH_UP_SECONDS = 0.004


def receive(address: str) -> None:
    """Count arrivals until SIGTERM."""
    arrivals: list[Arrival] = []
    over = False

    def end(*_: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, end)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        receiver.bind((address, PORT))
        receiver.settimeout(0.2)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while not over:
            try:
                data, source = receiver.recvfrom(2048)
            except TimeoutError:
                continue
            arrivals.append((time.monotonic(), source, SEQUENCE.unpack_from(data)[0]))
    sources = sorted({address for _, (address, _), _ in arrivals})
    json.dump(results(arrivals) | {"sources": sources}, sys.stdout)


def results(arrivals: list[Arrival]) -> dict[str, object]:
    """Return the arrivals per bin since the first one, and how many of each bin were in their flow's order."""
    began = arrivals[0][0] if arrivals else 0.0
    received, in_order = array.array("L"), array.array("L")
    highest: dict[Source, int] = {}
    seen: set[tuple[Source, int]] = set()
    for at, source, number in arrivals:
        here = int((at - began) / BIN_SECONDS)
        while len(received) <= here:
            received.append(0)
            in_order.append(0)
        if (source, number) in seen:
            continue
        seen.add((source, number))
        received[here] += 1
        if number > highest.get(source, -1):
            in_order[here] += 1
            highest[source] = number
    return {
        "began": began,
        "bin_s": BIN_SECONDS,
        "received": list(received),
        "in_order": list(in_order),
        "packets": len(seen),
    }


def send(address: str, size: int, step: float, rates: list[float]) -> None:
    """Send at the given rates.

    After a stall of the machine the sender makes up for at most `MAX_CATCH_UP_SECONDS`, since a burst would fill
    queues. Where permitted it asks for real-time priority, so that stalls are rare.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
        sender.connect((address, PORT))
        packet = bytearray(size)
        sent = 0
        began = due = time.monotonic()
        for number, rate in enumerate(rates, start=1):
            if not rate:
                due = max(due, began + number * step)
            while due < began + number * step:
                ahead = due - time.monotonic()
                if ahead > 0:
                    time.sleep(ahead)
                elif ahead < -MAX_CATCH_UP_SECONDS:
                    due -= ahead
                SEQUENCE.pack_into(packet, 0, sent)
                sender.send(packet)
                sent += 1
                due += 1 / rate
        ended = time.monotonic()
    json.dump({"sent": sent, "began": began, "ended": ended}, sys.stdout)


def main() -> None:
    """Run the receiver or the sender."""
    match sys.argv[1:]:
        case ["receive", address]:
            receive(address)
        case ["send", address, size, step, file]:
            send(address, int(size), float(step), [float(line) for line in Path(file).read_text().split()])
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
