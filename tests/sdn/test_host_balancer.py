"""The host's controller: flows, rules and answers, against a switch that is a list of messages."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import dpkt  # type: ignore[import-untyped]
import pytest

from braid_sdn.host.balancer import FULL_PAUSE, MAX_UNANSWERED, POLL_INTERVAL, PROMPT_DELAYS, REPLAY_TIME, Balancer
from braid_sdn.host.desired import VERSION
from braid_sdn.host.desired import parse as parse_desired
from braid_sdn.host.flow_rules import COOKIE, DELIVERY, IN, INBOUND, INGRESS, OUT, OUTBOUND, flow_of, static_rules
from braid_sdn.host.flow_table import DNS_IDLE, TCP_EMBRYO_IDLE, UDP_EMBRYO_IDLE
from braid_sdn.host.packets import ACK, RST, SYN, parse, tcp_segment
from braid_sdn.openflow.flows import FLOW_FIELDS, rule_in
from braid_sdn.openflow.messages import (
    AddRule,
    Bundle,
    DeleteRule,
    FlowRemoved,
    FlowStats,
    FlowStatsReply,
    FlowStatsRequest,
    Hello,
    Output,
    PacketIn,
    PacketOut,
    Port,
    Refused,
    Reserved,
    Rule,
    RuleCounters,
    RuleCountersReply,
    RuleCountersRequest,
    RuleCountReply,
    SetField,
    ToSwitch,
)
from braid_sdn.openflow.wire import Session
from braid_sdn.openflow.wire import parse as parse_message

INSIDE, DSL, LTE = 1, 2, 3
HOST_MAC = "02:00:00:00:00:01"
MACS = {DSL: "02:00:00:00:01:01", LTE: "02:00:00:00:02:01"}
GATEWAYS = {DSL: "02:00:00:00:01:fe", LTE: "02:00:00:00:02:fe"}
PORTS = (
    Port(INSIDE, "braid1", "02:00:00:00:00:02", up=True),
    Port(DSL, "dsl", MACS[DSL], up=True),
    Port(LTE, "lte", MACS[LTE], up=True),
)


def desired(revision: int = 1, **changes: Any) -> dict[str, Any]:
    """The daemon's message; `dsl` and `lte` replace fields of an uplink."""

    def uplink(number: int, device: str) -> dict[str, Any]:
        return {
            "id": number,
            "device": device,
            "v4": {"address": f"100.64.{number}.2", "gateway": f"100.64.{number}.1"},
            "v6": None,
            "ports": [16384, 16390],
            "accepts_new": True,
            "resets_tcp": False,
            "epoch": 1,
            **changes.get(device, {}),
        }

    return {
        "version": VERSION,
        "revision": revision,
        "uplinks": [uplink(0, "dsl"), uplink(1, "lte")],
        "classes": changes.get("classes", [class_table([0, 0, 1])]),
        "rules": changes.get("rules", []),
        "limited": changes.get("limited", []),
        "max_flows": changes.get("max_flows", 100),
        "fail_mode": changes.get("fail_mode", "secure"),
        "race": {"cache_ttl_s": 120.0, "explore_one_in": 0, "per_prefix": 8, "total": 200, **changes.get("race", {})},
        "group_inside": changes.get("group_inside"),
        "hold_answers": changes.get("hold_answers", False),
    }


def class_table(slots: list[int], number: int = 0, method: str = "round_robin", sticky: int = 0) -> dict[str, Any]:
    """The daemon's table of a class; all its uplinks may race."""
    candidates = sorted(set(slots))
    return {"id": number, "method": method, "v4": slots, "v6": [], "candidates": candidates, "sticky_s": sticky}


def class_rule(number: int, **conditions: Any) -> dict[str, Any]:
    """The daemon's rule for a class; conditions that are not named are met by every flow."""
    fields = (
        "source",
        "dest",
        "protocol",
        "source_ports",
        "dest_ports",
        "dscp",
        "family",
        "mac",
        "uid",
        "groups",
        "name",
    )
    return {"class": number, **{name: conditions.get(name) for name in fields}}


