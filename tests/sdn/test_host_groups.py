"""New connections that need no controller: groups, the tracker's connections, and their end."""

from __future__ import annotations

import ipaddress
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from braid_sdn.host.connections import COUNT, FLUSH, MAX_LISTED, READ, Command, Connections, ending, limit, parse
from braid_sdn.host.flow_rules import INGRESS, OUTBOUND
from braid_sdn.host.group_rules import (
    BUCKETS,
    BY_RULE,
    LIMITED,
    OTHERS,
    ZONE,
    class_and_uplink,
    group_number,
    mark_of,
    port_masks,
    spread,
    uplink_of,
)
from braid_sdn.host.packets import ACK, TCP, UDP
from braid_sdn.host.packets import parse as parse_packet
from braid_sdn.openflow.flows import ALL_BITS, FLOW_FIELDS, match_in, match_out
from braid_sdn.openflow.messages import (
    CT_TRACKED,
    Bucket,
    Commit,
    DeleteGroup,
    FlowStats,
    FlowStatsReply,
    FlowStatsRequest,
    Hello,
    RuleCounters,
    RuleCountersReply,
    SetGroup,
    ToGroup,
)
from braid_sdn.openflow.wire import Session

from .test_host_balancer import (
    CLIENT_MAC,
    DSL,
    HOST_MAC,
    INSIDE,
    LTE,
    PORTS,
    Bridge,
    class_rule,
    class_table,
    name,
    tcp,
)

#: A dump of Open vSwitch 3.1.0: an open connection, one that is over, one without an answer, a QUIC flow, and lines
#: of others.
DUMP = """\
tcp,orig=(src=192.0.0.8,dst=198.51.100.1,sport=40000,dport=80),reply=(src=198.51.100.1,dst=100.64.0.2,sport=80,\
dport=16390),id=0,zone=45520,status=0,timeout=7435,mark=1,protoinfo=(state_orig=ESTABLISHED,state_reply=ESTABLISHED,\
wscale_orig=10,wscale_reply=10,flags_orig=WINDOW_SCALE,flags_reply=WINDOW_SCALE)
tcp,orig=(src=192.0.0.8,dst=198.51.100.1,sport=40001,dport=80),reply=(src=198.51.100.1,dst=100.64.1.2,sport=80,\
dport=16389),id=0,zone=45520,status=0,timeout=29,mark=2,protoinfo=(state_orig=FIN_WAIT_2,state_reply=FIN_WAIT_2)
tcp,orig=(src=192.0.0.8,dst=198.51.100.1,sport=40002,dport=80),reply=(src=198.51.100.1,dst=100.64.1.2,sport=80,\
dport=16388),id=0,zone=45520,status=0,timeout=70,mark=2,protoinfo=(state_orig=SYN_SENT,state_reply=CLOSED)
udp,orig=(src=64:ff9b:1::8,dst=2001:db8::1,sport=5000,dport=443),reply=(src=2001:db8::1,dst=2001:db8:1::2,sport=443,\
dport=16387),id=0,zone=45520,status=0,timeout=290,mark=258
tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1,dport=2),reply=(src=10.0.0.2,dst=10.0.0.1,sport=2,dport=1),id=0,zone=7,mark=1
icmp,orig=(src=10.0.0.1,dst=10.0.0.2,id=1,type=8,code=0),reply=(src=10.0.0.2,dst=10.0.0.1,id=1,type=0,code=0),zone=45520
"""


def test_shares_become_buckets() -> None:
    assert spread([3]) == [3] * BUCKETS
    assert spread([0, 0, 0, 1])[:8] == [0, 0, 1, 0, 0, 0, 1, 0]
    chances = random.Random(7)
    for _ in range(50):
        slots = [chances.randrange(5) for _ in range(chances.randrange(1, 300))]
        buckets = spread(slots)
        assert len(buckets) == BUCKETS
        for number in set(slots):
            assert abs(buckets.count(number) - BUCKETS * slots.count(number) / len(slots)) <= 1.01


