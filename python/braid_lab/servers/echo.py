"""An echo server (RFC 862) over TCP and UDP that also tells the client's address.

Over TCP the first line is `<address> <port>` of the client as the server sees it, then every line is echoed. Over UDP
every reply has that pair. UDP is also served on QUIC's port, where Braid tracks a flow per remote. Run as `python -m
braid_lab.servers.echo ADDRESS…`; prints `ready`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Any, cast

from braid_lab.servers.catalog import ECHO_PORT, QUIC_PORT


async def serve_tcp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection."""
    with contextlib.suppress(OSError):
        address, port = writer.get_extra_info("peername")[:2]
        writer.write(f"{address} {port}\n".encode())
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
    writer.close()


class Datagrams(asyncio.DatagramProtocol):
    """Answers every datagram with its sender's address."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the socket."""
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Reply with the received bytes, then the client's address."""
        self._transport.sendto(data + f" {addr[0]} {addr[1]}".encode(), addr)


async def serve(addresses: list[str]) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    for address in addresses:
        await asyncio.start_server(serve_tcp, address, ECHO_PORT)
        for port in (ECHO_PORT, QUIC_PORT):
            await loop.create_datagram_endpoint(Datagrams, local_addr=(address, port))
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await stopped.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
