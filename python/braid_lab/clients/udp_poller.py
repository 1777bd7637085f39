"""A UDP socket that asks a server at intervals for the address it sees, as a game or a call keeps sending.

Run as `python -m braid_lab.clients.udp_poller SPACING_MS ADDRESS [PORT]`; runs until SIGTERM. Asks from that port, or
any without one. Prints the address that the server saw, one line per reply.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time

from braid_lab.clients.whoami import QUERY, seen_as
from braid_lab.servers.catalog import DNS_PORT


def main() -> None:
    """Send queries and print the replies."""
    spacing, address = float(sys.argv[1]) / 1000, sys.argv[2]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asker:
        asker.bind(("", int(sys.argv[3]) if len(sys.argv) > 3 else 0))
        next_at = time.monotonic()
        while True:
            # A network under repair may refuse for a moment; the next query shows whether it has recovered.
            with contextlib.suppress(OSError):
                asker.sendto(QUERY, (address, DNS_PORT))
            next_at += spacing
            while (left := next_at - time.monotonic()) > 0:
                asker.settimeout(left)
                with contextlib.suppress(OSError):
                    answer, _ = asker.recvfrom(512)
                    sys.stdout.write(f"{seen_as(answer)[0]}\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