class Bridge:
    """A balancer and all that it has sent to its switch."""

    def __init__(self, **changes: Any) -> None:
        self.now = 100.0
        self.balancer = Balancer("braid1")
        self.rules: dict[Any, Rule] = {}
        self.packets: list[PacketOut] = []
        self.asked: list[ToSwitch] = []
        self.set(**changes)
        self.connect()

    def connect(self, *found: FlowStats) -> None:
        """The switch connects with these rules, and the gateways answer."""
        self.balancer.handle_switch(self.now, Hello(1, PORTS))
        self.drain()
        assert FlowStatsRequest() in self.asked
        self.balancer.handle(self.now, FlowStatsReply(found))
        self.balancer.handle_timeout(self.now)
        self.drain()
        for number, port in ((0, DSL), (1, LTE)):
            self.receive(port, arp_reply(port, f"100.64.{number}.1"))

    def set(self, revision: int = 1, **changes: Any) -> None:
        self.balancer.handle_desired(self.now, parse_desired(desired(revision, **changes)))
        self.drain()

    def drain(self) -> None:
        for message in self.balancer.poll_messages():
            match message:
                case AddRule(rule):
                    self.rules[rule.key] = rule
                case DeleteRule(key):
                    self.rules.pop(key, None)
                case Bundle(changes):
                    for change in changes:
                        if isinstance(change, AddRule):
                            self.rules[change.rule.key] = change.rule
                        else:
                            self.rules.pop(change.key, None)
                case PacketOut():
                    self.packets.append(message)
                case _:
                    self.asked.append(message)

    def receive(self, port: int, frame: bytes) -> list[PacketOut]:
        """A packet comes to the controller; return the packets that it sends."""
        before = len(self.packets)
        self.balancer.handle(self.now, PacketIn(port, frame))
        self.drain()
        return self.packets[before:]

    def wait(self, seconds: float) -> None:
        """Pass time, with all that is due in between."""
        until = self.now + seconds
        while (due := self.balancer.poll_timeout()) is not None and due <= until:
            self.now = max(self.now, due)
            self.balancer.handle_timeout(self.now)
            self.drain()
            if RuleCountersRequest(COOKIE, 0xFFFF << 48) in self.asked:
                self.asked.clear()
                self.count()
        self.now = until

    def count(self, **packets: int) -> None:
        """The switch tells the counters of its rules: `tx` and `rx` packets of a hundred bytes of IP in each flow."""
        told = []
        for rule in self.rules.values():
            named = flow_of(rule.cookie)
            count = packets.get("tx" if named[1] == OUT else "rx", 0) if named is not None else 0
            told.append(RuleCounters(rule.cookie, count, 114 * count))
        self.balancer.handle(self.now, RuleCountersReply(tuple(told)))
        self.drain()

    def flow_rules(self, table: int | None = None) -> list[Rule]:
        return [
            rule for rule in self.rules.values() if flow_of(rule.cookie) is not None and table in (None, rule.table)
        ]

    def uplinks(self) -> list[int]:
        return [flow.uplink for flow in self.balancer.table.flows.values()]


def ethernet(kind: int, payload: bytes, source: str = HOST_MAC) -> bytes:
    mac = bytes.fromhex(source.replace(":", ""))
    return bytes(dpkt.ethernet.Ethernet(src=mac, dst=b"\xff" * 6, type=kind, data=payload))


def arp_reply(port: int, address: str) -> bytes:
    mac = bytes.fromhex(GATEWAYS[port].replace(":", ""))
    spa = bytes(int(part) for part in address.split("."))
    return ethernet(0x0806, struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2) + mac + spa + bytes(10))


def ip4(protocol: int, payload: Any, source: str, target: str) -> bytes:
    ends = [bytes(int(part) for part in address.split(".")) for address in (source, target)]
    packet = dpkt.ip.IP(src=ends[0], dst=ends[1], p=protocol, data=payload)
    packet.len = len(packet)
    return ethernet(0x0800, bytes(packet))


def tcp(port: int, flags: int = SYN, target: str = "198.51.100.1", to: int = 80, source: str = "192.0.0.8") -> bytes:
    segment = dpkt.tcp.TCP(sport=port, dport=to, seq=1000, ack=2000, flags=flags)
    return ip4(6, segment, source, target)


def udp(port: int, to: int = 53, target: str = "198.51.100.1") -> bytes:
    datagram = dpkt.udp.UDP(sport=port, dport=to, data=b"?" * 20)
    datagram.ulen = len(datagram)
    return ip4(17, datagram, "192.0.0.8", target)


def echo(kind: int, identifier: int, source: str, target: str) -> bytes:
    body = dpkt.icmp.ICMP.Echo(id=identifier, seq=1, data=b"ping")
    return ip4(1, dpkt.icmp.ICMP(type=kind, data=body), source, target)


