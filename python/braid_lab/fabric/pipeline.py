"""A fake OpenFlow 1.3 switch, pure: messages and frames in, replies and frames out.

It handles Braid's rules as a real one does: tables in order, highest priority first, VLAN headers pushed and popped,
no packet back out of the port it came from. It can have a small table, and it can lose its rules.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from braid_lab.fabric.classifier import PRESENT, Classifier, Field, header_fields
from braid_sdn.openflow.messages import (
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
    _tables: dict[int, Classifier] = field(default_factory=dict)

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
                self._tables.setdefault(rule.table, Classifier()).add(rule)
                if rule.lease:
                    self.lapses[rule.key] = now + rule.lease
            case DeleteRule(key):
                if self.rules.pop(key, None):
                    self._tables[key[0]].remove(key)
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
                self._tables[key[0]].remove(key)

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
        self._tables.clear()

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
        header = header_fields(in_port, metadata, frame)
        while table is not None:
            rule = self.find_rule(table, header)
            if rule is None:
                return
            packets, octets = self.matched[rule.key]
            self.matched[rule.key] = (packets + 1, octets + len(frame))
            before = frame
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
            if frame is before:
                header[Field.METADATA] = metadata | PRESENT
            else:
                header = header_fields(in_port, metadata, frame)

    def find_rule(self, table: int, header: Sequence[int]) -> Rule | None:
        """Return the rule of a table that a frame with these fields (`header_fields`) matches."""
        found = self._tables.get(table)
        return found.find(header) if found is not None else None

    def _actions(self, rule: Rule) -> Iterator[Action]:
        """Yield a rule's actions, those of a group by its first bucket that lives in place of it."""
        for action in rule.actions:
            if isinstance(action, ToGroup):
                buckets = self.groups.get(action.group) or ()
                alive = (each for each in buckets if (port := self.ports.get(each.watch_port)) and port.up)
                yield from next((each.actions for each in alive), ())
            else:
                yield action
