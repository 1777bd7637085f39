"""Plans that are made in pieces, and followed in parts: switches are heard between them."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from braid_lab.fabric.shapes import fat_tree, generated, two_paths
from braid_sdn.fabric import controller
from braid_sdn.fabric.config import Config
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.plan import Host, Plan
from braid_sdn.fabric.plan.planner import NetworkState, Work, make
from braid_sdn.fabric.service import Service
from braid_sdn.fabric.settings import Settings
from braid_sdn.fabric.switches import compiler
from braid_sdn.fabric.switches.arp_relay import MAX_HOLD
from braid_sdn.fabric.switches.audit import AUDIT_INTERVAL
from braid_sdn.fabric.switches.compiler import CHANGED_TREE_COST, Compiler
from braid_sdn.fabric.switches.rules import tag_of
from braid_sdn.openflow.messages import FlowStatsRequest, PacketIn, PacketOut

from .virtual import KEY, Network, arp, everybody_reaches_everybody, frame, graph_of, mac, ready


def slow(net: Network) -> None:
    """Have each look at the controller's stopwatch take longer than a piece may."""
    ticks = itertools.count()
    net.controller._stopwatch = lambda: controller.MAX_PIECE * next(ticks)


def begin_plan(net: Network) -> None:
    """Make the first piece of a plan that is due."""
    net.now += 0.01
    net.controller.handle_timeout(net.now)
    assert net.controller._work is not None


def test_a_plan_in_pieces_is_the_one_made_at_once() -> None:
    graph = graph_of(generated(12, seed=2))
    hosts = tuple(Host(mac(number), PortId(1 + number % 12, 99)) for number in range(24))
    state = NetworkState(graph, hosts)
    work = Work(Plan(), state)
    pieces = 0
    while (plan := work.poll()) is None:
        pieces += 1
    # Twelve trees and the flood.
    assert pieces == 13
    assert plan == make(Plan(), state)


def test_messages_are_handled_between_the_pieces_of_a_plan() -> None:
    net = ready(fat_tree(4, hosts=16))
    slow(net)
    net.unplug("e0.0", "a0.0")
    begin_plan(net)
    # The next piece is due at once, and not made before the driver has seen to all else.
    due = net.controller.poll_timeout()
    assert due is not None
    assert due <= net.now
    before = net.controller.packet_ins
    net.controller.handle(net.now, net.stations["h1"].switch, _packet_in(net, "h1"))
    assert net.controller.packet_ins == before + 1
    assert net.controller._work is not None
    net.run(3)
    everybody_reaches_everybody(net)


def _packet_in(net: Network, name: str) -> PacketIn:
    return PacketIn(net.stations[name].port, arp(mac(2), "10.0.0.2", "10.0.0.2"))


def test_what_fails_while_a_plan_is_made_is_followed_by_the_next_one() -> None:
    net = ready(fat_tree(4, hosts=16))
    slow(net)
    net.unplug("e0.0", "a0.0")
    begin_plan(net)
    net.unplug("e1.0", "a1.1")
    net.run(0.5)
    assert net.controller._work is None
    everybody_reaches_everybody(net)


def test_arp_waits_for_the_plan_that_is_being_made() -> None:
    net = ready(fat_tree(4, hosts=16))
    slow(net)
    # A new host asks for one that is known by its address.
    net.send("h1", arp(mac(2), "10.0.0.2", "10.0.0.2"))
    net.run(0.5)
    net.send("h9", arp(mac(99), "10.0.0.99", "10.0.0.2"))
    net.run(0.5)
    asked = [frame for frame in net.received["h1"] if frame[12:14] == b"\x08\x06"]
    assert asked
    for each in net.received.values():
        each.clear()
    net.send("h1", arp(mac(2), "10.0.0.2", "10.0.0.99", reply_to=mac(99)))
    net.run(0.1)
    assert {name for name, got in net.received.items() if got} == {"h9"}


