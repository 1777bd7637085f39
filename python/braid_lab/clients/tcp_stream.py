"""Endless TCP and kernel MPTCP streams, and the bytes that arrive in each bin of time.

Run `python -m braid_lab.clients.tcp_stream serve ADDRESS` first (prints `ready`). `… take ADDRESS SECONDS [--from
ADDRESS] [--flows N] [--mptcp]` receives: it prints the bytes of every bin since it began to connect, and the reason
if the stream broke early. `… give ADDRESS SECONDS [--from ADDRESS] [--flows N] [--mptcp] [--after SECONDS]` sends,
and prints the acknowledged bytes in the same form. Listeners accept both protocols: plain TCP is answered by plain
TCP.
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

#: Ports of the server that sends, and of the one that receives.
PORT, DRAIN_PORT = 7100, 7101
IPPROTO_MPTCP = 262

#: Offset of `tcpi_bytes_acked` in the kernel's struct tcp_info.
BYTES_ACKED = slice(120, 128)

#: Level and option of struct mptcp_info (<linux/mptcp.h>), and the offset of `mptcpi_snd_una` in it. TCP_INFO of such
#: a connection is that of its first subflow alone.
SOL_MPTCP, MPTCP_INFO = 284, 1
SND_UNA = slice(24, 32)

#: Width of a bin, s.
BIN_SECONDS = 0.02

#: Bytes per read or write.
CHUNK_BYTES = 1 << 18


def _socket(mptcp: bool) -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP if mptcp else 0)


def serve(address: str) -> None:
    """Send to every client of `PORT`, and receive from every client of `DRAIN_PORT`, until they disconnect."""
    with contextlib.ExitStack() as stack:
        listeners = {
            _listen(stack, address, PORT): _send_forever,
            _listen(stack, address, DRAIN_PORT): _receive_forever,
        }
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


def _send_forever(peer: socket.socket) -> None:
    chunk = bytes(CHUNK_BYTES)
    with peer, contextlib.suppress(OSError):
        while True:
            peer.sendall(chunk)


def _receive_forever(peer: socket.socket) -> None:
    buffer = bytearray(CHUNK_BYTES)
    with peer, contextlib.suppress(OSError):
        while peer.recv_into(buffer):
            pass


def send(address: str, seconds: float, *, source: str | None, flows: int, mptcp: bool) -> dict[str, object]:
    """Send over `flows` connections at once; return the acknowledged bytes per bin since the start."""
    chunk = bytes(CHUNK_BYTES)
    bins = [0] * max(1, round(seconds / BIN_SECONDS))
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        peers = [_connected(stack, (address, DRAIN_PORT), source, mptcp=mptcp) for _ in range(flows)]
        for peer in peers:
            selector.register(peer, selectors.EVENT_WRITE)
        before = [_acknowledged(peer, mptcp=mptcp) for peer in peers]
        began, broken = time.monotonic(), ""
        for number in range(len(bins)):
            while not broken and (left := began + (number + 1) * BIN_SECONDS - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    try:
                        key.fileobj.send(chunk)  # type: ignore[union-attr]
                    except BlockingIOError:
                        continue
                    except OSError as error:
                        broken = str(error)
            acknowledged = [_acknowledged(peer, mptcp=mptcp) for peer in peers]
            # MPTCP's numbers begin anywhere and wrap.
            bins[number] = sum((now - then) % 2**64 for now, then in zip(acknowledged, before, strict=True))
            before = acknowledged
    return {"began": began, "bin_s": BIN_SECONDS, "bytes": bins, "broken": broken or None}


def _acknowledged(peer: socket.socket, *, mptcp: bool) -> int:
    """Return up to which byte of a connection the peer has acknowledged, modulo 2^64."""
    if mptcp:
        return int.from_bytes(peer.getsockopt(SOL_MPTCP, MPTCP_INFO, SND_UNA.stop)[SND_UNA], sys.byteorder)
    info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_ACKED.stop)
    return int.from_bytes(info[BYTES_ACKED], sys.byteorder)


def _connected(stack: contextlib.ExitStack, to: tuple[str, int], source: str | None, *, mptcp: bool) -> socket.socket:
    """Return a connected, non-blocking socket."""
    peer = stack.enter_context(_socket(mptcp))
    if source:
        peer.bind((source, 0))
    peer.settimeout(10)
    peer.connect(to)
    peer.setblocking(False)
    return peer


def receive(address: str, seconds: float, *, source: str | None, flows: int, mptcp: bool) -> dict[str, object]:
    """Receive over `flows` connections at once; return the bytes per bin since `began` (CLOCK_MONOTONIC)."""
    began = time.monotonic()
    bins = [0] * max(1, round(seconds / BIN_SECONDS))
    segments: list[int] = []
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(flows):
            peer = _connected(stack, (address, PORT), source, mptcp=mptcp)
            segments.append(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
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
    """Serve, receive or send."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True, dest="verb")
    verbs.add_parser("serve").add_argument("address")
    for name in ("give", "take"):
        verb = verbs.add_parser(name)
        verb.add_argument("address")
        verb.add_argument("seconds", type=float)
        verb.add_argument("--from", dest="source")
        verb.add_argument("--flows", type=int, default=1)
        verb.add_argument("--mptcp", action="store_true")
        if name == "give":
            verb.add_argument("--after", type=float, default=0.0)
    options = parser.parse_args()
    if options.verb == "serve":
        serve(options.address)
        return
    move = receive
    if options.verb == "give":
        time.sleep(options.after)
        move = send
    done = move(options.address, options.seconds, source=options.source, flows=options.flows, mptcp=options.mptcp)
    json.dump(done, sys.stdout)


if __name__ == "__main__":
    main()