def ends(frame: bytes) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return both ends of a whole TCP segment."""
    packet = parse(frame)
    assert packet is not None
    assert dpkt.in_cksum(frame[14:34]) == 0
    pseudo = frame[26:34] + struct.pack("!BBH", 0, 6, len(frame) - 34)
    assert dpkt.in_cksum(pseudo + frame[34:]) == 0
    return (str(packet.source), packet.source_port), (str(packet.target), packet.target_port)


def field(rule: Rule, name: str) -> Any:
    return next(each.value for each in rule.actions if isinstance(each, SetField) and each.name == name)


def test_new_connections_take_the_next_slots_and_get_rules_both_ways() -> None:
    bridge = Bridge()
    for port in range(40000, 40006):
        (sent,) = bridge.receive(INSIDE, tcp(port))
        flow = bridge.balancer.table.flows[port - 39999]
        # The tables lead SYNs to the controller, so it translates this one itself.
        assert sent.ports == (DSL if flow.uplink == 0 else LTE,)
        assert ends(sent.data) == ((str(flow.outer[0]), flow.outer[1]), ("198.51.100.1", 80))
    assert bridge.uplinks() == [0, 0, 1, 0, 0, 1]
    out, back = bridge.flow_rules(OUTBOUND)[2], bridge.flow_rules(INBOUND)[2]
    assert (out.match.ipv4_dst, out.match.tcp_src, out.match.tcp_dst) == ("198.51.100.1", 40002, 80)
    assert (field(out, "eth_src"), field(out, "eth_dst")) == (MACS[LTE], GATEWAYS[LTE])
    assert (field(out, "ipv4_src"), field(out, "tcp_src")) == ("100.64.1.2", back.match.tcp_dst)
    assert (back.match.in_port, back.match.ipv4_dst, back.match.tcp_src) == (LTE, "100.64.1.2", 80)
    assert (field(back, "ipv4_dst"), field(back, "tcp_dst"), field(back, "eth_dst")) == ("192.0.0.8", 40002, HOST_MAC)
    assert out.idle == back.idle == 7440
    assert out.notify
    assert back.notify


def test_a_repeated_syn_keeps_its_flow() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, tcp(40000))
    rules = dict(bridge.rules)
    assert len(bridge.receive(INSIDE, tcp(40000))) == 1
    assert bridge.rules == rules


def test_a_udp_socket_has_one_mapping_for_all_remotes_and_quic_one_for_each() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, udp(5000))
    bridge.receive(INSIDE, udp(5000, target="198.51.100.2"))
    assert len(bridge.balancer.table) == 1
    out, back = bridge.flow_rules()[1], bridge.flow_rules()[0]
    assert out.match.ipv4_dst is None
    assert back.match.ipv4_src is None
    bridge.receive(INSIDE, udp(5000, to=443))
    bridge.receive(INSIDE, udp(5000, to=443, target="198.51.100.2"))
    assert len(bridge.balancer.table) == 3
    # A connection's rules win over the mapping's, and the mapping's port is its alone.
    assert {rule.priority for rule in bridge.flow_rules()} == {90, 100}
    ports = [(flow.uplink, flow.outer[1], flow.remote is None) for flow in bridge.balancer.table.flows.values()]
    assert all((uplink, port, True) not in ports for uplink, port, is_mapping in ports if not is_mapping)


def test_ports_are_shared_by_remotes_and_run_out_for_one() -> None:
    bridge = Bridge(classes=[class_table([0])])
    for port in range(40000, 40009):
        bridge.receive(INSIDE, tcp(port))
    assert len(bridge.balancer.table) == 7
    assert bridge.balancer.reasons["no_port"] == 2
    bridge.receive(INSIDE, tcp(40000, target="198.51.100.2"))
    assert len(bridge.balancer.table) == 8
    # The inside's own port is kept where it can be.
    bridge.receive(INSIDE, tcp(16388, target="198.51.100.3"))
    assert [flow.outer[1] for flow in bridge.balancer.table.flows.values()][-1] == 16388


def test_pings_are_translated_by_the_controller() -> None:
    bridge = Bridge()
    (out,) = bridge.receive(INSIDE, echo(8, 77, "192.0.0.8", "198.51.100.1"))
    sent = dpkt.ethernet.Ethernet(out.data)
    assert out.ports == (DSL,)
    assert sent.src.hex(":") == MACS[DSL]
    assert sent.data.src == bytes((100, 64, 0, 2))
    identifier = sent.data.data.data.id
    assert 16384 <= identifier <= 16390
    # dpkt computes checksums anew when they are zero.
    whole = dpkt.ip.IP(bytes(sent.data))
    whole.sum = whole.data.sum = 0
    assert bytes(whole) == bytes(sent.data)
    (back,) = bridge.receive(DSL, echo(0, identifier, "198.51.100.1", "100.64.0.2"))
    got = dpkt.ethernet.Ethernet(back.data)
    assert back.ports == (INSIDE,)
    assert (got.data.dst, got.data.data.data.id) == (bytes((192, 0, 0, 8)), 77)
    # A reply to nobody, or to the kernel's own ping, goes no further.
    assert bridge.receive(DSL, echo(0, 5, "198.51.100.1", "100.64.0.2")) == []
    assert bridge.receive(LTE, echo(0, identifier, "198.51.100.1", "100.64.1.2")) == []


def test_an_error_about_a_flow_reaches_its_inside() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, tcp(40000))
    port = next(iter(bridge.balancer.table.flows.values())).outer[1]
    quoted = tcp(port, source="100.64.0.2")[14:42]
    error = ip4(1, b"\3\4\0\0\0\0\5\x14" + quoted, "203.0.113.1", "100.64.0.2")
    (passed,) = bridge.receive(DSL, error)
    whole = dpkt.ip.IP(dpkt.ethernet.Ethernet(passed.data).data.pack())
    assert whole.dst == bytes((192, 0, 0, 8))
    assert bytes(whole.data)[8 + 12 : 8 + 16] == bytes((192, 0, 0, 8))
    assert int.from_bytes(bytes(whole.data)[28:30], "big") == 40000
    foreign = tcp(port, source="100.64.0.2", to=81)[14:42]
    assert bridge.receive(DSL, ip4(1, b"\3\4\0\0\0\0\5\x14" + foreign, "203.0.113.1", "100.64.0.2")) == []


def test_segments_of_no_connection_are_answered_by_a_reset() -> None:
    bridge = Bridge()
    (answer,) = bridge.receive(INSIDE, tcp(40000, ACK))
    assert answer.ports == (INSIDE,)
    segment = dpkt.ethernet.Ethernet(answer.data).data.data
    assert (segment.sport, segment.dport, segment.flags, segment.seq) == (80, 40000, RST, 2000)
    assert bridge.receive(INSIDE, tcp(40000, RST)) == []


def test_answers_from_an_uplinks_own_address_leave_by_that_uplink() -> None:
    bridge = Bridge()

    def own() -> dict[str | None, tuple[Any, Any]]:
        rules = [rule for rule in bridge.rules.values() if rule.table == OUTBOUND and rule.priority == 110]
        return {rule.match.ipv4_src: (field(rule, "eth_dst"), rule.actions[-1]) for rule in rules}

    assert own() == {
        "100.64.0.2": (GATEWAYS[DSL], Output(DSL)),
        "100.64.1.2": (GATEWAYS[LTE], Output(LTE)),
    }
    bridge.set(2, dsl={"v4": {"address": "100.64.0.9", "gateway": "100.64.0.1"}})
    assert set(own()) == {"100.64.0.9", "100.64.1.2"}


def test_a_dead_uplink_loses_its_flows_and_tells_its_connections() -> None:
    bridge = Bridge()
    for port in range(40000, 40003):
        bridge.receive(INSIDE, tcp(port))
    bridge.receive(INSIDE, udp(5000))
    bridge.count(tx=1, rx=1)
    dead = {"accepts_new": False, "resets_tcp": False}
    bridge.set(2, dsl=dead)
    # Connections stay for the grace period; the datagrams' mapping goes.
    assert bridge.uplinks() == [0, 0, 1]
    bridge.receive(INSIDE, tcp(40010))
    assert bridge.uplinks() == [0, 0, 1, 1]
    bridge.packets.clear()
    bridge.set(3, dsl={**dead, "resets_tcp": True})
    assert bridge.uplinks() == [1, 1]
    assert {rule.match.in_port for rule in bridge.flow_rules(INBOUND)} == {LTE}
    assert bridge.packets == []
    # Only later, since the switch acts on deleted rules after a moment.
    bridge.wait(PROMPT_DELAYS[0])
    prompts = [parse(packet.data) for packet in bridge.packets if packet.ports == (INSIDE,)]
    assert sorted(prompt.target_port for prompt in prompts if prompt is not None) == [40000, 40001]
    # One answers, and gets its reset; the other one is asked again.
    bridge.receive(INSIDE, tcp(40000, ACK))
    bridge.packets.clear()
    bridge.wait(PROMPT_DELAYS[-1])
    prompts = [parse(packet.data) for packet in bridge.packets if packet.ports == (INSIDE,)]
    assert [prompt.target_port for prompt in prompts if prompt is not None] == [40001, 40001]


def test_the_last_uplink_keeps_its_flows() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, tcp(40000))
    dead = {"accepts_new": False, "resets_tcp": True}
    bridge.set(2, dsl=dead, lte=dead)
    assert bridge.uplinks() == [0]


def test_another_address_ends_the_flows_of_the_old_one() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, tcp(40000))
    bridge.set(2, dsl={"v4": {"address": "100.64.0.9", "gateway": "100.64.0.1"}})
    assert bridge.uplinks() == []
    assert bridge.flow_rules() == []


def test_an_uplink_whose_gateway_is_silent_gets_no_flows() -> None:
    bridge = Bridge()
    bridge.set(2, dsl={"v4": {"address": "100.64.0.2", "gateway": "100.64.0.7"}})
    for port in range(40000, 40004):
        bridge.receive(INSIDE, tcp(port))
    assert bridge.uplinks() == [1, 1, 1, 1]
    bridge.receive(DSL, arp_reply(DSL, "100.64.0.7"))
    bridge.receive(INSIDE, tcp(40009))
    assert bridge.uplinks()[-1] == 0


def test_a_replaced_gateway_gets_the_packets_of_open_flows() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, tcp(40000))
    other = arp_reply(DSL, "100.64.0.1").replace(bytes.fromhex("0200000001fe"), bytes.fromhex("0200000001aa"))
    bridge.receive(DSL, other)
    (out,) = bridge.flow_rules(OUTBOUND)
    assert field(out, "eth_dst") == "02:00:00:00:01:aa"


@pytest.mark.parametrize(
    ("first", "answered", "seconds"),
    [(tcp(40000), False, TCP_EMBRYO_IDLE), (udp(5000), False, UDP_EMBRYO_IDLE), (udp(5000), True, DNS_IDLE)],
)
def test_idle_flows_end_by_their_state(first: bytes, answered: bool, seconds: int) -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, first)
    bridge.count(tx=1, rx=int(answered))
    bridge.now += seconds - 1
    bridge.count(tx=1, rx=int(answered))
    assert len(bridge.balancer.table) == 1
    bridge.now += 2
    bridge.count(tx=1, rx=int(answered))
    assert len(bridge.balancer.table) == 0
    assert bridge.flow_rules() == []


def test_one_direction_that_is_idle_gets_its_rule_back_while_the_other_is_in_use() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, udp(5000, to=5000))
    bridge.count(tx=1, rx=1)
    bridge.now += 299
    bridge.count(tx=900, rx=1)
    (back,) = bridge.flow_rules(INBOUND)
    del bridge.rules[back.key]
    bridge.balancer.handle(
        bridge.now + 1, FlowRemoved(back.cookie, idle=True, packets=1, bytes=100, idle_timeout=300)
    )
    bridge.drain()
    assert bridge.flow_rules(INBOUND) == [back]
    (out,) = bridge.flow_rules(OUTBOUND)
    bridge.balancer.handle(
        bridge.now + 400, FlowRemoved(out.cookie, idle=True, packets=900, bytes=90000, idle_timeout=300)
    )
    bridge.drain()
    assert len(bridge.balancer.table) == 0


def test_a_connection_that_has_ended_is_gone_once_its_rules_are() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, tcp(40000))
    bridge.count(tx=5, rx=3)
    bridge.now += 240
    for rule in bridge.flow_rules():
        bridge.rules.pop(rule.key, None)
        packets = 5 if flow_of(rule.cookie) == (1, OUT) else 3
        told = FlowRemoved(rule.cookie, idle=True, packets=packets, bytes=100 * packets, idle_timeout=240)
        bridge.balancer.handle(bridge.now, told)
        bridge.drain()
    assert len(bridge.balancer.table) == 0
    assert bridge.flow_rules() == []


def test_nothing_is_due_while_the_daemon_has_not_spoken() -> None:
    balancer = Balancer("braid1")
    balancer.handle_switch(100.0, Hello(1, PORTS))
    balancer.handle_timeout(110.0)
    assert balancer.poll_timeout() is None


def test_a_port_that_is_given_back_to_a_full_pool_is_found() -> None:
    bridge = Bridge(classes=[class_table([0])])
    table = bridge.balancer.table
    for source in range(5000, 5010):
        bridge.receive(INSIDE, udp(source, to=5000))
    assert len(table) == 7
    bridge.balancer.handle_release(bridge.now, next(iter(table.flows)), is_reset=False)
    bridge.receive(INSIDE, udp(5010, to=5000))
    assert len(table) == 7


def test_counters_add_up_over_replaced_rules() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, tcp(40000))
    bridge.count(tx=5, rx=3)
    bridge.count(tx=7, rx=3)
    # The rule was added anew and counts from zero.
    bridge.count(tx=2, rx=4)
    (flow,) = bridge.balancer.table.flows.values()
    # Beside the SYN, which the controller has sent itself.
    assert (flow.tx.packets, flow.tx.bytes, flow.rx.packets) == (10, 900 + len(tcp(40000)) - 14, 4)
    (uplink,) = bridge.balancer.report(bridge.now, with_flows=False)["uplinks"]
    assert (uplink["tx_packets"], uplink["rx_bytes"], uplink["flows_opened"]) == (10, 400, 1)


def test_a_new_controller_continues_with_the_flows_of_the_switch() -> None:
    bridge = Bridge()
    for port in range(40000, 40003):
        bridge.receive(INSIDE, tcp(port))
    bridge.receive(INSIDE, udp(5000))
    found = [FlowStats(rule, 5, 500) for rule in bridge.rules.values()]
    half = replace(bridge.flow_rules(INBOUND)[0], cookie=COOKIE | 999 << 2 | IN, priority=7)
    before = {number: flow.outer for number, flow in bridge.balancer.table.flows.items()}

    other = Bridge.__new__(Bridge)
    other.now, other.balancer = 500.0, Balancer("braid1")
    other.rules, other.packets, other.asked = dict(bridge.rules) | {half.key: half}, [], []
    # The switch is quicker than the daemon.
    other.balancer.handle_switch(other.now, Hello(1, PORTS))
    other.balancer.handle(other.now, FlowStatsReply((*found, FlowStats(half, 1, 1))))
    other.balancer.handle(other.now, PacketIn(INSIDE, tcp(41000)))
    other.set()
    assert {number: flow.outer for number, flow in other.balancer.table.flows.items()} == before
    assert half.key not in other.rules
    assert {rule.key for rule in bridge.flow_rules()} <= set(other.rules)
    # The flows that it continued with are answered, and new ones have other numbers and ports.
    assert all(flow.answered for flow in other.balancer.table.flows.values())
    for number, port in ((0, DSL), (1, LTE)):
        other.receive(port, arp_reply(port, f"100.64.{number}.1"))
    other.receive(INSIDE, tcp(41001))
    outers = [(flow.uplink, flow.protocol, flow.outer) for flow in other.balancer.table.flows.values()]
    assert len(outers) == len(set(outers)) == 5


def test_a_switch_that_started_anew_has_no_flows() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, tcp(40000))
    bridge.balancer.handle_gone()
    bridge.rules.clear()
    bridge.connect()
    assert bridge.uplinks() == []
    assert {rule.table for rule in bridge.rules.values()} == {INGRESS, OUTBOUND, INBOUND, DELIVERY}


def test_rules_classes_and_limits_are_the_daemons() -> None:
    rule = class_rule(1, dest="198.51.100.0/29", protocol=6, dest_ports=[80, 90])
    classes = [
        class_table([0]),
        class_table([1], number=1),
    ]
    bridge = Bridge(rules=[rule], classes=classes, limited=["192.0.0.9"])
    bridge.receive(INSIDE, tcp(40000))
    bridge.receive(INSIDE, tcp(40001, to=91))
    bridge.receive(INSIDE, tcp(40002, target="198.51.100.8"))
    bridge.receive(INSIDE, tcp(40003, source="192.0.0.9"))
    flows = list(bridge.balancer.table.flows.values())
    assert [(flow.uplink, flow.class_number, flow.rule) for flow in flows] == [(1, 1, 0), (0, 0, None), (0, 0, None)]
    assert bridge.balancer.reasons["client_over_limit"] == 1


def test_a_quic_flow_that_has_left_its_uplink_is_moved_by_its_last_packets_and_keeps_its_class() -> None:
    classes = [class_table([0, 1]), class_table([0, 1], number=1)]
    bridge = Bridge(rules=[class_rule(1, uid=[4711, 4711])], classes=classes)
    bridge.receive(INSIDE, bytes.fromhex(USER_4711.replace(":", "")) + udp(5000, to=443)[6:])
    (flow,) = bridge.balancer.table.flows.values()
    assert (flow.uplink, flow.class_number) == (0, 1)
    last = udp(5000, to=443)[14:]
    # One that stays where it is repeats nothing.
    bridge.balancer.handle_replay(bridge.now, [last])
    bridge.drain()
    assert bridge.balancer.reasons["quic_replayed"] == 0
    bridge.set(2, rules=[class_rule(1, uid=[4711, 4711])], classes=classes, dsl={"accepts_new": False})
    assert bridge.uplinks() == []
    before = len(bridge.packets)
    bridge.balancer.handle_replay(bridge.now, [last, last, udp(5001, to=443)[14:], b"", b"noise"])
    bridge.drain()
    (moved,) = bridge.balancer.table.flows.values()
    assert (moved.uplink, moved.class_number, moved.inner_mac) == (1, 1, HOST_MAC)
    assert [packet.ports for packet in bridge.packets[before:]] == [(Reserved.TABLE,)] * 2
    bridge.set(3, rules=[class_rule(1, uid=[4711, 4711])], classes=classes, lte={"accepts_new": False})
    bridge.now += REPLAY_TIME
    bridge.balancer.handle_replay(bridge.now, [last])
    assert bridge.uplinks() == []


CLIENT_MAC = "02:00:00:00:08:02"
#: The senders that the kernel writes into packets of user 4711's sockets, and of those in control group 9.
USER_4711 = "b2:00:00:00:12:67"
GROUP_9 = "b2:09:00:00:12:67"


@pytest.mark.parametrize(
    ("condition", "sender", "matches"),
    [
        ({"mac": CLIENT_MAC}, CLIENT_MAC, True),
        ({"mac": CLIENT_MAC}, USER_4711, False),
        ({"uid": [4000, 4711]}, USER_4711, True),
        ({"uid": [4712, 5000]}, USER_4711, False),
        ({"uid": [0, 0xFFFFFFFF]}, CLIENT_MAC, False),
        ({"mac": CLIENT_MAC, "uid": [4711, 4711]}, CLIENT_MAC, False),
        ({"uid": [4711, 4711]}, GROUP_9, True),
        ({"groups": [3, 9]}, GROUP_9, True),
        ({"groups": [3]}, GROUP_9, False),
        ({"groups": [9]}, USER_4711, False),
        ({"groups": [9]}, CLIENT_MAC, False),
        # The group does not exist now.
        ({"groups": []}, GROUP_9, False),
        ({"groups": [9], "uid": [4711, 4711]}, GROUP_9, True),
        ({"groups": [9], "uid": [0, 4710]}, GROUP_9, False),
    ],
)
def test_a_rule_knows_a_packets_sender(condition: dict[str, Any], sender: str, matches: bool) -> None:
    bridge = Bridge(rules=[class_rule(1, **condition)], classes=[class_table([0]), class_table([1], number=1)])
    bridge.receive(INSIDE, bytes.fromhex(sender.replace(":", "")) + tcp(40000)[6:])
    (flow,) = bridge.balancer.table.flows.values()
    assert flow.class_number == int(matches)
    # The address is the rules' alone: it reaches nobody.
    assert not any(sender in str(rule.actions) for rule in bridge.rules.values())


def name(address: str, marks: int, life: int = 60_000) -> dict[str, Any]:
    """The daemon's message of a name."""
    return {"address": address, "marks": marks, "site": 7, "life_ms": life}