def test_a_tree_gets_another_tag_if_a_switch_whose_way_changes_leaves_while_the_plan_is_made() -> None:
    net = ready(fat_tree(4, hosts=16))
    slow(net)
    before = net.controller.plan.trees
    lost = net.port_of("e0.0", "a0.0")
    net.unplug("e0.0", "a0.0")
    begin_plan(net)
    # It goes on by the rules that it has.
    net.disconnect("e0.0")
    net.run(0.5)
    led = [root for root, tree in before.items() if tree.onward.get(lost.switch) == lost.port]
    assert led
    for root in led:
        assert net.controller.plan.trees[root].tag != before[root].tag


async def stopwatch_of_service() -> Callable[[], float]:
    return Service(Config(Settings(KEY), port=0), Path("/nonexistent")).controller._stopwatch


def test_a_small_plan_stays_in_one_piece_where_others_have_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    net = ready(fat_tree(4, hosts=16))
    net.controller._stopwatch = asyncio.run(stopwatch_of_service())
    # However slow the processor is, this plan takes less of it.
    monkeypatch.setattr(controller, "MAX_PIECE", 0.3)
    made = Work.poll

    def interrupted(work: Work) -> Plan | None:
        # The passing of time itself, as while another process runs.
        time.sleep(1.5 * controller.MAX_PIECE)
        return made(work)

    monkeypatch.setattr(Work, "poll", interrupted)
    net.unplug("e0.0", "a0.0")
    before = net.controller.plan
    net.now += 0.01
    net.controller.handle_timeout(net.now)
    assert net.controller._work is None
    assert net.controller.plan is not before


def test_arp_waits_for_no_plan_that_is_made_for_load() -> None:
    net = ready(two_paths(mbit=10))
    for number, name in enumerate(("ha", "hb"), 1):
        net.send(name, arp(mac(number), f"10.0.0.{number}", f"10.0.0.{number}"))
    net.run(3)
    slow(net)
    while net.controller._work is None:
        net.now = max(net.now, net.controller.poll_timeout() or net.now)
        net.controller.handle_timeout(net.now)
    assert not net.controller._throttle.urgent
    net.controller.poll_messages()
    question = arp(mac(1), "10.0.0.1", "10.0.0.2")
    net.controller.handle(net.now, net.stations["ha"].switch, PacketIn(net.stations["ha"].port, question))
    asked = net.stations["hb"]
    assert (asked.switch, PacketOut((asked.port,), question)) in net.controller.poll_messages()


def test_arp_waits_no_longer_than_its_sender_does() -> None:
    net = ready(fat_tree(4, hosts=16))
    net.send("h1", arp(mac(2), "10.0.0.2", "10.0.0.2"))
    net.run(2)
    # A switch that hardly answers: the new host's rules take as long.
    net.control[net.stations["h12"].switch] = 3.0
    question = arp(mac(99), "10.0.0.99", "10.0.0.2")
    net.send("h9", question)
    net.run(0.1)
    assert net.controller.updater.is_waiting
    assert question not in net.received["h1"]
    assert net.run_until(lambda: question in net.received["h1"], within=1) <= MAX_HOLD
    assert net.controller.updater.is_waiting


def test_trees_are_taken_over_in_parts_and_those_that_lost_a_link_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "MAX_TREE_RULES", 2 * CHANGED_TREE_COST)
    graph = graph_of(generated(12, seed=2, more=2.0))
    hosts = {mac(number): Host(mac(number), PortId(1 + number, 99)) for number in range(12)}
    plan = make(Plan(), NetworkState(graph, tuple(hosts.values())))
    made = Compiler()
    made.update(plan, hosts, (), graph.switches)
    tree = plan.trees[1]
    switch, port = next(iter(tree.onward.items()))
    lost = next(arc for arc in graph.arcs if arc.source == PortId(switch, port))
    ends = {lost.source, lost.target}
    fewer = type(graph).of((arc for arc in graph.arcs if {arc.source, arc.target} != ends), graph.switches)
    plan = make(plan, NetworkState(fewer, tuple(hosts.values())))
    repaired = [root for root, each in plan.trees.items() if each.repairs]
    tags = {each.tag for each in plan.trees.values()}
    parts = 0
    while parts == 0 or made.is_behind:
        changed = made.update(plan, hosts, (), graph.switches, most=1000)
        parts += 1
        assert parts < 20
        assert made.is_repairing == made.is_behind
        # The flood, which may have changed as well, is not among them.
        assert sum((tag_of(key) or 0) in tags for keys in changed.values() for key in keys) < 40
    assert len(repaired) > 3
    assert parts > 1
    fresh = Compiler()
    fresh.update(plan, hosts, (), graph.switches)
    assert made.target == fresh.target


