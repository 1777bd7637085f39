"""The controller's side of OpenFlow 1.3: messages to bytes, bytes to messages."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any

from os_ken.ofproto import ofproto_parser  # type: ignore[import-untyped]
from os_ken.ofproto import ofproto_v1_3 as of
from os_ken.ofproto import ofproto_v1_3_parser as parser

from braid_sdn.openflow.flows import DIALECT, UnknownRuleError, instructions_out, match_out, rule_in
from braid_sdn.openflow.messages import (
    AddRule,
    Barrier,
    BarrierReply,
    DeleteRule,
    Echo,
    EchoReply,
    FlowStats,
    FlowStatsReply,
    FlowStatsRequest,
    FromSwitch,
    PacketIn,
    PacketOut,
    Port,
    PortCounters,
    PortStatsReply,
    PortStatsRequest,
    PortStatus,
    Refused,
    Rule,
    ToSwitch,
)

HEADER = struct.Struct("!BBHI")
_PACKET_OUT = struct.Struct("!IIH6x")
_OUTPUT = struct.Struct("!HHIH6x")

#: Messages longer than this are refused: OpenFlow's length has 16 bits.
VERSION = of.OFP_VERSION

#: Entries of one answer in parts: rules and ports of a switch.
MAX_REPLY_ENTRIES = 1 << 20
#: Answers in parts that may be outstanding.
MAX_OUTSTANDING = 256

#: Rules whose fate is not known yet are remembered up to this many.
MAX_PENDING_RULES = 65536


class Session:
    """What one connection must remember: which transaction was about what. No sockets."""

    def __init__(self) -> None:
        """A connection on which nothing was said."""
        self._xid = 0
        self._rules: OrderedDict[int, Rule] = OrderedDict()
        self._tables: dict[int, int | None] = {}
        #: What has come of the answers that were asked for, the oldest first.
        self._parts: OrderedDict[int, list[Any]] = OrderedDict()

    def _next(self) -> int:
        self._xid = (self._xid + 1) & 0x7FFFFFFF
        return self._xid

    # To the switch.

    def encode(self, message: ToSwitch) -> bytes:
        """Return a message's bytes."""
        xid = self._next()
        match message:
            case AddRule(rule):
                self._rules[xid] = rule
                if len(self._rules) > MAX_PENDING_RULES:
                    self._rules.popitem(last=False)
                return _bytes(_flow_mod(rule, of.OFPFC_ADD), xid)
            case DeleteRule((table, priority, match)):
                return _bytes(_flow_mod(Rule(table, priority, match), of.OFPFC_DELETE_STRICT), xid)
            case Barrier(token):
                # Its token is its number, apart from all others'.
                return HEADER.pack(VERSION, of.OFPT_BARRIER_REQUEST, 8, 0x80000000 | token)
            case PacketOut(ports, data, in_port):
                return _packet_out(xid, ports, data, in_port)
            case Echo(data):
                return HEADER.pack(VERSION, of.OFPT_ECHO_REQUEST, 8 + len(data), xid) + data
            case PortStatsRequest():
                self._expect(xid)
                return _bytes(parser.OFPPortStatsRequest(DIALECT, 0, of.OFPP_ANY), xid)
            case FlowStatsRequest(table):
                self._expect(xid)
                self._tables[xid] = table
                every = of.OFPTT_ALL if table is None else table
                return _bytes(parser.OFPFlowStatsRequest(DIALECT, 0, every), xid)

    def _expect(self, xid: int) -> None:
        self._parts[xid] = []
        if len(self._parts) > MAX_OUTSTANDING:
            given_up, _ = self._parts.popitem(last=False)
            self._tables.pop(given_up, None)

    # From the switch.

    def decode(self, data: bytes) -> FromSwitch | None:
        """Return what a whole message says; None of what is of no interest or cannot be understood."""
        _, kind, _, xid = HEADER.unpack_from(data)
        if kind == of.OFPT_PACKET_IN:
            return _packet_in(data)
        if kind == of.OFPT_ECHO_REPLY:
            return EchoReply(data[8:])
        if kind == of.OFPT_BARRIER_REPLY:
            return self._barrier(xid)
        if kind not in (of.OFPT_PORT_STATUS, of.OFPT_MULTIPART_REPLY, of.OFPT_ERROR):
            return None
        told = parse(data)
        if isinstance(told, parser.OFPPortStatus):
            return PortStatus(port_in(told.desc), told.reason == of.OFPPR_DELETE)
        if isinstance(told, parser.OFPErrorMsg):
            return self._refused(told)
        return self._statistics(told, xid)

    def _barrier(self, xid: int) -> BarrierReply:
        # Whatever was sent before it was taken.
        self._rules.clear()
        return BarrierReply(xid & 0x7FFFFFFF)

    def _refused(self, told: Any) -> Refused | None:
        full = (told.type, told.code) == (of.OFPET_FLOW_MOD_FAILED, of.OFPFMFC_TABLE_FULL)
        words = f"error type {told.type} code {told.code}"
        return Refused("table-full" if full else words, self._rules.pop(told.xid, None))

    def _statistics(self, told: Any, xid: int) -> FromSwitch | None:
        if told is None:
            return None
        parts = self._parts.get(xid)
        if parts is None:
            # Nobody asked, or it was given up.
            return None
        parts.extend(told.body)
        if len(parts) > MAX_REPLY_ENTRIES:
            del self._parts[xid]
            self._tables.pop(xid, None)
            return None
        if told.flags & of.OFPMPF_REPLY_MORE:
            return None
        whole = self._parts.pop(xid)
        if isinstance(told, parser.OFPPortStatsReply):
            return PortStatsReply(tuple(_counters(each) for each in whole if each.port_no <= of.OFPP_MAX))
        if isinstance(told, parser.OFPFlowStatsReply):
            known = (_known(each) for each in whole)
            return FlowStatsReply(tuple(each for each in known if each is not None), self._tables.pop(xid, None))
        return None


