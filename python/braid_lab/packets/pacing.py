"""Packets at a rate, from senders that need not be exact, and with their own headers."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from braid_lab.net.namespace import Namespace
from braid_lab.packets.codec import Packet, encode

T = TypeVar("T")

#: Pause of a sender that is ahead of its rate.
PAUSE_SECONDS = 0.002


def paced(packets: Iterable[T], rate: float, seconds: float) -> Iterator[T]:
    """Yield packets at this many a second, for so long."""
    began = time.monotonic()
    for sent, packet in enumerate(packets):
        at = time.monotonic() - began
        if at > seconds:
            return
        if sent > at * rate:
            time.sleep(PAUSE_SECONDS)
        yield packet


@contextlib.contextmanager
def raw_socket(place: Namespace, family: int = 4) -> Iterator[socket.socket]:
    """Open a socket in a namespace that sends packets with their headers."""
    with place.inside():
        raw = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
    with raw:
        yield raw


def send_paced(place: Namespace, packets: Iterable[Packet], rate: float, seconds: float) -> int:
    """Send packets from a namespace at a rate, for so long; return how many the kernel took."""
    sent = 0
    with raw_socket(place, 4) as ipv4, raw_socket(place, 6) as ipv6:
        for packet in paced(packets, rate, seconds):
            # A full queue of the sender's own is no matter.
            with contextlib.suppress(OSError):
                (ipv4 if packet.family == 4 else ipv6).sendto(encode(packet), (packet.dest, 0))
                sent += 1
    return sent
