"""The controller's side of OpenFlow 1.3: encodes and decodes messages."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from os_ken.ofproto import ofproto_parser  # type: ignore[import-untyped]
from os_ken.ofproto import ofproto_v1_3 as of
from os_ken.ofproto import ofproto_v1_3_parser as parser

from braid_sdn.openflow import meters
from braid_sdn.openflow.flow_mods import EncodedRules, encode
from braid_sdn.openflow.flow_stats import FLOW_MIN, FLOWS_AT, DecodedRules
from braid_sdn.openflow.flows import (
    DIALECT,
    LINK_FIELDS,
    buckets_out,
    failover_buckets_out,
    instructions_out,
    match_out,
)
from braid_sdn.openflow.groups import group_features, groups_in
from braid_sdn.openflow.messages import (
    MAX_BARRIER_TOKEN,
    AddRule,
    Barrier,
    BarrierReply,
    Bundle,
    DeleteGroup,
    DeleteMeter,
    DeleteRule,
    Echo,
    EchoReply,
    FlowRemoved,
    FlowStats,
    FlowStatsReply,
    FlowStatsRequest,
    FromSwitch,
    GroupFeatures,
    GroupFeaturesRequest,
    GroupsReply,
    GroupsRequest,
    Malformed,
    MeterCounters,
    MeterCountersReply,
    MeterCountersRequest,
    MeterFeatures,
    MeterFeaturesRequest,
    PacketIn,
    PacketOut,
    Port,
    PortCounters,
    PortStatsReply,
    PortStatsRequest,
    PortStatus,
    Refused,
    RoleReply,
    RoleRequest,
    Rule,
    RuleCounters,
    RuleCountersReply,
    RuleCountersRequest,
    RuleCountReply,
    RuleCountRequest,
    SetFailoverGroup,
    SetGroup,
    SetMeter,
    ToGroup,
    ToSwitch,
)

HEADER = struct.Struct("!BBHI")
_PACKET_OUT = struct.Struct("!IIH6x")
_OUTPUT = struct.Struct("!HHIH6x")
#: A role, and the generation of the leadership (OpenFlow 1.3 §A.3.9).
_ROLE = struct.Struct("!I4xQ")
#: Of a flow's removal the cookie, reason, idle timeout, packets and bytes (OpenFlow 1.3 §A.4.2).
_REMOVED = struct.Struct("!8xQ2xB9xH2xQQ")
#: Of a rule's statistics the length, cookie, packets and bytes (§A.3.5.2).
_COUNTERS = struct.Struct("!H22xQQQ")

#: Of a port's statistics the number, bytes received and sent, packets dropped on the way out, and age (§A.3.5.6).
_PORT = struct.Struct("!I20xQQ8xQ48xII")

#: Messages that os-ken parses for us, and replies; those of flows once their lengths have been checked.
_PARSED = (of.OFPT_ERROR, of.OFPT_FEATURES_REPLY, of.OFPT_PORT_STATUS)
_PARSED_REPLIES = (of.OFPMP_PORT_DESC, of.OFPMP_METER_FEATURES)
#: A request for aggregate statistics (§A.3.5.3), and the size of a reply: the number of rules is at its byte 32.
_COUNT_REQUEST = struct.Struct("!BBHI HH4x B3xII4xQQ HH4x")
_COUNT_ALL = (of.OFPMP_AGGREGATE, 0, of.OFPTT_ALL, of.OFPP_ANY, of.OFPG_ANY, 0, 0, of.OFPMT_OXM, 4)
_COUNT_REPLY = 40
#: ONF's bundles: experimenter, type, number of the bundle, its message's kind (or padding), and flags.
_BUNDLE = struct.Struct("!IIIHH")
_ONF = 0x4F4E4600
_BUNDLE_FLAGS = of.ONF_BF_ATOMIC | of.ONF_BF_ORDERED
#: Command of a group that may exist; an extension of Open vSwitch (OFPGC11_ADD_OR_MOD).
_ADD_OR_MODIFY = 0x8000
#: Instructions with actions in them.
_WITH_ACTIONS = (of.OFPIT_WRITE_ACTIONS, of.OFPIT_APPLY_ACTIONS, of.OFPIT_CLEAR_ACTIONS)

#: Errors that mean more than that one message was wrong.
_REFUSALS = {
    (of.OFPET_FLOW_MOD_FAILED, of.OFPFMFC_TABLE_FULL): "table-full",
    (of.OFPET_BAD_REQUEST, of.OFPBRC_IS_SLAVE): "slave",
    (of.OFPET_GROUP_MOD_FAILED, of.OFPGMFC_GROUP_EXISTS): "group-exists",
    (of.OFPET_GROUP_MOD_FAILED, of.OFPGMFC_UNKNOWN_GROUP): "group-unknown",
    (of.OFPET_ROLE_REQUEST_FAILED, of.OFPRRFC_STALE): "stale-generation",
}
#: Of a rule that leads to a group which a switch does not have.
_BAD_OUT_GROUP = of.OFPET_BAD_ACTION, of.OFPBAC_BAD_OUT_GROUP

#: The wire version of OpenFlow 1.3.
VERSION = of.OFP_VERSION

#: Entries of one multipart reply: rules and ports of a switch.
MAX_REPLY_ENTRIES = 1 << 20
#: Outstanding multipart replies.
MAX_OUTSTANDING = 256

#: Rules and meters without a barrier reply that are remembered.
MAX_PENDING = 65536


class Session:
    """Transaction state of one connection. No sockets."""

    def __init__(self, encoded: EncodedRules | None = None, decoded: DecodedRules | None = None) -> None:
        """Create the state of a new connection; connections that share these convert a rule once."""
        self._encoded = encoded or EncodedRules()
        self._decoded = decoded or DecodedRules(LINK_FIELDS)
        self._xid = 0
        #: Rules and meters that the switch may refuse yet.
        self._pending: OrderedDict[int, Rule | SetMeter] = OrderedDict()
        #: Barriers under way by their tokens, and the number of messages when each was sent.
        self._barriers: OrderedDict[int, int] = OrderedDict()
        self._tables: dict[int, int | None] = {}
        #: Requests of which only counters are wanted.
        self._counters: set[int] = set()
        #: Requests for the number of rules.
        self._counts: set[int] = set()
        #: The requests for the number of meters and for their counters, which a switch may refuse; and for groups.
        self._meters_asked: int | None = None
        self._meter_counters_asked: int | None = None
        self._group_features_asked: int | None = None
        self._groups_asked: int | None = None
        #: Entries received of outstanding replies, the oldest first.
        self._parts: OrderedDict[int, list[Any]] = OrderedDict()

    def _next(self) -> int:
        self._xid = (self._xid + 1) & 0x7FFFFFFF
        return self._xid

    # To the switch.

    def encode(self, message: ToSwitch) -> bytes:
        """Encode a message."""
        xid = self._next()
        match message:
            case AddRule() | DeleteRule():
                return self._change(xid, message)
            case Bundle(changes):
                return self._bundle(xid, changes)
            case RuleCountRequest():
                self._counts.add(xid)
                return _COUNT_REQUEST.pack(VERSION, of.OFPT_MULTIPART_REQUEST, _COUNT_REQUEST.size, xid, *_COUNT_ALL)
            case SetMeter():
                return self._set_meter(xid, message)
            case DeleteMeter(number):
                return self._delete_meter(xid, number)
            case MeterCountersRequest():
                self._expect(xid)
                self._meter_counters_asked = xid
                return _message(of.OFPT_MULTIPART_REQUEST, xid, meters.COUNTERS_REQUEST)
            case SetGroup(number, buckets):
                made = buckets_out(buckets)
                return _bytes(parser.OFPGroupMod(DIALECT, _ADD_OR_MODIFY, of.OFPGT_SELECT, number, made), xid)
            case DeleteGroup(number):
                return _bytes(parser.OFPGroupMod(DIALECT, of.OFPGC_DELETE, of.OFPGT_SELECT, number), xid)
            case SetFailoverGroup(number, buckets, is_new):
                command = of.OFPGC_ADD if is_new else of.OFPGC_MODIFY
                made = failover_buckets_out(buckets)
                return _bytes(parser.OFPGroupMod(DIALECT, command, of.OFPGT_FF, number, made), xid)
            case GroupFeaturesRequest():
                self._expect(xid)
                self._group_features_asked = xid
                return _bytes(parser.OFPGroupFeaturesStatsRequest(DIALECT, 0), xid)
            case GroupsRequest():
                self._expect(xid)
                self._groups_asked = xid
                return _bytes(parser.OFPGroupDescStatsRequest(DIALECT, 0), xid)
            case MeterFeaturesRequest():
                self._expect(xid)
                self._meters_asked = xid
                return _bytes(parser.OFPMeterFeaturesStatsRequest(DIALECT, 0), xid)
            case Barrier(token):
                # Its token is its transaction id, in a range of its own.
                self._barriers[token] = xid
                if len(self._barriers) > MAX_OUTSTANDING:
                    self._barriers.popitem(last=False)
                return HEADER.pack(VERSION, of.OFPT_BARRIER_REQUEST, 8, 0x80000000 | token)
            case PacketOut(ports, data, in_port):
                return _packet_out(xid, ports, data, in_port)
            case Echo(data):
                return HEADER.pack(VERSION, of.OFPT_ECHO_REQUEST, 8 + len(data), xid) + data
            case RoleRequest(role, generation):
                head = HEADER.pack(VERSION, of.OFPT_ROLE_REQUEST, HEADER.size + _ROLE.size, xid)
                return head + _ROLE.pack(role, generation)
            case PortStatsRequest():
                self._expect(xid)
                return _bytes(parser.OFPPortStatsRequest(DIALECT, 0, of.OFPP_ANY), xid)
            case FlowStatsRequest(table):
                self._expect(xid)
                self._tables[xid] = table
                every = of.OFPTT_ALL if table is None else table
                return _bytes(parser.OFPFlowStatsRequest(DIALECT, 0, every), xid)
            case RuleCountersRequest(cookie, mask):
                self._expect(xid)
                self._counters.add(xid)
                request = parser.OFPFlowStatsRequest(DIALECT, 0, of.OFPTT_ALL, of.OFPP_ANY, of.OFPG_ANY, cookie, mask)
                return _bytes(request, xid)

    def _change(self, xid: int, change: AddRule | DeleteRule) -> bytes:
        if isinstance(change, DeleteRule):
            rule, command = Rule(*change.key), of.OFPFC_DELETE_STRICT
            body = encode(rule, command)
        else:
            rule, command = change.rule, of.OFPFC_ADD
            self._remember(xid, rule)
            body = self._encoded.encode(rule)
        if body is None:
            return _bytes(_flow_mod(rule, command), xid)
        return HEADER.pack(VERSION, of.OFPT_FLOW_MOD, HEADER.size + len(body), xid) + body

    def _bundle(self, xid: int, changes: tuple[AddRule | DeleteRule, ...]) -> bytes:
        # Its number is that of its first message.
        def control(kind: int, number: int) -> bytes:
            head = HEADER.pack(VERSION, of.OFPT_EXPERIMENTER, _BUNDLE.size + HEADER.size, number)
            return head + _BUNDLE.pack(_ONF, of.ONF_ET_BUNDLE_CONTROL, xid, kind, _BUNDLE_FLAGS)

        made = control(of.ONF_BCT_OPEN_REQUEST, xid)
        for change in changes:
            number = self._next()
            body = self._change(number, change)
            head = HEADER.pack(VERSION, of.OFPT_EXPERIMENTER, _BUNDLE.size + HEADER.size + len(body), number)
            made += head + _BUNDLE.pack(_ONF, of.ONF_ET_BUNDLE_ADD_MESSAGE, xid, 0, _BUNDLE_FLAGS) + body
        return made + control(of.ONF_BCT_COMMIT_REQUEST, self._next())

    def _remember(self, xid: int, sent: Rule | SetMeter) -> None:
        self._pending[xid] = sent
        if len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)

    def _set_meter(self, xid: int, meter: SetMeter) -> bytes:
        number = self._next() if meter.is_new else xid
        self._remember(number, meter)
        changed = _message(of.OFPT_METER_MOD, number, meters.change(meter))
        # Deleting an unknown meter is no error, adding one twice is.
        return changed if not meter.is_new else self._delete_meter(xid, meter.number) + changed

    @staticmethod
    def _delete_meter(xid: int, number: int) -> bytes:
        return _message(of.OFPT_METER_MOD, xid, meters.deletion(number))

    def _expect(self, xid: int) -> None:
        self._parts[xid] = []
        if len(self._parts) > MAX_OUTSTANDING:
            self._forget(next(iter(self._parts)))

    # From the switch.

    def decode(self, data: bytes) -> FromSwitch | None:
        """Decode a whole message; return None if it is malformed or of no interest."""
        _, kind, _, xid = HEADER.unpack_from(data)
        if kind == of.OFPT_PACKET_IN:
            return _packet_in(data)
        if kind == of.OFPT_ECHO_REPLY:
            return EchoReply(data[8:])
        if kind == of.OFPT_BARRIER_REPLY:
            return self._barrier(xid)
        if kind == of.OFPT_FLOW_REMOVED:
            return _flow_removed(data)
        if kind == of.OFPT_ROLE_REPLY:
            return RoleReply(*_ROLE.unpack_from(data, HEADER.size)) if len(data) >= HEADER.size + _ROLE.size else None
        if xid in self._counts and kind == of.OFPT_MULTIPART_REPLY:
            self._counts.discard(xid)
            return RuleCountReply(int.from_bytes(data[32:36], "big")) if len(data) >= _COUNT_REPLY else None
        if xid in self._counters and kind == of.OFPT_MULTIPART_REPLY:
            return self._rule_counters(data, xid)
        if kind == of.OFPT_MULTIPART_REPLY:
            return self._answered(data, xid)
        if kind not in (of.OFPT_PORT_STATUS, of.OFPT_ERROR):
            return None
        told = parse_reply(data)
        if isinstance(told, parser.OFPPortStatus):
            return PortStatus(port_in(told.desc), told.reason == of.OFPPR_DELETE)
        if isinstance(told, parser.OFPErrorMsg):
            return self._refused(told)
        return None

    def _answered(self, data: bytes, xid: int) -> FromSwitch | None:
        """Take in a part of a reply. One that cannot be read spoils the reply, whose other parts are ignored."""
        if xid not in self._parts:
            return None
        kind = int.from_bytes(data[8:10], "big")
        if kind == of.OFPMP_FLOW:
            return self._listed(data, xid) if _is_list_of_rules(data) else self._spoilt(xid, "a list of rules")
        if kind == of.OFPMP_GROUP_DESC:
            return self._groups_listed(data, xid)
        if kind == of.OFPMP_METER:
            return self._meters_counted(data, xid)
        if kind == of.OFPMP_GROUP_FEATURES:
            return GroupFeatures(group_features(data)) if self._collect(xid, 0, ()) is not None else None
        if kind == of.OFPMP_PORT_STATS:
            fits = len(data) >= FLOWS_AT and (len(data) - FLOWS_AT) % _PORT.size == 0
            return self._ports_counted(data, xid) if fits else self._spoilt(xid, "counters of ports")
        told = parse_reply(data)
        return self._statistics(told, xid) if told is not None else self._spoilt(xid, f"a reply of type {kind}")

    def _spoilt(self, xid: int, what: str) -> Malformed:
        self._forget(xid)
        return Malformed(what)

    def _barrier(self, xid: int) -> BarrierReply:
        token = xid & MAX_BARRIER_TOKEN
        sent = self._barriers.pop(token, None)
        # All that was sent before it was accepted; numbers of messages go round.
        while sent is not None and self._pending and (sent - next(iter(self._pending))) & 0x7FFFFFFF < 0x40000000:
            self._pending.popitem(last=False)
        return BarrierReply(token)

    def _refused(self, told: Any) -> Refused | MeterFeatures | MeterCountersReply | GroupFeatures | GroupsReply:
        asked = (self._meters_asked, self._meter_counters_asked, self._group_features_asked, self._groups_asked)
        if told.xid in asked:
            self._parts.pop(told.xid, None)
        if told.xid == self._meters_asked:
            return MeterFeatures(0)
        if told.xid == self._meter_counters_asked:
            return MeterCountersReply(())
        if told.xid == self._group_features_asked:
            return GroupFeatures(0)
        if told.xid == self._groups_asked:
            return GroupsReply({})
        known = _REFUSALS.get((told.type, told.code))
        sent = self._pending.pop(told.xid, None)
        if isinstance(sent, SetMeter):
            return Refused(known or f"error type {told.type} code {told.code}", meter=sent)
        rule = sent
        by_group = rule is not None and any(isinstance(each, ToGroup) for each in rule.actions)
        if known is None and (
            told.type == of.OFPET_GROUP_MOD_FAILED or (by_group and told.type == of.OFPET_BAD_ACTION)
        ):
            known = "group-unknown" if (told.type, told.code) == _BAD_OUT_GROUP else "group-refused"
        if known is None:
            size, start = _refused_frame(told.data or b"")
            return Refused(f"error type {told.type} code {told.code}", rule, size, frame_start=start)
        return Refused(known, rule)

    def _collect(self, xid: int, flags: int, entries: Iterable[Any]) -> list[Any] | None:
        """Take in a part of a reply; return the whole with its last part, parts of other kinds included.

        None also stands for a reply that was not requested, or was given up.
        """
        parts = self._parts.get(xid)
        if parts is None:
            return None
        parts.extend(entries)
        is_too_long, has_more = len(parts) > MAX_REPLY_ENTRIES, bool(flags & of.OFPMPF_REPLY_MORE)
        if is_too_long or not has_more:
            self._forget(xid)
        return None if is_too_long or has_more else parts

    def _forget(self, xid: int) -> None:
        self._parts.pop(xid, None)
        self._tables.pop(xid, None)
        self._counters.discard(xid)

    def _rule_counters(self, data: bytes, xid: int) -> RuleCountersReply | Malformed | None:
        found = _counters_of(data)
        if found is None:
            return self._spoilt(xid, "counters of rules")
        whole = self._collect(xid, _flags(data), found)
        return RuleCountersReply(tuple(whole)) if whole is not None else None

    def _listed(self, data: bytes, xid: int) -> FlowStatsReply | None:
        table = self._tables.get(xid)
        whole = self._collect(xid, _flags(data), self._decoded.entries(data))
        if whole is None:
            return None
        rules = tuple(each for each in whole if isinstance(each, FlowStats))
        foreign = tuple(each for each in whole if isinstance(each, str))
        return FlowStatsReply(rules, table, foreign)

    def _groups_listed(self, data: bytes, xid: int) -> GroupsReply | Malformed | None:
        found = groups_in(data)
        if found is None:
            return self._spoilt(xid, "a list of groups")
        whole = self._collect(xid, _flags(data), found)
        return GroupsReply(dict(each for each in whole if isinstance(each, tuple))) if whole is not None else None

    def _meters_counted(self, data: bytes, xid: int) -> MeterCountersReply | Malformed | None:
        found = meters.meter_counters(data)
        if found is None:
            return self._spoilt(xid, "counters of meters")
        whole = self._collect(xid, _flags(data), found)
        if whole is None:
            return None
        return MeterCountersReply(tuple(each for each in whole if isinstance(each, MeterCounters)))

    def _ports_counted(self, data: bytes, xid: int) -> PortStatsReply | None:
        whole = self._collect(xid, _flags(data), _port_counters(data))
        if whole is None:
            return None
        return PortStatsReply(tuple(each for each in whole if isinstance(each, PortCounters)))

    def _statistics(self, told: Any, xid: int) -> FromSwitch | None:
        whole = self._collect(xid, told.flags, told.body)
        if whole is None or not isinstance(told, parser.OFPMeterFeaturesStatsReply):
            return None
        return meters.meter_features([each for each in whole if isinstance(each, parser.OFPMeterFeaturesStats)])


def _flags(data: bytes) -> int:
    """Return the flags of a multipart reply."""
    return int.from_bytes(data[10:12], "big")


def parse(data: bytes) -> Any:
    """Parse a message by os-ken; return None if it is malformed. One of a switch is parsed by `parse_reply`."""
    version, kind, length, xid = HEADER.unpack_from(data)
    if version != VERSION:
        return None
    try:
        return ofproto_parser.msg(DIALECT, version, kind, length, xid, data)
    except Exception:
        # os-ken's parsers raise all sorts of exceptions.
        return None


def parse_reply(data: bytes) -> Any:
    """Parse a message of a switch; return None if it is malformed, or of a kind that is of no interest."""
    return parse(data) if _is_parsed(data[1], data) else None


def _is_parsed(kind: int, data: bytes) -> bool:
    """Return True for a message whose parser ends: os-ken's never does at an entry of length zero."""
    if kind != of.OFPT_MULTIPART_REPLY:
        return kind in _PARSED
    if len(data) < FLOWS_AT:
        return False
    (of_what,) = struct.unpack_from("!H", data, HEADER.size)
    return of_what in _PARSED_REPLIES