def test_a_wire_is_left_in_parts_and_nobody_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    net = ready(fat_tree(4, hosts=16))
    monkeypatch.setattr(compiler, "MAX_TREE_RULES", 1)
    slow(net)
    net.unplug("c0", "a0.0")
    net.unplug("c1", "a1.0")
    plans, follow, parts = len(net.controller.planning), net.controller._follow, 0

    def counted(now: float) -> None:
        nonlocal parts
        parts += 1
        follow(now)

    monkeypatch.setattr(net.controller, "_follow", counted)
    net.run(0.5)
    assert not net.controller.compiler.is_repairing
    # No part needs a plan of its own.
    assert parts > 3 + len(net.controller.planning) - plans
    everybody_reaches_everybody(net)


def asked(net: Network) -> set[int]:
    """Return the switches that are asked for all their rules now."""
    net.controller.poll_messages()
    net.now += 0.001
    net.controller.handle_timeout(net.now)
    messages = net.controller.poll_messages()
    return {switch for switch, message in messages if message == FlowStatsRequest(None)}


def test_no_switch_is_audited_while_something_urgent_is_planned_unless_that_is_very_late() -> None:
    net = ready(fat_tree(4, hosts=16))
    net.run(40)
    slow(net)
    net.unplug("e0.0", "a0.0")
    begin_plan(net)
    one, other = sorted(net.controller.topology.switches)[:2]
    net.controller.audit._due[one] = net.now - 1
    assert not asked(net)
    net.controller.audit._due[other] = net.now - AUDIT_INTERVAL - 1
    assert net.controller._work is not None
    assert asked(net) == {other}
    net.controller.audit._due[one] = net.now - 1
    net.run(2)
    assert net.controller.audit._due[one] > net.now


def test_a_plan_that_took_long_is_followed_in_a_turn_of_its_own() -> None:
    net = ready(fat_tree(4, hosts=16))
    before = net.controller.plan
    slow(net)
    net.unplug("e0.0", "a0.0")
    begin_plan(net)
    while (made := net.controller._made) is None:
        assert net.controller.plan is before
        net.controller.handle_timeout(net.now)
    assert net.controller.plan is before
    net.controller.handle_timeout(net.now)
    assert net.controller.plan is made[0]


def test_a_plan_that_ends_in_an_error_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    net = ready(fat_tree(4, hosts=16))
    poll = Work.poll

    def fail(_: Work) -> Plan | None:
        raise RuntimeError("an error of the planner")

    monkeypatch.setattr(Work, "poll", fail)
    net.unplug("e0.0", "a0.0")
    with pytest.raises(RuntimeError, match="of the planner"):
        net.run(1)
    # It is reported once, and nothing else ends for it.
    net.run(1)
    monkeypatch.setattr(Work, "poll", poll)
    net.run(controller.ERROR_RETRY)
    everybody_reaches_everybody(net)


def test_the_rules_of_the_first_plan_are_made_in_parts_and_no_switch_is_told_of_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "MAX_FIRST_SWITCHES", 1)
    net = Network(fat_tree(4, hosts=16))
    net.connect()
    follow, parts = net.controller._follow, 0

    def counted(now: float) -> None:
        nonlocal parts
        parts += 1
        assert not net.controller.updater.target
        follow(now)
        assert bool(net.controller.updater.target) is (parts >= len(net.shape.switches))

    monkeypatch.setattr(net.controller, "_follow", counted)
    net.run_until(lambda: net.controller._is_first_followed, within=10)
    assert parts == len(net.shape.switches)
    monkeypatch.setattr(net.controller, "_follow", follow)
    net.run(3)
    for number, name in enumerate(net.stations, 1):
        net.send(name, arp(mac(number), f"10.0.0.{number}", f"10.0.0.{number}"))
    net.run(3)
    everybody_reaches_everybody(net)


