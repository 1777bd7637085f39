"""ARP and neighbour discovery on the wire: requests, claims, and probes of our own."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from braid_sdn.fabric.monitor.probe import PROBE_MAC, mac_bytes, mac_text

ARP = b"\x08\x06"
IPV6 = b"\x86\xdd"
BROADCAST = b"\xff" * 6
SOLICITATION, ADVERTISEMENT = 135, 136
_ARP_BODY = struct.Struct("!HHBBH6s4s6s4s")

#: Link-local address from which neighbours are probed: PROBE_MAC's (RFC 4291 appendix A).
_PROBE_ADDRESS = ipaddress.IPv6Address("fe80::42:52ff:fe41:4944")


@dataclass(frozen=True, slots=True)
class AddressRequest:
    """An ARP request or a neighbour solicitation."""

    #: The requesting host.
    mac: str
    address: str
    wanted: str


def address_request(frame: bytes) -> AddressRequest | None:
    """Parse an ARP request or a neighbour solicitation; return None for anything else."""
    kind, body = frame[12:14], frame[14:]
    if kind == ARP and len(body) >= _ARP_BODY.size:
        hardware, protocol, hlen, plen, operation, mac, address, _, target = _ARP_BODY.unpack_from(body)
        if (hardware, protocol, hlen, plen, operation) == (1, 0x0800, 6, 4, 1):
            return AddressRequest(
                mac_text(mac), str(ipaddress.IPv4Address(address)), str(ipaddress.IPv4Address(target))
            )
    if kind == IPV6 and len(body) >= 64 and body[6] == 58 and body[40] == SOLICITATION:
        source, target = ipaddress.IPv6Address(body[8:24]), ipaddress.IPv6Address(body[48:64])
        return AddressRequest(mac_text(frame[6:12]), str(source), str(target))
    return None


def address_claim(frame: bytes) -> tuple[str, str] | None:
    """Return the (MAC, IP) binding that a frame claims: any ARP, a neighbour solicitation or advertisement."""
    question = address_request(frame)
    if question is not None:
        return question.mac, question.address
    body = frame[14:]
    if frame[12:14] == ARP and len(body) >= _ARP_BODY.size:
        _, _, hlen, plen, _, mac, address, _, _ = _ARP_BODY.unpack_from(body)
        if (hlen, plen) == (6, 4):
            return mac_text(mac), str(ipaddress.IPv4Address(address))
    if frame[12:14] == IPV6 and len(body) >= 64 and body[6] == 58 and body[40] == ADVERTISEMENT:
        return mac_text(frame[6:12]), str(ipaddress.IPv6Address(body[48:64]))
    return None


def is_left_to_us(frame: bytes) -> bool:
    """Return true if switches do not flood this frame, because the controller does (`rules.leases`)."""
    if frame[12:14] == ARP:
        return frame[:6] == BROADCAST
    body = frame[14:]
    group = bool(frame[0] & 1)
    return group and frame[12:14] == IPV6 and len(body) > 40 and body[6] == 58 and body[40] == SOLICITATION


def address_probe(address: str) -> bytes:
    """Return a request for an address that its owner answers to PROBE_MAC, whichever MAC it has by now.

    An ARP probe has no sender address (RFC 5227 §2.1.1), so it changes nobody's cache.
    """
    wanted = ipaddress.ip_address(address)
    source = mac_bytes(PROBE_MAC)
    if isinstance(wanted, ipaddress.IPv4Address):
        return arp(1, source, bytes(4), wanted.packed)
    # All nodes, not the solicited-node group: the frame leaves by the host's port alone.
    to = ipaddress.IPv6Address("ff02::1")
    solicitation = struct.pack("!BBHI", SOLICITATION, 0, 0, 0) + wanted.packed + b"\x01\x01" + source
    pseudo = _PROBE_ADDRESS.packed + to.packed + struct.pack("!II", len(solicitation), 58)
    checksum = _checksum(pseudo + solicitation)
    solicitation = solicitation[:2] + struct.pack("!H", checksum) + solicitation[4:]
    ip = struct.pack("!IHBB", 0x60000000, len(solicitation), 58, 255) + _PROBE_ADDRESS.packed + to.packed
    return bytes.fromhex("333300000001") + source + IPV6 + ip + solicitation


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def arp(
    operation: int, mac: bytes, address: bytes, wanted: bytes, *, to: bytes = BROADCAST, target: bytes = bytes(6)
) -> bytes:
    """Return a host's ARP frame (RFC 826), padded to the shortest that Ethernet carries."""
    body = _ARP_BODY.pack(1, 0x0800, 6, 4, operation, mac, address, target, wanted)
    return (to + mac + ARP + body).ljust(60, b"\0")