def _is_list_of_rules(data: bytes) -> bool:
    """Return True for a multipart reply with flows, all of whose lengths fit."""
    return len(data) >= FLOWS_AT and int.from_bytes(data[8:10], "big") == of.OFPMP_FLOW and _flows_fit(data)


def _flows_fit(data: bytes) -> bool:
    """Return True if the entries of a reply with flows have lengths that fit (OpenFlow 1.3 §A.3.5.2)."""
    at = FLOWS_AT
    while at < len(data):
        if at + FLOW_MIN > len(data):
            return False
        (length,) = struct.unpack_from("!H", data, at)
        (match,) = struct.unpack_from("!H", data, at + of.OFP_FLOW_STATS_0_SIZE + 2)
        end, instructions = at + length, at + of.OFP_FLOW_STATS_0_SIZE + (match + 7) // 8 * 8
        if length < FLOW_MIN or match < 4 or not instructions <= end <= len(data):
            return False
        if not _items_fit(data, instructions, end, _WITH_ACTIONS):
            return False
        at = end
    return True


def _items_fit(data: bytes, at: int, end: int, nested: tuple[int, ...] = ()) -> bool:
    """Return True if instructions have lengths that fit, or actions; those of the kinds `nested` have actions."""
    while at < end:
        if at + 8 > end:
            return False
        kind, length = struct.unpack_from("!HH", data, at)
        if length < 8 or at + length > end:
            return False
        if kind in nested and not _items_fit(data, at + 8, at + length):
            return False
        at += length
    return True


