"""An asyncio server for switches: OpenFlow 1.3 over TCP or TLS.

We do not use os-ken's own server: the threads of a connection wait for one another when a switch leaves (`hub.kill`
does nothing with native threads), so that its end is never reported; and its eventlet is at the end of its life. Here
one loop serves all connections, in turns of bounded length (`turns`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Protocol

from os_ken.ofproto import ofproto_v1_3 as of  # type: ignore[import-untyped]
from os_ken.ofproto import ofproto_v1_3_parser as parser

from braid_sdn.openflow.flow_mods import EncodedRules
from braid_sdn.openflow.flow_stats import DecodedRules
from braid_sdn.openflow.flows import DIALECT, LINK_FIELDS
from braid_sdn.openflow.messages import FromSwitch, Hello, ToSwitch
from braid_sdn.openflow.turns import Turns
from braid_sdn.openflow.wire import HEADER, VERSION, Session, parse_reply, port_in

#: Seconds for a switch's handshake.
HANDSHAKE_TIMEOUT = 10.0
#: Seconds of silence after which a connection is closed; echoes keep a live one busy.
IDLE_TIMEOUT = 15.0


#: Connections in the handshake; beyond this the oldest is closed. After a restart all switches connect at once.
MAX_HANDSHAKES = 1024
#: Ports of a switch; a description of more is malformed.
MAX_PORTS = 4096
#: Bytes queued for a switch; one that does not read them is disconnected.
MAX_UNSENT_BYTES = 64 << 20
#: Bytes of messages that wait for their turn, beyond which no more is read from a switch.
MAX_WAITING_BYTES = 64 << 10

#: First byte of a TLS connection: a record of a handshake (RFC 8446 §5.1).
TLS_HANDSHAKE = 0x16
#: Bytes; no hello is longer. Later messages may have any length: a switch sends hosts' frames before its features.
MAX_HELLO_BYTES = 1024


class Listener(Protocol):
    """Receiver of switches' events. Times are the loop's, seconds."""

    def connected(self, now: float, hello: Hello) -> None:
        """A switch completed the handshake."""

    def disconnected(self, now: float, dpid: int, why: str) -> None:
        """A switch's connection ended, for a reason."""

    def message(self, now: float, dpid: int, message: FromSwitch) -> None:
        """A switch sent a message."""

    def rejected(self, now: float, address: str, code: str, text: str) -> None:
        """A connection was refused."""


class Server:
    """All connections."""

    def __init__(self, listener: Listener, fields: Set[str] = LINK_FIELDS, turns: Turns | None = None) -> None:
        """Create it; `listen` opens a socket. Rules that match other fields than these are somebody else's."""
        self.listener = listener
        self.turns = turns or Turns()
        self.encoded, self.decoded = EncodedRules(), DecodedRules(fields)
        self.switches: dict[int, Connection] = {}
        self.connections: set[Connection] = set()
        #: Connections in the handshake, the oldest first.
        self.handshakes: dict[Connection, None] = {}
        self._upgrades: set[asyncio.Task[None]] = set()
        #: SHA-256 of the first certificate of each switch: another one is not accepted for it.
        self.owners: dict[int, str] = {}

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> asyncio.Server:
        """Accept switches at an address."""
        loop = asyncio.get_running_loop()
        if tls is None:
            return await loop.create_server(lambda: Connection(self), host, port, backlog=1024)
        # Not `ssl=tls`: that tells nobody of connections which never get through TLS.
        return await loop.create_server(lambda: _PlainConnection(self, tls), host, port, backlog=1024)

    async def listen_unix(self, path: Path) -> asyncio.Server:
        """Accept switches at a Unix socket, whose mode says who may be one."""
        return await asyncio.get_running_loop().create_unix_server(lambda: Connection(self), path)

    def upgrade(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Begin TLS on a new connection."""
        task = asyncio.get_running_loop().create_task(self._upgrade(transport, tls))
        self._upgrades.add(task)
        task.add_done_callback(self._upgrades.discard)

    async def _upgrade(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        address = _address(transport)
        connection = Connection(self)
        try:
            secured = await loop.start_tls(
                transport, connection, tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT
            )
        except ssl.SSLError as error:
            code, text = _tls_refusal(error)
            self.listener.rejected(loop.time(), address, code, text)
        except OSError:
            # The switch has gone, or said nothing.
            self.listener.rejected(loop.time(), address, "silent-switch", "ended the connection before TLS began")
        else:
            if secured is not None:
                connection.connection_made(secured)
                connection.data_received(b"")

    def send(self, messages: Iterable[tuple[int, ToSwitch]]) -> None:
        """Send messages to switches; those to a switch that is gone are dropped, each switch's order is kept."""
        made: dict[Connection, list[bytes]] = {}
        for dpid, message in messages:
            connection = self.switches.get(dpid)
            if connection is not None:
                made.setdefault(connection, []).append(connection.session.encode(message))
        for connection, parts in made.items():
            connection.send(b"".join(parts))

    async def watch_silence(self) -> None:
        """Close connections that have been silent for too long, until cancelled."""
        while True:
            await asyncio.sleep(IDLE_TIMEOUT / 3)
            self._expire(asyncio.get_running_loop().time())

    def _expire(self, now: float) -> None:
        for connection in list(self.connections):
            if now - connection.heard > IDLE_TIMEOUT:
                connection.end(f"nothing came from it for {IDLE_TIMEOUT:g} s")

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self.connections):
            connection.end("the controller ends")


