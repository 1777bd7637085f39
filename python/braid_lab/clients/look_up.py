"""Looks names up and connects to their addresses in the same moment, as programs do.

`python -m braid_lab.clients.look_up SERVER FAMILY NAME…` asks a name server for each name's address, and the machine
there for the address from which it sees us. Prints a list: for each name its address, what was seen, and the seconds
until the answer.

With `--every SECONDS` it asks for the first name again and again, always from the same socket, connects nowhere, and
prints a line of JSON for each answer, until SIGTERM.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import socket
import struct
import sys
import time
from typing import Any

from braid_lab.clients.whoami import by_tcp
from braid_lab.servers.catalog import DNS_PORT
from braid_lab.servers.dns_messages import AAAA, HEADER, IN, A

#: Seconds after which a question is asked again, and how often it is asked.
RETRY_SECONDS, TRIES = 1.0, 20
#: Flags of a standard query that desires recursion.
QUERY_FLAGS = 0x0100
#: Bytes of a record before its data, whose name is a pointer.
RECORD_HEAD = 12


class Resolver:
    """A socket that asks one name server."""

    def __init__(self, server: str, family: int) -> None:
        """Open it; addresses of this IP version are asked for."""
        kind = socket.AF_INET if ipaddress.ip_address(server).version == 4 else socket.AF_INET6
        self._socket = socket.socket(kind, socket.SOCK_DGRAM)
        self._socket.connect((server, DNS_PORT))
        self._socket.settimeout(RETRY_SECONDS)
        self._kind = A if family == 4 else AAAA
        self._identifier = 0

    def ask(self, name: str) -> tuple[str, float]:
        """Return the address of a name, and the seconds until the answer; TimeoutError if none comes."""
        labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
        question = labels + struct.pack("!2H", self._kind, IN)
        self._identifier = (self._identifier + 1) % 65536
        begun = time.monotonic()
        for _ in range(TRIES):
            self._socket.send(HEADER.pack(self._identifier, QUERY_FLAGS, 1, 0, 0, 0) + question)
            answer = self._receive()
            if answer is not None:
                data = answer[HEADER.size + len(question) + RECORD_HEAD :]
                return str(ipaddress.ip_address(data)), time.monotonic() - begun
        raise TimeoutError(f"no answer for {name}")

    def _receive(self) -> bytes | None:
        """Return the answer to the last question; None if it does not come in time."""
        try:
            while True:
                answer = self._socket.recv(1500)
                if HEADER.unpack_from(answer)[0] == self._identifier:
                    return answer
        except TimeoutError:
            return None


def main() -> None:
    """Ask and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=float)
    parser.add_argument("server")
    parser.add_argument("family", type=int, choices=(4, 6))
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    if options.every is not None:
        resolver = Resolver(options.server, options.family)
        while True:
            address, seconds = resolver.ask(options.names[0])
            sys.stdout.write(json.dumps({"address": address, "seconds": seconds}) + "\n")
            sys.stdout.flush()
            time.sleep(options.every)
    found: list[dict[str, Any]] = []
    for name in options.names:
        # Each from a socket of its own, as resolvers do (RFC 5452 §9.2).
        address, seconds = Resolver(options.server, options.family).ask(name)
        found.append({"address": address, "seen": by_tcp(address), "seconds": seconds})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
