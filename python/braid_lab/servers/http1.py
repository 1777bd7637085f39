"""An HTTP/1.1 server with just what workloads need, and fast enough not to be the bottleneck.

GET /bytes/N   N bytes           GET /stream    bytes without end, until the client leaves
GET /address   the client's address and port as seen here, which tells through which uplink it came
POST /sink     takes a body of Content-Length bytes and says how many came
GET /generate_204   nothing, with status 204: what those ask who look for a captive portal

Run as `python -m braid_lab.servers.http1 ADDRESS…`; prints `ready`.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys

from braid_lab.servers.catalog import HTTP_PORT

#: Bytes per write; larger than a socket buffer's usual growth step, so calls are few.
CHUNK = bytes(256 * 1024)

#: Endless for all practical purposes: 9 exabytes.
ENDLESS = 1 << 63

REQUEST = re.compile(rb"(GET|POST) (/[^ ]*) HTTP/1\.1\r\n")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Http1(asyncio.Protocol):
    """One connection: requests, also pipelined ones, are answered in order."""

    def __init__(self) -> None:
        """Wait for the first request."""
        self._waiting = b""
        self._to_send = 0
        self._to_swallow = 0
        self._swallowed = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and the peer's address."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        self._peer = transport.get_extra_info("peername")
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Skip the rest of a request body, else look for the next request."""
        if self._to_swallow:
            data = self._skip_body(data)
        self._waiting += data
        self._answer()

    def _skip_body(self, data: bytes) -> bytes:
        taken = min(len(data), self._to_swallow)
        self._to_swallow -= taken
        self._swallowed += taken
        if self._to_swallow == 0:
            self._respond(b"200 OK", b"%d\n" % self._swallowed)
        return data[taken:]

    def _answer(self) -> None:
        while self._to_send == 0 and self._to_swallow == 0 and b"\r\n\r\n" in self._waiting:
            head, _, self._waiting = self._waiting.partition(b"\r\n\r\n")
            request = REQUEST.match(head + b"\r\n")
            if request is None:
                self._respond(b"400 Bad Request", b"")
                self._transport.close()
                return
            self._route(request.group(1), request.group(2), head)
            self._write_body()

    def _route(self, method: bytes, path: bytes, head: bytes) -> None:
        if method == b"POST":
            length = LENGTH.search(head)
            self._to_swallow, self._swallowed = int(length.group(1)) if length else 0, 0
            self._waiting = self._skip_body(self._waiting)
        elif path == b"/address":
            self._respond(b"200 OK", f"{self._peer[0]} {self._peer[1]}\n".encode())
        elif path == b"/generate_204":
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        elif path == b"/stream":
            self._transport.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            self._to_send = ENDLESS
        elif path.startswith(b"/bytes/") and path[7:].isdigit():
            self._to_send = int(path[7:])
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % self._to_send)
        else:
            self._respond(b"404 Not Found", b"")

    def _respond(self, status: bytes, body: bytes) -> None:
        self._transport.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    def _write_body(self) -> None:
        while self._to_send and not self._paused and not self._transport.is_closing():
            size = min(self._to_send, len(CHUNK))
            self._to_send -= size
            self._transport.write(CHUNK if size == len(CHUNK) else CHUNK[:size])

    def pause_writing(self) -> None:
        """The kernel's buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """Resume writing."""
        self._paused = False
        self._write_body()
        self._answer()


async def serve(addresses: list[str]) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, done.set)
    await loop.create_server(Http1, addresses, HTTP_PORT, backlog=4096)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await done.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
