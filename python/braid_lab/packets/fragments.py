"""Fragmentation and reassembly of packets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from braid_lab.packets.codec import FragmentInfo, Packet, Raw, decode, encode

#: Bytes of an IPv4 header without options, and of an IPv6 header with a fragment header.
HEADER_BYTES = {4: 20, 6: 48}


def split(packet: Packet, mtu: int, ident: int) -> list[Packet]:
    """Split a packet into fragments that fit `mtu`, in order; the checksum covers the whole packet, as it must."""
    whole = encode(packet)
    protocol = _protocol(packet)
    data = whole[20 if packet.family == 4 else 40 :]
    step = (mtu - HEADER_BYTES[packet.family]) // 8 * 8
    return [
        dataclasses.replace(
            packet,
            body=Raw(protocol, data[offset : offset + step]),
            ident=ident,
            dont_fragment=False,
            piece=FragmentInfo(offset, offset + step < len(data)),
        )
        for offset in range(0, len(data), step)
    ]


def _protocol(packet: Packet) -> int:
    return encode(packet)[9 if packet.family == 4 else 6]


def join(pieces: Sequence[Packet]) -> Packet | None:
    """Reassemble fragments and parse the packet, checksums included; None if one is missing."""
    if not pieces:
        return None
    data, more = b"", True
    for each in sorted(pieces, key=lambda piece: piece.piece.offset if piece.piece else 0):
        if each.piece is None or not isinstance(each.body, Raw) or each.piece.offset != len(data):
            return None
        data, more = data + each.body.data, each.piece.more
    if more:
        return None
    first = pieces[0]
    body = first.body
    assert isinstance(body, Raw)  # noqa: S101
    whole = dataclasses.replace(first, body=Raw(body.protocol, data), piece=None, ident=0, faults=())
    faults = tuple(fault for each in pieces for fault in each.faults)
    joined = decode(encode(whole))
    return dataclasses.replace(joined, faults=(*joined.faults, *faults))