@pytest.mark.parametrize("ports", [(80, 80), (0, 65535), (81, 99), (1024, 65535), (0, 0), (65535, 65535), (1, 65534)])
def test_masks_match_a_range_and_nothing_else(ports: tuple[int, int]) -> None:
    masks = [_value_and_mask(each) for each in port_masks(ports)]
    found = [port for port in range(65536) for value, mask in masks if port & mask == value]
    assert found == list(range(ports[0], ports[1] + 1))


def _value_and_mask(told: int | tuple[int, int] | None) -> tuple[int, int]:
    if told is None:
        return 0, 0
    return told if isinstance(told, tuple) else (told, 0xFFFF)


def test_a_dump_reads_as_connections() -> None:
    told = list(parse(DUMP, 1000.0))
    assert [(each.protocol, each.inner[1], each.outer[1], each.class_number, each.uplink) for each in told] == [
        (TCP, 40000, 16390, 0, 0),
        (TCP, 40001, 16389, 0, 1),
        (TCP, 40002, 16388, 0, 1),
        (UDP, 5000, 16387, 1, 1),
    ]
    assert [each.answered for each in told] == [True, True, False, True]
    assert [1000.0 - each.last_seen for each in told] == [5.0, 0.0, 0.0, 10.0]
    assert told[3].outer[0] == ipaddress.ip_address("2001:db8:1::2")


def test_connections_keep_their_numbers_and_the_lost_ones_end() -> None:
    some = Connections()
    some.handle_switch(is_new=True, bound=100)
    some.hasten()
    some.handle_timeout(10.0)
    assert some.poll_commands() == [FLUSH, limit(100), READ]
    added, lost = some.handle_answer(10.1, READ, DUMP, lambda each: each.uplink == 0)
    assert [each.inner[1] for each in added] == [40001, 40002, 5000]
    assert [ending(each) for each in lost] == some.poll_commands()
    assert ending(lost[0]).words[-1] == (
        "ct_nw_src=192.0.0.8,ct_nw_dst=198.51.100.1,ct_nw_proto=6,ct_tp_src=40000,ct_tp_dst=80"
    )
    numbers = {each.number for each in some.found.values()}
    some.handle_timeout(10.9)
    assert some.poll_commands() == []
    some.handle_timeout(11.0)
    assert some.poll_commands() == [READ]
    some.handle_refusal(READ, "no ovs-vswitchd answers")
    some.handle_timeout(16.3)
    assert some.poll_commands() == [COUNT]
    some.handle_answer(16.3, COUNT, "default limit=0\nzone=45520,limit=100,count=4\n", lambda _: False)
    assert some.poll_commands() == [READ]
    added, lost = some.handle_answer(16.3, READ, DUMP, lambda _: False)
    assert [each.inner[1] for each in added] == [40000]
    assert numbers < {each.number for each in some.found.values()}
    assert some.handle_refusal(ending(added[0]), "failed to flush conntrack (No such file or directory)") is False


def test_many_connections_are_read_seldom() -> None:
    some = Connections()
    some.handle_switch(is_new=True, bound=100_000)
    some.handle_timeout(10.0)
    some.poll_commands()
    some.handle_answer(10.0, READ, "x\n" * MAX_LISTED, lambda _: False)
    some.handle_timeout(13.9)
    assert some.poll_commands() == []
    some.handle_timeout(14.0)
    assert some.poll_commands() == [COUNT]


def test_too_many_connections_are_only_read_where_some_may_be_lost() -> None:
    some = Connections()
    some.handle_switch(is_new=False, bound=100_000)
    some.handle_answer(1.0, READ, DUMP, lambda _: False)
    some.poll_commands()

    def asked(at: float) -> list[Command]:
        some.handle_timeout(at)
        return some.poll_commands()

    assert asked(10.0) == [COUNT]
    many = f"default limit=0\nzone=45520,limit=100000,count={MAX_LISTED + 1}\n"
    some.handle_answer(10.0, COUNT, many, lambda _: False)
    assert asked(10.1) == []
    assert some.found == {}
    assert asked(11.0) == [COUNT]
    # A needed reading waits no longer than for the answer.
    some.hasten()
    assert asked(11.1) == []
    some.handle_answer(11.1, COUNT, many, lambda _: False)
    for at in (11.2, 12.3):
        assert asked(at) == [READ]
        some.handle_answer(at, READ, DUMP, lambda _: False)
    assert asked(13.4) == [COUNT]


