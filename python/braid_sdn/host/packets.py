"""Packets as the controller sees and makes them: Ethernet, ARP, IPv4, IPv6, TCP, UDP, ICMP."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from braid_sdn.host.desired import Address
from braid_sdn.openflow.messages import Mac

ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6 = 0x0806, 0x0800, 0x86DD
ICMP, TCP, UDP, ICMPV6 = 1, 6, 17, 58

#: Flags of TCP.
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

ARP_REQUEST, ARP_REPLY = 1, 2
NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT = 135, 136

#: Types of echo requests and replies, by IP version.
ECHO_REQUEST, ECHO_REPLY = {4: 8, 6: 128}, {4: 0, 6: 129}
#: ICMP errors that quote a packet: RFC 792 and RFC 4443.
ERRORS = {4: (3, 11, 12), 6: (1, 2, 3, 4)}

BROADCAST: Mac = "ff:ff:ff:ff:ff:ff"
#: A hop limit by which a receiver knows that no router has passed the packet on (RFC 4861 §7.1).
ON_LINK_HOPS = 255

#: Bytes of headers.
ETHERNET_HEADER = 14
_IPV6 = 40
#: Number of IPv6's fragment header; a switch takes it for the protocol of later fragments.
FRAGMENT_HEADER = 44
#: Bytes of an ICMP header before an error's quotation, and of UDP's header.
_ICMP, _UDP = 8, 8


@dataclass(frozen=True, slots=True)
class Packet:
    """An IP packet inside an Ethernet frame."""

    frame: bytes
    family: int
    source: Address
    target: Address
    protocol: int
    #: Offset of the transport header in the frame.
    transport: int
    #: Ports of TCP and UDP. Of ICMP's echoes both are the identifier; of all else both are 0.
    source_port: int
    target_port: int
    dscp: int

    @property
    def eth_src(self) -> Mac:
        """Return its link-layer source."""
        return mac_text(self.frame[6:12])

    @property
    def eth_dst(self) -> Mac:
        """Return its link-layer destination."""
        return mac_text(self.frame[:6])

    @property
    def tcp_flags(self) -> int:
        """Return TCP's flags."""
        return self.frame[self.transport + 13]

    @property
    def sequence(self) -> int:
        """Return TCP's sequence number."""
        return int.from_bytes(self.frame[self.transport + 4 : self.transport + 8], "big")

    @property
    def acknowledged(self) -> int:
        """Return TCP's acknowledgement number."""
        return int.from_bytes(self.frame[self.transport + 8 : self.transport + 12], "big")

    @property
    def is_bare_syn(self) -> bool:
        """Return True for a SYN without data, copies of which may be sent."""
        return self.protocol == TCP and self.tcp_flags & (SYN | ACK | RST | FIN) == SYN and segment_length(self) == 0

    @property
    def datagram(self) -> bytes:
        """Return the data of UDP."""
        return self.frame[self.transport + _UDP :]

    @property
    def icmp_type(self) -> int:
        """Return the type of an ICMP message."""
        return self.frame[self.transport]


def mac_text(data: bytes) -> Mac:
    """Return a MAC address as text."""
    return ":".join(f"{byte:02x}" for byte in data)


def mac_bytes(mac: Mac) -> bytes:
    """Return a MAC address as bytes."""
    return bytes.fromhex(mac.replace(":", ""))


def ethertype(frame: bytes) -> int:
    """Return a frame's EtherType; 0 if it is too short."""
    return int.from_bytes(frame[12:14], "big") if len(frame) >= ETHERNET_HEADER else 0


def framed(packet: bytes, mac: Mac) -> bytes:
    """Return an IP packet as a frame of this sender."""
    kind = ETHERTYPE_IPV6 if packet[:1] and packet[0] >> 4 == 6 else ETHERTYPE_IPV4
    return _frame(BROADCAST, mac, kind, packet)


