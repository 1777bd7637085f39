"""A fake OpenFlow 1.3 switch, pure: messages and frames in, replies and frames out.

It handles Braid's rules as a real one does: tables in order, highest priority first, VLAN headers pushed and popped,
no packet back out of the port it came from. It can have a small table, and it can lose its rules.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from braid_sdn.fabric.monitor.probe import mac_bytes
from braid_sdn.openflow.flows import FILTER_FIELDS
from braid_sdn.openflow.messages import (
    TAGGED,
    UNTAGGED,
    Action,
    AddRule,
    Barrier,
    BarrierReply,
    Bucket,
    DeleteGroup,
    DeleteRule,
    Echo,
    EchoReply,
    FlowStats,
    FlowStatsReply,
    FlowStatsRequest,
    FromSwitch,
    GroupFeatures,
    GroupFeaturesRequest,
    GroupsReply,
    GroupsRequest,
    Match,
    MeterFeatures,
    MeterFeaturesRequest,
    Output,
    PacketIn,
    PacketOut,
    PopTag,
    Port,
    PortCounters,
    PortStatsReply,
    PortStatsRequest,
    PortStatus,
    PushTag,
    Refused,
    Reserved,
    Rule,
    RuleKey,
    SetFailoverGroup,
    SetField,
    SetMeter,
    ToGroup,
    ToSwitch,
)


@dataclass(frozen=True, slots=True)
class FrameOut:
    """A frame that leaves by a port."""

    port: int
    frame: bytes


Outcome = FromSwitch | FrameOut


@dataclass
class Pipeline:
    """One switch."""

    dpid: int
    ports: dict[int, Port]
    #: Capacity of the table; further rules are refused.
    room: int = 1_000_000
    #: Says of a rule that it is refused, although there is room.
    refuses: Callable[[Rule], bool] = lambda _: False
    rules: dict[RuleKey, Rule] = field(default_factory=dict)
    #: Highest number of a meter; 0 is a switch without any.
    meters: int = 0
    #: Number of fast failover groups that it can have; 0 is a switch without any.
    most_groups: int = 1_000_000
    groups: dict[int, tuple[Bucket, ...] | None] = field(default_factory=dict)
    #: Rate of each meter, packets a second. Nothing is dropped: virtual time would need its bursts too.
    rates: dict[int, int] = field(default_factory=dict)
    matched: dict[RuleKey, tuple[int, int]] = field(default_factory=dict)
    #: When each rule was added.
    added: dict[RuleKey, float] = field(default_factory=dict)
    counters: dict[int, list[int]] = field(default_factory=dict)
    #: Expiry times of rules with a lease.
    lapses: dict[RuleKey, float] = field(default_factory=dict)
    #: When it started; None until the first message after a restart.
    started: float | None = 0.0
    _by_table: dict[int, list[Rule]] = field(default_factory=dict)

    def handle(self, now: float, message: ToSwitch) -> Iterator[Outcome]:
        """Handle a message of the controller."""
        self.pass_time(now)
        self.started = now if self.started is None else self.started
        match message:
            case AddRule(rule):
                if rule.key not in self.rules and len(self.rules) >= self.room:
                    yield Refused("table-full", rule)
                    return
                if not all(each.group in self.groups for each in rule.actions if isinstance(each, ToGroup)):
                    yield Refused("group-unknown", rule)
                    return
                if self.refuses(rule):
                    yield Refused("error type 5 code 0", rule)
                    return
                self.rules[rule.key] = rule
                self.matched[rule.key] = (0, 0)
                self.added[rule.key] = now
                self._by_table.pop(rule.table, None)
                if rule.lease:
                    self.lapses[rule.key] = now + rule.lease
            case DeleteRule(key):
                if self.rules.pop(key, None):
                    self._by_table.pop(key[0], None)
            case SetFailoverGroup(number, buckets, is_new):
                if is_new and number in self.groups:
                    yield Refused("group-exists")
                elif not is_new and number not in self.groups:
                    yield Refused("group-unknown")
                elif len(self.groups) >= self.most_groups:
                    yield Refused("group-refused")
                else:
                    self.groups[number] = buckets
            case DeleteGroup(number):
                if number in self.groups:
                    del self.groups[number]
                    for key in [key for key, rule in self.rules.items() if ToGroup(number) in rule.actions]:
                        yield from self.handle(now, DeleteRule(key))
            case GroupFeaturesRequest():
                yield GroupFeatures(self.most_groups)
            case GroupsRequest():
                yield GroupsReply(dict(self.groups))
            case SetMeter(number, rate):
                self.rates[number] = rate
            case MeterFeaturesRequest():
                yield MeterFeatures(self.meters)
            case Barrier(token):
                yield BarrierReply(token)
            case Echo(data):
                yield EchoReply(data)
            case FlowStatsRequest(table):
                known = [
                    FlowStats(rule, *self.matched[key], now - self.added[key])
                    for key, rule in self.rules.items()
                    if table is None or rule.table == table
                ]
                yield FlowStatsReply(tuple(known), table)
            case PortStatsRequest():
                yield PortStatsReply(tuple(self._counters(number, now) for number in sorted(self.ports)))
            case PacketOut(ports, data, in_port):
                for port in ports:
                    if port == Reserved.TABLE:
                        yield from self._run_pipeline(in_port, data)
                    else:
                        yield from self._emit(port, in_port, data)

    def pass_time(self, now: float) -> None:
        """Remove rules whose lease has expired."""
        for key in [key for key, at in self.lapses.items() if at <= now]:
            del self.lapses[key]
            if self.rules.pop(key, None):
                self._by_table.pop(key[0], None)

    def receive(self, port: int, frame: bytes) -> Iterator[Outcome]:
        """Receive a frame at a port."""
        if port in self.ports and self.ports[port].up:
            self.counters.setdefault(port, [0, 0])[0] += len(frame)
            yield from self._run_pipeline(port, frame)

    def set_port(self, number: int, *, up: bool) -> PortStatus:
        """Plug a port in or out."""
        self.ports[number] = replace(self.ports[number], up=up)
        return PortStatus(self.ports[number])

    def restart(self) -> None:
        """Lose all rules and counters, as a switch without persistent memory does."""
        self.started = None
        self.rules.clear()
        self.groups.clear()
        self.matched.clear()
        self.counters.clear()
        self._by_table.clear()

    def _counters(self, number: int, now: float) -> PortCounters:
        received, sent = self.counters.get(number, [0, 0])
        return PortCounters(number, received, sent, 0, now - (self.started or 0.0))

    def _emit(self, port: int, in_port: int, frame: bytes) -> Iterator[Outcome]:
        if port == Reserved.CONTROLLER:
            yield PacketIn(in_port, frame)
        elif port == Reserved.IN_PORT:
            yield from self._emit(in_port, Reserved.IN_PORT, frame)
        elif port != in_port and port in self.ports and self.ports[port].up:
            self.counters.setdefault(port, [0, 0])[1] += len(frame)
            yield FrameOut(port, frame)

    def _run_pipeline(self, in_port: int, frame: bytes) -> Iterator[Outcome]:
        table: int | None = 0
        metadata = 0
        while table is not None:
            rule = self._lookup(table, in_port, metadata, frame)
            if rule is None:
                return
            packets, octets = self.matched[rule.key]
            self.matched[rule.key] = (packets + 1, octets + len(frame))
            for action in self._actions(rule):
                match action:
                    case Output(port):
                        yield from self._emit(port, in_port, frame)
                    case PushTag(vlan):
                        frame = frame[:12] + struct.pack("!HH", 0x8100, vlan) + frame[12:]
                    case PopTag():
                        frame = frame[:12] + frame[16:]
                    case SetField("vlan_pcp", int(value)):
                        frame = frame[:14] + bytes([frame[14] & 0x1F | value << 5]) + frame[15:]
            metadata = metadata if rule.metadata is None else rule.metadata
            table = rule.goto

    def _actions(self, rule: Rule) -> Iterator[Action]:
        """Yield a rule's actions, those of a group by its first bucket that lives in place of it."""
        for action in rule.actions:
            if isinstance(action, ToGroup):
                buckets = self.groups.get(action.group) or ()
                alive = (each for each in buckets if (port := self.ports.get(each.watch_port)) and port.up)
                yield from next((each.actions for each in alive), ())
            else:
                yield action

    def _lookup(self, table: int, in_port: int, metadata: int, frame: bytes) -> Rule | None:
        ordered = self._by_table.get(table)
        if ordered is None:
            ordered = sorted((r for r in self.rules.values() if r.table == table), key=lambda r: -r.priority)
            self._by_table[table] = ordered
        fields = Fields.of(frame)
        return next((rule for rule in ordered if fields.match(rule.match, in_port, metadata)), None)


