"""Answers of name servers, which go inside once their names are known."""

from __future__ import annotations

import struct
from typing import Any

import dpkt  # type: ignore[import-untyped]
import pytest

from braid_sdn.host.flow_rules import ANSWERS, ANSWERS_LEASE, DELIVERY, INBOUND
from braid_sdn.host.held_answers import BYPASS_TIME, CLIENT_RATE, HOLD_TIME, MAX_CLIENT_HELD
from braid_sdn.host.switch_cache import COMPARISONS, WAIT
from braid_sdn.openflow.messages import AddRule, Barrier, BarrierReply, Output, PacketOut, Reserved, Rule

from .test_host_balancer import DSL, HOST_MAC, INSIDE, Bridge, class_rule, class_table, ip4, name, tcp, udp

SERVER, CLIENT = "198.51.100.53", "192.0.0.8"
ADDRESS = "198.51.100.1"
#: Rules by the name with mark 2: its flows take the second uplink.
BY_NAME = {
    "rules": [class_rule(1, name=2)],
    "classes": [class_table([0]), class_table([1], number=1)],
    "hold_answers": True,
}


def asked(**changes: Any) -> Bridge:
    """Return a bridge whose daemon judges answers, with a client that has asked for a name."""
    bridge = Bridge(**BY_NAME, **changes)
    bridge.balancer.handle_daemon(bridge.now, is_there=True)
    bridge.drain()
    bridge.receive(INSIDE, udp(5000, target=SERVER))
    return bridge


def answer(number: int = 0, port: int = 5000, client: str = CLIENT, records: int = 1, flags: int = 0x8180) -> bytes:
    """Return an answer as its flow's rules have translated it."""
    message = struct.pack("!6H", number, flags, 1, records, 0, 0) + b"\4bank\0\0\1\0\1"
    datagram = dpkt.udp.UDP(sport=53, dport=port, data=message)
    datagram.ulen = len(datagram)
    return ip4(17, datagram, SERVER, client)


def delivered(bridge: Bridge, frame: bytes) -> bool:
    """Return True if a frame has gone inside."""
    return PacketOut((INSIDE,), frame) in bridge.packets


def judge(bridge: Bridge, *, marks: int = 2) -> None:
    """The daemon judges all answers that it has been given, and tells a name."""
    told = bridge.balancer.poll_answers()
    bridge.balancer.handle_names(bridge.now, 1, [name(ADDRESS, marks)], [])
    bridge.balancer.handle_judged(bridge.now, [number for number, _ in told])
    bridge.drain()


def held_rules(bridge: Bridge) -> list[Rule]:
    """Return the rules that lead answers to the controller."""
    return [rule for rule in bridge.rules.values() if rule.table == DELIVERY and rule.lease]


def test_answers_come_up_only_while_a_daemon_judges_them() -> None:
    bridge = asked()
    assert [(rule.match.udp_src, rule.lease, rule.meter) for rule in held_rules(bridge)] == [
        (53, ANSWERS_LEASE, ANSWERS)
    ] * 2
    # The flow's rule says nothing of where they go.
    (back,) = bridge.flow_rules(INBOUND)
    assert back.goto == DELIVERY
    assert not any(isinstance(each, Output) for each in back.actions)
    bridge.balancer.handle_daemon(bridge.now, is_there=False)
    bridge.drain()
    assert held_rules(bridge) == []
    assert [rule.actions for rule in bridge.rules.values() if rule.table == DELIVERY] == [(Output(INSIDE),)]
    bridge.balancer.handle_daemon(bridge.now, is_there=True)
    bridge.set(2, **{**BY_NAME, "hold_answers": False})
    assert held_rules(bridge) == []


def test_the_lease_is_renewed_before_it_ends() -> None:
    bridge = asked()
    for _ in range(3):
        bridge.rules = {key: rule for key, rule in bridge.rules.items() if not rule.lease}
        bridge.wait(ANSWERS_LEASE / 2)
        assert len(held_rules(bridge)) == 2


def test_an_answer_goes_inside_once_the_controller_knows_its_names() -> None:
    bridge = asked()
    frame = answer()
    assert bridge.receive(DSL, frame) == []
    bridge.wait(HOLD_TIME / 2)
    assert not delivered(bridge, frame)
    ((number, packet),) = bridge.balancer.poll_answers()
    assert packet == frame[14:]
    bridge.balancer.handle_names(bridge.now, 1, [name(ADDRESS, 2)], [])
    bridge.drain()
    assert not delivered(bridge, frame)
    bridge.balancer.handle_judged(bridge.now, [number])
    bridge.drain()
    assert delivered(bridge, frame)
    bridge.receive(INSIDE, tcp(40000, target=ADDRESS))
    assert bridge.uplinks()[-1] == 1
    # Once.
    bridge.wait(2 * HOLD_TIME)
    assert bridge.packets.count(PacketOut((INSIDE,), frame)) == 1
    assert bridge.balancer.reasons["names_late"] == 0