def parse(data: bytes) -> Any:
    """Return a message as os-ken has it, or None if it cannot be read."""
    version, kind, length, xid = HEADER.unpack_from(data)
    if version != VERSION:
        return None
    try:
        return ofproto_parser.msg(DIALECT, version, kind, length, xid, data)
    except Exception:
        # os-ken lets through whatever its parsers trip over.
        return None


def _bytes(message: Any, xid: int) -> bytes:
    message.set_xid(xid)
    message.serialize()
    return bytes(message.buf)


def _flow_mod(rule: Rule, command: int) -> Any:
    return parser.OFPFlowMod(
        DIALECT,
        cookie=rule.cookie,
        table_id=rule.table,
        command=command,
        hard_timeout=rule.lease,
        priority=rule.priority,
        buffer_id=of.OFP_NO_BUFFER,
        out_port=of.OFPP_ANY,
        out_group=of.OFPG_ANY,
        match=match_out(rule.match),
        instructions=instructions_out(rule),
    )


def _packet_out(xid: int, ports: tuple[int, ...], data: bytes, in_port: int) -> bytes:
    """By hand, as `_packet_in`: OpenFlow 1.3 §A.3.7, with one output action (§A.2.5) for each port."""
    actions = b"".join(_OUTPUT.pack(of.OFPAT_OUTPUT, _OUTPUT.size, port, of.OFPCML_NO_BUFFER) for port in ports)
    length = HEADER.size + _PACKET_OUT.size + len(actions) + len(data)
    head = HEADER.pack(VERSION, of.OFPT_PACKET_OUT, length, xid)
    return head + _PACKET_OUT.pack(of.OFP_NO_BUFFER, in_port, len(actions)) + actions + data


def _packet_in(data: bytes) -> PacketIn | None:
    """By hand: it comes by the thousand. OpenFlow 1.3 §A.4.1."""
    if len(data) < 32:
        return None
    (length,) = struct.unpack_from("!H", data, 26)
    end = 24 + length
    at = 28
    in_port = None
    while at + 4 <= min(end, len(data)):
        header, size = struct.unpack_from("!HxB", data, at)
        if (header, data[at + 2] >> 1, size) == (of.OFPXMC_OPENFLOW_BASIC, of.OFPXMT_OFB_IN_PORT, 4):
            (in_port,) = struct.unpack_from("!I", data, at + 4)
        at += 4 + size
    body = 24 + (length + 7) // 8 * 8 + 2
    return PacketIn(in_port, data[body:]) if in_port is not None and body <= len(data) else None


def port_in(told: Any) -> Port:
    """Return a port that a switch described."""
    up = not told.config & of.OFPPC_PORT_DOWN and not told.state & of.OFPPS_LINK_DOWN
    name = told.name.decode(errors="replace") if isinstance(told.name, bytes) else told.name
    return Port(told.port_no, name.rstrip("\0"), told.hw_addr, up, 1000.0 * told.curr_speed)


def _counters(told: Any) -> PortCounters:
    age = told.duration_sec + told.duration_nsec / 1e9
    return PortCounters(told.port_no, told.rx_bytes, told.tx_bytes, told.tx_dropped, age)


def _known(told: Any) -> FlowStats | None:
    """None of a rule whose very match is not one of ours: ours cannot meet with it, and it is left alone."""
    try:
        rule = rule_in(told)
    except UnknownRuleError:
        return None
    return FlowStats(rule, told.packet_count, told.byte_count, told.duration_sec + told.duration_nsec / 1e9)