@dataclass(frozen=True, slots=True)
class Fields:
    """Header fields of a frame that rules match on."""

    target: bytes
    source: bytes
    vlan: int
    vlan_pcp: int
    kind: int
    ip_proto: int | None
    icmpv6_type: int | None
    #: Source and destination; empty where there are none.
    addresses: tuple[bytes, ...] = ()
    #: Source and destination of TCP or UDP; 0 in later fragments.
    ports: tuple[int, ...] = ()

    @classmethod
    def of(cls, frame: bytes) -> Fields:
        """Parse a frame."""
        at, vlan, pcp = 12, UNTAGGED, 0
        while frame[at : at + 2] in (b"\x81\x00", b"\x88\xa8"):
            if vlan == UNTAGGED:
                vlan = int.from_bytes(frame[at + 2 : at + 4], "big") & 0xFFF
                pcp = frame[at + 2] >> 5
            at += 4
        kind = int.from_bytes(frame[at : at + 2], "big")
        body = frame[at + 2 :]
        proto, icmp, addresses, rest = None, None, tuple[bytes, ...](), b""
        if kind == 0x86DD and len(body) > 40:
            proto, addresses, rest = body[6], (body[8:24], body[24:40]), body[40:]
            icmp = body[40] if proto == 58 else None
        elif kind == 0x0800 and len(body) >= 20 and body[0] >> 4 == 4:
            proto, addresses = body[9], (body[12:16], body[16:20])
            is_later = int.from_bytes(body[6:8], "big") & 0x1FFF
            rest = bytes(4) if is_later else body[4 * (body[0] & 15) :]
        ports = struct.unpack_from("!HH", rest) if proto in (6, 17) and len(rest) >= 4 else ()
        return cls(frame[:6], frame[6:12], vlan, pcp, kind, proto, icmp, addresses, ports)

    def match(self, match: Match, in_port: int, metadata: int) -> bool:
        """Return whether a rule matches this frame."""
        if match.metadata is not None and match.metadata != metadata:
            return False
        if match.in_port is not None and match.in_port != in_port:
            return False
        if match.vlan is not None:
            if match.vlan == TAGGED and self.vlan == UNTAGGED:
                return False
            if match.vlan != TAGGED and match.vlan != self.vlan:
                return False
        if match.vlan_pcp is not None and (self.vlan == UNTAGGED or match.vlan_pcp != self.vlan_pcp):
            return False
        if match.eth_type is not None and match.eth_type != self.kind:
            return False
        if match.eth_src is not None and mac_bytes(match.eth_src) != self.source:
            return False
        if match.eth_dst is not None and not self._to(match.eth_dst, match.eth_dst_mask):
            return False
        if match.ip_proto is not None and match.ip_proto != self.ip_proto:
            return False
        if match.icmpv6_type is not None and match.icmpv6_type != self.icmpv6_type:
            return False
        return not any(getattr(match, name) is not None for name in FILTER_FIELDS) or self._passes(match)

    def _passes(self, match: Match) -> bool:
        """Return whether the fields match that filters alone use."""
        networks = ((match.ipv4_src, match.ipv4_dst, 4), (match.ipv6_src, match.ipv6_dst, 16))
        for source, target, size in networks:
            for number, wanted in enumerate((source, target)):
                if wanted is None:
                    continue
                if not self.addresses or len(self.addresses[0]) != size:
                    return False
                base, slash, mask = wanted.partition("/")
                bits = ipaddress.ip_address(mask).packed if slash else b"\xff" * size
                wanted_bytes = ipaddress.ip_address(base).packed
                if any((a ^ b) & m for a, b, m in zip(self.addresses[number], wanted_bytes, bits, strict=True)):
                    return False
        for source_port, target_port, proto in (
            (match.tcp_src, match.tcp_dst, 6),
            (match.udp_src, match.udp_dst, 17),
        ):
            for number, port in enumerate((source_port, target_port)):
                if port is None:
                    continue
                value, bits_of_port = port if isinstance(port, tuple) else (port, 0xFFFF)
                if self.ip_proto != proto or not self.ports or self.ports[number] & bits_of_port != value:
                    return False
        return True

    def _to(self, target: str, mask: str | None) -> bool:
        wanted = mac_bytes(target)
        if mask is None:
            return wanted == self.target
        bits = mac_bytes(mask)
        return all(a & m == b & m for a, b, m in zip(self.target, wanted, bits, strict=True))
