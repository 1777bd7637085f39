"""Frames that the controller sends through switches to itself: discovery (LLDP), path probes, edge probes.

Each carries its subject, a nonce, the time of sending, and an HMAC-SHA-256 over all of it, so that a host can neither
forge a link nor keep a dead one alive by replay: a frame is valid for `MAX_AGE` seconds, and only for the port from
which it was sent. A padded frame says its size itself, at its beginning: so it does not matter if the switch that it
comes to hands on a part of it.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.tenants import TAGS

LLDP = 0x88CC
#: IEEE 802 local experimental EtherType 1: for everything that is not LLDP.
EXPERIMENTAL = 0x88B5

#: Destination of discovery frames: a group of our own, not 01:80:c2:00:00:0e, so that they pass foreign bridges and
#: show links that lead through one.
DISCOVERY_GROUP = "03:42:52:41:49:44"
#: Destination of path and edge probes.
PROBE_MAC = "02:42:52:41:49:44"

#: Seconds for which a frame is valid.
MAX_AGE = 5.0

#: Bytes of a full frame of a train.
TRAIN_FRAME_BYTES = 1514
#: Bytes of an Ethernet header with a tag in it.
TAGGED_HEADER_BYTES = 18

_MAGIC = b"BRD1"
_ORGANISATION = b"\x42\x52\x44"
_BODY = struct.Struct("!4sBQIHQQH")
_TAG_BYTES = 16


class Kind(IntEnum):
    """Purpose of a frame."""

    #: From a port to whatever is at its other end.
    LINK = 1
    #: Along a path, by its tag, to its last switch.
    PATH = 2
    #: Out to an edge, which sends it back as it is.
    EDGE = 3
    #: Along a path, as one of several frames that are sent at once, padded to a size.
    TRAIN = 4
    #: From a port to whatever is at its other end, under a tag and padded to a size.
    PADDED = 5


@dataclass(frozen=True, slots=True)
class Probe:
    """Content of one of our frames."""

    kind: Kind
    #: The port it was sent out of; for a path its first switch and port 0.
    source: PortId
    #: The path's tag; 0 of other kinds.
    tag: int
    nonce: int
    #: Nanoseconds by the controller's monotonic clock.
    sent: int
    #: Of a padded frame, or a train's, all that is behind the tag's EtherType, bytes, as the packet of another frame.
    packet_bytes: int = 0


def mac_bytes(mac: str) -> bytes:
    """Return a MAC address's six bytes."""
    return bytes.fromhex(mac.replace(":", ""))


def mac_text(raw: bytes) -> str:
    """Return a MAC address as text."""
    return raw.hex(":")


def seal(probe: Probe, key: bytes) -> bytes:
    """Return the frame for a probe: of links LLDP with everything in an organisation's own TLV, else EXPERIMENTAL."""
    source = probe.source
    body = _BODY.pack(
        _MAGIC, probe.kind, source.switch, source.port, probe.tag, probe.nonce, probe.sent, probe.packet_bytes
    )
    body += hmac.digest(key, body, "sha256")[:_TAG_BYTES]
    if probe.kind not in (Kind.LINK, Kind.PADDED):
        header = mac_bytes(PROBE_MAC) + _source_mac(probe.source)
        if probe.kind is not Kind.EDGE:
            header += struct.pack("!HH", 0x8100, probe.tag)
        least = TAGGED_HEADER_BYTES + probe.packet_bytes if probe.kind is Kind.TRAIN else 60
        return (header + struct.pack("!H", EXPERIMENTAL) + body).ljust(least, b"\0")
    chassis = b"\x07" + b"%016x" % probe.source.switch
    port = b"\x07" + b"%d" % probe.source.port
    tlvs = _tlv(1, chassis) + _tlv(2, port) + _tlv(3, struct.pack("!H", round(MAX_AGE)))
    tlvs += _tlv(127, _ORGANISATION + b"\x01" + body) + _tlv(0, b"")
    frame = mac_bytes(DISCOVERY_GROUP) + _source_mac(probe.source) + struct.pack("!H", LLDP) + tlvs
    if probe.kind is Kind.LINK:
        return frame
    # Any tag that a path may have: discovery comes before paths at a switch.
    return tagged(frame, TAGS.start).ljust(TAGGED_HEADER_BYTES + probe.packet_bytes, b"\0")