def test_a_rule_by_domain_knows_the_addresses_that_the_daemon_has_told() -> None:
    bridge = Bridge(rules=[class_rule(1, name=2)], classes=[class_table([0]), class_table([1], number=1)])

    def class_of_next(port: int) -> int:
        bridge.receive(INSIDE, tcp(port))
        return next(reversed(bridge.balancer.table.flows.values())).class_number

    assert class_of_next(40000) == 0
    bridge.balancer.handle_names(bridge.now, 1, [name("198.51.100.1", 3), name("198.51.100.2", 1)], [])
    assert class_of_next(40001) == 1
    bridge.balancer.handle_names(bridge.now, 1, [], ["198.51.100.1"])
    assert class_of_next(40002) == 0
    bridge.balancer.handle_names(bridge.now, 1, [name("198.51.100.1", 1)], [])
    assert class_of_next(40003) == 0
    bridge.balancer.handle_names(bridge.now, 1, [name("198.51.100.1", 2)], [])
    bridge.wait(61)
    assert class_of_next(40004) == 0
    # Marks of other rules are void.
    bridge.balancer.handle_names(bridge.now, 1, [name("198.51.100.1", 2)], [])
    bridge.balancer.handle_names(bridge.now, 2, [], [])
    assert class_of_next(40005) == 0


