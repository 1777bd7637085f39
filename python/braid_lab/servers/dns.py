"""A DNS server over UDP that knows every name: A and AAAA point to the servers, TXT tells the client's address.

TXT is the client's `<address> <port>` as the server sees it, which shows the mapping of a UDP flow. Run as `python -m
braid_lab.servers.dns ADDRESS…`; prints `ready`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any, cast

from braid_lab.servers.catalog import DNS_PORT
from braid_lab.servers.dns_messages import answer


class Dns(asyncio.DatagramProtocol):
    """One socket."""

    def __init__(self, addresses: list[str]) -> None:
        """Set the addresses for answers."""
        self._addresses = addresses

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[Any, ...]) -> None:
        """Answer valid queries, ignore others."""
        try:
            self._transport.sendto(answer(data, (address[0], address[1]), self._addresses), address)
        except ValueError:
            return


async def main(addresses: list[str]) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, done.set)
    for address in addresses:
        await loop.create_datagram_endpoint(lambda: Dns(addresses), local_addr=(address, DNS_PORT))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await done.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