def parse(frame: bytes) -> Packet | None:
    """Parse a frame; None if it is no whole, unfragmented IP packet with a transport header."""
    kind = ethertype(frame)
    if kind == ETHERTYPE_IPV4:
        return _parse_ip(frame, ETHERNET_HEADER)
    if kind == ETHERTYPE_IPV6:
        return _parse_ip(frame, ETHERNET_HEADER)
    return None


def _parse_ip(frame: bytes, at: int, *, quoted: bool = False) -> Packet | None:
    version = frame[at] >> 4 if len(frame) > at else 0
    source: Address
    target: Address
    if version == 4 and len(frame) >= at + 20:
        transport = at + 4 * (frame[at] & 15)
        protocol, dscp = frame[at + 9], frame[at + 1] >> 2
        source = ipaddress.IPv4Address(frame[at + 12 : at + 16])
        target = ipaddress.IPv4Address(frame[at + 16 : at + 20])
        if int.from_bytes(frame[at + 6 : at + 8], "big") & 0x3FFF and not quoted:
            return None
    elif version == 6 and len(frame) >= at + _IPV6:
        transport, protocol = at + _IPV6, frame[at + 6]
        dscp = (frame[at] & 15) << 2 | frame[at + 1] >> 6
        source = ipaddress.IPv6Address(frame[at + 8 : at + 24])
        target = ipaddress.IPv6Address(frame[at + 24 : at + 40])
    else:
        return None
    least = 8 if quoted else {TCP: 20, UDP: 8, ICMP: 8, ICMPV6: 8}.get(protocol, 0)
    if len(frame) < transport + least or transport < at + 20:
        return None
    ports = _ports(frame, version, protocol, transport)
    return Packet(frame, version, source, target, protocol, transport, *ports, dscp)


