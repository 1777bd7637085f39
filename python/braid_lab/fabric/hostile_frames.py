"""Frames by which a host of a fabric tries to disturb others; pure."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterator
from itertools import count

from braid_lab.packets.codec import Icmp, Packet, encode
from braid_sdn.fabric.monitor.probe import DISCOVERY_GROUP, EXPERIMENTAL, LLDP, mac_bytes
from braid_sdn.fabric.view.address_frames import BROADCAST, IPV6, arp

IPV4 = b"\x08\x00"
REQUEST, REPLY = 1, 2
#: Types of the controller's own frames.
OURS = (LLDP.to_bytes(2), EXPERIMENTAL.to_bytes(2))
NEIGHBOUR_ADVERTISEMENT = 136
#: Flag of an advertisement that replaces what others know, and the option with the link-layer address.
OVERRIDE, TARGET_LINK_LAYER = b"\x20\0\0\0", b"\x02\x01"


def _arp(operation: int, mac: bytes, address: str, target: str) -> bytes:
    return arp(operation, mac, ipaddress.IPv4Address(address).packed, ipaddress.IPv4Address(target).packed)


def made_up_hosts(chance: random.Random) -> Iterator[bytes]:
    """Frames from and to ever new addresses."""
    while True:
        yield b"\x02" + chance.randbytes(5) + b"\x02" + chance.randbytes(5) + IPV4 + bytes(50)


def requests(chance: random.Random, mac: str, address: str) -> Iterator[bytes]:
    """ARP requests for addresses that nobody has, all of which a switch hands to its controller."""
    while True:
        yield _arp(REQUEST, mac_bytes(mac), address, f"10.77.{chance.randrange(100, 250)}.{chance.randrange(1, 255)}")


def arp_claims(mac: str, address: str) -> Iterator[bytes]:
    """Gratuitous answers: this host has another one's address."""
    while True:
        yield _arp(REPLY, mac_bytes(mac), address, address)


def neighbour_claims(mac: str, address: str) -> Iterator[bytes]:
    """Neighbour advertisements: this host has another one's IPv6 address."""
    body = ipaddress.IPv6Address(address).packed + TARGET_LINK_LAYER + mac_bytes(mac)
    claim = Icmp(NEIGHBOUR_ADVERTISEMENT, rest=OVERRIDE, data=body)
    while True:
        yield (
            mac_bytes("33:33:00:00:00:01")
            + mac_bytes(mac)
            + IPV6
            + encode(Packet(address, "ff02::1", claim, hops=255))
        )


def stolen_mac(mac: str) -> Iterator[bytes]:
    """Frames with another host's MAC address."""
    while True:
        yield BROADCAST + mac_bytes(mac) + IPV4 + bytes(50)


def forged_discovery(chance: random.Random, seen: list[bytes]) -> Iterator[bytes]:
    """Discovery frames: those that were seen, with some bits changed, and made-up ones."""
    for number in count():
        if seen and number % 2:
            frame = bytearray(seen[number // 2 % len(seen)])
            frame[chance.randrange(14, len(frame))] ^= 1 << chance.randrange(8)
            yield bytes(frame)
        else:
            yield mac_bytes(DISCOVERY_GROUP) + b"\x02" + chance.randbytes(5) + OURS[0] + chance.randbytes(60)


def repeated(seen: list[bytes]) -> Iterator[bytes]:
    """Frames that were seen, again and again."""
    while seen:
        yield from seen
