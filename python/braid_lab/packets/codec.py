"""Encoding and decoding of IPv4 and IPv6 packets with UDP, TCP, ICMP or anything inside.

`encode` builds a packet as a correct host would send it, by default; `decode` records every wrong length and checksum
in `Packet.faults`, so a test that expects a packet without faults checks them all.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import struct
from dataclasses import dataclass

ICMP, TCP, UDP, FRAGMENT, ICMPV6 = 1, 6, 17, 44, 58
#: IPv6 extension headers that have a length in units of 8 bytes.
EXTENSIONS = frozenset({0, 43, 60})

#: ICMP types by IP version.
ECHO = {4: 8, 6: 128}
ECHO_REPLY = {4: 0, 6: 129}
UNREACHABLE = {4: 3, 6: 1}
TIME_EXCEEDED = {4: 11, 6: 3}
#: Codes of UNREACHABLE by IP version.
PORT_UNREACHABLE = {4: 3, 6: 4}
#: "Fragmentation needed" is a code of UNREACHABLE in IPv4, a type in IPv6.
FRAGMENTATION_NEEDED = 4
PACKET_TOO_BIG = 2

MORE_FRAGMENTS, DONT_FRAGMENT, OFFSET = 0x2000, 0x4000, 0x1FFF
UDP_HEADER = struct.Struct("!4H")
TCP_HEADER = struct.Struct("!HHIIBBHHH")
ICMP_HEADER = struct.Struct("!BBH4s")
V4_HEADER = struct.Struct("!BBHHHBBH4s4s")
V6_HEADER = struct.Struct("!IHBB16s16s")
FRAGMENT_HEADER = struct.Struct("!BBHI")
#: A TCP option: kind, length, and the largest segment that its sender accepts.
MSS_OPTION = struct.Struct("!BBH")
MSS = 2


class Flag(enum.IntFlag):
    """TCP's flags."""

    FIN = 1
    SYN = 2
    RST = 4
    PSH = 8
    ACK = 16
    URG = 32


@dataclass(frozen=True)
class Udp:
    """A UDP datagram; `checksum` False sends none (zero, which IPv4 allows)."""

    source_port: int
    dest_port: int
    data: bytes = b""
    checksum: bool = True


@dataclass(frozen=True)
class Tcp:
    """A TCP segment."""

    source_port: int
    dest_port: int
    flags: Flag
    seq: int = 0
    ack: int = 0
    data: bytes = b""
    mss: int | None = None
    window: int = 65535


@dataclass(frozen=True)
class Icmp:
    """An ICMP or ICMPv6 message; `rest` is the second word of its header."""

    type: int
    code: int = 0
    rest: bytes = bytes(4)
    data: bytes = b""

    @property
    def ident(self) -> int:
        """The identifier of an echo."""
        return int.from_bytes(self.rest[:2])

    @property
    def mtu(self) -> int:
        """MTU of "fragmentation needed": half a word in IPv4, a whole one in IPv6, whose first half is zero."""
        return int.from_bytes(self.rest)


@dataclass(frozen=True)
class Raw:
    """The payload of another protocol, or of a fragment."""

    protocol: int
    data: bytes


@dataclass(frozen=True)
class FragmentInfo:
    """Position of a fragment: offset in bytes, and whether others follow."""

    offset: int
    more: bool


@dataclass(frozen=True)
class Packet:
    """An IP packet. `ident` and `piece` are for fragments; `faults` lists the errors that `decode` found."""

    source: str
    dest: str
    body: Udp | Tcp | Icmp | Raw
    hops: int = 64
    tos: int = 0
    ident: int = 0
    dont_fragment: bool = False
    piece: FragmentInfo | None = None
    #: IPv4: options; IPv6: a destination options header. A multiple of 4, or of 8 with IPv6.
    options: bytes = b""
    faults: tuple[str, ...] = ()

    @property
    def family(self) -> int:
        """4 or 6."""
        return 6 if ":" in self.source else 4

    def udp(self) -> Udp:
        """Its datagram."""
        assert isinstance(self.body, Udp), self  # noqa: S101
        return self.body

    def tcp(self) -> Tcp:
        """Its segment."""
        assert isinstance(self.body, Tcp), self  # noqa: S101
        return self.body

    def icmp(self) -> Icmp:
        """Its ICMP message."""
        assert isinstance(self.body, Icmp), self  # noqa: S101
        return self.body


def ones_sum(data: bytes, start: int = 0) -> int:
    """Return the 16-bit one's complement sum of RFC 1071, not complemented."""
    padded = data + bytes(len(data) % 2)
    total: int = start + sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def pseudo_header(packet: Packet, protocol: int, length: int) -> bytes:
    """Return the pseudo header that transport checksums also cover."""
    source, dest = (ipaddress.ip_address(each).packed for each in (packet.source, packet.dest))
    if len(source) == 4:
        return source + dest + struct.pack("!HH", protocol, length)
    return source + dest + struct.pack("!II", length, protocol)


