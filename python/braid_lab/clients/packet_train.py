"""A train of UDP packets, and the rate, one-way delay and loss with which it arrives.

Both ends run on one machine and so share a clock; the kernel stamps arrivals. Run the receiver first, as `python -m
braid_lab.clients.packet_train receive ADDRESS` (prints `ready`, and its results as JSON once the train has passed),
then `python -m braid_lab.clients.packet_train send ADDRESS COUNT BYTES PER_SECOND CATCH_UP_S`. A sender that the
machine has delayed makes up for at most CATCH_UP_S. Choose it large to keep a link full, and small to measure delay:
a burst fills the queue and would be taken for the link's delay.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import statistics
import struct
import sys
import time

PORT = 9
#: Sequence number and send time, ns.
STAMP = struct.Struct("!QQ")
# Linux socket options that Python does not name.
SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_TIMESTAMPNS = 32, 33, 35
TIMESPEC = struct.Struct("qq")
#: Ethernet, IPv4 and UDP headers: a link's rate counts frames.
HEADERS_BYTES = 14 + 20 + 8
#: The train has ended when nothing has arrived for this long.
TRAIN_END_SECONDS = 0.6
#: Longest wait for the first packet.
FIRST_PACKET_TIMEOUT_SECONDS = 10.0
BUFFER_BYTES = 16 << 20


def receive(address: str) -> None:
    """Receive one train and print its results."""
    arrivals: list[tuple[int, int, int, int]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.bind((address, PORT))
        receiver.settimeout(FIRST_PACKET_TIMEOUT_SECONDS)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        with contextlib.suppress(TimeoutError):
            while True:
                data, ancillary, _, _ = receiver.recvmsg(2048, 64)
                seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
                sequence, sent = STAMP.unpack_from(data)
                arrivals.append((sequence, sent, seconds * 1_000_000_000 + nanoseconds, len(data)))
                receiver.settimeout(TRAIN_END_SECONDS)
    json.dump(_results(arrivals), sys.stdout)


def _results(arrivals: list[tuple[int, int, int, int]]) -> dict[str, object]:
    if len(arrivals) < 2:
        return {"received": len(arrivals)}
    delays = sorted((arrived - sent) / 1e6 for _, sent, arrived, _ in arrivals)
    sequences = [sequence for sequence, *_ in arrivals]
    # The first frame only starts the clock.
    frames = sum(size + HEADERS_BYTES for *_, size in arrivals[1:])
    span = arrivals[-1][2] - arrivals[0][2]
    missing = sorted(set(range(max(sequences) + 1)) - set(sequences))
    bursts = sum(1 for each in missing if each - 1 not in set(missing)) if len(missing) < 10_000 else None
    return {
        "received": len(arrivals),
        "mbit": frames * 8e3 / max(1, span),
        "delay_ms": {
            "min": delays[0],
            "median": statistics.median(delays),
            "mean": statistics.fmean(delays),
            "p99": delays[int(0.99 * (len(delays) - 1))],
            "max": delays[-1],
            "deviation": statistics.pstdev(delays),
        },
        "reordered": sum(1 for one, other in itertools.pairwise(sequences) if other < one),
        "missing": len(missing),
        "bursts": bursts,
    }


def send(address: str, count: int, size: int, per_second: float, catch_up: float) -> None:
    """Send a train of `count` packets with `size` bytes of payload, evenly spaced."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
        sender.connect((address, PORT))
        packet = bytearray(size)
        start = time.monotonic()
        for sequence in range(count):
            # Sleeping is too coarse for fast trains: each wake-up sends all packets that are due.
            ahead = start + sequence / per_second - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            elif ahead < -catch_up:
                start -= ahead
            STAMP.pack_into(packet, 0, sequence, time.time_ns())
            sender.send(packet)


def main() -> None:
    """Run the receiver or the sender."""
    match sys.argv[1:]:
        case ["receive", address]:
            receive(address)
        case ["send", address, count, size, per_second, catch_up]:
            send(address, int(count), int(size), float(per_second), float(catch_up))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
