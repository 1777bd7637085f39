"""Fake OpenFlow switches to test the controller alone, hundreds of them in one process.

    python -m braid_lab.fabric.fake_switches ADDRESS PORT generated:500[:SEED[:HOSTS]] | fat-tree:8 | east-asia

Each connects to the controller by TCP; wires between them have no delay. The controller itself reports when all have
connected and all wires are discovered. On SIGUSR1 every host sends once, on SIGUSR2 the first wire is unplugged.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as of  # type: ignore[import-untyped]
from os_ken.ofproto import ofproto_v1_3_parser as parser

from braid_lab.fabric.pipeline import FrameOut, Outcome, Pipeline
from braid_lab.fabric.shapes import Shape, east_asia, fat_tree, generated
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import mac_bytes
from braid_sdn.openflow.flows import DIALECT, instructions_out, match_in, match_out, rule_in
from braid_sdn.openflow.messages import (
    AddRule,
    Barrier,
    BarrierReply,
    DeleteRule,
    Echo,
    EchoReply,
    FlowStatsReply,
    FlowStatsRequest,
    MeterFeatures,
    MeterFeaturesRequest,
    PacketIn,
    PacketOut,
    Port,
    PortStatsReply,
    PortStatsRequest,
    PortStatus,
    Refused,
    Rule,
    ToSwitch,
)
from braid_sdn.openflow.wire import HEADER, VERSION, parse

# Messages of switches, by OpenFlow 1.3 §A.3.1, §A.2.1, §A.3.5.2, §A.3.5.6 and §A.4.1: os-ken parses them, but does
# not write them.
FEATURES = struct.Struct("!QIBBxxII")
PORT = struct.Struct("!I4x6s2x16s8I")
FLOW = struct.Struct("!HBxIIHHHH4xQQQ")
PORT_STATS = struct.Struct("!I4x12QII")
PACKET_IN = struct.Struct("!IHBBQHHII")

#: Entries per part of a multipart reply.
MAX_PART_ENTRIES = 200


class FakeSwitch(asyncio.Protocol):
    """One switch's connection."""

    def __init__(self, network: FakeNetwork, pipeline: Pipeline) -> None:
        """Use `FakeNetwork`."""
        self.network = network
        self.pipeline = pipeline
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send a hello."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self.transport = transport
        self._send(parser.OFPHello(DIALECT, [parser.OFPHelloElemVersionBitmap([VERSION])]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Stop sending."""
        self.transport = None

    def data_received(self, data: bytes) -> None:
        """Split the stream into messages."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= HEADER.size:
            _, kind, length, xid = HEADER.unpack_from(self._buffer, at)
            if len(self._buffer) - at < length:
                break
            self._message(kind, xid, bytes(self._buffer[at : at + length]))
            at += length
        del self._buffer[:at]

    def outcomes(self, outcomes: list[Outcome], xid: int = 0) -> None:
        """Carry out the results of a message or a frame."""
        for each in outcomes:
            if isinstance(each, FrameOut):
                self.network.carry(PortId(self.pipeline.dpid, each.port), each.frame)
            else:
                self._say(each, xid)

    def _send(self, message: Any, xid: int = 0) -> None:
        if self.transport is not None:
            message.set_xid(xid)
            message.serialize()
            self.transport.write(bytes(message.buf))

    def _message(self, kind: int, xid: int, data: bytes) -> None:
        if kind == of.OFPT_FEATURES_REQUEST:
            self._raw(of.OFPT_FEATURES_REPLY, xid, FEATURES.pack(self.pipeline.dpid, 0, 254, 0, 0, 0))
            return
        if kind == of.OFPT_MULTIPART_REQUEST and int.from_bytes(data[8:10], "big") == of.OFPMP_PORT_DESC:
            self._parts(of.OFPMP_PORT_DESC, [port_description(port) for port in self.pipeline.ports.values()], xid)
            return
        asked = _request(kind, xid, data)
        if asked is not None:
            now = asyncio.get_running_loop().time()
            self.outcomes(list(self.pipeline.handle(now, asked)), xid)

    def _say(self, message: Outcome, xid: int) -> None:
        match message:
            case PacketIn(in_port, frame):
                head = PACKET_IN.pack(of.OFP_NO_BUFFER, len(frame), of.OFPR_ACTION, 0, 0, 1, 12, 0x80000004, in_port)
                self._raw(of.OFPT_PACKET_IN, 0, head + bytes(6) + frame)
            case EchoReply(body):
                self._raw(of.OFPT_ECHO_REPLY, xid, body)
            case BarrierReply():
                self._raw(of.OFPT_BARRIER_REPLY, xid)
            case Refused():
                error = struct.pack("!HH", of.OFPET_FLOW_MOD_FAILED, of.OFPFMFC_TABLE_FULL)
                self._raw(of.OFPT_ERROR, xid, error)
            case PortStatus(port, gone):
                reason = of.OFPPR_DELETE if gone else of.OFPPR_MODIFY
                self._raw(of.OFPT_PORT_STATUS, 0, bytes((reason, *bytes(7))) + port_description(port))
            case MeterFeatures(highest):
                features = (highest, 1 << of.OFPMBT_DROP, of.OFPMF_PKTPS | of.OFPMF_BURST, 1, 0)
                self._parts(of.OFPMP_METER_FEATURES, [struct.pack("!IIIBBxx", *features)], xid)
            case PortStatsReply(ports):
                entries = [
                    PORT_STATS.pack(p.port, 0, 0, p.rx_bytes, p.tx_bytes, *[0] * 8, *_age(p.age)) for p in ports
                ]
                self._parts(of.OFPMP_PORT_STATS, entries, xid)
            case FlowStatsReply(known):
                rules = [_flow_stats(each.rule, each.packets, each.bytes) for each in known]
                self._parts(of.OFPMP_FLOW, rules, xid)

    def _parts(self, kind: int, entries: list[bytes], xid: int) -> None:
        parts = [entries[at : at + MAX_PART_ENTRIES] for at in range(0, len(entries), MAX_PART_ENTRIES)] or [[]]
        for number, part in enumerate(parts, 1):
            flags = of.OFPMPF_REPLY_MORE if number < len(parts) else 0
            self._raw(of.OFPT_MULTIPART_REPLY, xid, struct.pack("!HH4x", kind, flags) + b"".join(part))

    def _raw(self, kind: int, xid: int, body: bytes = b"") -> None:
        if self.transport is not None:
            self.transport.write(HEADER.pack(VERSION, kind, 8 + len(body), xid) + body)


class FakeNetwork:
    """A shape's switches and the wires between them."""

    def __init__(self, shape: Shape) -> None:
        """Create it; see `connect`."""
        self.switches: dict[int, FakeSwitch] = {}
        self.peer: dict[PortId, PortId] = {}
        for name in shape.switches:
            dpid = shape.dpid(name)
            self.switches[dpid] = FakeSwitch(self, Pipeline(dpid, {}))
        for wire, (one, other) in zip(shape.wires, shape.ports(), strict=True):
            a, b = self._add(shape.dpid(wire.one), one), self._add(shape.dpid(wire.other), other)
            self.peer[a], self.peer[b] = b, a
        self.stations = {each.name: self._add(shape.dpid(each.switch), each.name) for each in shape.stations}

    def _add(self, dpid: int, name: str) -> PortId:
        ports = self.switches[dpid].pipeline.ports
        number = len(ports) + 1
        ports[number] = Port(number, name[:15], f"06:00:00:00:00:{number % 256:02x}", True, 10e9)
        return PortId(dpid, number)

    def carry(self, source: PortId, frame: bytes) -> None:
        """Deliver a frame to the other end of a wire."""
        target = self.peer.get(source)
        if target is not None:
            switch = self.switches[target.switch]
            switch.outcomes(list(switch.pipeline.receive(target.port, frame)))

    async def connect(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """Connect all switches to a controller."""
        loop = asyncio.get_running_loop()
        for switch in self.switches.values():
            await loop.create_connection(lambda s=switch: s, host, port, ssl=tls)

    def broadcast_from_hosts(self) -> None:
        """Send a broadcast from every host."""
        for number, port in enumerate(self.stations.values(), 1):
            frame = bytes.fromhex("ffffffffffff0200") + struct.pack("!I", number) + b"\x08\x00" + bytes(46)
            switch = self.switches[port.switch]
            switch.outcomes(list(switch.pipeline.receive(port.port, frame)))

    def unplug(self) -> None:
        """Unplug the first wire at both ends."""
        one = next(iter(self.peer))
        for end in (one, self.peer[one]):
            switch = self.switches[end.switch]
            switch.outcomes([switch.pipeline.set_port(end.port, up=False)])

    def close(self) -> None:
        """Close all connections."""
        for switch in self.switches.values():
            if switch.transport is not None:
                switch.transport.abort()


def _request(kind: int, xid: int, data: bytes) -> ToSwitch | None:
    """Parse a controller's request; return None for those that a fake switch can ignore."""
    if kind == of.OFPT_ECHO_REQUEST:
        return Echo(data[8:])
    if kind == of.OFPT_BARRIER_REQUEST:
        return Barrier(xid & 0x7FFFFFFF)
    # os-ken cannot parse most messages of controllers in any version; OpenFlow 1.3 §A.3.5 and §A.3.7.
    if kind == of.OFPT_MULTIPART_REQUEST:
        subject = int.from_bytes(data[8:10], "big")
        if subject == of.OFPMP_PORT_STATS:
            return PortStatsRequest()
        if subject == of.OFPMP_METER_FEATURES:
            return MeterFeaturesRequest()
        return FlowStatsRequest(None if data[16] == of.OFPTT_ALL else data[16])
    if kind == of.OFPT_PACKET_OUT:
        _, in_port, length = struct.unpack_from("!IIH", data, 8)
        ports = (struct.unpack_from("!I", data, at + 4)[0] for at in range(24, 24 + length, 16))
        return PacketOut(tuple(ports), data[24 + length :], in_port)
    told = parse(data) if kind == of.OFPT_FLOW_MOD else None
    if isinstance(told, parser.OFPFlowMod):
        if told.command == of.OFPFC_ADD:
            return AddRule(rule_in(told))
        return DeleteRule((told.table_id, told.priority, match_in(told.match)))
    return None


def port_description(port: Port) -> bytes:
    """Return a port as switches describe it."""
    state = 0 if port.up else of.OFPPS_LINK_DOWN
    speed = int(port.speed / 1000)
    return PORT.pack(port.number, mac_bytes(port.mac), port.name.encode(), 0, state, 0, 0, 0, 0, speed, 0)


def _age(seconds: float) -> tuple[int, int]:
    return int(seconds), int(seconds % 1 * 1e9)


def _flow_stats(rule: Rule, packets: int, octets: int) -> bytes:
    body = bytearray()
    length = match_out(rule.match).serialize(body, 0)
    for instruction in instructions_out(rule):
        instruction.serialize(body, length)
        length += instruction.len
    head = FLOW.pack(
        FLOW.size + length, rule.table, 0, 0, rule.priority, 0, rule.lease, 0, rule.cookie, packets, octets
    )
    return head + bytes(body)


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


async def _main(host: str, port: int, word: str) -> None:
    network = FakeNetwork(shape_of(word))
    await serve(network.connect(host, port), on_hosts=network.broadcast_from_hosts, on_wire=network.unplug)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