#: Offset of a protocol's checksum in its header.
CHECKSUM_AT = {UDP: 6, TCP: 16, ICMP: 2, ICMPV6: 2}


def _transport(packet: Packet) -> tuple[int, bytes]:
    """Return the protocol and the bytes after the IP header, the checksum still zero."""
    body = packet.body
    if isinstance(body, Udp):
        size = UDP_HEADER.size + len(body.data)
        return UDP, UDP_HEADER.pack(body.source_port, body.dest_port, size, 0) + body.data
    if isinstance(body, Tcp):
        options = b"" if body.mss is None else MSS_OPTION.pack(MSS, MSS_OPTION.size, body.mss)
        words = (TCP_HEADER.size + len(options)) // 4
        header = TCP_HEADER.pack(
            body.source_port, body.dest_port, body.seq, body.ack, words << 4, body.flags, body.window, 0, 0
        )
        return TCP, header + options + body.data
    if isinstance(body, Icmp):
        protocol = ICMP if packet.family == 4 else ICMPV6
        return protocol, ICMP_HEADER.pack(body.type, body.code, 0, body.rest) + body.data
    return body.protocol, body.data


def _checksum(packet: Packet, protocol: int, data: bytes) -> int:
    """Return the checksum of transport bytes whose checksum field is zero."""
    covered = b"" if protocol == ICMP else pseudo_header(packet, protocol, len(data))
    value = ~ones_sum(data, ones_sum(covered)) & 0xFFFF
    return 0xFFFF if protocol == UDP and value == 0 else value


def encode(packet: Packet, *, partial: bool = False, spoil: bool = False) -> bytes:
    """Return the packet's bytes.

    `partial` leaves the transport checksum to the device, as a sender with checksum offload does: the field then
    holds only the pseudo header's sum. `spoil` makes it wrong.
    """
    protocol, data = _transport(packet)
    at = CHECKSUM_AT.get(protocol)
    unsummed = isinstance(packet.body, Raw) or (isinstance(packet.body, Udp) and not packet.body.checksum)
    if at is not None and not unsummed:
        if partial and protocol in (TCP, UDP):
            value = ones_sum(pseudo_header(packet, protocol, len(data)))
        else:
            value = _checksum(packet, protocol, data) ^ (0x5555 if spoil else 0)
        data = data[:at] + struct.pack("!H", value) + data[at + 2 :]
    return _header(packet, protocol, data) + data