def _message(kind: int, xid: int, body: bytes) -> bytes:
    return HEADER.pack(VERSION, kind, HEADER.size + len(body), xid) + body


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
        idle_timeout=rule.idle,
        hard_timeout=rule.lease,
        priority=rule.priority,
        buffer_id=of.OFP_NO_BUFFER,
        out_port=of.OFPP_ANY,
        out_group=of.OFPG_ANY,
        flags=of.OFPFF_SEND_FLOW_REM if rule.notify else 0,
        match=match_out(rule.match),
        instructions=instructions_out(rule),
    )


def _packet_out(xid: int, ports: tuple[int, ...], data: bytes, in_port: int) -> bytes:
    """Encode by hand, as `_packet_in`: OpenFlow 1.3 §A.3.7, with one output action (§A.2.5) for each port."""
    actions = b"".join(_OUTPUT.pack(of.OFPAT_OUTPUT, _OUTPUT.size, port, of.OFPCML_NO_BUFFER) for port in ports)
    length = HEADER.size + _PACKET_OUT.size + len(actions) + len(data)
    head = HEADER.pack(VERSION, of.OFPT_PACKET_OUT, length, xid)
    return head + _PACKET_OUT.pack(of.OFP_NO_BUFFER, in_port, len(actions)) + actions + data


