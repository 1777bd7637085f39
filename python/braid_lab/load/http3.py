"""An HTTP/3 download: one QUIC connection, one request after the other.

Run as `python -m braid_lab.load.http3 ADDRESS PATH…`; prints the seconds taken and each answer's size, and the
text of those that are short.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from typing import Any, cast

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent

from braid_lab.serve.servers import QUIC_PORT

#: Answers up to this size are shown as text.
SHORT_BYTES = 100


class Client(QuicConnectionProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Prepare HTTP/3 on top of QUIC."""
        super().__init__(*arguments, **named)
        self._http = H3Connection(self._quic)
        self._bodies: dict[int, bytearray] = {}
        self._ends: dict[int, asyncio.Future[bytes]] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        """Collect the answers."""
        for each in self._http.handle_event(event):
            if isinstance(each, DataReceived):
                self._bodies[each.stream_id] += each.data
            if isinstance(each, DataReceived | HeadersReceived) and each.stream_ended:
                self._ends[each.stream_id].set_result(bytes(self._bodies[each.stream_id]))

    async def get(self, authority: str, path: str) -> bytes:
        """Fetch `path`."""
        stream = self._quic.get_next_available_stream_id()
        self._bodies[stream] = bytearray()
        self._ends[stream] = asyncio.get_running_loop().create_future()
        names = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", authority.encode())]
        self._http.send_headers(stream, [*names, (b":path", path.encode())], end_stream=True)
        self.transmit()
        return await self._ends[stream]


async def fetch(address: str, paths: list[str]) -> dict[str, Any]:
    """Fetch all paths in order."""
    # The lab's servers sign their own certificates, made a moment ago.
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE)
    started = time.monotonic()
    answers = []
    async with connect(address, QUIC_PORT, configuration=configuration, create_protocol=Client) as made:
        client = cast(Client, made)
        for path in paths:
            body = await client.get("lab.invalid", path)
            text = body.decode(errors="replace").strip() if len(body) <= SHORT_BYTES else None
            answers.append({"path": path, "bytes": len(body), "text": text})
    return {"seconds": time.monotonic() - started, "answers": answers}


def main() -> None:
    """Fetch and print."""
    address, *paths = sys.argv[1:]
    json.dump(asyncio.run(fetch(address, paths)), sys.stdout)


if __name__ == "__main__":
    main()