def test_a_full_table_refuses_new_flows() -> None:
    bridge = Bridge(max_flows=1)
    bridge.receive(INSIDE, tcp(40000))
    bridge.receive(INSIDE, tcp(40001))
    assert len(bridge.balancer.table) == 1
    assert bridge.balancer.reasons["flow_table_full"] == 1


def test_it_is_ready_once_gateways_have_answered_or_had_the_time() -> None:
    bridge = Bridge()
    assert bridge.balancer.is_ready(bridge.now)
    bridge.set(2, dsl={"v4": {"address": "100.64.0.2", "gateway": "100.64.0.7"}})
    assert not bridge.balancer.is_ready(bridge.now)
    bridge.wait(3 * POLL_INTERVAL)
    assert bridge.balancer.is_ready(bridge.now)


def test_malformed_packets_do_no_harm() -> None:
    bridge = Bridge()
    whole = [tcp(40000), udp(5000), echo(8, 7, "192.0.0.8", "198.51.100.1"), arp_reply(DSL, "100.64.0.1")]
    for frame in whole:
        for length in range(len(frame)):
            for port in (INSIDE, DSL, LTE, 9):
                bridge.receive(port, frame[:length])
    assert len(bridge.balancer.table) <= 3


@pytest.mark.parametrize("rule", static_rules(INSIDE, [DSL, LTE]), ids=str)
def test_static_rules_survive_the_wire(rule: Rule) -> None:
    assert rule_in(parse_message(Session().encode(AddRule(rule))), FLOW_FIELDS) == rule


