"""Server names and protocols of connections, from the ClientHello of TLS, over TCP and in QUIC's Initial packets.

The server's choice among the protocols that a client offers (ALPN) is encrypted since TLS 1.3, so a capture shows the
offer alone. Initial packets are encrypted with keys that everybody knows (RFC 9001 §5.2). aioquic reads both.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field

from aioquic.buffer import Buffer, BufferReadError  # type: ignore[attr-defined]
from aioquic.quic.crypto import CryptoError, CryptoPair  # type: ignore[attr-defined]
from aioquic.quic.packet import QuicPacketType, QuicProtocolVersion, pull_quic_header
from aioquic.tls import Alert, pull_client_hello

#: A ClientHello is shorter: one with a post-quantum key takes some 1800 bytes.
MOST_BYTES = 16_384

TLS_HANDSHAKE = 22
QUIC_VERSIONS = frozenset(version.value for version in QuicProtocolVersion if version.value)

#: Frames of Initial packets before a ClientHello is complete (RFC 9000 §19).
PADDING, PING, CRYPTO = 0x00, 0x01, 0x06

HTTP_HOST = re.compile(rb"\r\n[Hh]ost: *([^\s:]+)")


@dataclass(frozen=True)
class Hello:
    """First message of a connection's client: the server's name, and the protocols that it offers."""

    server: str
    alpn: tuple[str, ...]


@dataclass
class Pieces:
    """The beginning of a byte stream, from pieces in any order."""

    pieces: dict[int, bytes] = field(default_factory=dict)

    def add(self, offset: int, data: bytes) -> None:
        """Take a piece, unless it is beyond any ClientHello."""
        if 0 <= offset < MOST_BYTES and len(data) > len(self.pieces.get(offset, b"")):
            self.pieces[offset] = data

    def beginning(self) -> bytes:
        """Return what is there without a gap from the first byte on."""
        whole = b""
        for offset in sorted(self.pieces):
            if offset > len(whole):
                break
            whole = whole[:offset] + self.pieces[offset] + whole[offset + len(self.pieces[offset]) :]
        return whole


def of_tcp(beginning: bytes) -> Hello | None:
    """Return the ClientHello at the beginning of a client's stream, or the request's host; None if it is neither."""
    if found := HTTP_HOST.search(beginning):
        return Hello(found.group(1).decode("latin-1").lower(), ("http/1.1",))
    message, left = b"", beginning
    while len(left) >= 5 and left[0] == TLS_HANDSHAKE:
        length = int.from_bytes(left[3:5], "big")
        message, left = message + left[5 : 5 + length], left[5 + length :]
    return _parsed(message)


def _parsed(message: bytes) -> Hello | None:
    try:
        hello = pull_client_hello(Buffer(data=message))
    # aioquic asserts what an attacker's message does not keep.
    except (BufferReadError, Alert, AssertionError, ValueError):
        return None
    return Hello((hello.server_name or "").lower(), tuple(hello.alpn_protocols or ()))


def is_quic(payload: bytes) -> bool:
    """Return whether a datagram begins with a long header of a known version."""
    return len(payload) >= 7 and payload[0] & 0xC0 == 0xC0 and int.from_bytes(payload[1:5], "big") in QUIC_VERSIONS


@dataclass
class Initials:
    """The Initial packets of a QUIC connection's client."""

    #: The connection id that their keys come from: the first one that the client sends to.
    _connection: bytes | None = None
    _crypto: Pieces = field(default_factory=Pieces)

    def add(self, datagram: bytes) -> Hello | None:
        """Take a datagram of the client; return the ClientHello once it is complete."""
        buffer = Buffer(data=datagram)
        # A datagram may end with padding that is no packet.
        with contextlib.suppress(BufferReadError, CryptoError, ValueError):
            while not buffer.eof():
                start = buffer.tell()
                header = pull_quic_header(buffer, host_cid_length=8)
                if header.packet_type != QuicPacketType.INITIAL or header.version is None:
                    break
                if self._connection is None:
                    self._connection = header.destination_cid
                pair = CryptoPair()
                pair.setup_initial(cid=self._connection, is_client=False, version=header.version)
                packet = datagram[start : start + header.packet_length]
                _, plain, _ = pair.decrypt_packet(packet, buffer.tell() - start, 0)
                self._frames(plain)
                buffer.seek(start + header.packet_length)
        return _parsed(self._crypto.beginning())

    def _frames(self, plain: bytes) -> None:
        buffer = Buffer(data=plain)
        while not buffer.eof():
            kind = buffer.pull_uint_var()
            if kind == CRYPTO:
                offset, length = buffer.pull_uint_var(), buffer.pull_uint_var()
                self._crypto.add(offset, buffer.pull_bytes(length))
            elif kind not in (PADDING, PING):
                break
