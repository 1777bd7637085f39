"""A sniffer of UDP datagrams to another program: `python -m braid_lab.clients.udp_sniffer PORT`.

Prints `ready`, then the arrival time of every UDP datagram to the port in this namespace.
"""

from __future__ import annotations

import socket
import sys
import time


def main(port: int) -> None:
    """Sniff until killed."""
    # A raw socket gets a copy of every datagram that a local program receives.
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as ear:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            packet = ear.recv(65536)
            udp = packet[4 * (packet[0] & 15) :]
            if int.from_bytes(udp[2:4]) == port:
                sys.stdout.write(f"{time.monotonic():.4f}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
