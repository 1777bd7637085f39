"""Datagrams that a hub must reject, made from captured ones; pure. docs/protocol.md has the format."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

#: First byte of a data packet: these bits, and the link.
DATA, LINK_BITS = 0x40, 0x1F

#: Bytes of cleartext before the sealed part.
HEADER_BYTES = 8

#: Length of initiations whose content does not matter, the shortest allowed.
INITIATION_BYTES = 256
INITIATION, VERSION, MAC_BYTES = 1, 1, 16

#: First bytes of the other messages.
RESPONSE, COOKIE_REPLY, RESET = 2, 3, 4

#: Lengths in a cookie reply and a reset.
SALT_BYTES, TOKEN_BYTES = 16, 16

#: The latest time there is, µs: what an earlier draft of the protocol had in cookie replies.
LAST_TIME = struct.pack("!Q", 2**64 - 2)

#: A link that no bond of the lab has.
NO_LINK = 31

#: Offset of packet numbers that are new in any session of the lab, yet near enough to be accepted as new.
NUMBERS_AHEAD = 100_000

#: Slightly more packet numbers than the replay window reaches back.
NUMBERS_BEHIND = 17_000


def is_data(payload: bytes) -> bool:
    """Return whether a datagram carries sealed frames."""
    return len(payload) > HEADER_BYTES and payload[0] & ~LINK_BITS == DATA


def number(payload: bytes) -> int:
    """Return the lowest 32 bits of a data packet's number."""
    found: int = struct.unpack_from("!I", payload, 4)[0]
    return found


def numbered(payload: bytes, new: int) -> bytes:
    """Return the packet with another packet number."""
    return payload[:4] + struct.pack("!I", new & 0xFFFF_FFFF) + payload[HEADER_BYTES:]


def forged(payload: bytes, nth: int) -> bytes:
    """Flip a bit of the sealed part, under an unused packet number."""
    changed = bytearray(numbered(payload, number(payload) + NUMBERS_AHEAD + nth))
    changed[HEADER_BYTES + nth % (len(payload) - HEADER_BYTES)] ^= 1 << nth % 8
    return bytes(changed)


def replayed(payload: bytes, _: int) -> bytes:
    """Repeat the packet unchanged."""
    return payload


def old(payload: bytes, nth: int) -> bytes:
    """Use a packet number before the replay window; the packet's own must be beyond it."""
    return numbered(payload, number(payload) - NUMBERS_BEHIND - nth)


def truncated(payload: bytes, nth: int) -> bytes:
    """Cut off the end, the authentication tag first."""
    return numbered(payload, number(payload) + NUMBERS_AHEAD + nth)[: -1 - nth % 16]


def stub(payload: bytes, nth: int) -> bytes:
    """Leave less than the header and tag."""
    return payload[: 1 + nth % HEADER_BYTES]


def wrong_session(payload: bytes, nth: int) -> bytes:
    """Address an unknown session."""
    index = int.from_bytes(payload[1:4]) ^ (1 + nth)
    return payload[:1] + index.to_bytes(3) + payload[4:]


def wrong_link(payload: bytes, _: int) -> bytes:
    """Claim another link.

    The link is authenticated, and a packet on an existing link would be accepted with any number.
    """
    return bytes([DATA | NO_LINK]) + payload[1:]


def junk(payload: bytes, nth: int) -> bytes:
    """Return bytes that are not of this protocol."""
    return bytes([0xC0 | nth % 64]) + random.Random(nth).randbytes(len(payload) - 1)


def blind_initiation(nth: int) -> bytes:
    """Return an initiation made without the hub's key."""
    head = bytes([INITIATION, 0, VERSION])
    return head + random.Random(nth).randbytes(INITIATION_BYTES - len(head))


def costly_initiation(hub: str, nth: int) -> bytes:
    """Return an initiation with a valid first MAC, made with the hub's public key: the rest makes the hub compute."""
    begin = blind_initiation(nth)[: -2 * MAC_BYTES]
    key = hashlib.sha256(b"braid mac" + base64.b64decode(hub)).digest()
    return begin + hmac.new(key, begin, hashlib.sha256).digest()[:MAC_BYTES] + bytes(MAC_BYTES)


def is_initiation(payload: bytes) -> bool:
    """Return whether a datagram is a message 1."""
    return len(payload) >= INITIATION_BYTES and payload[0] == INITIATION


def proven(initiation: bytes, cookie: bytes) -> bytes:
    """Return the initiation with the second MAC, which proves that its sender has got the cookie."""
    begin = initiation[:-MAC_BYTES]
    return begin + hmac.new(cookie, begin, hashlib.sha256).digest()[:MAC_BYTES]


def _cookie_cipher(hub: str, salt: bytes, initiation: bytes) -> ChaCha20Poly1305:
    key = hashlib.sha256(b"braid cookie" + base64.b64decode(hub)).digest()
    first_mac = initiation[-2 * MAC_BYTES : -MAC_BYTES]
    return ChaCha20Poly1305(hmac.new(key, salt + first_mac, hashlib.sha256).digest())


def cookie_reply(hub: str, initiation: bytes, plain: bytes, salt: bytes) -> bytes:
    """Return a cookie reply to an initiation, as anybody can make it who has seen it and knows the public key."""
    head = bytes([COOKIE_REPLY, initiation[1]])
    return head + salt + _cookie_cipher(hub, salt, initiation).encrypt(bytes(12), plain, None)


def cookie_in(hub: str, initiation: bytes, reply: bytes) -> bytes | None:
    """Return the cookie in the hub's reply to an initiation; None if it is another message."""
    if len(reply) != 2 + SALT_BYTES + 2 * MAC_BYTES or reply[0] != COOKIE_REPLY:
        return None
    salt, sealed = reply[2 : 2 + SALT_BYTES], reply[2 + SALT_BYTES :]
    try:
        return _cookie_cipher(hub, salt, initiation).decrypt(bytes(12), sealed, None)
    except InvalidTag:
        return None


def reset(index: bytes, token: bytes) -> bytes:
    """Return a reset of the session with this index, of 3 bytes."""
    return bytes([RESET]) + index + token


@dataclass(frozen=True)
class Attack:
    """A way to turn a good datagram into a bad one, and the counter that must record it."""

    name: str
    make: Callable[[bytes, int], bytes]
    counter: str
    #: True if made from packets that the hub sent, not from packets to it.
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