def test_a_controller_that_starts_anew_with_its_rules_made_in_parts_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "MAX_FIRST_SWITCHES", 10)
    monkeypatch.setattr(controller, "MAX_HOST_RULES", 1)
    monkeypatch.setattr(compiler, "MAX_TREE_RULES", 1)
    net = ready(fat_tree(4, hosts=4))
    net.run(5)
    net.restart_controller()
    follow, parts = net.controller._follow, 0

    def counted(now: float) -> None:
        nonlocal parts
        parts += not net.controller._is_first_followed
        follow(now)

    monkeypatch.setattr(net.controller, "_follow", counted)
    sent = 0
    net.received["h3"].clear()
    while sent < 2500:
        # A new controller has its first plan after a second.
        net.send("h0", frame(mac(1), mac(4)))
        sent += 1
        net.run(0.002)
    assert net.controller._is_first_followed
    # Two for switches, and then those for trees and hosts.
    assert parts > 2
    net.run(1)
    assert len([each for each in net.received["h3"] if each[12:14] == b"\x08\x00"]) == sent


@pytest.mark.parametrize("seed", range(6))
def test_switches_and_wires_that_come_and_go_while_plans_are_followed_in_parts_double_nothing(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(controller, "MAX_FIRST_SWITCHES", 1)
    monkeypatch.setattr(compiler, "MAX_TREE_RULES", 1)
    monkeypatch.setattr("braid_sdn.fabric.switches.updater.MAX_SENT", 2)
    chance = random.Random(seed)
    shape = generated(7, seed=seed, more=1.5, hosts=4)
    net = Network(shape)
    slow(net)
    net.connect()
    follow, parts = net.controller._follow, 0

    def left(now: float) -> None:
        # One leaves while the rules of the first plan are made, and comes back.
        nonlocal parts
        parts += 1
        if parts == 4:
            net.disconnect(shape.switches[2])
        follow(now)

    monkeypatch.setattr(net.controller, "_follow", left)
    net.run(5)
    assert parts > 6
    monkeypatch.setattr(net.controller, "_follow", follow)
    net.connect(shape.switches[2])
    net.run(10)
    for number, name in enumerate(net.stations, 1):
        net.send(name, frame(mac(number), "ff:ff:ff:ff:ff:ff", b"here I am"))
    net.run(3)
    everybody_reaches_everybody(net)
    out: set[int] = set()
    away = ""
    for number in range(40):
        if away:
            net.connect(away)
            away = ""
        elif chance.randrange(3):
            # Of those that are without a controller nothing is promised while wires change.
            at = chance.randrange(len(shape.wires))
            out ^= {at}
            net.unplug(shape.wires[at].one, shape.wires[at].other, up=at not in out)
        else:
            away = chance.choice(shape.switches)
            net.disconnect(away)
        for each in net.received.values():
            each.clear()
        source = 1 + number % len(net.stations)
        calls = [frame(mac(source), "ff:ff:ff:ff:ff:ff", bytes([number, part])) for part in range(5)]
        for call in calls:
            net.send(list(net.stations)[source - 1], call)
            net.run(chance.choice((0.001, 0.003, 0.02, 0.3)))
        for each in net.received.values():
            assert all(each.count(call) <= 1 for call in calls)
    for at in out:
        net.unplug(shape.wires[at].one, shape.wires[at].other, up=True)
    if away:
        net.connect(away)
    net.run(20)
    assert not net.controller.is_urgent
    assert net.controller.updater.idle
    for number, name in enumerate(net.stations, 1):
        net.send(name, frame(mac(number), "ff:ff:ff:ff:ff:ff", b"here I am"))
    net.run(3)
    everybody_reaches_everybody(net)
