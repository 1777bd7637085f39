"""A pair of TUN devices in two namespaces, with packets forwarded between them.

Run as `python -m braid_lab.net.tunnel NETNS:DEV NETNS:DEV`; prints `ready` once both are up. It is for links without
an Ethernet header, not for speed.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import struct
import subprocess
import sys

from braid_lab.setns import enter

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
#: Larger than any packet of a TUN device.
PACKET_BYTES = 65536


def open_tun(end: str) -> int:
    """Create the TUN device named by `NETNS:DEV`, enable it, and return its descriptor."""
    namespace, _, device = end.partition(":")
    enter(namespace)
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "link", "set", device, "up"], check=True)
    return descriptor


def main() -> None:
    """Forward packets until killed."""
    one, other = (open_tun(end) for end in sys.argv[1:3])
    peers = {one: other, other: one}
    selector = selectors.DefaultSelector()
    for descriptor in peers:
        selector.register(descriptor, selectors.EVENT_READ)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for key, _ in selector.select():
            _forward(key.fd, peers[key.fd])


def _forward(source: int, target: int) -> None:
    """Forward all waiting packets; packets to a full peer are lost, as on a link."""
    while True:
        try:
            packet = os.read(source, PACKET_BYTES)
        except BlockingIOError:
            return
        try:
            os.write(target, packet)
        except OSError:
            # The peer is full or down: the packet is lost, as on a wire.
            continue


if __name__ == "__main__":
    main()