def _source_mac(source: PortId) -> bytes:
    """A locally administered address that no host has; bridges in between learn it at the right port."""
    return b"\x06" + struct.pack("!I", source.switch & 0xFFFFFFFF)[1:] + struct.pack("!H", source.port & 0xFFFF)


def _tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("!H", kind << 9 | len(value)) + value


def is_probe(start: bytes) -> bool:
    """Return true if a frame of this controller that begins like this is a probe under a tag, and not a host's."""
    target, kind = mac_text(start[:6]), int.from_bytes(start[16:TAGGED_HEADER_BYTES], "big")
    return start[12:14] == b"\x81\x00" and (target, kind) in ((PROBE_MAC, EXPERIMENTAL), (DISCOVERY_GROUP, LLDP))


class ForgedError(Exception):
    """A frame that claims to be ours but is forged or expired."""


def open_frame(frame: bytes, key: bytes, now: int) -> Probe | None:
    """Parse and verify a frame of ours; return None for any other frame.

    Raises:
        ForgedError: the HMAC is wrong, or the frame is too short, older than MAX_AGE seconds or from the future.
    """
    body = _body(frame)
    if body is None or not body.startswith(_MAGIC):
        return None
    if len(body) < _BODY.size + _TAG_BYTES:
        raise ForgedError("it is of another version, or was cut off")
    said, tag = body[: _BODY.size], body[_BODY.size : _BODY.size + _TAG_BYTES]
    if not hmac.compare_digest(hmac.digest(key, said, "sha256")[:_TAG_BYTES], tag):
        raise ForgedError("its authentication is wrong")
    _, kind, switch, port, path, nonce, sent, packet_bytes = _BODY.unpack(said)
    age = (now - sent) / 1e9
    if not 0 <= age <= MAX_AGE:
        # A genuine one of before a standstill and one that somebody replays look alike.
        raise ForgedError(f"it is {age:.1f} s old (this machine or a switch stood still, or somebody replays it)")
    if kind not in tuple(Kind):
        raise ForgedError("it is of another version")
    return Probe(Kind(kind), PortId(switch, port), path, nonce, sent, packet_bytes)


def _body(frame: bytes) -> bytes | None:
    """Return what follows the headers of a frame that may be ours."""
    at = 12
    kind = frame[at : at + 2]
    while kind in (b"\x81\x00", b"\x88\xa8"):
        at += 4
        kind = frame[at : at + 2]
    at += 2
    if kind == EXPERIMENTAL.to_bytes(2, "big"):
        return frame[at:]
    if kind != LLDP.to_bytes(2, "big"):
        return None
    while at + 2 <= len(frame):
        (word,) = struct.unpack_from("!H", frame, at)
        number, length = word >> 9, word & 0x1FF
        value = frame[at + 2 : at + 2 + length]
        if number == 0 or len(value) < length:
            return None
        if number == 127 and value.startswith(_ORGANISATION + b"\x01"):
            return value[4:]
        at += 2 + length
    return None


def tagged(frame: bytes, tag: int) -> bytes:
    """Return a frame with an 802.1Q header in front of its EtherType."""
    return frame[:12] + struct.pack("!HH", 0x8100, tag) + frame[12:]


def untagged(frame: bytes) -> tuple[int, bytes]:
    """Return the VID of a frame's outer header of 802.1Q, and the frame without that; 0 and the frame if it has none.

    Switches look at the VID whether it is a customer's header or a provider's (802.1ad).
    """
    if frame[12:14] not in (b"\x81\x00", b"\x88\xa8") or len(frame) < 18:
        return 0, frame
    return int.from_bytes(frame[14:16], "big") & 0xFFF, frame[:12] + frame[16:]
