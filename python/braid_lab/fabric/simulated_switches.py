"""Simulated OpenFlow switches in one process: their connections to a controller, and the wires between them."""

from __future__ import annotations

import asyncio
import signal
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from os_ken.ofproto import ofproto_v1_3 as of  # type: ignore[import-untyped]

from braid_lab.fabric.shapes import Shape, east_asia, fat_tree, generated
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import mac_bytes
from braid_sdn.openflow.messages import Port
from braid_sdn.openflow.wire import HEADER, VERSION

# Messages of switches, by OpenFlow 1.3 §A.3.1, §A.2.1, §A.3.5.2, §A.3.5.6 and §A.4.1: os-ken parses them, but does
# not write them.
FEATURES = struct.Struct("!QIBBxxII")
PORT = struct.Struct("!I4x6s2x16s8I")
FLOW = struct.Struct("!HBxIIHHHH4xQQQ")
PORT_STATS = struct.Struct("!I4x12QII")
PACKET_IN = struct.Struct("!IHBBQHHII")
#: A hello with a bitmap of versions (§A.5.1).
HELLO = HEADER.pack(VERSION, of.OFPT_HELLO, 16, 0) + struct.pack("!HHI", of.OFPHET_VERSIONBITMAP, 8, 1 << VERSION)


class SwitchConnection(asyncio.Protocol):
    """One switch's connection: the handshake and the splitting into messages; `message` is the subclass's."""

    def __init__(self, dpid: int, ports: dict[int, Port]) -> None:
        """Use a network."""
        self.dpid = dpid
        self.ports = ports
        self.transport: asyncio.Transport | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send a hello."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self.transport = transport
        transport.write(HELLO)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Stop sending."""
        self.transport = None

    def data_received(self, data: bytes) -> None:
        """Split the stream into messages."""
        buffer = self._buffer + data
        at, end = 0, len(buffer)
        while end - at >= HEADER.size:
            _, kind, length, xid = HEADER.unpack_from(buffer, at)
            if end - at < length:
                break
            if kind == of.OFPT_FEATURES_REQUEST:
                self.tell(of.OFPT_FEATURES_REPLY, xid, FEATURES.pack(self.dpid, 0, 254, 0, 0, 0))
            else:
                self.message(kind, xid, buffer[at : at + length])
            at += length
        self._buffer = buffer[at:]

    def message(self, kind: int, xid: int, data: bytes) -> None:
        """Handle a message of the controller."""
        raise NotImplementedError

    def tell(self, kind: int, xid: int, body: bytes = b"") -> None:
        """Send a message."""
        if self.transport is not None:
            self.transport.write(HEADER.pack(VERSION, kind, HEADER.size + len(body), xid) + body)

    def tell_packet(self, port: int, frame: bytes) -> None:
        """Hand a frame to the controller."""
        head = PACKET_IN.pack(of.OFP_NO_BUFFER, len(frame), of.OFPR_ACTION, 0, 0, 1, 12, 0x80000004, port)
        self.tell(of.OFPT_PACKET_IN, 0, head + bytes(6) + frame)

    def tell_port(self, port: Port, *, gone: bool = False) -> None:
        """Tell the controller that a port has changed."""
        reason = of.OFPPR_DELETE if gone else of.OFPPR_MODIFY
        self.tell(of.OFPT_PORT_STATUS, 0, bytes((reason, *bytes(7))) + port_description(port))


S = TypeVar("S", bound=SwitchConnection)


class SimulatedNetwork(Generic[S]):
    """A shape's switches and the wires between them."""

    def __init__(self, shape: Shape, make: Callable[[int], S]) -> None:
        """Create it, with a switch for each datapath id; see `connect`."""
        numbers = {name: shape.dpid(name) for name in shape.switches}
        self.switches = {dpid: make(dpid) for dpid in numbers.values()}
        self.peer: dict[PortId, PortId] = {}
        for wire, (one, other) in zip(shape.wires, shape.ports(), strict=True):
            a, b = self._add(numbers[wire.one], one), self._add(numbers[wire.other], other)
            self.peer[a], self.peer[b] = b, a
        #: Ports of hosts.
        self.hosts = [self._add(numbers[each.switch], each.name) for each in shape.stations]

    def _add(self, dpid: int, name: str) -> PortId:
        ports = self.switches[dpid].ports
        number = len(ports) + 1
        ports[number] = Port(number, name[:15], f"06:00:00:00:{number >> 8:02x}:{number & 0xFF:02x}", True, 10e9)
        return PortId(dpid, number)

    async def connect(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """Connect all switches to a controller."""
        loop = asyncio.get_running_loop()
        for switch in self.switches.values():
            await loop.create_connection(lambda s=switch: s, host, port, ssl=tls)

    def first_wire(self) -> tuple[PortId, PortId]:
        """Return both ports of the first wire."""
        one = next(iter(self.peer))
        return one, self.peer[one]

    def first_frames(self) -> list[tuple[PortId, bytes]]:
        """Return a broadcast of every host, as one that is switched on sends it."""
        return [
            (port, bytes.fromhex("ffffffffffff0200") + struct.pack("!I", number) + b"\x08\x00" + bytes(46))
            for number, port in enumerate(self.hosts, 1)
        ]


def port_description(port: Port) -> bytes:
    """Return a port as switches describe it."""
    state = 0 if port.up else of.OFPPS_LINK_DOWN
    speed = int(port.speed / 1000)
    return PORT.pack(port.number, mac_bytes(port.mac), port.name.encode(), 0, state, 0, 0, 0, 0, speed, 0)


def shape_of(word: str) -> Shape:
    """Return the shape that an argument names."""
    kind, *words = word.split(":")
    numbers = [int(each) for each in words]
    if kind == "generated":
        seed, hosts = (*numbers[1:], *(1, 0)[len(numbers) - 1 :])
        return generated(numbers[0], seed=seed, hosts=hosts)
    return fat_tree(*numbers[:1], hosts=numbers[1] if numbers[1:] else None) if kind == "fat-tree" else east_asia()


async def serve(connecting: Awaitable[None], *, on_hosts: Callable[[], None], on_wire: Callable[[], None]) -> None:
    """Connect switches, and carry out what SIGUSR1 (of hosts) and SIGUSR2 (of a wire) ask for, until killed."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, on_hosts)
    loop.add_signal_handler(signal.SIGUSR2, on_wire)
    await connecting
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()