def test_connections_of_an_earlier_controller_are_not_new() -> None:
    some = Connections()
    some.handle_switch(is_new=False, bound=100)
    assert FLUSH not in some.poll_commands()
    assert some.handle_answer(1.0, READ, DUMP, lambda _: False) == ([], [])
    assert len(some.found) == 4


def grouped(**changes: Any) -> Bridge:
    return Bridge(group_inside=HOST_MAC, **{"dsl": FULL_RANGE, "lte": FULL_RANGE, **changes})


FULL_RANGE = {"ports": [16384, 32767]}


def groups(bridge: Bridge) -> dict[int, tuple[Bucket, ...]]:
    """The groups that the switch has."""
    made: dict[int, tuple[Bucket, ...]] = {}
    for message in bridge.asked:
        if isinstance(message, SetGroup):
            made[message.number] = message.buckets
        elif isinstance(message, DeleteGroup):
            made.pop(message.number, None)
    return made


def by_port(buckets: tuple[Bucket, ...]) -> dict[int, int]:
    return {port: [each.watch_port for each in buckets].count(port) for port in (DSL, LTE)}


def test_a_class_that_takes_turns_has_a_group_with_its_shares() -> None:
    bridge = grouped()
    (buckets,) = groups(bridge).values()
    assert by_port(buckets) == {DSL: 43, LTE: 21}
    actions = {each.watch_port: each.actions for each in buckets}
    assert actions[LTE] == (Commit(ZONE, INGRESS, "100.64.1.2", (24576, 32767), mark_of(0, 1)),)
    # The other half is for flows of the controller.
    assert bridge.balancer.desired is not None
    assert bridge.balancer.desired.uplinks[0].ports == (16384, 24575)
    first = [rule for rule in bridge.rules.values() if rule.table == INGRESS and rule.priority == OTHERS]
    assert {rule.match.ip_proto: rule.actions for rule in first if rule.match.eth_type == 0x800} == dict.fromkeys(
        (TCP, UDP), (ToGroup(group_number(0, 4)),)
    )
    # A packet comes back once its connection is committed, and must not take a bucket again.
    assert all(rule.match.ct_state == (0, CT_TRACKED) or rule.match.ct_mark == (0, ALL_BITS) for rule in first)
    # No uplink has IPv6.
    assert {rule.goto for rule in first if rule.match.eth_type == 0x86DD} == {OUTBOUND}


def test_an_uplink_that_takes_nothing_has_no_bucket_and_the_last_one_no_group() -> None:
    bridge = grouped()
    dead = {"accepts_new": False, "resets_tcp": True, **FULL_RANGE}
    bridge.set(2, group_inside=HOST_MAC, dsl=dead, lte=FULL_RANGE)
    (buckets,) = groups(bridge).values()
    assert by_port(buckets) == {DSL: 0, LTE: BUCKETS}
    bridge.set(3, group_inside=HOST_MAC, dsl=dead, lte=dead)
    assert groups(bridge) == {}
    first = [rule for rule in bridge.rules.values() if rule.table == INGRESS and rule.priority == OTHERS]
    assert {rule.goto for rule in first} == {OUTBOUND}