def test_rules_of_flows_survive_the_wire() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, tcp(40000))
    bridge.receive(INSIDE, udp(5000))
    bridge.receive(INSIDE, udp(5000, to=443))
    assert len(bridge.flow_rules()) == 6
    for rule in bridge.flow_rules():
        assert rule_in(parse_message(Session().encode(AddRule(rule))), FLOW_FIELDS) == rule


def test_a_made_segment_is_whole() -> None:
    packet = parse(tcp(40000))
    assert packet is not None
    frame = tcp_segment(HOST_MAC, HOST_MAC, (packet.source, 1), (packet.target, 2), (7, 8, RST | ACK))
    whole = dpkt.ip.IP(bytes(dpkt.ethernet.Ethernet(frame).data))
    whole.sum = whole.data.sum = 0
    assert bytes(whole) == frame[14:]


def test_daemon_and_controller_speak_one_version() -> None:
    messages = Path(__file__).parents[2] / "crates/braid-daemon/src/datapath/openflow/messages.rs"
    assert f"VERSION: u32 = {VERSION};" in messages.read_text()
    with pytest.raises(ValueError, match="version"):
        parse_desired({**desired(), "version": VERSION + 1})


def test_a_client_keeps_a_bounded_number_of_unanswered_flows() -> None:
    bridge = Bridge(max_flows=5000, dsl={"ports": [1024, 9000]}, lte={"ports": [1024, 9000]})
    for port in range(20000, 20000 + MAX_UNANSWERED + 50):
        bridge.receive(INSIDE, udp(port))
    bridge.receive(INSIDE, tcp(40000, source="192.0.0.9"))
    # Those of the present reading may have an answer already.
    bridge.balancer.handle_timeout(bridge.now)
    bridge.count()
    assert len(bridge.balancer.table) == MAX_UNANSWERED + 51
    bridge.now += 1.5
    bridge.balancer.handle_timeout(bridge.now)
    bridge.count()
    assert len(bridge.balancer.table) == MAX_UNANSWERED + 1
    assert bridge.balancer.reasons["client_unanswered"] == 50
    # Nobody who gets answers is bounded.
    assert min(flow.inner[1] for flow in bridge.balancer.table.flows.values()) == 20050


