"""TCP data as it arrives at a device: when, and with which sequence numbers.

Run as `python -m braid_lab.clients.tcp_capture DEVICE PORT SECONDS`; prints `ready`, and after SECONDS one line of JSON: of
the connection to PORT that brought the most, the times since the first segment, s, and numbers counted from it.
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
#: <asm-generic/socket.h>: SO_RCVBUF without its limit, for root.
SO_RCVBUFFORCE = 33


def capture(device: str, port: int, seconds: float) -> list[tuple[float, int]]:
    """Return (time, number) of each data segment of the largest connection to `port` over IPv4."""
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
                # Where its headers end is all that is needed.
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
    """Capture and tell."""
    device, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    segments = capture(device, port, seconds)
    first, zero = segments[0] if segments else (0.0, 0)
    # Numbers wrap; none of them is half a circle from the first.
    told = {
        "s": [round(at - first, 6) for at, _ in segments],
        "number": [((number - zero + (1 << 31)) % (1 << 32)) - (1 << 31) for _, number in segments],
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
