"""A DNS server over UDP that knows every name: A and AAAA point to the servers, TXT tells the client's address.

TXT is the client's `<address> <port>` as the server sees it, which shows the mapping of a UDP flow. Run as `python -m
braid_lab.servers.dns ADDRESS…`; prints `ready`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import struct
import sys
import zlib
from typing import Any, cast

from braid_lab.servers.catalog import DNS_PORT

A, TXT, AAAA, IN = 1, 16, 28, 1
HEADER = struct.Struct("!6H")
#: Standard query response, authoritative, no error (RFC 1035 §4.1.1).
ANSWER_FLAGS = 0x8400
#: A pointer to the question's name, which always comes right after the header (§4.1.4).
POINTER = b"\xc0\x0c"
TTL = 60


def question(packet: bytes) -> tuple[bytes, bytes, int]:
    """Return the name, the whole question and the query type; ValueError if it is no single question."""
    if len(packet) < HEADER.size or HEADER.unpack_from(packet)[2] != 1:
        raise ValueError("not one question")
    end = HEADER.size
    while packet[end : end + 1] not in (b"", b"\0"):
        end += 1 + packet[end]
    whole = packet[HEADER.size : end + 5]
    if len(whole) < 5 or whole[-5] != 0:
        raise ValueError("cut off")
    kind, _ = struct.unpack("!2H", whole[-4:])
    return whole[:-4], whole, kind


def answer(packet: bytes, asker: tuple[str, int], addresses: list[str]) -> bytes:
    """Return the reply to a query."""
    name, whole, kind = question(packet)
    version = {A: 4, AAAA: 6}.get(kind)
    known = [ipaddress.ip_address(each) for each in addresses]
    fitting = [each for each in known if each.version == version]
    if kind == TXT:
        text = f"{asker[0]} {asker[1]}".encode()
        data = bytes([len(text)]) + text
    elif fitting:
        # A name always maps to the same server.
        data = fitting[zlib.crc32(name.lower()) % len(fitting)].packed
    else:
        data = b""
    identifier = HEADER.unpack_from(packet)[0]
    head = HEADER.pack(identifier, ANSWER_FLAGS, 1, 1 if data else 0, 0, 0)
    record = POINTER + struct.pack("!2HIH", kind, IN, TTL, len(data)) + data if data else b""
    return head + whole + record


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
