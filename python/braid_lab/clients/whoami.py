"""Asks servers for the address and port from which they see each of our flows.

`python -m braid_lab.clients.whoami tcp COUNT ADDRESS…` opens COUNT connections to every address, one after the other;
`udp COUNT ADDRESS…` queries all addresses from each of COUNT sockets. Prints the replies as a list of `[address,
port]`, for UDP one such list per socket.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from contextlib import ExitStack

from braid_lab.servers.catalog import DNS_PORT, HTTP_PORT
from braid_lab.servers.dns_messages import HEADER, IN, TXT

TIMEOUT_SECONDS = 5.0
#: A standard query with one question, no recursion desired.
QUERY = HEADER.pack(1, 0, 1, 0, 0, 0) + b"\x06whoami\x03lab\0" + struct.pack("!2H", TXT, IN)

Seen = tuple[str, int]


def by_tcp(address: str) -> Seen:
    """Open a connection and ask over it."""
    with socket.create_connection((address, HTTP_PORT), timeout=TIMEOUT_SECONDS) as peer:
        peer.sendall(b"GET /address HTTP/1.1\r\nHost: lab\r\n\r\n")
        with peer.makefile("rb") as answer:
            while answer.readline() != b"\r\n":
                pass
            return _seen(answer.readline())


def by_udp(asker: socket.socket, address: str) -> Seen:
    """Ask from a socket; TimeoutError if no reply comes."""
    asker.sendto(QUERY, (address, DNS_PORT))
    answer, _ = asker.recvfrom(512)
    return seen_as(answer)


def seen_as(answer: bytes) -> Seen:
    """Return the address and port in a reply to `QUERY`."""
    # A reply repeats the question; then comes a record with 12 bytes before its data, and the data begins with the
    # text's length.
    return _seen(answer[len(QUERY) + 13 :])


def _seen(text: bytes) -> Seen:
    address, port = text.decode().split()
    return address, int(port)


def main() -> None:
    """Ask and print."""
    kind, count, *addresses = sys.argv[1:]
    if kind == "tcp":
        json.dump([by_tcp(address) for _ in range(int(count)) for address in addresses], sys.stdout)
        return
    family = socket.AF_INET6 if ":" in addresses[0] else socket.AF_INET
    answers = []
    with ExitStack() as open_sockets:
        for _ in range(int(count)):
            # Stays open to the end: a later socket that got the port of a closed one would have its mapping too.
            asker = open_sockets.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            asker.settimeout(TIMEOUT_SECONDS)
            answers.append([by_udp(asker, address) for address in addresses])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
