"""Fake OpenFlow switches to test the controller alone, hundreds of them in one process.

    python -m braid_lab.fabric.fake_switches ADDRESS PORT generated:500[:SEED[:HOSTS]] | fat-tree:8 | east-asia

Each connects to the controller by TCP; wires between them have no delay. The controller itself reports when all have
connected and all wires are discovered. On SIGUSR1 every host sends once, on SIGUSR2 the first wire is unplugged.
"""

from __future__ import annotations

import asyncio
import struct
import sys

from os_ken.ofproto import ofproto_v1_3 as of  # type: ignore[import-untyped]
from os_ken.ofproto import ofproto_v1_3_parser as parser

from braid_lab.fabric.pipeline import FrameOut, Outcome, Pipeline
from braid_lab.fabric.shapes import Shape
from braid_lab.fabric.simulated_switches import (
    FLOW,
    PORT_STATS,
    SimulatedNetwork,
    SwitchConnection,
    port_description,
    serve,
    shape_of,
)
from braid_sdn.fabric.model import PortId
from braid_sdn.openflow.flows import instructions_out, match_in, match_out, rule_in
from braid_sdn.openflow.messages import (
    AddRule,
    Barrier,
    BarrierReply,
    DeleteRule,
    Echo,
    EchoReply,
    FlowStatsReply,
    FlowStatsRequest,
    GroupFeatures,
    GroupFeaturesRequest,
    GroupsReply,
    GroupsRequest,
    MeterFeatures,
    MeterFeaturesRequest,
    PacketIn,
    PacketOut,
    PortStatsReply,
    PortStatsRequest,
    PortStatus,
    Refused,
    Rule,
    ToSwitch,
)
from braid_sdn.openflow.wire import parse

#: Entries per part of a multipart reply.
MAX_PART_ENTRIES = 200


class FakeSwitch(SwitchConnection):
    """One switch's connection."""

    def __init__(self, network: FakeNetwork, dpid: int) -> None:
        """Use `FakeNetwork`."""
        self.network = network
        self.pipeline = Pipeline(dpid, {})
        super().__init__(dpid, self.pipeline.ports)

    def outcomes(self, outcomes: list[Outcome], xid: int = 0) -> None:
        """Carry out the results of a message or a frame."""
        for each in outcomes:
            if isinstance(each, FrameOut):
                self.network.carry(PortId(self.dpid, each.port), each.frame)
            else:
                self._say(each, xid)

    def message(self, kind: int, xid: int, data: bytes) -> None:
        """Handle a message of the controller."""
        if kind == of.OFPT_MULTIPART_REQUEST and int.from_bytes(data[8:10], "big") == of.OFPMP_PORT_DESC:
            self._parts(of.OFPMP_PORT_DESC, [port_description(port) for port in self.ports.values()], xid)
            return
        asked = _request(kind, xid, data)
        if asked is not None:
            now = asyncio.get_running_loop().time()
            self.outcomes(list(self.pipeline.handle(now, asked)), xid)

    def _say(self, message: Outcome, xid: int) -> None:
        match message:
            case PacketIn(in_port, frame):
                self.tell_packet(in_port, frame)
            case EchoReply(body):
                self.tell(of.OFPT_ECHO_REPLY, xid, body)
            case BarrierReply():
                self.tell(of.OFPT_BARRIER_REPLY, xid)
            case Refused():
                error = struct.pack("!HH", of.OFPET_FLOW_MOD_FAILED, of.OFPFMFC_TABLE_FULL)
                self.tell(of.OFPT_ERROR, xid, error)
            case PortStatus(port, gone):
                self.tell_port(port, gone=gone)
            case MeterFeatures(highest):
                # Without those by kilobits a second.
                features = (highest, 1 << of.OFPMBT_DROP, of.OFPMF_PKTPS | of.OFPMF_BURST, 1, 0)
                self._parts(of.OFPMP_METER_FEATURES, [struct.pack("!IIIBBxx", *features)], xid)
            case GroupFeatures() | GroupsReply():
                # As a switch without groups.
                error = struct.pack("!HH", of.OFPET_BAD_REQUEST, of.OFPBRC_BAD_MULTIPART)
                self.tell(of.OFPT_ERROR, xid, error)
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
            self.tell(of.OFPT_MULTIPART_REPLY, xid, struct.pack("!HH4x", kind, flags) + b"".join(part))


class FakeNetwork(SimulatedNetwork[FakeSwitch]):
    """A shape's switches and the wires between them."""

    def __init__(self, shape: Shape) -> None:
        """Create it; see `connect`."""
        super().__init__(shape, lambda dpid: FakeSwitch(self, dpid))

    def carry(self, source: PortId, frame: bytes) -> None:
        """Deliver a frame to the other end of a wire."""
        target = self.peer.get(source)
        if target is not None:
            switch = self.switches[target.switch]
            switch.outcomes(list(switch.pipeline.receive(target.port, frame)))

    def broadcast_from_hosts(self) -> None:
        """Send a broadcast from every host."""
        for port, frame in self.first_frames():
            switch = self.switches[port.switch]
            switch.outcomes(list(switch.pipeline.receive(port.port, frame)))

    def unplug(self) -> None:
        """Unplug the first wire at both ends."""
        for end in self.first_wire():
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
        if subject == of.OFPMP_GROUP_FEATURES:
            return GroupFeaturesRequest()
        if subject == of.OFPMP_GROUP_DESC:
            return GroupsRequest()
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


async def _main(host: str, port: int, word: str) -> None:
    network = FakeNetwork(shape_of(word))
    await serve(network.connect(host, port), on_hosts=network.broadcast_from_hosts, on_wire=network.unplug)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
