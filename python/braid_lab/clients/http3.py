"""An HTTP/3 download: one QUIC connection, one request after the other.

Run as `python -m braid_lab.clients.http3 ADDRESS PATH…`; prints the seconds taken, each response's size, and the text
of short ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, QuicEvent

from braid_lab.servers.catalog import QUIC_PORT

#: Responses up to this size are printed as text.
SHORT_BYTES = 100


class Client(QuicConnectionProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Prepare HTTP/3 on top of QUIC."""
        super().__init__(*arguments, **named)
        self._http = H3Connection(self._quic)
        self._bodies: dict[int, bytearray] = {}
        self._statuses: dict[int, str] = {}
        self._counting: dict[int, Callable[[int], None]] = {}
        self._ends: dict[int, asyncio.Future[bytes]] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        """Collect the responses."""
        if isinstance(event, ConnectionTerminated):
            for end in self._ends.values():
                if not end.done():
                    end.set_exception(ConnectionError(event.reason_phrase or f"error {event.error_code:#x}"))
        for each in self._http.handle_event(event):
            if isinstance(each, DataReceived):
                self._received(each.stream_id, each.data)
            if isinstance(each, HeadersReceived):
                self._statuses[each.stream_id] = dict(each.headers).get(b":status", b"none").decode()
            if isinstance(each, DataReceived | HeadersReceived) and each.stream_ended:
                self._ended(each.stream_id)

    def _ended(self, stream: int) -> None:
        end, status = self._ends[stream], self._statuses[stream]
        if status == "200":
            end.set_result(bytes(self._bodies[stream]))
        else:
            end.set_exception(ConnectionError(f"HTTP status {status}"))

    def _received(self, stream: int, data: bytes) -> None:
        if stream in self._counting:
            self._counting[stream](len(data))
        else:
            self._bodies[stream] += data

    async def get(self, path: str, *, count: Callable[[int], None] | None = None) -> bytes:
        """Fetch `path` and return its body; with `count`, only report the sizes of chunks as they arrive."""
        stream = self._quic.get_next_available_stream_id()
        self._bodies[stream] = bytearray()
        if count is not None:
            self._counting[stream] = count
        self._ends[stream] = asyncio.get_running_loop().create_future()
        authority = (self._quic.configuration.server_name or "lab.invalid").encode()
        names = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", authority)]
        self._http.send_headers(stream, [*names, (b":path", path.encode())], end_stream=True)
        self.transmit()
        return await self._ends[stream]


@contextlib.asynccontextmanager
async def connected(
    address: str, *, name: str | None = None, trust: Path | None = None, source: str | None = None
) -> AsyncIterator[Client]:
    """Open a connection to a server; with `trust`, its certificate must be one for `name` from that authority.

    Without, the server is one of those that make their own certificates. `source` is one of the host's addresses.
    """
    verify = ssl.CERT_REQUIRED if trust else ssl.CERT_NONE
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=H3_ALPN,
        verify_mode=verify,
        server_name=name,
        cafile=str(trust) if trust else None,
        # As for TCP in the lab.
        congestion_control_algorithm="cubic",
    )
    opened: contextlib.AbstractAsyncContextManager[QuicConnectionProtocol]
    if source:
        opened = _connect_from(source, address, configuration)
    else:
        opened = connect(address, QUIC_PORT, configuration=configuration, create_protocol=Client)
    async with opened as made:
        yield cast(Client, made)


@contextlib.asynccontextmanager
async def _connect_from(source: str, address: str, configuration: QuicConfiguration) -> AsyncIterator[Client]:
    """Do as aioquic's `connect`, which has no parameter for the source address."""
    configuration.server_name = configuration.server_name or address
    transport, made = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Client(QuicConnection(configuration=configuration)), local_addr=(source, 0)
    )
    try:
        made.connect((address, QUIC_PORT))
        await made.wait_connected()
        yield made
    finally:
        made.close()
        await made.wait_closed()
        transport.close()


async def fetch(address: str, paths: list[str]) -> dict[str, Any]:
    """Fetch all paths in order."""
    started = time.monotonic()
    answers = []
    async with connected(address) as client:
        for path in paths:
            body = await client.get(path)
            text = body.decode(errors="replace").strip() if len(body) <= SHORT_BYTES else None
            answers.append({"path": path, "bytes": len(body), "text": text})
    return {"seconds": time.monotonic() - started, "answers": answers}


def main() -> None:
    """Fetch and print."""
    address, *paths = sys.argv[1:]
    json.dump(asyncio.run(fetch(address, paths)), sys.stdout)


if __name__ == "__main__":
    main()
