"""Gives new flows their uplinks, and keeps the rules of all flows. Sans-IO: messages and times in, messages out.

The daemon decides which uplinks a class may use and in which shares; its slot tables come with the desired state.
Here each new flow takes the next slot.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from braid_sdn.host import flow_rules, group_rules
from braid_sdn.host.connections import Command, Connection, Connections
from braid_sdn.host.desired import VERSION, ClassTable, Desired, FlowFacts, Uplink, client_of
from braid_sdn.host.fallback_rules import Fallback, inside_mac, kept_ports, with_fallback
from braid_sdn.host.flow_rules import IN, OUT, OwnAddress, flow_of, is_standing
from braid_sdn.host.flow_table import (
    DNS_PORT,
    QUIC_PORT,
    TCP_TRANSITORY_IDLE,
    Counts,
    End,
    Flow,
    FlowTable,
    idle_limit,
    ip_bytes,
    rule_idle,
)
from braid_sdn.host.fragments import Fragments
from braid_sdn.host.held_answers import BYPASS_TIME, HeldAnswers, has_records
from braid_sdn.host.names import Names
from braid_sdn.host.neighbours import Neighbours
from braid_sdn.host.packets import (
    ACK,
    BROADCAST,
    ECHO_REPLY,
    ECHO_REQUEST,
    ERRORS,
    ETHERNET_HEADER,
    ETHERTYPE_ARP,
    ICMP,
    ICMPV6,
    RST,
    SYN,
    TCP,
    UDP,
    Fragment,
    Packet,
    arp_answer,
    ethertype,
    framed,
    neighbour_answer,
    parse,
    parse_fragment,
    quotation,
    reset,
    tcp_segment,
    translated_echo,
    translated_error,
    translated_fragment,
    translated_segment,
)
from braid_sdn.host.path_cache import PathCache, Plan
from braid_sdn.host.races import RACE_TIMEOUT, Attempt, Race, Races, Verdict
from braid_sdn.host.sticky import FTP_DATA_PORT, FTP_PORTS, FTP_SECONDS, SiteKey, StickyClients, site_key
from braid_sdn.host.switch_cache import WAIT, SwitchCache
from braid_sdn.openflow.messages import (
    LAST_PORT,
    AddRule,
    BarrierReply,
    Bucket,
    Bundle,
    DeleteGroup,
    DeleteRule,
    FlowRemoved,
    FlowStatsReply,
    FlowStatsRequest,
    FromSwitch,
    Hello,
    Mac,
    PacketIn,
    PacketOut,
    Port,
    PortStatus,
    Refused,
    Reserved,
    Rule,
    RuleCountersReply,
    RuleCountersRequest,
    RuleCountReply,
    RuleCountRequest,
    RuleKey,
    SetGroup,
    ToSwitch,
)

#: Seconds between two readings of the rules' counters, and the share of time that reading may take.
POLL_INTERVAL, POLL_SHARE = 1.0, 0.1
#: Seconds after which an outstanding reading is given up.
POLL_TIMEOUT = 10.0
#: Seconds after which the inside of a closed connection is asked for a segment, until it sends one. The switch acts
#: on a deleted rule only after a moment, and a host answers strange segments twice a second at most.
PROMPT_DELAYS = (0.1, 0.8, 1.6)
#: Packets since it was last counted after which a flow counts as active.
ACTIVE_PACKETS = 64
#: Flows of one client that are known to be unanswered; beyond it the oldest end. An IPv6 client is a /64.
MAX_UNANSWERED = 1024
#: Seconds for which no flow is opened once the switch has refused a rule for lack of room.
FULL_PAUSE = 1.0
#: Seconds for which a full table is reported.
FULL_REPORT = 10.0
#: Microseconds assumed for the round trip of an uplink that no handshake has measured.
DEFAULT_RTT = 50_000
#: Ports of traceroute: all probes to one destination take one path.
TRACE_PORTS = range(33434, 33534)
#: Seconds after the end of a QUIC flow on a dead uplink during which its last packets are sent again.
REPLAY_TIME = 5.0
#: Packets that wait while the switch's rules are read after a start.
MAX_WAITING = 1024
#: Part of a lease after which it is renewed.
RENEWAL = 1 / 3


@dataclass(slots=True)
class ClosedConnection:
    """A connection whose inside does not know yet that it is over."""

    closed: float
    #: A segment that a host answers.
    prompt: bytes
    prompts: int = 0

    @property
    def due(self) -> float:
        """Return the time of the next prompt."""
        return self.closed + PROMPT_DELAYS[self.prompts]


@dataclass(slots=True)
class UplinkCounts:
    """Traffic of an uplink's flows since this controller started."""

    tx: Counts = field(default_factory=Counts)
    rx: Counts = field(default_factory=Counts)
    flows_opened: int = 0
    #: Microseconds from SYN to SYN/ACK of raced connections, and their number.
    rtt_us_sum: int = 0
    rtt_samples: int = 0