def _refused_frame(data: bytes) -> tuple[int, bytes]:
    """Return the length and the beginning of a frame that was to be sent; 0 and nothing of other messages.

    `data` is the beginning of the refused message.
    """
    if len(data) < HEADER.size + _PACKET_OUT.size:
        return 0, b""
    _, kind, length, _ = HEADER.unpack_from(data)
    if kind != of.OFPT_PACKET_OUT:
        return 0, b""
    _, _, actions = _PACKET_OUT.unpack_from(data, HEADER.size)
    at = HEADER.size + _PACKET_OUT.size + actions
    return max(0, length - at), data[at:]


def _packet_in(data: bytes) -> PacketIn | None:
    """Decode by hand, because there are thousands: OpenFlow 1.3 §A.4.1."""
    if len(data) < 32:
        return None
    (length,) = struct.unpack_from("!H", data, 26)
    end = 24 + length
    at = 28
    in_port = None
    while at + 8 <= min(end, len(data)):
        header, size = struct.unpack_from("!HxB", data, at)
        if (header, data[at + 2] >> 1, size) == (of.OFPXMC_OPENFLOW_BASIC, of.OFPXMT_OFB_IN_PORT, 4):
            (in_port,) = struct.unpack_from("!I", data, at + 4)
        at += 4 + size
    body = 24 + (length + 7) // 8 * 8 + 2
    return PacketIn(in_port, data[body:]) if in_port is not None and body <= len(data) else None


