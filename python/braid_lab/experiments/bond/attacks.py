"""Datagrams that a hub must refuse, made of ones that were seen on the way. Pure; docs/protocol.md has the format."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

#: The first byte of data: these bits, and the link.
DATA, LINK_BITS = 0x40, 0x1F

#: What is in the clear before the sealed part.
HEADER_BYTES = 8

#: Initiations that are not for anything but filling time are this long, the least there is.
INITIATION_BYTES = 256
INITIATION, VERSION, MAC_BYTES = 1, 1, 16

#: A link that no bond of the lab has.
NO_LINK = 31

#: Numbers that are new in any session of the lab, yet near enough to be taken for new.
NUMBERS_AHEAD = 100_000

#: Packet numbers that the replay window reaches back, and some more.
NUMBERS_BEHIND = 17_000


def is_data(payload: bytes) -> bool:
    """Whether a datagram is one of sealed frames."""
    return len(payload) > HEADER_BYTES and payload[0] & ~LINK_BITS == DATA


def number(payload: bytes) -> int:
    """Return the lowest 32 bits of a data packet's number."""
    found: int = struct.unpack_from("!I", payload, 4)[0]
    return found


def numbered(payload: bytes, new: int) -> bytes:
    """Return it with another number."""
    return payload[:4] + struct.pack("!I", new & 0xFFFF_FFFF) + payload[HEADER_BYTES:]


def forged(payload: bytes, nth: int) -> bytes:
    """Change a bit of the sealed part, under a number that nobody has used."""
    changed = bytearray(numbered(payload, number(payload) + NUMBERS_AHEAD + nth))
    changed[HEADER_BYTES + nth % (len(payload) - HEADER_BYTES)] ^= 1 << nth % 8
    return bytes(changed)


def replayed(payload: bytes, _: int) -> bytes:
    """Say it again as it was."""
    return payload


def old(payload: bytes, nth: int) -> bytes:
    """Give it a number that the replay window no longer knows; it must have one beyond that."""
    return numbered(payload, number(payload) - NUMBERS_BEHIND - nth)


def truncated(payload: bytes, nth: int) -> bytes:
    """Cut off its end, the tag first."""
    return numbered(payload, number(payload) + NUMBERS_AHEAD + nth)[: -1 - nth % 16]


def stub(payload: bytes, nth: int) -> bytes:
    """Leave less than its header and tag."""
    return payload[: 1 + nth % HEADER_BYTES]


def wrong_session(payload: bytes, nth: int) -> bytes:
    """Address a session that nobody has."""
    index = int.from_bytes(payload[1:4]) ^ (1 + nth)
    return payload[:1] + index.to_bytes(3) + payload[4:]


def wrong_link(payload: bytes, _: int) -> bytes:
    """Claim to have come on another link: it is part of what is sealed, and any number would do for one that is."""
    return bytes([DATA | NO_LINK]) + payload[1:]


def junk(payload: bytes, nth: int) -> bytes:
    """Be nothing of this protocol."""
    return bytes([0xC0 | nth % 64]) + random.Random(nth).randbytes(len(payload) - 1)


def blind_initiation(nth: int) -> bytes:
    """Knock without knowing the hub's key."""
    head = bytes([INITIATION, 0, VERSION])
    return head + random.Random(nth).randbytes(INITIATION_BYTES - len(head))


def costly_initiation(hub: str, nth: int) -> bytes:
    """Knock with a right first MAC, as who knows the hub's public key can: what follows makes it compute."""
    begin = blind_initiation(nth)[: -2 * MAC_BYTES]
    key = hashlib.sha256(b"braid mac" + base64.b64decode(hub)).digest()
    return begin + hmac.new(key, begin, hashlib.sha256).digest()[:MAC_BYTES] + bytes(MAC_BYTES)


@dataclass(frozen=True)
class Attack:
    """A way to make a bad datagram of a good one, and the counter that must tell of it."""

    name: str
    make: Callable[[bytes, int], bytes]
    counter: str
    #: Made of what the hub sent, not of what it is sent.
    reflected: bool = False


ATTACKS = (
    Attack("forged", forged, "forged"),
    Attack("replayed", replayed, "seen"),
    Attack("out_of_window", old, "old"),
    Attack("truncated", truncated, "forged"),
    Attack("stub", stub, "malformed"),
    Attack("reflected", replayed, "session", reflected=True),
    Attack("wrong_session", wrong_session, "session"),
    Attack("wrong_link", wrong_link, "forged"),
    Attack("junk", junk, "malformed"),
)