class Balancer:
    """All state of the controller."""

    def __init__(self, inside: str) -> None:
        """Create it; `inside` is the name of the port towards the host."""
        self._inside_name = inside
        self.desired: Desired | None = None
        self.table = FlowTable()
        self.neighbours = Neighbours()
        self.names = Names()
        self.answers = HeldAnswers()
        self._cache = SwitchCache()
        #: True while a daemon is there to judge answers of name servers, and those for it.
        self._has_daemon = False
        self._to_judge: list[tuple[int, bytes]] = []
        #: Numbers of flows whose answers bypass the controller, and the times until which they do.
        self._unheld: dict[int, float] = {}
        self.sticky = StickyClients()
        self.fragments = Fragments()
        self.counts: dict[int, UplinkCounts] = {}
        #: Packets that opened no flow and were not passed on, by reason.
        self.reasons: Counter[str] = Counter()
        self.paths = PathCache(self.reasons)
        self.races = Races(self.table, self.paths)
        #: Number of the daemon's forecasts so far.
        self._forecast = 0
        self._ports: dict[str, Port] = {}
        self._connected = False
        #: Packets that came before the switch's rules were read; None once they are.
        self._waiting: deque[PacketIn] | None = deque(maxlen=MAX_WAITING)
        #: The switch's rules, while the desired state is not known yet.
        self._found: FlowStatsReply | None = None
        self._static: list[Rule] = []
        self._static_since = 0.0
        #: The link-layer address of the inside, once it has sent something.
        self._inside_mac: Mac | None = None
        self._renewal = 0.0
        #: Rules in the switch that are not ours, and ours at the last reading.
        self._foreign = 0
        self._ours = 0
        #: Time at which the switch had no room for a rule.
        self._full: float | None = None
        #: Keys of rules of no flow that the switch had at the start.
        self._found_static: set[RuleKey] = set()
        #: Groups of classes, and the connections that took one, by the tracker.
        self._groups: dict[int, tuple[Bucket, ...]] = {}
        self._connections = Connections()
        #: Counters of rules for all connections of an uplink at the last poll, by cookie.
        #: None: what an earlier controller has counted is not known yet.
        self._marked: dict[int, Counts] | None = None
        #: By inside and remote end.
        self._closed: dict[tuple[End, End], ClosedConnection] = {}
        #: QUIC flows that have left an uplink, by inside and remote end, and the times.
        self._moved: dict[tuple[End, End], tuple[float, Flow]] = {}
        self._next_slot: dict[tuple[int, int], int] = {}
        self._messages: list[ToSwitch] = []
        self._poll_due = 0.0
        self._polled: float | None = None

    # Inputs.

    def handle_desired(self, now: float, desired: Desired) -> None:
        """Follow a new desired state."""
        self.desired = desired
        self._forget_moved(now)
        hops = {
            (uplink.number, family): (hop.address, hop.gateway)
            for uplink in desired.uplinks.values()
            for family, hop in uplink.next_hops.items()
        }
        self.neighbours.set(hops)
        self.paths.follow(desired)
        if self._found is not None:
            self._adopt(now, desired, self._found)
        self._follow(now)

    def handle_release(self, now: float, number: int, *, is_reset: bool) -> None:
        """Take a flow off its uplink although that works: reset a connection, let others choose anew."""
        flow = self.table.flows.get(number)
        if flow is not None and is_reset == (flow.protocol == TCP):
            self._close(now, flow)
        connection = self._connections.by_number(number)
        if connection is not None and is_reset == (connection.protocol == TCP):
            self._connections.end(connection)
            self._tell(now, connection)

    def handle_replay(self, now: float, packets: Iterable[bytes]) -> None:
        """Send the last packets of QUIC flows again, as far as these have just left an uplink.

        Each packet begins with its IP header. A client that only receives sends nothing that would move its flow.
        """
        self._forget_moved(now)
        for data in packets:
            packet = parse(framed(data, BROADCAST))
            remote = _remote_key(packet) if packet is not None else None
            if packet is None or remote is None or self.desired is None:
                continue
            inner = (packet.source, packet.source_port)
            if (inner, remote) not in self._moved:
                continue
            _, moved = self._moved[inner, remote]
            packet = replace(packet, frame=framed(data, moved.inner_mac))
            flow = self.table.find(UDP, inner, remote)
            if flow is None:
                flow = self._open(now, self.desired, packet, placed=(moved.class_number, moved.rule))
            if flow is not None:
                self.reasons["quic_replayed"] += 1
                self._pass_out(now, flow, packet)

    def _forget_moved(self, now: float) -> None:
        self._moved = {ends: moved for ends, moved in self._moved.items() if now - moved[0] < REPLAY_TIME}

    def handle_answer(self, now: float, command: Command, text: str) -> None:
        """Handle the switch's answer to a command of its control socket."""
        if command == WAIT:
            self._messages += self._cache.handle_compared(now)
            self._pass_answers(now)
            return
        added, lost = self._connections.handle_answer(now, command, text, self._is_lost)
        for connection in added:
            self.counts.setdefault(connection.uplink, UplinkCounts()).flows_opened += 1
        for connection in lost:
            self._tell(now, connection)

    def handle_refusal(self, now: float, command: Command, why: str) -> None:
        """Handle a command that the switch did not execute."""
        if command == WAIT:
            self._messages += self._cache.handle_refusal()
            self._pass_answers(now)
        elif self._connections.handle_refusal(command, why):
            self.reasons["tracker_refused"] += 1

    def handle_names(
        self, now: float, meaning: int, told: Iterable[Mapping[str, Any]], forgotten: Iterable[str]
    ) -> None:
        """Take in names of remote addresses, as the daemon learns them."""
        if self.names.handle(now, meaning, told, forgotten) and self._is_grouped():
            self._follow(now)
            self._messages += self._cache.note_change()

    def handle_judged(self, now: float, numbers: Iterable[int]) -> None:
        """Let answers of name servers go inside that the daemon has judged, once the switch follows their names."""
        for number in numbers:
            self.answers.handle_judged(number, self._cache.changes)
        self._pass_answers(now)

    def handle_daemon(self, now: float, *, is_there: bool) -> None:
        """A daemon has connected, or has gone."""
        self._has_daemon = is_there
        self._to_judge = []
        self._send_inside(self.answers.start_anew())
        self._follow(now)

    def handle_forecasts(self, told: Iterable[Mapping[str, Any]]) -> None:
        """Take in the daemon's forecasts of the uplinks; counting of active flows starts anew."""
        self.paths.set_forecasts(told)
        self._forecast += 1

    def handle_switch(self, now: float, hello: Hello) -> None:
        """The bridge has connected: read its rules before anything else."""
        self._connected = True
        self._ports = {port.name: port for port in hello.ports}
        self._waiting = deque(maxlen=MAX_WAITING)
        self._found = None
        self._static = []
        self._polled = None
        self._cache.handle_switch()
        self._messages = [*flow_rules.METERS, FlowStatsRequest()]
        self._poll_due = now + POLL_INTERVAL

    def handle_gone(self) -> None:
        """The bridge's connection has ended."""
        self._connected = False
        self._messages = []
        # Answers that are held are lost: their clients ask again.
        self.answers.start_anew()

    def handle(self, now: float, message: FromSwitch) -> None:
        """Handle a message of the bridge."""
        match message:
            case PacketIn():
                if self._waiting is None:
                    self._handle_packet(now, message)
                else:
                    self._waiting.append(message)
            case RuleCountersReply(rules):
                self._handle_counters(now, rules)
            case RuleCountReply(rules=count):
                self._foreign = max(0, count - self._ours)
            case FlowRemoved():
                self._handle_removed(now, message)
            case BarrierReply(token):
                self._cache.handle_barrier(now, token)
            case FlowStatsReply():
                self._found = message
                if self.desired is not None:
                    self._adopt(now, self.desired, message)
            case PortStatus(port, gone):
                self._handle_port(now, port, gone=gone)
            case Refused(reason, rule):
                self._handle_refused(now, reason, rule)
            case _:
                pass

    def handle_timeout(self, now: float) -> None:
        """Do what is due: questions to gateways, a reading of the counters, the end of idle flows."""
        if not self._connected:
            return
        for uplink, frame in self.neighbours.poll_questions(now, self._macs()):
            port = self._port_of(uplink)
            if port is not None:
                self._messages.append(PacketOut((port,), frame))
        self._prompt(now)
        self.races.expire(now)
        self._renew(now)
        self._hold_again(now)
        self._pass_answers(now)
        if self._static:
            self._messages += self._cache.handle_timeout(now, self._static[0])
        if self._waiting is None and self._is_grouped():
            self._connections.handle_timeout(now)
        if self._waiting is None and now >= self._poll_due:
            self._poll_due = now + POLL_INTERVAL
            if self._polled is None or now - self._polled > POLL_TIMEOUT:
                self._polled = now
                self._messages.append(RuleCountersRequest(flow_rules.COOKIE, flow_rules.COOKIE_MASK))
                self._messages.append(RuleCountRequest())

    # Outputs.

    def poll_messages(self) -> list[ToSwitch]:
        """Return the messages to send now, in this order."""
        messages, self._messages = self._messages, []
        return messages

    def poll_commands(self) -> list[Command]:
        """Return the commands for the switch's control socket, in this order."""
        return self._connections.poll_commands() + self._cache.poll_commands()

    def poll_answers(self) -> list[tuple[int, bytes]]:
        """Return answers of name servers for the daemon to judge, each with its number and from its IP header on."""
        told, self._to_judge = self._to_judge, []
        return told

    def poll_timeout(self) -> float | None:
        """Return the time of the next `handle_timeout`."""
        if not self._connected:
            return None
        times = [each.due for each in self._closed.values()]
        # A message of the bridge or of the daemon ends the waiting.
        if self._waiting is None:
            times.append(self._poll_due)
            if any(rule.lease for rule in self._static):
                times.append(self._renewal)
            if self._is_grouped():
                times.append(self._connections.poll_timeout())
        others = (self.neighbours.poll_timeout(), self.answers.poll_timeout(), self._cache.poll_timeout())
        times += [each for each in others if each is not None]
        return min(times, default=None)

    def is_ready(self, now: float) -> bool:
        """Return True if new flows get uplinks: rules are there, and gateways have had the time to answer."""
        return (
            self.desired is not None
            and self._connected
            and self._waiting is None
            and self._inside() is not None
            and self.neighbours.is_settled(now)
        )

    def report(self, now: float, *, with_flows: bool) -> dict[str, Any]:
        """Return the state for the daemon."""
        told: dict[str, Any] = {
            "version": VERSION,
            "foreign_rules": self._foreign,
            "table_full": self._full is not None and now - self._full < FULL_REPORT,
            "revision": self.desired.revision if self.desired is not None else 0,
            "connected": self._connected,
            "ready": self.is_ready(now),
            "uplinks": [
                {
                    "id": number,
                    "tx_packets": counts.tx.packets,
                    "tx_bytes": counts.tx.bytes,
                    "rx_packets": counts.rx.packets,
                    "rx_bytes": counts.rx.bytes,
                    "flows_opened": counts.flows_opened,
                    "rtt_us_sum": counts.rtt_us_sum,
                    "rtt_samples": counts.rtt_samples,
                }
                for number, counts in sorted(self.counts.items())
            ],
            "activity": [
                {
                    "id": number,
                    "opened": each.opened,
                    "active": each.active,
                    "busy": each.busy,
                    "last_opened": each.last_opened,
                }
                for number, each in sorted(self.paths.forecasts.items())
            ],
            "reasons": dict(self.reasons),
        }
        if with_flows:
            told["flows"] = [_flow_report(now, flow) for flow in self.table.flows.values()]
            told["flows"] += [self._connection_report(now, each) for each in self._connections.found.values()]
        return told

    def _connection_report(self, now: float, connection: Connection) -> dict[str, Any]:
        """Return a connection as flows are. The tracker counts nothing for one of them."""
        assert self.desired is not None  # noqa: S101
        (source, source_port), (target, target_port) = connection.inner, connection.remote
        facts = FlowFacts(source, target, connection.protocol, source_port, target_port, 0)
        number, rule = self.desired.class_of(facts)
        return {
            **_ends_report(now, connection),
            # The tracker does not tell which rule it was, only the class.
            "rule": rule if number == connection.class_number else None,
            "choice": "group",
            "tx_packets": 0,
            "tx_bytes": 0,
            "rx_packets": 0,
            "rx_bytes": 0,
        }

    # Ports.

    def _inside(self) -> int | None:
        port = self._ports.get(self._inside_name)
        return port.number if port is not None else None

    def _uplinks(self) -> dict[int, Uplink]:
        return dict(self.desired.uplinks) if self.desired is not None else {}

    def _port_of(self, number: int) -> int | None:
        uplink = self._uplinks().get(number)
        port = self._ports.get(uplink.device) if uplink is not None else None
        return port.number if port is not None else None

    def _mac_of(self, number: int) -> Mac:
        return self._ports[self._uplinks()[number].device].mac

    def _macs(self) -> dict[int, Mac]:
        return {number: self._mac_of(number) for number in self._uplinks() if self._port_of(number) is not None}

    def _uplink_at(self, port: int) -> int | None:
        return next((number for number in self._uplinks() if self._port_of(number) == port), None)

    def _handle_port(self, now: float, port: Port, *, gone: bool) -> None:
        before = self._ports.pop(port.name, None)
        if not gone:
            self._ports[port.name] = port
        if before != self._ports.get(port.name):
            for number, uplink in self._uplinks().items():
                if uplink.device == port.name:
                    self.neighbours.forget_macs(number)
            self._follow(now)

    # Rules.

    def _follow(self, now: float) -> None:
        """Bring the rules in line with desired state and ports."""
        if not self._connected or self._waiting is not None or self.desired is None:
            return
        inside = self._inside()
        if inside is None:
            return
        ports = [port for port in map(self._port_of, self._uplinks()) if port is not None]
        own = self._own_addresses()
        holds_answers = self.desired.holds_answers and self._has_daemon
        wanted = flow_rules.static_rules(inside, ports, own, holds_answers=holds_answers)
        groups: dict[int, tuple[Bucket, ...]] = {}
        fallback = self._fallback(own)
        if fallback is not None:
            wanted = with_fallback(wanted, inside, own, fallback)
        elif self.desired.group_inside is not None:
            groups, more = self._grouped(self.desired, group_rules.Inside(inside, self.desired.group_inside), own)
            wanted += more
        self._messages += [
            SetGroup(number, made) for number, made in groups.items() if self._groups.get(number) != made
        ]
        if wanted != self._static:
            stale = ({rule.key for rule in self._static} | self._found_static) - {rule.key for rule in wanted}
            # At once: first packets would else find no rule, or half of the new ones.
            there = set(self._static)
            changed = (AddRule(rule) for rule in wanted if rule not in there)
            self._messages.append(Bundle((*map(DeleteRule, stale), *changed)))
            self._static, self._found_static, self._static_since = wanted, set(), now
            self._await_renewal(now)
        self._messages += [DeleteGroup(number) for number in self._groups if number not in groups]
        self._groups = groups
        for flow in list(self.table.flows.values()):
            self._follow_flow(now, flow)
        for race in self.races:
            self._follow_race(race)
        self._connections.hasten()
        self.handle_timeout(now)

    def _fallback(self, own: list[OwnAddress]) -> Fallback | None:
        """Return the uplinks of new flows while there is no controller; None if they wait for it."""
        if self.desired is None or not self.desired.is_standalone or self._inside_mac is None:
            return None
        table = self.desired.classes.get(0)
        by_uplink = {(each.port, each.family): each for each in own}
        kept = {number: kept_ports(uplink.ports) for number, uplink in self._uplinks().items()}
        best: dict[int, OwnAddress] = {}
        for family in (4, 6):
            # The daemon gives the better uplinks more slots; the lowest number decides between equals.
            shares = Counter(sorted(table.slots[family])) if table is not None else Counter()
            for number, _ in shares.most_common():
                there = by_uplink.get((self._port_of(number) or 0, family))
                if there is not None and kept[number] is not None and self._takes(number, family):
                    best[family] = there
                    break
        ports = {
            hop.address: block
            for number, uplink in self._uplinks().items()
            if (block := kept[number]) is not None
            for hop in uplink.next_hops.values()
        }
        return Fallback(best, ports, self._inside_mac)

    def _renew(self, now: float) -> None:
        """Renew the leases of the rules that lead packets here."""
        leased = [rule for rule in self._static if rule.lease]
        if leased and now >= self._renewal:
            self._messages += [AddRule(rule) for rule in leased]
            self._await_renewal(now)

    def _await_renewal(self, now: float) -> None:
        self._renewal = now + RENEWAL * min((rule.lease for rule in self._static if rule.lease), default=0)

    def _ports_for(self, uplink: Uplink) -> tuple[int, int]:
        """Return the ports of flows that the controller opens."""
        kept = kept_ports(uplink.ports) if self.desired is not None and self.desired.is_standalone else None
        return uplink.ports if kept is None else (uplink.ports[0], kept[0] - 1)

    def _is_grouped(self) -> bool:
        return self.desired is not None and self.desired.group_inside is not None

    def _grouped(
        self, desired: Desired, inside: group_rules.Inside, own: list[OwnAddress]
    ) -> tuple[dict[int, tuple[Bucket, ...]], list[Rule]]:
        """Return the groups and the rules by which new connections need no controller."""
        places = {}
        for number in desired.uplinks:
            port = self._port_of(number)
            if port is not None:
                told = {family: self.neighbours.mac(number, family) for family in desired.uplinks[number].next_hops}
                gateways = {family: mac for family, mac in told.items() if mac is not None}
                places[number] = group_rules.Place(port, self._mac_of(number), gateways)
        takes = {family: {number for number in desired.uplinks if self._takes(number, family)} for family in (4, 6)}
        groups = group_rules.groups(desired, places, takes)
        return groups, group_rules.rules(desired, inside, places, own, groups, self.names)

    def _own_addresses(self) -> list[OwnAddress]:
        own = []
        for number, uplink in self._uplinks().items():
            port = self._port_of(number)
            for family, hop in uplink.next_hops.items():
                gateway = self.neighbours.mac(number, family)
                if port is not None and gateway is not None:
                    own.append(OwnAddress(hop.address, family, port, self._mac_of(number), gateway))
        return own

    def _follow_flow(self, now: float, flow: Flow) -> None:
        """Take a flow off an uplink that is dead, or whose address or port is gone.

        A connection that lost its rules is reset by its next segment. Other flows choose anew with their next packet.
        """
        if self._is_lost(flow):
            self._close(now, flow)

    def _is_lost(self, flow: Flow | Connection) -> bool:
        """Return True if a flow cannot stay on its uplink."""
        assert self.desired is not None  # noqa: S101
        uplink = self.desired.uplinks.get(flow.uplink)
        hop = uplink.next_hops.get(flow.family) if uplink is not None else None
        if uplink is None or hop is None or hop.address != str(flow.outer[0]) or self._port_of(flow.uplink) is None:
            return True
        is_left = uplink.resets_tcp if flow.protocol == TCP else True
        return not uplink.accepts_new and is_left and self._has_other(flow)

    def _has_other(self, flow: Flow | Connection) -> bool:
        """Return True if another uplink takes flows of this one's class and IP version."""
        assert self.desired is not None  # noqa: S101
        table = self.desired.classes.get(flow.class_number)
        slots = set(table.slots[flow.family]) if table is not None else set()
        return any(self._takes(number, flow.family) for number in slots - {flow.uplink})

    def _close(self, now: float, flow: Flow) -> None:
        """Remove a flow. An answered connection's inside is asked for a segment, and that is answered by a reset."""
        self._remove(flow)
        if flow.protocol == UDP and flow.remote is not None:
            self._moved[flow.inner, flow.remote] = (now, flow)
        self._tell(now, flow)

    def _tell(self, now: float, flow: Flow | Connection) -> None:
        """Have the inside of a connection that has been removed asked for a segment."""
        if flow.protocol == TCP and flow.answered and flow.remote is not None:
            assert self.desired is not None  # noqa: S101
            # Numbers that it does not expect make a host tell those that it does (RFC 9293 §3.10.7.4).
            mac = flow.inner_mac if isinstance(flow, Flow) else self.desired.group_inside or ""
            prompt = tcp_segment(mac, mac, flow.remote, flow.inner, (0, 0, ACK))
            self._closed[flow.inner, flow.remote] = ClosedConnection(now, prompt)
            self.reasons["tcp_closed"] += 1

    def _prompt(self, now: float) -> None:
        """Ask the insides of closed connections for a segment."""
        inside = self._inside()
        for ends, closed in list(self._closed.items()):
            if closed.due > now:
                continue
            if inside is not None:
                self._messages.append(PacketOut((inside,), closed.prompt))
            closed.prompts += 1
            if closed.prompts == len(PROMPT_DELAYS):
                del self._closed[ends]

    def _remove(self, flow: Flow) -> None:
        self._messages += [DeleteRule(key) for key in flow.keys]
        self.table.remove(flow)

    def _rules_of(self, flow: Flow) -> list[Rule]:
        """Return both rules of a flow; none if one of its ports is gone, and its rules with it."""
        inside, port = self._inside(), self._port_of(flow.uplink)
        if inside is None or port is None:
            return []
        mac = self._mac_of(flow.uplink)
        return [
            flow_rules.inbound_rule(flow, inside=inside, port=port, mac=mac),
            flow_rules.outbound_rule(flow, inside=inside, port=port, mac=mac, gateway=flow.gateway_mac),
        ]

    def _adopt(self, now: float, desired: Desired, told: FlowStatsReply) -> None:
        """Continue with the flows whose rules the switch has: an earlier controller gave them."""
        self._found = None
        self._found_static = {entry.rule.key for entry in told.rules if is_standing(entry.rule.cookie)}
        self._groups, self._marked = {}, None if self._found_static else {}
        self._connections.handle_switch(is_new=not self._found_static, bound=desired.max_flows)
        halves: dict[int, dict[int, tuple[Rule, int, int]]] = {}
        for entry in told.rules:
            named = flow_of(entry.rule.cookie)
            if named is not None:
                halves.setdefault(named[0], {})[named[1]] = (entry.rule, entry.packets, entry.bytes)
        ports = {port: number for number in desired.uplinks if (port := self._port_of(number)) is not None}
        for number, rules in halves.items():
            known = self.table.flows.get(number)
            whole = OUT in rules and IN in rules
            flow = flow_rules.flow_from(rules[OUT][0], rules[IN][0], uplinks=ports, now=now) if whole else None
            if flow is None:
                self._messages += [DeleteRule(rule.key) for rule, _, _ in rules.values()]
            elif known is None:
                _, *inward = rules[IN]
                _, *outward = rules[OUT]
                flow.rx, flow.rule_rx = (Counts(inward[0], ip_bytes(*inward)) for _ in range(2))
                flow.tx, flow.rule_tx = (Counts(outward[0], ip_bytes(*outward)) for _ in range(2))
                flow.keys = tuple(rule.key for rule, _, _ in rules.values())
                self.table.add(flow)
        for flow in list(self.table.flows.values()):
            if flow.number not in halves and not flow.is_relayed:
                # The switch has started anew.
                self.table.remove(flow)
        waiting, self._waiting = self._waiting or (), None
        self._static = []
        # Without it, connections begun without a controller would be taken for unknown ones.
        self._inside_mac = self._inside_mac or inside_mac(entry.rule for entry in told.rules)
        self._follow(now)
        for packet in waiting:
            self._handle_packet(now, packet)

    def _handle_refused(self, now: float, reason: str, rule: Rule | None) -> None:
        if reason == "table-full":
            self._full = now
        self.reasons[reason.replace("-", "_").replace(" ", "_")] += 1
        named = flow_of(rule.cookie) if rule is not None else None
        flow = self.table.flows.get(named[0]) if named is not None else None
        if flow is not None:
            self._remove(flow)

    # Counters.

    def _handle_counters(self, now: float, rules: tuple[Any, ...]) -> None:
        began, self._polled = self._polled, None
        if began is not None:
            self._poll_due = now + max(POLL_INTERVAL, (now - began) / POLL_SHARE)
        self._ours = len(rules)
        found: dict[int, int] = {}
        marks: dict[int, Counts] = {}
        for told in rules:
            named = flow_of(told.cookie)
            flow = self.table.flows.get(named[0]) if named is not None else None
            if flow is not None and named is not None:
                found[named[0]] = found.get(named[0], 0) | named[1]
                self._count(now, flow, told.packets, told.bytes, outbound=named[1] == OUT)
            marked = group_rules.uplink_of(told.cookie)
            if marked is not None:
                totals = marks.setdefault(told.cookie, Counts())
                totals.packets += told.packets
                totals.bytes += ip_bytes(told.packets, told.bytes)
        self._count_marked(marks)
        for flow in self.table.expired(now):
            self._remove(flow)
        if began is not None:
            self._bound_clients(began)
            self._restore(now, began, found, sum(is_standing(told.cookie) for told in rules))

    def _bound_clients(self, began: float) -> None:
        """End the oldest flows of clients that have too many without an answer, as of a reading that began then.

        Each takes a port. None is refused at its begin: an answer is known a reading later, and a client that opens
        many connections which are answered is welcome.
        """
        unanswered: dict[object, list[Flow]] = {}
        for flow in self.table.flows.values():
            if not flow.answered and flow.created < began:
                unanswered.setdefault(client_of(flow.inner[0]), []).append(flow)
        for flows in unanswered.values():
            for flow in flows[: max(0, len(flows) - MAX_UNANSWERED)]:
                self.reasons["client_unanswered"] += 1
                self._remove(flow)

    def _restore(self, now: float, began: float, found: Mapping[int, int], static: int) -> None:
        """Add rules again that somebody has deleted or replaced before this reading."""
        if static < len(self._static) and self._static_since < began:
            self._messages.append(Bundle(tuple(map(AddRule, self._static))))
            self.reasons["rule_restored"] += 1
        for flow in self.table.flows.values():
            if flow.is_relayed or flow.ruled >= began or found.get(flow.number, 0) == OUT | IN:
                continue
            rules = self._rules_of(flow)
            if rules:
                flow.ruled, flow.rule_tx, flow.rule_rx = now, Counts(), Counts()
                self._messages += [AddRule(rule) for rule in rules]
                self.reasons["rule_restored"] += 1

    def _count(self, now: float, flow: Flow, packets: int, size: int, *, outbound: bool) -> None:
        total = flow.tx if outbound else flow.rx
        before = (total.packets, total.bytes)
        flow.note_rule(now, outbound=outbound, packets=packets, size=ip_bytes(packets, size))
        flow.moved += total.packets - before[0]
        self._keep_site(now, flow)
        forecast = self.paths.forecasts.get(flow.uplink)
        if forecast is not None and flow.protocol == TCP and flow.moved >= ACTIVE_PACKETS:
            flow.moved = 0
            forecast.active += flow.active_in != self._forecast
            flow.active_in = self._forecast
        self._note_traffic(flow.uplink, total.packets - before[0], total.bytes - before[1], outbound=outbound)

    def _count_marked(self, totals: dict[int, Counts]) -> None:
        """Count the packets of connections that the controller has not seen."""
        known, self._marked = self._marked, totals
        if known is None:
            return
        for cookie, now in totals.items():
            uplink, outbound = group_rules.uplink_of(cookie) or (0, False)
            before = known.get(cookie, Counts())
            # A rule that was added anew counts from zero.
            last = before if before.packets <= now.packets else Counts()
            self._note_traffic(uplink, now.packets - last.packets, now.bytes - last.bytes, outbound=outbound)

    def _note_frame(self, uplink: int, frame: bytes, *, outbound: bool) -> None:
        self._note_traffic(uplink, 1, ip_bytes(1, len(frame)), outbound=outbound)

    def _note_traffic(self, uplink: int, packets: int, size: int, *, outbound: bool) -> None:
        counts = self.counts.setdefault(uplink, UplinkCounts())
        total = counts.tx if outbound else counts.rx
        total.packets += packets
        total.bytes += size

    def _handle_removed(self, now: float, told: FlowRemoved) -> None:
        named = flow_of(told.cookie)
        flow = self.table.flows.get(named[0]) if named is not None else None
        if flow is None or named is None:
            return
        outbound = named[1] == OUT
        self._count(now, flow, told.packets, told.bytes, outbound=outbound)
        # A FIN or RST has shortened the time of a rule of TCP. Its last packet was counted up to a poll too late.
        is_closing = told.idle and flow.protocol == TCP and told.idle_timeout < rule_idle(flow)
        limit = TCP_TRANSITORY_IDLE - POLL_TIMEOUT if is_closing else idle_limit(flow)
        if told.idle and now - flow.last_seen >= limit:
            self._remove(flow)
            return
        # The other direction is in use, or somebody else has deleted the rule.
        (flow.rule_tx if outbound else flow.rule_rx).packets = 0
        flow.ruled = now
        self._messages += [AddRule(rule) for rule in self._rules_of(flow) if flow_of(rule.cookie) == named]
        self.reasons["rule_restored"] += 1

    # Packets.

    def _handle_packet(self, now: float, told: PacketIn) -> None:
        if self.desired is None or told.in_port > LAST_PORT:
            return
        fragment = parse_fragment(told.data)
        if fragment is not None:
            self._handle_fragment(now, self.desired, told.in_port, fragment)
            return
        if told.in_port == self._inside():
            packet = parse(told.data)
            if packet is None:
                self.reasons["not_translated"] += 1
            else:
                if packet.eth_src != self._inside_mac:
                    self._inside_mac = packet.eth_src
                    self._follow(now)
                self._handle_outbound(now, self.desired, packet)
            return
        uplink = self._uplink_at(told.in_port)
        if uplink is not None:
            self._handle_inbound(now, uplink, told.data)

    def _handle_outbound(self, now: float, desired: Desired, packet: Packet) -> None:
        if not _is_translated(packet):
            self.reasons["not_translated"] += 1
            return
        inner = (packet.source, packet.source_port)
        remote = _remote_key(packet)
        flow = self.table.find(packet.protocol, inner, remote)
        silent: int | None = None
        if packet.protocol == TCP:
            race = self.races.find(inner, (packet.target, packet.target_port))
            if race is not None and race.is_won and flow is None:
                # The connection is over.
                self._end_race(race)
            elif race is not None and flow is None and self._handle_raced(now, race, packet):
                return
            if packet.tcp_flags & (SYN | ACK) == SYN:
                before, flow = flow, self._retried(flow, packet)
                silent = before.uplink if before is not None and flow is None else None
            elif flow is None:
                self._answer_reset(packet)
                return
        if flow is None:
            flow = self._open(now, desired, packet, silent=silent)
            if flow is None:
                return
        self._pass_out(now, flow, packet)

    def _handle_fragment(self, now: float, desired: Desired, port: int, fragment: Fragment) -> None:
        """Translate a fragment by the flow of its packet."""
        pieces = [fragment]
        if fragment.first is None:
            number = self.fragments.find(now, port, fragment)
            flow = self.table.flows.get(number) if number is not None else None
            if flow is None and not self.fragments.hold(now, port, fragment):
                self.reasons["fragment_lost"] += 1
        else:
            flow = self._fragmented_flow(now, desired, port, fragment.first)
            if flow is not None:
                pieces += self.fragments.note_first(now, port, fragment, flow.number)
        inside = self._inside()
        uplink = self._port_of(flow.uplink) if flow is not None else None
        if flow is None or inside is None or uplink is None:
            return
        for piece in pieces:
            own = self._mac_of(flow.uplink)
            if port == inside:
                frame = translated_fragment(piece, (own, flow.gateway_mac), flow.outer, None)
                self._messages.append(PacketOut((uplink,), frame))
            else:
                frame = translated_fragment(piece, (own, flow.inner_mac), None, flow.inner)
                self._messages.append(PacketOut((inside,), frame))
            self._count_relayed(now, flow, frame, outbound=port == inside)

    def _fragmented_flow(self, now: float, desired: Desired, port: int, first: Packet) -> Flow | None:
        """Return the flow of a packet by its first fragment. Datagrams and echoes open one, TCP's segments do not."""
        if port == self._inside():
            if not _is_translated(first):
                self.reasons["not_translated"] += 1
                return None
            flow = self.table.find(first.protocol, (first.source, first.source_port), _remote_key(first))
            return flow if flow is not None or first.protocol == TCP else self._open(now, desired, first)
        uplink = self._uplink_at(port)
        if uplink is None:
            return None
        for remote in (None, (first.source, first.source_port)):
            flow = self.table.find_outer(uplink, first.family, first.protocol, first.target_port, remote)
            if flow is not None and flow.outer[0] == first.target:
                return flow
        return None

    def _retried(self, flow: Flow | None, packet: Packet) -> Flow | None:
        """Return the flow of a SYN; None if it is placed anew, since the path that the cache named is silent."""
        if flow is None:
            return None
        repeated = flow.syn == packet.sequence and not flow.answered
        flow.syn = packet.sequence
        if not repeated or flow.choice not in ("remembered", "predicted"):
            return flow
        self.reasons["path_silent"] += 1
        self.paths.forget(packet.target, flow.uplink)
        if flow.site is not None:
            self.sticky.forget_embryo(flow.site[0])
        self._remove(flow)
        return None

    def _open(
        self,
        now: float,
        desired: Desired,
        packet: Packet,
        *,
        placed: tuple[int, int | None] | None = None,
        silent: int | None = None,
    ) -> Flow | None:
        """Open a flow by its first packet; None if it is refused. A moved one keeps its class and rule, `placed`.

        The uplink `silent` has left its SYN unanswered.
        """
        if desired.is_limited(packet.source):
            self.reasons["client_over_limit"] += 1
            return None
        if self._full is not None and now - self._full < FULL_PAUSE:
            self.reasons["table_full"] += 1
            return None
        if len(self.table) >= desired.max_flows:
            self.reasons["flow_table_full"] += 1
            return None
        facts = FlowFacts(
            packet.source,
            packet.target,
            packet.protocol,
            packet.source_port,
            packet.target_port,
            packet.dscp,
            packet.eth_dst,
            self.names.marks(now, packet.target),
        )
        number, rule = placed or desired.class_of(facts)
        table = desired.classes.get(number)
        chosen = self._choose(now, table, packet) if table is not None else None
        if chosen is None:
            self.reasons["class_blocked" if number else "no_uplink"] += 1
            return None
        uplink, choice = chosen
        plan = Plan()
        if table is not None and choice != "sticky":
            plan = self._plan(now, table, packet, silent=silent)
        if plan.racers and table is not None:
            race = Race(packet, number, rule, table.method == "fastest", now, now, preferred=plan.preferred)
            if self._begin_race(race, plan.racers):
                return None
        elif plan.uplink is not None:
            uplink, choice = desired.uplinks[plan.uplink], plan.choice
        port = self.table.free_port(
            uplink.number,
            packet.family,
            packet.protocol,
            self._ports_for(uplink),
            _remote_key(packet),
            packet.source_port,
        )
        if port is None:
            self.reasons["no_port"] += 1
            return None
        outer = (type(packet.source)(uplink.next_hops[packet.family].address), port)
        flow = self._flow_of(now, packet, uplink.number, outer, choice, (number, rule))
        self.paths.count_opened(uplink.number)
        if flow.site is not None:
            self.sticky.note(now, flow.site[0], flow.uplink)
        self._add(flow)
        return flow

    def _flow_of(
        self, now: float, packet: Packet, uplink: int, outer: End, choice: str, placed: tuple[int, int | None]
    ) -> Flow:
        """Return a new flow for its first packet; `placed` are its class and rule."""
        return Flow(
            number=self.table.next_number(),
            protocol=packet.protocol,
            inner=(packet.source, packet.source_port),
            remote=_remote_key(packet),
            outer=outer,
            uplink=uplink,
            inner_mac=packet.eth_src,
            class_number=placed[0],
            rule=placed[1],
            choice=choice,
            created=now,
            last_seen=now,
            ruled=now,
            first_port=packet.target_port,
            gateway_mac=self.neighbours.mac(uplink, packet.family) or "",
            syn=packet.sequence if packet.protocol == TCP else None,
            site=self._site(now, placed[0], packet),
        )

    def _add(self, flow: Flow) -> None:
        """Add a flow and its rules."""
        self.table.add(flow)
        self.counts.setdefault(flow.uplink, UplinkCounts()).flows_opened += 1
        if not flow.is_relayed:
            # Answers first: none may come before its rule.
            rules = self._rules_of(flow)
            flow.keys = tuple(each.key for each in rules)
            self._messages += [AddRule(each) for each in rules]

    def _site(self, now: float, class_number: int, packet: Packet) -> tuple[SiteKey, int] | None:
        """Return the site for which a flow's client keeps its uplink, and for how many seconds; None: it does not."""
        table = self.desired.classes.get(class_number) if self.desired is not None else None
        seconds = table.sticky if table is not None else 0
        if not seconds and packet.protocol == TCP and packet.target_port in FTP_PORTS:
            seconds = FTP_SECONDS
        return (self._site_key(now, class_number, packet), seconds) if seconds else None

    def _site_key(self, now: float, class_number: int, packet: Packet) -> SiteKey:
        name = self.names.find(now, packet.target)
        return site_key(packet.source, packet.target, name.site if name is not None else 0, class_number)

    def _kept_uplink(self, now: float, class_number: int, packet: Packet) -> int | None:
        """Return the uplink that a flow's client keeps."""
        site = self._site(now, class_number, packet)
        if site is None and packet.protocol == TCP and packet.target_port >= FTP_DATA_PORT:
            site = (self._site_key(now, class_number, packet), FTP_SECONDS)
        if site is None:
            return None
        return self.sticky.find(now, *site, lambda number: self._takes(number, packet.family))

    def _keep_site(self, now: float, flow: Flow) -> None:
        """Have the client of an answered flow keep its uplink."""
        if flow.site is not None and flow.answered:
            key, seconds = flow.site
            self.sticky.keep(now, key, flow.uplink, seconds, lambda number: self._takes(number, flow.family))
            flow.site = None

    def _choose(self, now: float, table: ClassTable, packet: Packet) -> tuple[Uplink, str] | None:
        """Return the uplink of a new flow: that which its client keeps, that of the next slot, or the next usable."""
        slots = table.slots[packet.family]
        if not slots:
            return None
        kept = self._kept_uplink(now, table.number, packet)
        if kept is not None:
            return self._uplinks()[kept], "sticky"
        if table.method not in ("hash_source", "hash_pair"):
            key = (table.number, packet.family)
            at = self._next_slot.get(key, 0)
            self._next_slot[key] = (at + 1) % len(slots)
            choice = "next_slot" if len(set(slots)) > 1 or table.number == 0 else "only"
        else:
            ends = packet.source.packed + (packet.target.packed if table.method == "hash_pair" else b"")
            at, choice = zlib.crc32(ends), table.method
        for step in range(len(slots)):
            number = slots[(at + step) % len(slots)]
            if self._takes(number, packet.family):
                assert self.desired is not None  # noqa: S101
                return self.desired.uplinks[number], choice if step == 0 else "next_usable"
        return None

    def _takes(self, number: int, family: int) -> bool:
        """Return True if an uplink takes new flows of an IP version now."""
        uplink = self._uplinks().get(number)
        return (
            uplink is not None
            and uplink.accepts_new
            and family in uplink.next_hops
            and self._port_of(number) is not None
            and self.neighbours.mac(number, family) is not None
        )

    def _pass_out(self, now: float, flow: Flow, packet: Packet) -> None:
        inside, port = self._inside(), self._port_of(flow.uplink)
        if inside is None or port is None:
            return
        macs = (self._mac_of(flow.uplink), flow.gateway_mac)
        if packet.protocol == TCP and packet.tcp_flags & (SYN | ACK) == SYN:
            # The tables lead every SYN here.
            frame = translated_segment(packet, macs, flow.outer)
        elif not flow.is_relayed:
            # Through the rules that were just added, which count it.
            self._messages.append(PacketOut((Reserved.TABLE,), packet.frame, inside))
            return
        else:
            frame = translated_echo(packet, macs, source=flow.outer[0], identifier=flow.outer[1])
        self._messages.append(PacketOut((port,), frame))
        self._count_relayed(now, flow, frame, outbound=True)

    # Races.

    def _plan(self, now: float, table: ClassTable, packet: Packet, *, silent: int | None) -> Plan:
        """Return the placement of a flow whose class races."""
        is_trace = packet.protocol == UDP and packet.target_port in TRACE_PORTS
        if table.method not in ("race", "fastest") or is_trace:
            return Plan()
        candidates = [number for number in table.candidates if self._takes(number, packet.family)]
        return self.paths.plan(
            now,
            packet.target,
            candidates,
            fastest=table.method == "fastest",
            may_race=packet.is_bare_syn,
            silent=silent,
        )

    def _begin_race(self, race: Race, racers: Iterable[int]) -> bool:
        """Send the SYN by several uplinks; False if they have no ports for it."""
        syn, outers = race.syn, {}
        for number in racers:
            uplink = self._uplinks()[number]
            address = type(syn.source)(uplink.next_hops[syn.family].address)
            outers[number] = ((address, syn.source_port), self._ports_for(uplink))
        if not self.races.begin(race, outers):
            return False
        self.reasons["race_begun"] += 1
        self._send_copies(race, race.attempts)
        return True

    def _send_copies(self, race: Race, uplinks: Iterable[int]) -> None:
        """Send a race's SYN by these uplinks, after the rules for its answers."""
        numbers = list(uplinks)
        ports = {number: port for number in numbers if (port := self._port_of(number)) is not None}
        for number, port in ports.items():
            rule = flow_rules.attempt_rule(port, race.attempts[number].outer, race.remote, RACE_TIMEOUT)
            self._messages.append(AddRule(rule))
        for number, port in ports.items():
            macs = (self._mac_of(number), self.neighbours.mac(number, race.syn.family) or "")
            frame = translated_segment(race.syn, macs, race.attempts[number].outer)
            self._messages.append(PacketOut((port,), frame))
            self._note_frame(number, frame, outbound=True)
        self.reasons["race_copy"] += max(0, len(ports) - 1)

    def _handle_raced(self, now: float, race: Race, packet: Packet) -> bool:
        """Handle a packet from inside whose connection is being raced; False if that race is over."""
        if packet.tcp_flags & (SYN | ACK) != SYN:
            self.reasons["race_undecided"] += 1
            return True
        if packet.sequence != race.sequence:
            self._end_race(race)
            return False
        again = self.races.repeat(now, race, packet, lambda number: self._takes(number, packet.family))
        if again:
            self.reasons["race_repeated"] += 1
            self._send_copies(race, again)
            return True
        refused = self.races.all_refused(race)
        self._end_race(race)
        if refused:
            self.reasons["race_none_left"] += 1
            self._answer_reset(packet)
        return refused

    def _end_race(self, race: Race) -> None:
        for number in list(race.attempts):
            self._withdraw(race, number)
        self.races.end(race)

    def _withdraw(self, race: Race, number: int) -> None:
        """Take an attempt out, with its rule unless a flow has replaced that."""
        port, outer = self._port_of(number), race.attempts[number].outer
        flow = self.table.find_outer(number, race.syn.family, TCP, outer[1], race.remote)
        if port is not None and flow is None:
            self._messages.append(DeleteRule(flow_rules.attempt_rule(port, outer, race.remote, 0).key))
        self.races.lose_uplink(race, number)

    def _follow_race(self, race: Race) -> None:
        """Take uplinks out of a race whose address or port is gone; repeat the SYN if it waits for a dead one."""
        family = race.syn.family
        for number, racer in list(race.attempts.items()):
            uplink = self._uplinks().get(number)
            hop = uplink.next_hops.get(family) if uplink is not None else None
            if hop is None or hop.address != str(racer.outer[0]) or self._port_of(number) is None:
                self._withdraw(race, number)
        preferred = race.preferred
        if preferred is not None and not race.is_won and not self._takes(preferred, family):
            race.preferred, race.is_awaited = None, False
            race.syns += 1
            self._send_copies(race, [number for number in race.attempts if self._takes(number, family)])

    def _handle_answer(self, now: float, uplink: int, packet: Packet) -> None:
        """Handle a segment that the rule of a race's attempt has led here."""
        outer, remote = (packet.target, packet.target_port), (packet.source, packet.source_port)
        race = self.races.find_attempt(uplink, outer, remote)
        if race is None:
            # A race of an earlier controller, or one that has ended.
            if packet.tcp_flags & (SYN | ACK | RST) == SYN | ACK:
                self._reject(uplink, packet)
            return
        # A winner's answer may come again before its flow's rules are there.
        wins = race.winner == uplink and self.table.find(TCP, race.inner, race.remote) is not None
        verdict = Verdict.WINS if wins else self._judge(now, uplink, race, packet.tcp_flags, packet.acknowledged)
        if verdict is Verdict.WINS:
            self._messages.append(PacketOut((Reserved.TABLE,), packet.frame, self._port_of(uplink) or 0))
            return
        self._note_frame(uplink, packet.frame, outbound=False)
        if verdict is Verdict.RESET:
            self.reasons["race_lost"] += 1
            self._reject(uplink, packet)
        elif packet.tcp_flags & RST and not race.is_won:
            self.reasons["race_refused"] += 1
        else:
            self.reasons["race_late"] += 1

    def _judge(self, now: float, uplink: int, race: Race, flags: int, acknowledged: int) -> Verdict:
        """Return the verdict on an answer to an attempt; a winner's flow is there then."""
        family = race.syn.family
        usable = {number for number in race.attempts if self._takes(number, family)}
        is_answer = flags & (SYN | ACK | RST) == SYN | ACK and acknowledged == (race.sequence + 1) & 0xFFFFFFFF
        if is_answer and race.syns == 1 and race.preferred is None:
            # Connections that began at once stay together.
            race.preferred = self._kept_uplink(now, race.class_number, race.syn)
        if is_answer and not race.is_won:
            self.races.prefer_unanswered(now, race, uplink, usable, self._mean_rtt)
        if is_answer and race.syns == 1 and race.attempts[uplink].state is Attempt.SENT:
            counts = self.counts.setdefault(uplink, UplinkCounts())
            counts.rtt_us_sum += round(1e6 * (now - race.created))
            counts.rtt_samples += 1
        verdict = self.races.answer(now, race, uplink, (flags, acknowledged), usable)
        if verdict is Verdict.WINS:
            outer = race.attempts[uplink].outer
            flow = self._flow_of(now, race.syn, uplink, outer, "raced", (race.class_number, race.rule))
            flow.tx = Counts(1, ip_bytes(1, len(race.syn.frame)))
            race.winner = uplink
            self._keep_site(now, flow)
            self._add(flow)
            if not (race.is_awaited and race.preferred == uplink):
                self.paths.count_opened(uplink)
            self.reasons["race_won"] += 1
        return verdict

    def _mean_rtt(self, uplink: int) -> int:
        counts = self.counts.get(uplink)
        return counts.rtt_us_sum // counts.rtt_samples if counts is not None and counts.rtt_samples else DEFAULT_RTT

    def _reject(self, uplink: int, packet: Packet) -> None:
        """Answer a segment from outside by a reset, so that a server keeps no half of a connection."""
        port = self._port_of(uplink)
        answer = reset(packet, mac=self._mac_of(uplink)) if port is not None else None
        if answer is not None and port is not None:
            self._messages.append(PacketOut((port,), answer))

    def _count_relayed(self, now: float, flow: Flow, frame: bytes, *, outbound: bool) -> None:
        total = flow.tx if outbound else flow.rx
        total.packets += 1
        total.bytes += ip_bytes(1, len(frame))
        flow.last_seen = now
        self._keep_site(now, flow)
        self._note_frame(flow.uplink, frame, outbound=outbound)

    def _answer_reset(self, packet: Packet) -> None:
        inside = self._inside()
        answer = reset(packet, mac=packet.eth_src)
        if answer is not None and inside is not None:
            self._messages.append(PacketOut((inside,), answer))
            ends = ((packet.source, packet.source_port), (packet.target, packet.target_port))
            self._closed.pop(ends, None)
            self.reasons["reset_sent"] += 1

    def _handle_inbound(self, now: float, uplink: int, data: bytes) -> None:
        if ethertype(data) == ETHERTYPE_ARP:
            answer = arp_answer(data)
        else:
            packet = parse(data)
            if packet is None:
                return
            if packet.protocol == TCP:
                self._handle_answer(now, uplink, packet)
                return
            if packet.protocol == UDP:
                self._handle_dns(now, packet)
                return
            answer = neighbour_answer(packet)
            if answer is None:
                self._handle_icmp(now, uplink, packet)
                return
        if answer is not None and self.neighbours.handle_answer(now, uplink, *answer):
            self._follow_gateway(uplink)
            self._follow(now)

    # Answers of name servers.

    def _handle_dns(self, now: float, packet: Packet) -> None:
        """Hold an answer until the daemon has judged it. The rules of its flow have translated and counted it."""
        client = client_of(packet.target)
        if self.answers.exceeds_rate(now, client):
            self._bypass(now, packet)
        elif self._has_daemon and packet.source_port == DNS_PORT and has_records(packet.datagram):
            number, is_held = self.answers.hold(now, client, packet.frame)
            self._to_judge.append((number, packet.frame[ETHERNET_HEADER:]))
            if is_held:
                return
        self._send_inside([packet.frame])

    def _bypass(self, now: float, packet: Packet) -> None:
        """Have no more answers of a flow come here for a while."""
        flow = self.table.find(UDP, (packet.target, packet.target_port), None)
        if flow is not None and not flow.is_unheld:
            self._unheld[flow.number] = now + BYPASS_TIME
            self._set_unheld(flow, is_unheld=True)
            self.reasons["answers_unheld"] += 1

    def _hold_again(self, now: float) -> None:
        for number in [number for number, until in self._unheld.items() if until <= now]:
            del self._unheld[number]
            flow = self.table.flows.get(number)
            if flow is not None:
                self._set_unheld(flow, is_unheld=False)

    def _set_unheld(self, flow: Flow, *, is_unheld: bool) -> None:
        flow.is_unheld = is_unheld
        flow.rule_rx = Counts()
        self._messages += [AddRule(rule) for rule in self._rules_of(flow)[:1]]

    def _pass_answers(self, now: float) -> None:
        was_late = self.answers.is_late
        self._send_inside(self.answers.take_due(now, self._cache.followed))
        if self.answers.is_late and not was_late:
            self.reasons["names_late"] += 1

    def _send_inside(self, frames: Iterable[bytes]) -> None:
        inside = self._inside()
        if inside is not None:
            self._messages += [PacketOut((inside,), frame) for frame in frames]

    def _follow_gateway(self, uplink: int) -> None:
        """Write the rules of flows whose gateway has another MAC now."""
        for flow in self.table.on_uplink(uplink):
            mac = self.neighbours.mac(uplink, flow.family)
            if mac is not None and flow.gateway_mac != mac:
                flow.gateway_mac = mac
                if not flow.is_relayed:
                    flow.rule_tx = Counts()
                    self._messages += [AddRule(rule) for rule in self._rules_of(flow)[1:]]

    def _handle_icmp(self, now: float, uplink: int, packet: Packet) -> None:
        """Pass on an echo reply, or an error about a flow. Those for the kernel's own sockets it gets by itself."""
        inside = self._inside()
        if packet.protocol not in (ICMP, ICMPV6) or inside is None:
            return
        if packet.icmp_type == ECHO_REPLY[packet.family]:
            flow = self.table.find_outer(uplink, packet.family, packet.protocol, packet.target_port, None)
            if flow is not None and flow.outer[0] == packet.target:
                macs = (self._mac_of(uplink), flow.inner_mac)
                frame = translated_echo(packet, macs, target=flow.inner[0], identifier=flow.inner[1])
                self._messages.append(PacketOut((inside,), frame))
                self._count_relayed(now, flow, frame, outbound=False)
        elif packet.icmp_type in ERRORS[packet.family]:
            self._pass_error(now, uplink, inside, packet)

    def _pass_error(self, now: float, uplink: int, inside: int, packet: Packet) -> None:
        quoted = quotation(packet)
        if quoted is None or quoted.protocol not in (TCP, UDP, ICMP, ICMPV6):
            return
        ends = ((quoted.source, quoted.source_port), (quoted.target, quoted.target_port))
        race = self.races.find_attempt(uplink, *ends) if quoted.protocol == TCP else None
        if race is not None and not race.is_won:
            # It refuses as a reset does.
            refusal = self._judge(now, uplink, race, RST | ACK, (quoted.sequence + 1) & 0xFFFFFFFF)
            if refusal is not Verdict.WINS:
                self.reasons["race_refused"] += 1
                return
        port = quoted.source_port
        remote = _remote_key(quoted)
        flow = self.table.find_outer(uplink, packet.family, quoted.protocol, port, remote)
        if flow is None or flow.outer[0] != quoted.source or packet.target != flow.outer[0]:
            return
        macs = (self._mac_of(uplink), flow.inner_mac)
        frame = translated_error(packet, quoted, macs, flow.inner)
        self._messages.append(PacketOut((inside,), frame))