def _flow_removed(data: bytes) -> FlowRemoved | None:
    """Decode by hand: the cookie is all that identifies our rules."""
    if len(data) < _REMOVED.size:
        return None
    cookie, reason, idle_timeout, packets, size = _REMOVED.unpack_from(data)
    return FlowRemoved(cookie, reason == of.OFPRR_IDLE_TIMEOUT, packets, size, idle_timeout)


def _counters_of(data: bytes) -> list[RuleCounters] | None:
    """Decode by hand, because there are thousands; return None if a length does not fit."""
    found = []
    at = FLOWS_AT
    while at < len(data):
        if at + FLOW_MIN > len(data):
            return None
        length, cookie, packets, size = _COUNTERS.unpack_from(data, at)
        if length < FLOW_MIN:
            return None
        found.append(RuleCounters(cookie, packets, size))
        at += length
    return found


def port_in(told: Any) -> Port:
    """Convert a port description."""
    up = not told.config & of.OFPPC_PORT_DOWN and not told.state & of.OFPPS_LINK_DOWN
    name = told.name.decode(errors="replace") if isinstance(told.name, bytes) else told.name
    return Port(told.port_no, name.rstrip("\0"), told.hw_addr, up, 1000.0 * told.curr_speed)


def _port_counters(data: bytes) -> Iterator[PortCounters]:
    """Decode by hand, because there are thousands: the ports of a reply whose length fits (OpenFlow 1.3 §A.3.5.6)."""
    for number, received, sent, dropped, seconds, nanoseconds in _PORT.iter_unpack(data[FLOWS_AT:]):
        if number <= of.OFPP_MAX:
            yield PortCounters(number, received, sent, dropped, seconds + nanoseconds / 1e9)