def test_with_groups_it_waits_until_the_switch_has_compared_its_cache_with_the_new_rules() -> None:
    bridge = asked(group_inside=HOST_MAC)
    bridge.balancer.poll_commands()
    frame = answer()
    bridge.receive(DSL, frame)
    judge(bridge)
    assert any(rule.match.ipv4_dst == ADDRESS for rule in bridge.rules.values())
    (barrier,) = [each for each in bridge.asked if isinstance(each, Barrier)]
    assert WAIT not in bridge.balancer.poll_commands()
    bridge.balancer.handle(bridge.now, BarrierReply(barrier.token))
    for _ in range(COMPARISONS):
        assert not delivered(bridge, frame)
        assert WAIT in bridge.balancer.poll_commands()
        # A switch that is idle compares because of a rule that is written again.
        due = bridge.balancer.poll_timeout()
        assert due is not None
        assert due < bridge.now + 0.01
        bridge.balancer.handle_timeout(due)
        assert any(isinstance(each, AddRule) for each in bridge.balancer.poll_messages())
        bridge.balancer.handle_answer(due, WAIT, "")
        bridge.drain()
    assert delivered(bridge, frame)
    assert WAIT not in bridge.balancer.poll_commands()
    # An answer that changes no rule waits for nothing.
    again = answer(1)
    bridge.receive(DSL, again)
    judge(bridge)
    assert delivered(bridge, again)


def test_with_groups_an_answer_waits_for_the_change_that_another_one_has_begun() -> None:
    bridge = asked(group_inside=HOST_MAC)
    first, second = answer(1), answer(2)
    bridge.receive(DSL, first)
    judge(bridge)
    bridge.receive(DSL, second)
    judge(bridge)
    assert not delivered(bridge, second)
    bridge.balancer.handle_refusal(bridge.now, WAIT, "no ovs-vswitchd answers")
    bridge.drain()
    assert delivered(bridge, first)
    assert delivered(bridge, second)


def test_a_daemon_that_hangs_delays_one_answer_and_no_more() -> None:
    bridge = asked()
    first, second, third = (answer(number) for number in range(3))
    bridge.receive(DSL, first)
    bridge.wait(HOLD_TIME * 0.9)
    assert not delivered(bridge, first)
    bridge.wait(HOLD_TIME * 0.2)
    assert delivered(bridge, first)
    assert bridge.balancer.reasons["names_late"] == 1
    assert bridge.receive(DSL, second) == [PacketOut((INSIDE,), second)]
    # It is given both, and once it judges again answers are held again.
    assert len(bridge.balancer._to_judge) == 2
    judge(bridge)
    assert bridge.receive(DSL, third) == []


def test_what_is_held_goes_inside_when_the_daemon_ends() -> None:
    bridge = asked()
    bridge.receive(DSL, answer())
    bridge.balancer.handle_daemon(bridge.now, is_there=False)
    bridge.drain()
    assert delivered(bridge, answer())
    assert bridge.receive(DSL, answer(1)) == [PacketOut((INSIDE,), answer(1))]


def test_a_number_that_nothing_has_lets_nothing_pass() -> None:
    bridge = asked()
    bridge.receive(DSL, answer())
    ((number, _),) = bridge.balancer.poll_answers()
    bridge.balancer.handle_judged(bridge.now, [number + 1, number - 1, -5, 1 << 70])
    bridge.drain()
    assert not delivered(bridge, answer())


@pytest.mark.parametrize(
    "frame", [answer(records=0), answer(flags=0x0100), answer()[:50]], ids=["empty", "asks", "cut"]
)
def test_what_has_no_address_is_not_held(frame: bytes) -> None:
    bridge = asked()
    assert bridge.receive(DSL, frame) == [PacketOut((INSIDE,), frame)]
    assert bridge.balancer.poll_answers() == []


def test_a_client_with_many_answers_is_let_go_and_delays_nobody_else() -> None:
    bridge = asked()
    sent = [bridge.receive(DSL, answer(number)) for number in range(CLIENT_RATE)]
    assert [len(each) for each in sent] == [0] * MAX_CLIENT_HELD + [1] * (CLIENT_RATE - MAX_CLIENT_HELD)
    (before,) = bridge.flow_rules(INBOUND)
    assert before.goto == DELIVERY
    # From then on its flow bypasses the controller.
    assert bridge.receive(DSL, answer(7)) == [PacketOut((INSIDE,), answer(7))]
    (back,) = bridge.flow_rules(INBOUND)
    assert (back.goto, back.actions[-1]) == (None, Output(INSIDE))
    assert bridge.balancer.reasons["answers_unheld"] == 1
    other = answer(1, client="192.168.8.101")
    assert bridge.receive(DSL, other) == []
    # Its next flow is another one, and a second later it may have answers again; this one does after a while.
    judge(bridge)
    bridge.wait(1.1)
    assert bridge.receive(DSL, answer(8, port=5001)) == []
    assert bridge.flow_rules(INBOUND)[0].goto is None
    bridge.wait(BYPASS_TIME)
    assert bridge.flow_rules(INBOUND)[0].goto == DELIVERY


def test_only_the_first_counter_of_a_bypass_is_counted() -> None:
    bridge = asked()
    bridge.count(rx=50)
    for number in range(CLIENT_RATE + 1):
        bridge.receive(DSL, answer(number))
    # The rule is another one now and counts from zero.
    bridge.count(rx=10)
    (flow,) = bridge.balancer.table.flows.values()
    assert flow.rx.packets == 60


def test_answers_come_up_from_the_table_of_delivery_alone() -> None:
    bridge = asked()
    to_controller = (Output(Reserved.CONTROLLER),)
    up = [rule for rule in bridge.rules.values() if rule.actions == to_controller and rule.match.udp_src == 53]
    assert up
    assert {rule.table for rule in up} == {DELIVERY}