def test_rules_of_the_configuration_and_limits_come_first() -> None:
    classes = [
        class_table([0, 1]),
        class_table([1], number=1),
        class_table([0, 1], number=2, sticky=600),
    ]
    rules = [
        class_rule(1, dest="198.51.100.0/24", dest_ports=[80, 81]),
        class_rule(2, protocol=TCP, dscp=46),
        class_rule(1, protocol=132),
        class_rule(1, family=6),
        class_rule(1, mac=CLIENT_MAC, family=4),
        class_rule(1, uid=[4710, 4711], protocol=TCP, family=4),
        class_rule(1, mac=CLIENT_MAC, uid=[0, 5]),
        class_rule(1, name=2, dest="198.51.100.0/24", protocol=TCP),
        class_rule(1, groups=[3, 9], protocol=TCP, family=4),
        class_rule(1, groups=[9], uid=[4711, 4711], protocol=TCP, family=4),
        class_rule(1, groups=[]),
    ]
    bridge = grouped(classes=classes, rules=rules, limited=["192.168.8.7"])
    found = [each for each in bridge.rules.values() if each.table == INGRESS and LIMITED >= each.priority > OTHERS]

    def of(priority: int) -> list[Any]:
        return [each for each in found if each.priority == priority]

    (narrow,) = of(BY_RULE)
    assert narrow.match.ipv4_dst == "198.51.100.0/255.255.255.0"
    assert narrow.match.tcp_dst == (80, 0xFFFE)
    assert narrow.actions == (ToGroup(group_number(1, 4)),)
    marked = of(BY_RULE - 1)
    # Its class does not take turns, so the controller has these.
    assert [(each.match.ip_dscp, each.goto) for each in marked] == [(46, OUTBOUND)] * 2
    assert of(BY_RULE - 2) == []
    assert {each.match.eth_type for each in of(BY_RULE - 3)} == {0x86DD}
    assert {(each.match.eth_dst, each.match.eth_dst_mask) for each in of(BY_RULE - 4)} == {(CLIENT_MAC, None)}
    users = [(each.match.eth_dst, each.match.eth_dst_mask) for each in of(BY_RULE - 5)]
    assert users == [("b2:00:00:00:12:66", "ff:00:ff:ff:ff:fe")]
    assert of(BY_RULE - 6) == []
    assert of(BY_RULE - 7) == []
    by_group = {(each.match.eth_dst, each.match.eth_dst_mask) for each in of(BY_RULE - 8)}
    assert by_group == {(f"b2:{number}:00:00:00:00", "ff:ff:00:00:00:00") for number in ("03", "09")}
    by_both = [(each.match.eth_dst, each.match.eth_dst_mask) for each in of(BY_RULE - 9)]
    assert by_both == [("b2:09:00:00:12:67", None)]
    assert of(BY_RULE - 10) == []
    told = [name("198.51.100.1", 2), name("198.51.100.2", 1), name("203.0.113.1", 2)]
    bridge.balancer.handle_names(bridge.now, 1, told, [])
    bridge.drain()
    named = [each for each in bridge.rules.values() if each.table == INGRESS and each.priority == BY_RULE - 7]
    assert [each.match.ipv4_dst for each in named] == ["198.51.100.1"]
    assert {(each.match.ipv4_src, each.goto) for each in of(LIMITED)} == {("192.168.8.7", OUTBOUND)}
    for each in bridge.rules.values():
        if each.table == INGRESS:
            assert match_in(dict(match_out(each.match).items()), FLOW_FIELDS) == each.match


def test_a_dead_uplinks_connections_are_ended_and_told() -> None:
    bridge = grouped()
    assert bridge.balancer.poll_commands()[:2] == [FLUSH, limit(100)]
    bridge.balancer.handle_answer(bridge.now, READ, DUMP)
    assert {each["uplink"] for each in told(bridge)} == {0, 1}
    assert bridge.balancer.counts[1].flows_opened == 2
    dead = {"accepts_new": False, "resets_tcp": True, **FULL_RANGE}
    bridge.set(2, group_inside=HOST_MAC, lte=dead, dsl=FULL_RANGE)
    bridge.wait(0)
    assert READ in bridge.balancer.poll_commands()
    bridge.balancer.handle_answer(bridge.now, READ, DUMP)
    ended = [each.words[-1] for each in bridge.balancer.poll_commands()]
    # That of IPv6 goes too: its uplink has none.
    sources = [each.rpartition("ct_tp_src=")[2].partition(",")[0] for each in ended]
    assert sources == ["40001", "40002", "5000"]
    bridge.wait(0.2)
    # The one without an answer has nothing to be told.
    prompts = [parse_packet(packet.data) for packet in bridge.packets if packet.ports == (INSIDE,)]
    assert [(each.target_port, each.eth_src) for each in prompts if each is not None] == [(40001, HOST_MAC)]
    (answer,) = bridge.receive(INSIDE, tcp(40001, ACK))
    assert answer.ports == (INSIDE,)