def _header(packet: Packet, protocol: int, data: bytes) -> bytes:
    source, dest = (ipaddress.ip_address(each).packed for each in (packet.source, packet.dest))
    piece = packet.piece
    if len(source) == 4:
        words = 5 + len(packet.options) // 4
        flags = DONT_FRAGMENT if packet.dont_fragment else 0
        if piece:
            flags |= piece.offset // 8 | (MORE_FRAGMENTS if piece.more else 0)
        fields = (0x40 | words, packet.tos, words * 4 + len(data), packet.ident, flags, packet.hops, protocol)
        bare = V4_HEADER.pack(*fields, 0, source, dest) + packet.options
        return bare[:10] + struct.pack("!H", ~ones_sum(bare) & 0xFFFF) + bare[12:]
    extra, following = b"", protocol
    if piece:
        extra = FRAGMENT_HEADER.pack(following, 0, piece.offset | piece.more, packet.ident)
        following = FRAGMENT
    if packet.options:
        # Next header and length come first; the caller supplies the rest.
        extra = bytes([following, (len(packet.options) + 2) // 8 - 1]) + packet.options + extra
        following = 60
    word = 6 << 28 | packet.tos << 20
    return V6_HEADER.pack(word, len(extra) + len(data), following, packet.hops, source, dest) + extra


def decode(data: bytes, *, quoted: bool = False) -> Packet:
    """Parse a packet; ValueError if it is none.

    `quoted` is for the packet in an ICMP error: it may be truncated, and checksums over missing bytes are not
    checked.
    """
    try:
        packet, protocol, rest, whole = _decode_v4(data) if data[0] >> 4 == 4 else _decode_v6(data)
        if not whole and not quoted:
            packet = _fault(packet, "packet shorter than it says")
        return _decode_body(packet, protocol, rest, whole)
    except (IndexError, struct.error) as error:
        raise ValueError(f"no IP packet: {data[:64].hex()}") from error


def _fault(packet: Packet, text: str) -> Packet:
    return dataclasses.replace(packet, faults=(*packet.faults, text))


def _decode_v4(data: bytes) -> tuple[Packet, int, bytes, bool]:
    first, tos, size, ident, flags, hops, protocol, _, source, dest = V4_HEADER.unpack_from(data)
    header = (first & 15) * 4
    offset, more = (flags & OFFSET) * 8, bool(flags & MORE_FRAGMENTS)
    packet = Packet(
        str(ipaddress.IPv4Address(source)),
        str(ipaddress.IPv4Address(dest)),
        Raw(protocol, b""),
        hops,
        tos,
        ident,
        bool(flags & DONT_FRAGMENT),
        FragmentInfo(offset, more) if offset or more else None,
        data[V4_HEADER.size : header],
    )
    if ones_sum(data[:header]) != 0xFFFF:
        packet = _fault(packet, "IP header checksum")
    return packet, protocol, data[header:size], len(data) >= size


def _decode_v6(data: bytes) -> tuple[Packet, int, bytes, bool]:
    word, size, following, hops, source, dest = V6_HEADER.unpack_from(data)
    rest, piece, ident, options = data[V6_HEADER.size : V6_HEADER.size + size], None, 0, b""
    whole = len(data) >= V6_HEADER.size + size
    while following in EXTENSIONS or following == FRAGMENT:
        if following == FRAGMENT:
            following, _, place, ident = FRAGMENT_HEADER.unpack_from(rest)
            piece, rest = FragmentInfo(place & ~7, bool(place & 1)), rest[FRAGMENT_HEADER.size :]
        else:
            length = (rest[1] + 1) * 8
            following, options, rest = rest[0], rest[2:length], rest[length:]
    packet = Packet(
        str(ipaddress.IPv6Address(source)),
        str(ipaddress.IPv6Address(dest)),
        Raw(following, b""),
        hops,
        word >> 20 & 0xFF,
        ident,
        piece=piece,
        options=options,
    )
    return packet, following, rest, whole


def _decode_body(packet: Packet, protocol: int, data: bytes, whole: bool) -> Packet:
    """Parse the packet's payload, and check its checksum if it is complete."""
    known = CHECKSUM_AT.get(protocol)
    if packet.piece or known is None:
        return dataclasses.replace(packet, body=Raw(protocol, data))
    body: Udp | Tcp | Icmp
    summed = True
    if protocol == UDP:
        source, dest, length, check = UDP_HEADER.unpack_from(data)
        summed = check != 0
        body = Udp(source, dest, data[UDP_HEADER.size :], summed)
        if whole and length != len(data):
            packet = _fault(packet, "UDP length")
        if not summed and packet.family == 6:
            packet = _fault(packet, "UDP checksum missing")
    elif protocol == TCP:
        body = _decode_tcp(data)
    else:
        kind, code, _, rest = ICMP_HEADER.unpack_from(data)
        body = Icmp(kind, code, rest, data[ICMP_HEADER.size :])
    covered = b"" if protocol == ICMP else pseudo_header(packet, protocol, len(data))
    if whole and summed and ones_sum(data, ones_sum(covered)) != 0xFFFF:
        packet = _fault(packet, "transport checksum")
    return dataclasses.replace(packet, body=body)


def _decode_tcp(data: bytes) -> Tcp:
    # Only 8 bytes of a quoted segment are certain: ports and sequence number.
    padded = data + bytes(max(0, TCP_HEADER.size - len(data)))
    source, dest, seq, ack, words, flags, window, _, _ = TCP_HEADER.unpack_from(padded)
    header = (words >> 4) * 4
    options, mss = data[TCP_HEADER.size : header], None
    while len(options) >= MSS_OPTION.size and mss is None:
        kind, length, value = MSS_OPTION.unpack_from(options)
        mss = value if kind == MSS else None
        options = options[1:] if kind == 1 else options[max(2, length) :]
    return Tcp(source, dest, Flag(flags & 0x3F), seq, ack, data[header:], mss, window)


def echo(family: int, ident: int, sequence: int = 1, *, reply: bool = False, data: bytes = b"braid lab") -> Icmp:
    """Return an echo request or reply."""
    kind = ECHO_REPLY if reply else ECHO
    return Icmp(kind[family], rest=struct.pack("!HH", ident, sequence), data=data)


def too_big(quote: bytes, mtu: int) -> Icmp:
    """Return the error of a router whose next link carries only `mtu` bytes."""
    if quote[0] >> 4 == 4:
        return Icmp(UNREACHABLE[4], FRAGMENTATION_NEEDED, struct.pack("!I", mtu), quote)
    return Icmp(PACKET_TOO_BIG, 0, struct.pack("!I", mtu), quote)


def unreachable(quote: bytes) -> Icmp:
    """Return "port unreachable"."""
    family = quote[0] >> 4
    return Icmp(UNREACHABLE[family], PORT_UNREACHABLE[family], data=quote)