class _PlainConnection(asyncio.Protocol):
    """A new connection on which TLS has to begin."""

    def __init__(self, server: Server, tls: ssl.SSLContext) -> None:
        self._server, self._tls = server, tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        # Its first bytes are for TLS.
        transport.pause_reading()
        self._server.upgrade(transport, self._tls)


def _address(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    # A Unix socket's peer has no address.
    return f"{peer[0]}:{peer[1]}" if peer else "here"


def _tls_refusal(error: ssl.SSLError) -> tuple[str, str]:
    """Return the code and the text of a connection that TLS did not accept."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"shows a certificate that is not accepted ({error.verify_message}): sign it by the authority in [tls]"
        return "other-certificate", text
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "other-certificate", "shows no certificate: give it one (ovs-vsctl set-ssl KEY CERTIFICATE AUTHORITY)"
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"):
        text = "connects without TLS, which [tls] demands: use ovs-vsctl set-controller BRIDGE ssl:ADDRESS:PORT"
        return "plain-tcp", text
    return "tls-refused", f"TLS ended before it began: {error.reason or error}; see the switch's own log"


class Connection(asyncio.Protocol):
    """One switch."""

    def __init__(self, server: Server) -> None:
        """Create it, by asyncio, for every connection."""
        self.server = server
        self.session = Session(server.encoded, server.decoded)
        self.dpid: int | None = None
        self.heard = 0.0
        self.address = "?"
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._features: int | None = None
        self._ports: list[object] = []
        self._handshake: Callable[[int, bytes, float], None] | None = self._hello
        self._deadline: asyncio.TimerHandle | None = None
        #: Why it was ended by us.
        self._ended = ""
        #: Why it has ended; None while it has not.
        self._end: str | None = None
        #: True while messages, or the end, wait for their turn; and if nothing is read until then.
        self._is_waiting = self._is_paused = False

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send hello."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        self.address = _address(transport)
        loop = asyncio.get_running_loop()
        self.heard = loop.time()
        self.server.connections.add(self)
        self.server.handshakes[self] = None
        if len(self.server.handshakes) > MAX_HANDSHAKES:
            next(iter(self.server.handshakes)).end("too many connections introduce themselves")
        self._deadline = loop.call_later(HANDSHAKE_TIMEOUT, self._never_introduced)
        bitmap = parser.OFPHelloElemVersionBitmap([VERSION])
        hello = parser.OFPHello(DIALECT, [bitmap])
        hello.set_xid(0)
        hello.serialize()
        transport.write(bytes(hello.buf))

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection, in its turn; what was not handled until then is dropped."""
        if self._deadline:
            self._deadline.cancel()
        self.server.connections.discard(self)
        self.server.handshakes.pop(self, None)
        self._end = self._ended or (f"its connection failed: {exc}" if exc else "it closed its connection")
        self._work_soon()

    def data_received(self, data: bytes) -> None:
        """Take in bytes, and handle whole messages in their turn."""
        self.heard = asyncio.get_running_loop().time()
        self._buffer += data
        # TLS hands over the first bytes before it says that it is done.
        if self._transport is not None:
            self._work_soon()

    def _work_soon(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self.server.turns.add(self._work)
            if self._is_waiting and self._transport is not None and len(self._buffer) > MAX_WAITING_BYTES:
                self._is_paused = True
                self._transport.pause_reading()

    def _work(self) -> bool:
        """Handle messages while there is time; return true if nothing is left to be done."""
        if self._end is not None:
            self._report_end(self._end)
            self._is_waiting = False
            return True
        try:
            if not self._handle_messages():
                return False
        except Exception:
            # Nobody else would end it, if this was not the turn in which its bytes came.
            self._is_waiting = False
            self.end("a message of it could not be handled")
            raise
        self._is_waiting = False
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return True

    def _report_end(self, why: str) -> None:
        if self.dpid is not None and self.server.switches.get(self.dpid) is self:
            del self.server.switches[self.dpid]
            self.server.listener.disconnected(asyncio.get_running_loop().time(), self.dpid, why)

    def _handle_messages(self) -> bool:
        """Split the stream into messages; return false if time was over before all were handled."""
        now = asyncio.get_running_loop().time()
        at = 0
        has_time = True
        while len(self._buffer) - at >= HEADER.size:
            version, kind, length, _ = HEADER.unpack_from(self._buffer, at)
            if self._handshake == self._hello and version == TLS_HANDSHAKE:
                text = "speaks TLS, and [tls] is not configured: do that, or use tcp: in ovs-vsctl set-controller"
                self._refuse(now, "tls-refused", text)
                return True
            if length < HEADER.size or (self._handshake == self._hello and length > MAX_HELLO_BYTES):
                self._refuse(now, "malformed", f"sends a message of length {length}: not OpenFlow")
                return True
            if len(self._buffer) - at < length:
                break
            if not has_time:
                del self._buffer[:at]
                return False
            message = bytes(self._buffer[at : at + length])
            at += length
            self._message(now, version, kind, message)
            if self._transport is None or self._transport.is_closing():
                return True
            has_time = self.server.turns.has_time()
        del self._buffer[:at]
        return True

    # Ours.

    def send(self, data: bytes) -> None:
        """Send encoded messages."""
        if self._transport is not None and not self._transport.is_closing():
            self._write(data)

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.end("it does not read what it is told")

    def end(self, why: str) -> None:
        """Abort the connection, for a reason."""
        self._ended = why
        self.server.handshakes.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def _message(self, now: float, version: int, kind: int, message: bytes) -> None:
        if kind == of.OFPT_ECHO_REQUEST and version == VERSION:
            self._raw(of.OFPT_ECHO_REPLY, message[4:8], message[8:])
        elif self._handshake is not None:
            self._handshake(version, message, now)
        elif version == VERSION and self.dpid is not None:
            told = self.session.decode(message)
            if told is not None:
                self.server.listener.message(now, self.dpid, told)

    def _raw(self, kind: int, xid: bytes, body: bytes = b"") -> None:
        self._write(bytes((VERSION, kind)) + (8 + len(body)).to_bytes(2, "big") + xid + body)

    def _hello(self, version: int, message: bytes, now: float) -> None:
        if message[1] != of.OFPT_HELLO:
            self._refuse(now, "malformed", "does not begin with a hello: not OpenFlow")
            return
        offered = _versions(version, message)
        if VERSION not in offered:
            names = ", ".join(f"1.{each - 1}" for each in sorted(offered)) or "none"
            self._raw(of.OFPT_ERROR, b"\0\0\0\0", b"\0\0\0\0")
            text = (
                f"speaks OpenFlow {names}, not 1.3: ignored; allow it (ovs-vsctl set bridge … protocols=OpenFlow13)"
            )
            self._refuse(now, "other-version", text)
            return
        self._handshake = self._introduce
        self._raw(of.OFPT_FEATURES_REQUEST, b"\0\0\0\1")
        self._raw(of.OFPT_MULTIPART_REQUEST, b"\0\0\0\2", of.OFPMP_PORT_DESC.to_bytes(2, "big") + bytes(6))

    def _introduce(self, version: int, message: bytes, now: float) -> None:
        told = parse_reply(message) if version == VERSION else None
        if isinstance(told, parser.OFPSwitchFeatures):
            self._features = told.datapath_id
        elif isinstance(told, parser.OFPPortDescStatsReply):
            self._ports += told.body
            if len(self._ports) > MAX_PORTS:
                self._refuse(now, "malformed", f"describes more than {MAX_PORTS} ports")
                return
            if not told.flags & of.OFPMPF_REPLY_MORE and self._features is not None:
                self._introduced(now, self._features)
        elif isinstance(told, parser.OFPErrorMsg):
            self._refuse(now, "refused", f"ended the introduction: error type {told.type} code {told.code}")

    def _introduced(self, now: float, dpid: int) -> None:
        other = self.server.switches.get(dpid)
        if other is not None:
            text = f"has the datapath id {dpid:016x} of {other.address}: ignored; give it its own"
            self._refuse(now, "duplicate-id", text)
            return
        certificate = self._certificate()
        if certificate is not None and self.server.owners.setdefault(dpid, certificate) != certificate:
            text = f"has the datapath id {dpid:016x} of a switch with another certificate: ignored"
            self._refuse(now, "other-certificate", f"{text}; if it was replaced, start the controller anew")
            return
        self.server.handshakes.pop(self, None)
        if self._deadline:
            self._deadline.cancel()
        self._handshake = None
        self.dpid = dpid
        self.server.switches[dpid] = self
        ports = tuple(port_in(each) for each in self._ports)
        self.server.listener.connected(now, Hello(dpid, ports, self.address))

    def _certificate(self) -> str | None:
        """Return the hash of the switch's certificate; None without TLS."""
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
        return hashlib.sha256(shown).hexdigest() if shown else None

    def _never_introduced(self) -> None:
        now = asyncio.get_running_loop().time()
        self._refuse(now, "silent-switch", f"did not introduce itself within {HANDSHAKE_TIMEOUT:g} s")

    def _refuse(self, now: float, code: str, text: str) -> None:
        self.server.listener.rejected(now, self.address, code, text)
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.close()


def _versions(version: int, message: bytes) -> set[int]:
    """Return the wire versions that a hello offers: its bitmap, else all up to its own (OpenFlow 1.3 §6.3.1)."""
    at = HEADER.size
    while at + 4 <= len(message):
        kind, length = int.from_bytes(message[at : at + 2], "big"), int.from_bytes(message[at + 2 : at + 4], "big")
        if length < 4:
            break
        if kind == of.OFPHET_VERSIONBITMAP:
            bits = int.from_bytes(message[at + 4 : at + 8], "big")
            return {number for number in range(32) if bits >> number & 1}
        at += (length + 7) // 8 * 8
    return {version} if version < VERSION else {VERSION, version}