def told(bridge: Bridge) -> list[dict[str, Any]]:
    flows: list[dict[str, Any]] = bridge.balancer.report(bridge.now, with_flows=True)["flows"]
    return flows


def test_the_daemon_may_release_a_connection() -> None:
    bridge = grouped()
    bridge.balancer.handle_answer(bridge.now, READ, DUMP)
    bridge.balancer.poll_commands()
    (number,) = [each["number"] for each in told(bridge) if each["inner"].endswith(":40000")]
    bridge.balancer.handle_release(bridge.now, number, is_reset=False)
    assert bridge.balancer.poll_commands() == []
    bridge.balancer.handle_release(bridge.now, number, is_reset=True)
    (command,) = bridge.balancer.poll_commands()
    assert "ct_tp_src=40000" in command.words[-1]
    assert number not in {each["number"] for each in told(bridge)}


def test_an_uplinks_rules_count_for_all_its_connections() -> None:
    bridge = grouped()

    def count(packets: int) -> None:
        marked = {each.cookie for each in bridge.rules.values() if uplink_of(each.cookie) is not None}
        assert {uplink_of(each) for each in marked} == {(0, True), (0, False), (1, True), (1, False)}
        rules = tuple(RuleCounters(each, packets, 114 * packets) for each in marked)
        bridge.balancer.handle(bridge.now, RuleCountersReply(rules))

    count(5)
    count(7)
    # The rules were written anew.
    count(1)
    assert bridge.balancer.counts[0].tx.packets == 8
    assert bridge.balancer.counts[1].rx.bytes == 800


def test_a_switch_without_groups_any_more_loses_their_rules() -> None:
    bridge = grouped()
    found = [FlowStats(rule, 0, 0) for rule in bridge.rules.values()]
    bridge.asked.clear()
    bridge.balancer.handle_switch(bridge.now, Hello(1, PORTS))
    bridge.set(2)
    assert FlowStatsRequest() in bridge.asked
    bridge.balancer.handle(bridge.now, FlowStatsReply(tuple(found)))
    bridge.drain()
    assert [rule for rule in bridge.rules.values() if rule.priority >= OTHERS] == []
    assert bridge.rules


def test_marks_say_class_and_uplink() -> None:
    assert class_and_uplink(mark_of(63, 31)) == (63, 31)
    assert mark_of(0, 0) != 0


@pytest.mark.parametrize("source", ["100.64.1.2", "2001:db8:1::2"])
def test_a_group_is_what_open_vswitch_reads(source: str, tmp_path: Path) -> None:
    """os-ken leaves out the padding of a translation within another action."""
    bucket = Bucket(2, (Commit(ZONE, INGRESS, source, (24576, 32767), 258),))
    file = tmp_path / "message"
    file.write_bytes(Session().encode(SetGroup(group_number(1, 4), (bucket, bucket))))
    said = subprocess.run(["ovs-ofctl", "ofp-parse", str(file)], capture_output=True, text=True, check=True).stdout
    written = source if "." in source else f"[{source}]"
    expected = (
        f"bucket=watch_port:2,actions=ct(commit,table=0,zone={ZONE},nat(src={written}:24576-32767),"
        "exec(set_field:0x102->ct_mark))"
    )
    assert said.count(expected) == 2
    assert "ADD_OR_MOD" in said
