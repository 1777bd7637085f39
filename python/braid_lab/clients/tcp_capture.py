"""TCP segments as they arrive at a device: arrival times and sequence numbers.

Run as `python -m braid_lab.clients.tcp_capture DEVICE PORT SECONDS`; prints `ready`, and after SECONDS one line of
JSON: for the connection to PORT with the most data, each segment's time since the first one, s, and its relative
sequence number.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections import defaultdict

ETH_P_IP = 0x0800
ETHERNET = 14
TCP = 6
BUFFER = 16 << 20
#: <asm-generic/socket.h>: SO_RCVBUF beyond the system's limit, for root.
SO_RCVBUFFORCE = 33


def capture(device: str, port: int, seconds: float) -> list[tuple[float, int]]:
    """Return (time, sequence number) of each data segment of the largest connection to `port` over IPv4."""
    found: dict[int, list[tuple[float, int]]] = defaultdict(list)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        tap.bind((device, ETH_P_IP))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            tap.settimeout(left)
            try:
                # Only the headers are needed.
                frame = tap.recv(128)
            except TimeoutError:
                break
            now = time.monotonic()
            packet = frame[ETHERNET:]
            header = (packet[0] & 15) * 4
            if packet[9] != TCP or len(packet) < header + 20:
                continue
            source, dest, number = struct.unpack_from("!HHI", packet, header)
            length = struct.unpack_from("!H", packet, 2)[0] - header - (packet[header + 12] >> 4) * 4
            if dest == port and length > 0:
                found[source].append((now, number))
    return max(found.values(), key=len, default=[])


def main() -> None:
    """Capture and print."""
    device, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    segments = capture(device, port, seconds)
    first, zero = segments[0] if segments else (0.0, 0)
    # Sequence numbers wrap; none of these is 2^31 or more from the first.
    told = {
        "s": [round(at - first, 6) for at, _ in segments],
        "number": [((number - zero + (1 << 31)) % (1 << 32)) - (1 << 31) for _, number in segments],
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