def _ports(frame: bytes, version: int, protocol: int, transport: int) -> tuple[int, int]:
    if protocol in (TCP, UDP):
        source, target = struct.unpack_from("!HH", frame, transport)
        return source, target
    if protocol in (ICMP, ICMPV6) and frame[transport] in (ECHO_REQUEST[version], ECHO_REPLY[version]):
        (echo,) = struct.unpack_from("!H", frame, transport + 4)
        return echo, echo
    return 0, 0


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of an IP packet inside an Ethernet frame."""

    frame: bytes
    source: Address
    target: Address
    protocol: int
    identification: int
    #: The packet as far as the first fragment has it; None of a later fragment.
    first: Packet | None


def parse_fragment(frame: bytes) -> Fragment | None:
    """Parse a frame; None if it is no fragment."""
    kind, at = ethertype(frame), ETHERNET_HEADER
    source: Address
    target: Address
    if kind == ETHERTYPE_IPV4 and len(frame) >= at + 20:
        place = int.from_bytes(frame[at + 6 : at + 8], "big")
        is_fragment, is_first = bool(place & 0x3FFF), not place & 0x1FFF
        family, protocol, transport = 4, frame[at + 9], at + 4 * (frame[at] & 15)
        identification = int.from_bytes(frame[at + 4 : at + 6], "big")
        source, target = (ipaddress.IPv4Address(frame[at + first : at + first + 4]) for first in (12, 16))
        dscp = frame[at + 1] >> 2
    elif kind == ETHERTYPE_IPV6 and len(frame) >= at + _IPV6 + 8 and frame[at + 6] == FRAGMENT_HEADER:
        header = at + _IPV6
        place = int.from_bytes(frame[header + 2 : header + 4], "big")
        is_fragment, is_first = bool(place & 0xFFF9), not place & 0xFFF8
        family, protocol, transport = 6, frame[header], header + 8
        identification = int.from_bytes(frame[header + 4 : header + 8], "big")
        source, target = (ipaddress.IPv6Address(frame[at + first : at + first + 16]) for first in (8, 24))
        dscp = (frame[at] & 15) << 2 | frame[at + 1] >> 6
    else:
        return None
    # Too short for ports: no stack cuts there, and RFC 1858 tells why some attackers do.
    if not is_fragment or len(frame) < transport + (8 if is_first else 0):
        return None
    packet = None
    if is_first:
        ports = _ports(frame, family, protocol, transport)
        packet = Packet(frame, family, source, target, protocol, transport, *ports, dscp)
    return Fragment(frame, source, target, protocol, identification, packet)


def quotation(packet: Packet) -> Packet | None:
    """Return the packet that an ICMP error quotes, with offsets into the same frame."""
    return _parse_ip(packet.frame, packet.transport + _ICMP, quoted=True)


# Addresses of neighbours.


def arp_request(mac: Mac, source: str, target: str) -> bytes:
    """Return a frame that asks who has `target`: RFC 826."""
    head = struct.pack("!HHBBH", 1, ETHERTYPE_IPV4, 6, 4, ARP_REQUEST)
    ends = mac_bytes(mac) + _packed(source) + bytes(6) + _packed(target)
    return _frame(BROADCAST, mac, ETHERTYPE_ARP, head + ends)


def arp_answer(frame: bytes) -> tuple[str, Mac] | None:
    """Return the address and MAC that an ARP reply tells."""
    if ethertype(frame) != ETHERTYPE_ARP or len(frame) < 42 or frame[20:22] != ARP_REPLY.to_bytes(2, "big"):
        return None
    return str(ipaddress.IPv4Address(frame[28:32])), mac_text(frame[22:28])


def neighbour_solicitation(mac: Mac, source: str, target: str) -> bytes:
    """Return a frame that asks who has `target`: RFC 4861 §4.3, to its solicited-node address."""
    group = ipaddress.IPv6Address(_packed("ff02::1:ff00:0")[:13] + _packed(target)[13:])
    body = bytes((NEIGHBOUR_SOLICITATION, 0, 0, 0)) + bytes(4) + _packed(target) + b"\1\1" + mac_bytes(mac)
    ends = _packed(source) + group.packed
    body = _with_checksum(body, 2, _pseudo(6, ends, ICMPV6, len(body)))
    head = struct.pack("!IHBB", 6 << 28, len(body), ICMPV6, ON_LINK_HOPS) + ends
    return _frame("33:33:" + mac_text(group.packed[12:]), mac, ETHERTYPE_IPV6, head + body)


def neighbour_answer(packet: Packet) -> tuple[str, Mac] | None:
    """Return the address and MAC that a neighbour advertisement tells: RFC 4861 §4.4."""
    body, at = packet.frame, packet.transport
    hops = body[ETHERNET_HEADER + 7]
    if packet.protocol != ICMPV6 or packet.icmp_type != NEIGHBOUR_ADVERTISEMENT or hops != ON_LINK_HOPS:
        return None
    if len(body) < at + 24:
        return None
    target = str(ipaddress.IPv6Address(body[at + 8 : at + 24]))
    # The target's link-layer address is the option 2; an advertisement without it speaks of its sender.
    option = body[at + 24 : at + 32]
    told = option[2:8] if option[:2] == b"\2\1" and len(option) == 8 else body[6:12]
    return target, mac_text(told)


# Packets that are answered or passed on.


def reset(packet: Packet, *, mac: Mac) -> bytes | None:
    """Return the RST that answers a TCP segment (RFC 9293 §3.5.2), as a frame for its sender; None: none does."""
    frame, at = packet.frame, packet.transport
    if packet.protocol != TCP or packet.tcp_flags & RST:
        return None
    sequence, acknowledged = struct.unpack_from("!II", frame, at + 4)
    if packet.tcp_flags & ACK:
        numbers = (acknowledged, 0, RST)
    else:
        occupied = segment_length(packet) + bool(packet.tcp_flags & SYN) + bool(packet.tcp_flags & FIN)
        numbers = (0, (sequence + occupied) & 0xFFFFFFFF, RST | ACK)
    return tcp_segment(
        mac,
        packet.eth_src,
        (packet.target, packet.target_port),
        (packet.source, packet.source_port),
        numbers,
    )


def tcp_segment(
    eth_src: Mac,
    eth_dst: Mac,
    source: tuple[Address, int],
    target: tuple[Address, int],
    numbers: tuple[int, int, int],
) -> bytes:
    """Return a segment without data, with these sequence and acknowledgement numbers and flags."""
    sequence, acknowledged, flags = numbers
    body = struct.pack("!HHIIBBHHH", source[1], target[1], sequence, acknowledged, 0x50, flags, 0, 0, 0)
    ends = source[0].packed + target[0].packed
    family = source[0].version
    body = _with_checksum(body, 16, _pseudo(family, ends, TCP, len(body)))
    if family == 4:
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0x4000, 64, TCP, 0) + ends
        head = _with_checksum(head, 10, b"")
        return _frame(eth_dst, eth_src, ETHERTYPE_IPV4, head + body)
    head = struct.pack("!IHBB", 6 << 28, len(body), TCP, 64) + ends
    return _frame(eth_dst, eth_src, ETHERTYPE_IPV6, head + body)


def translated_segment(packet: Packet, macs: tuple[Mac, Mac], source: tuple[Address, int]) -> bytes:
    """Return the frame of a TCP segment with another source; `macs` are source and destination."""
    frame = bytearray(packet.frame)
    _put_macs(frame, macs)
    _put_addresses(frame, ETHERNET_HEADER, packet.family, source[0], None)
    struct.pack_into("!H", frame, packet.transport, source[1])
    at, end = packet.transport, _end(packet)
    pseudo = _pseudo(packet.family, source[0].packed + packet.target.packed, TCP, end - at)
    frame[at:end] = _with_checksum(bytes(frame[at:end]), 16, pseudo)
    return bytes(frame)


def translated_echo(
    packet: Packet,
    macs: tuple[Mac, Mac],
    *,
    source: Address | None = None,
    target: Address | None = None,
    identifier: int,
) -> bytes:
    """Return the frame of an echo message with another address and identifier; `macs` are source and destination."""
    frame = bytearray(packet.frame)
    _put_macs(frame, macs)
    _put_addresses(frame, ETHERNET_HEADER, packet.family, source, target)
    struct.pack_into("!H", frame, packet.transport + 4, identifier)
    return _finish_icmp(frame, packet.transport, packet.family)


def translated_error(packet: Packet, quoted: Packet, macs: tuple[Mac, Mac], inner: tuple[Address, int]) -> bytes:
    """Return the frame of an ICMP error about a translated flow, as its inside end understands it: RFC 5508 REQ-4."""
    frame = bytearray(packet.frame)
    _put_macs(frame, macs)
    _put_addresses(frame, ETHERNET_HEADER, packet.family, None, inner[0])
    _put_addresses(frame, packet.transport + _ICMP, packet.family, inner[0], None)
    echo = quoted.protocol in (ICMP, ICMPV6)
    struct.pack_into("!H", frame, quoted.transport + (4 if echo else 0), inner[1])
    return _finish_icmp(frame, packet.transport, packet.family)


def translated_fragment(
    fragment: Fragment, macs: tuple[Mac, Mac], source: tuple[Address, int] | None, target: tuple[Address, int] | None
) -> bytes:
    """Return the frame of a fragment with another source or target; only the first one has its port or identifier."""
    frame = bytearray(fragment.frame)
    family = fragment.source.version
    _put_macs(frame, macs)
    _put_addresses(frame, ETHERNET_HEADER, family, source and source[0], target and target[0])
    packet, end = fragment.first, source or target
    if packet is None or end is None:
        return bytes(frame)
    at = packet.transport
    is_echo = packet.protocol in (ICMP, ICMPV6)
    field = at + (4 if is_echo else 0 if source else 2)
    changes = [(bytes(frame[field : field + 2]), end[1].to_bytes(2, "big"))]
    frame[field : field + 2] = changes[0][1]
    if packet.protocol != ICMP:
        # All but ICMP of IPv4 have the addresses in their checksum.
        before = fragment.source if source else fragment.target
        changes.append((before.packed, end[0].packed))
    checksum = at + {UDP: 6, TCP: 16}.get(packet.protocol, 2)
    is_absent = packet.protocol == UDP and frame[checksum : checksum + 2] == b"\0\0"
    if len(frame) >= checksum + 2 and not is_absent:
        adapted = _adapted(int.from_bytes(frame[checksum : checksum + 2], "big"), changes)
        if packet.protocol == UDP and adapted == 0:
            adapted = 0xFFFF
        frame[checksum : checksum + 2] = adapted.to_bytes(2, "big")
    return bytes(frame)


def _adapted(checksum: int, changes: Iterable[tuple[bytes, bytes]]) -> int:
    """Return a checksum once these words have changed: RFC 1624 eq. 3."""
    total = ~checksum & 0xFFFF
    for before, after in changes:
        words = f"!{len(before) // 2}H"
        total += sum(~word & 0xFFFF for word in struct.unpack(words, before)) + sum(struct.unpack(words, after))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _put_macs(frame: bytearray, macs: tuple[Mac, Mac]) -> None:
    frame[0:12] = mac_bytes(macs[1]) + mac_bytes(macs[0])


def _put_addresses(frame: bytearray, at: int, family: int, source: Address | None, target: Address | None) -> None:
    first, size = (at + 12, 4) if family == 4 else (at + 8, 16)
    if source is not None:
        frame[first : first + size] = source.packed
    if target is not None:
        frame[first + size : first + 2 * size] = target.packed
    if family == 4:
        header = 4 * (frame[at] & 15)
        frame[at : at + header] = _with_checksum(bytes(frame[at : at + header]), 10, b"")


def _finish_icmp(frame: bytearray, at: int, family: int) -> bytes:
    """Compute the checksum of the ICMP message at this offset."""
    if family == 4:
        end = ETHERNET_HEADER + int.from_bytes(frame[ETHERNET_HEADER + 2 : ETHERNET_HEADER + 4], "big")
        pseudo = b""
    else:
        end = ETHERNET_HEADER + _IPV6 + int.from_bytes(frame[ETHERNET_HEADER + 4 : ETHERNET_HEADER + 6], "big")
        ends = bytes(frame[ETHERNET_HEADER + 8 : ETHERNET_HEADER + 40])
        pseudo = _pseudo(6, ends, ICMPV6, end - at)
    frame[at:end] = _with_checksum(bytes(frame[at:end]), 2, pseudo)
    return bytes(frame)


def segment_length(packet: Packet) -> int:
    """Return the bytes of data in a TCP segment."""
    return max(0, _end(packet) - packet.transport - 4 * (packet.frame[packet.transport + 12] >> 4))


def _end(packet: Packet) -> int:
    """Return the offset of the packet's end in its frame, which may be padded."""
    frame = packet.frame
    if packet.family == 4:
        return ETHERNET_HEADER + int.from_bytes(frame[ETHERNET_HEADER + 2 : ETHERNET_HEADER + 4], "big")
    return ETHERNET_HEADER + _IPV6 + int.from_bytes(frame[ETHERNET_HEADER + 4 : ETHERNET_HEADER + 6], "big")


def _frame(target: Mac, source: Mac, kind: int, body: bytes) -> bytes:
    return mac_bytes(target) + mac_bytes(source) + kind.to_bytes(2, "big") + body


def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


def _pseudo(family: int, ends: bytes, protocol: int, length: int) -> bytes:
    tail = struct.pack("!BBH", 0, protocol, length) if family == 4 else struct.pack("!IHBB", length, 0, 0, protocol)
    return ends + tail


def _with_checksum(data: bytes, at: int, pseudo: bytes) -> bytes:
    """Return the data with the internet checksum (RFC 1071) at this offset."""
    cleared = data[:at] + b"\0\0" + data[at + 2 :]
    summed = pseudo + cleared
    if len(summed) % 2:
        summed += b"\0"
    total: int = sum(struct.unpack(f"!{len(summed) // 2}H", summed))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return data[:at] + (~total & 0xFFFF).to_bytes(2, "big") + data[at + 2 :]
