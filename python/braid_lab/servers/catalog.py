"""The servers and their commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

#: Every server prints this once it is ready.
READY = r"^ready$|Server listening"

#: All but "echo", which uses the port of HTTP/3.
SERVER_KINDS = ("http1", "http3", "dns", "iperf3")

HTTP_PORT = 80
QUIC_PORT = 443
DNS_PORT = 53
ECHO_PORT = 7
IPERF3_PORT = 5201


def argv(kind: str, addresses: Sequence[str]) -> list[str]:
    """Return the command that serves `kind` on these addresses (iperf3: on the first one only).

    Addresses are bound one by one, never as a wildcard: a datagram sent from a wildcard socket would carry the
    address of the uplink it leaves by, and the host's NAT would rightly not know it.
    """
    if kind == "iperf3":
        return ["iperf3", "--server", "--forceflush", "--bind", addresses[0], "--port", str(IPERF3_PORT)]
    return [sys.executable, "-m", f"braid_lab.servers.{kind}", *addresses]


def random_file(path: Path, size: int) -> None:
    """Write a file of incompressible data."""
    path.write_bytes(os.urandom(size))
