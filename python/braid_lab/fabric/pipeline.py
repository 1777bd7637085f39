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
    DeleteMeter,
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
    MeterCounters,
    MeterCountersReply,
    MeterCountersRequest,
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
class TokenBucket:
    """A meter with one band that drops: a bucket that begins full."""

    meter: SetMeter
    #: When it was made, and last filled up.
    made: float
    at: float
    #: Packets or bits that may pass at once.
    left: float
    packets: int = 0
    dropped: int = 0

    @classmethod
    def of(cls, meter: SetMeter, now: float) -> TokenBucket:
        """Make a meter's bucket."""
        return cls(meter, now, now, meter.burst * (1000 if meter.by_bits else 1))

    def take(self, now: float, frame: bytes) -> bool:
        """Count a packet; return false if it is dropped."""
        unit = 1000 if self.meter.by_bits else 1
        self.left = min(self.meter.burst * unit, self.left + self.meter.rate * unit * (now - self.at))
        self.at = now
        cost = 8 * len(frame) if self.meter.by_bits else 1
        passes = self.left >= cost
        self.left -= cost if passes else 0
        self.packets += 1
        self.dropped += not passes
        return passes


@dataclass
class Pipeline:
    """One switch."""

    dpid: int
    ports: dict[int, Port]
    #: Capacity of the table; further rules are refused.
    room: int = 1_000_000
    #: Says of a rule that it is refused, although there is room.
    refuses: Callable[[Rule], bool] = lambda _: False
    #: Says of a meter that it is refused.
    refuses_meter: Callable[[SetMeter], bool] = lambda _: False
    rules: dict[RuleKey, Rule] = field(default_factory=dict)
    #: Highest number of a meter; 0 is a switch without any.
    meters: int = 0
    #: Number of fast failover groups that it can have; 0 is a switch without any.
    most_groups: int = 1_000_000
    groups: dict[int, tuple[Bucket, ...] | None] = field(default_factory=dict)
    #: The meters by their numbers.
    buckets: dict[int, TokenBucket] = field(default_factory=dict)
    matched: dict[RuleKey, tuple[int, int]] = field(default_factory=dict)
    #: When each rule was added.
    added: dict[RuleKey, float] = field(default_factory=dict)
    counters: dict[int, list[int]] = field(default_factory=dict)
    #: Expiry times of rules with a lease.
    lapses: dict[RuleKey, float] = field(default_factory=dict)
    #: When it started; None until the first message after a restart.
    started: float | None = 0.0
    #: The time of the last message or frame that came with it.
    now: float = 0.0
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
                if rule.meter is not None and rule.meter not in self.buckets:
                    yield Refused("error type 12 code 3", rule)
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
            case SetMeter(number):
                yield from self._set_meter(now, message)
            case DeleteMeter(number):
                self._delete_meter(number)
            case MeterFeaturesRequest():
                yield MeterFeatures(self.meters, self.meters)
            case MeterCountersRequest():
                counted = [
                    MeterCounters(number, each.packets, each.dropped, now - each.made)
                    for number, each in sorted(self.buckets.items())
                ]
                yield MeterCountersReply(tuple(counted))
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

    def _set_meter(self, now: float, meter: SetMeter) -> Iterator[Outcome]:
        if not 0 < meter.number <= self.meters:
            yield Refused("error type 12 code 8", meter=meter)
        elif not meter.is_new and meter.number not in self.buckets:
            yield Refused("error type 12 code 3", meter=meter)
        elif self.refuses_meter(meter):
            yield Refused("error type 12 code 6", meter=meter)
        else:
            if meter.is_new:
                self._delete_meter(meter.number)
            self.buckets[meter.number] = TokenBucket.of(meter, now)

    def _delete_meter(self, number: int) -> None:
        """Delete a meter, and the rules that lead to it."""
        self.buckets.pop(number, None)
        for key in [key for key, rule in self.rules.items() if rule.meter == number]:
            del self.rules[key]
            self._tables[key[0]].remove(key)

    def pass_time(self, now: float) -> None:
        """Remove rules whose lease has expired."""
        self.now = now
        for key in [key for key, at in self.lapses.items() if at <= now]:
            del self.lapses[key]
            if self.rules.pop(key, None):
                self._tables[key[0]].remove(key)

    def receive(self, port: int, frame: bytes, now: float | None = None) -> Iterator[Outcome]:
        """Receive a frame at a port; without a time at that of the last message or frame."""
        self.now = now if now is not None else self.now
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
        self.buckets.clear()
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
            if rule.meter is not None and not self.buckets[rule.meter].take(self.now, frame):
                return
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