def _is_translated(packet: Packet) -> bool:
    """Return True for TCP, UDP and echo requests, all that the rules send up from inside."""
    if packet.protocol in (TCP, UDP):
        return True
    own = ICMP if packet.family == 4 else ICMPV6
    return packet.protocol == own and packet.icmp_type == ECHO_REQUEST[packet.family]


def _remote_key(packet: Packet) -> End | None:
    """Return the remote end of a packet's flow; None where a mapping serves every remote."""
    if packet.protocol == TCP or (packet.protocol == UDP and packet.target_port == QUIC_PORT):
        return packet.target, packet.target_port
    return None


def _flow_report(now: float, flow: Flow) -> dict[str, Any]:
    return {
        **_ends_report(now, flow),
        "rule": flow.rule,
        "choice": flow.choice,
        "tx_packets": flow.tx.packets,
        "tx_bytes": flow.tx.bytes,
        "rx_packets": flow.rx.packets,
        "rx_bytes": flow.rx.bytes,
    }


def _ends_report(now: float, flow: Flow | Connection) -> dict[str, Any]:
    return {
        "number": flow.number,
        "protocol": flow.protocol,
        "inner": _end_text(flow.inner),
        "remote": None if flow.remote is None else _end_text(flow.remote),
        "outer": _end_text(flow.outer),
        "uplink": flow.uplink,
        "answered": flow.answered,
        "class": flow.class_number,
        "age_ms": round(1000 * (now - flow.created)),
        "idle_ms": round(1000 * (now - flow.last_seen)),
    }


def _end_text(end: End) -> str:
    address, port = end
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