def test_rules_that_somebody_deletes_are_written_again() -> None:
    bridge = Bridge()
    bridge.receive(INSIDE, tcp(40000))
    rules = dict(bridge.rules)
    bridge.rules.clear()
    bridge.now += 1.5
    bridge.balancer.handle_timeout(bridge.now)
    bridge.count()
    assert bridge.rules == rules
    assert bridge.balancer.reasons["rule_restored"] == 2
    bridge.count()
    bridge.balancer.handle(bridge.now, RuleCountReply(len(rules) + 3))
    assert bridge.balancer.report(bridge.now, with_flows=False)["foreign_rules"] == 3


def test_a_switch_without_room_is_not_asked_again_at_once() -> None:
    """A packet through the tables whose rule was refused comes back as a first packet."""
    bridge = Bridge()
    bridge.receive(INSIDE, udp(5000))
    rule = bridge.flow_rules()[0]
    bridge.balancer.handle(bridge.now, Refused("table-full", rule))
    bridge.drain()
    assert bridge.receive(INSIDE, udp(5000)) == []
    bridge.now += FULL_PAUSE
    assert len(bridge.receive(INSIDE, udp(5000))) == 1


def test_a_bundle_is_as_the_extension_has_it() -> None:
    """ONF extension 230: open, one message for each change with its own number within, commit."""
    changes = tuple(AddRule(rule) for rule in static_rules(INSIDE, [DSL])[:2])
    data = Session().encode(Bundle(changes))
    kinds = []
    while data:
        _, kind, length, number = struct.unpack_from("!BBHI", data)
        experimenter, what, bundle, *_ = struct.unpack_from("!IIIHH", data, 8)
        assert (kind, experimenter, bundle) == (4, 0x4F4E4600, 1)
        if what == 2301:
            assert struct.unpack_from("!I", data, 28)[0] == number
        kinds.append(what)
        data = data[length:]
    assert kinds == [2300, 2301, 2301, 2300]
