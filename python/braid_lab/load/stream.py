"""TCP and kernel MPTCP streams without end: how much of them arrives, and when.

Run `python -m braid_lab.load.stream serve ADDRESS` first (prints `ready`), then `python -m braid_lab.load.stream take
ADDRESS SECONDS [--from ADDRESS] [--flows N] [--mptcp]`, which prints what came in every bin of time since it began to
connect, and why if the stream broke before its time, or `… give ADDRESS SECONDS`, which sends. Listeners serve both
kinds: plain TCP is answered by plain TCP.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable

#: Where streams come from, and where they go to.
PORT, DRAIN_PORT = 7100, 7101
IPPROTO_MPTCP = 262

#: How finely arrivals are recorded, s.
BIN_SECONDS = 0.02

#: How much is given to the kernel, or taken from it, at a time.
CHUNK_BYTES = 1 << 18


def _socket(mptcp: bool) -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP if mptcp else 0)


def serve(address: str) -> None:
    """Send to whoever connects, and take what others send, until they have had enough."""
    with contextlib.ExitStack() as stack:
        listeners = {_listen(stack, address, PORT): _pour, _listen(stack, address, DRAIN_PORT): _drain}
        for listener, what in listeners.items():
            threading.Thread(target=_accept, args=(listener, what), daemon=True).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        threading.Event().wait()


def _listen(stack: contextlib.ExitStack, address: str, port: int) -> socket.socket:
    listener = stack.enter_context(_socket(mptcp=True))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(64)
    return listener


def _accept(listener: socket.socket, what: Callable[[socket.socket], None]) -> None:
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=what, args=(peer,), daemon=True).start()


def _pour(peer: socket.socket) -> None:
    chunk = bytes(CHUNK_BYTES)
    with peer, contextlib.suppress(OSError):
        while True:
            peer.sendall(chunk)


def _drain(peer: socket.socket) -> None:
    buffer = bytearray(CHUNK_BYTES)
    with peer, contextlib.suppress(OSError):
        while peer.recv_into(buffer):
            pass


def give(address: str, seconds: float) -> None:
    """Send for so long."""
    chunk = bytes(CHUNK_BYTES)
    until = time.monotonic() + seconds
    with _socket(mptcp=False) as peer:
        peer.settimeout(10)
        peer.connect((address, DRAIN_PORT))
        while time.monotonic() < until:
            peer.sendall(chunk)


def take(address: str, seconds: float, *, source: str | None, flows: int, mptcp: bool) -> dict[str, object]:
    """Receive over so many connections at once; returns what came in which bins since `began` (CLOCK_MONOTONIC)."""
    began = time.monotonic()
    bins = [0] * max(1, round(seconds / BIN_SECONDS))
    segments: list[int] = []
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(flows):
            peer = stack.enter_context(_socket(mptcp))
            if source:
                peer.bind((source, 0))
            peer.settimeout(10)
            peer.connect((address, PORT))
            segments.append(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
            peer.setblocking(False)
            selector.register(peer, selectors.EVENT_READ)
        buffer = bytearray(CHUNK_BYTES)
        broken = ""
        while not broken and (left := began + seconds - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                try:
                    count = key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
                except BlockingIOError:
                    continue
                except OSError as error:
                    count, broken = 0, str(error)
                if not count:
                    broken = broken or "ended by the server"
                at = int((time.monotonic() - began) / BIN_SECONDS)
                if at < len(bins):
                    bins[at] += count
    return {
        "began": began,
        "bin_s": BIN_SECONDS,
        "bytes": bins,
        "segment_bytes": max(segments),
        "broken": broken or None,
    }


def main() -> None:
    """Serve, take or give."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True, dest="verb")
    verbs.add_parser("serve").add_argument("address")
    giving = verbs.add_parser("give")
    giving.add_argument("address")
    giving.add_argument("seconds", type=float)
    taking = verbs.add_parser("take")
    taking.add_argument("address")
    taking.add_argument("seconds", type=float)
    taking.add_argument("--from", dest="source")
    taking.add_argument("--flows", type=int, default=1)
    taking.add_argument("--mptcp", action="store_true")
    options = parser.parse_args()
    if options.verb == "serve":
        serve(options.address)
    elif options.verb == "give":
        give(options.address, options.seconds)
    else:
        taken = take(
            options.address, options.seconds, source=options.source, flows=options.flows, mptcp=options.mptcp
        )
        json.dump(taken, sys.stdout)


if __name__ == "__main__":
    main()
