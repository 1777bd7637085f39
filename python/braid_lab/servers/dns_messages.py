"""DNS messages: the lab's answers, and what a client needs to ask. Without asyncio, which takes long to import."""

from __future__ import annotations

import ipaddress
import struct
import zlib

A, TXT, AAAA, IN = 1, 16, 28, 1
HEADER = struct.Struct("!6H")
#: Standard query response, authoritative, no error (RFC 1035 §4.1.1).
ANSWER_FLAGS = 0x8400
#: A pointer to the question's name, which always comes right after the header (§4.1.4).
POINTER = b"\xc0\x0c"
TTL = 60


def question(packet: bytes) -> tuple[bytes, bytes, int]:
    """Return the name, the whole question and the query type; ValueError if it is no single question."""
    if len(packet) < HEADER.size or HEADER.unpack_from(packet)[2] != 1:
        raise ValueError("not one question")
    end = HEADER.size
    while packet[end : end + 1] not in (b"", b"\0"):
        end += 1 + packet[end]
    whole = packet[HEADER.size : end + 5]
    if len(whole) < 5 or whole[-5] != 0:
        raise ValueError("cut off")
    kind, _ = struct.unpack("!2H", whole[-4:])
    return whole[:-4], whole, kind


def answer(packet: bytes, asker: tuple[str, int], addresses: list[str]) -> bytes:
    """Return the reply to a query."""
    name, whole, kind = question(packet)
    version = {A: 4, AAAA: 6}.get(kind)
    known = [ipaddress.ip_address(each) for each in addresses]
    fitting = [each for each in known if each.version == version]
    if kind == TXT:
        text = f"{asker[0]} {asker[1]}".encode()
        data = bytes([len(text)]) + text
    elif fitting:
        # A name always maps to the same server.
        data = fitting[zlib.crc32(name.lower()) % len(fitting)].packed
    else:
        data = b""
    identifier = HEADER.unpack_from(packet)[0]
    head = HEADER.pack(identifier, ANSWER_FLAGS, 1, 1 if data else 0, 0, 0)
    record = POINTER + struct.pack("!2HIH", kind, IN, TTL, len(data)) + data if data else b""
    return head + whole + record
