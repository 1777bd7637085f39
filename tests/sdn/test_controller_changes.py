"""The whole controller in virtual time: changes and restarts, without loss."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid_lab.fabric.pipeline import Pipeline
from braid_lab.fabric.shapes import east_asia, generated, two_paths
from braid_sdn.fabric import controller
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import tagged
from braid_sdn.fabric.plan import planner
from braid_sdn.fabric.plan.plan import Host, Plan
from braid_sdn.fabric.switches import rules
from braid_sdn.fabric.switches.rules import DELIVERY, DESTINATIONS, PATHS, TREES
from braid_sdn.fabric.switches.updater import Step
from braid_sdn.fabric.tenants import NOBODY
from braid_sdn.openflow.messages import TAGGED, AddRule, DeleteRule, Match, PortStatus, PushTag, Rule

from . import virtual
from .virtual import Network, arp, everybody_reaches_everybody, frame, mac, port, ready, stream, tags


def test_a_change_for_the_better_loses_and_doubles_nothing() -> None:
    """Make before break: another pair of paths comes in while packets flow."""
    net = ready(two_paths())
    before = tags(net, "ha", "hb")
    # A line that became slower: the tree and the shares move.
    for end in (net.port_of("A", "P"), net.port_of("P", "A")):
        net.delay[end] = 0.05
    slower = (
        replace(link, capacity=2e6) if set(link.between) == {"A", "P"} else link
        for link in net.controller.settings.links
    )
    net.controller.settings = replace(net.controller.settings, links=tuple(slower))
    first, _ = stream(net, 1.0)
    net.run(40)
    sent, got = stream(net, 3.0)
    assert sorted(got) == sorted([*first, *sent])
    assert net.controller.updater.changes > 1
    shares = [net.controller.tables.pairs["ha", "hb"].share(tag) for tag in tags(net, "ha", "hb")]
    assert sorted(shares) != [0.5, 0.5], (before, shares)


@given(st.integers(0, 10_000), st.lists(st.floats(0.001, 0.4), min_size=1, max_size=4))
@settings(max_examples=8)
def test_new_wires_and_returning_ones_never_cost_a_packet(seed: int, pauses: list[float]) -> None:
    shape = generated(6, seed=seed, more=1.0, hosts=2)
    net = ready(shape)
    data: list[bytes] = []
    for number, pause in enumerate(pauses):
        # A new wire between switches that had none, quicker than all others.
        one, other = PortId(1 + number, 90 + number), PortId(6, 90 + number)
        if one.switch == other.switch:
            continue
        for end in (one, other):
            net.switches[end.switch].ports[end.port] = port(end.port, f"n{end.port}")
        net.wire(one, other, 0.0001)
        for end in (one, other):
            net.controller.handle(net.now, end.switch, PortStatus(net.switches[end.switch].ports[end.port]))
        for _ in range(max(1, round(pause / 0.01))):
            data.append(frame(mac(1), mac(2), struct.pack("!I", len(data))))
            net.send("h0", data[-1])
            net.run(0.01)
    for _ in range(400):
        data.append(frame(mac(1), mac(2), struct.pack("!I", len(data))))
        net.send("h0", data[-1])
        net.run(0.01)
    net.run(1)
    # Those on the quicker way may overtake; none is lost, none comes twice.
    assert sorted(each for each in net.received["h1"] if each[12:14] == b"\x08\x00") == data


def test_a_port_that_goes_down_is_left_at_once() -> None:
    net = ready(two_paths())
    net.unplug("A", "P")
    took = net.run_until(lambda: len(tags(net, "ha", "hb")) == 1, within=0.1)
    assert took <= 0.05
    net.run(1)
    everybody_reaches_everybody(net)
    net.unplug("A", "P", up=True)
    net.run(5)
    assert len(tags(net, "ha", "hb")) == 2


def test_a_wire_that_falls_silent_is_left_within_200_ms_and_named() -> None:
    net = ready(two_paths())
    net.silence("A", "P")
    took = net.run_until(lambda: len(tags(net, "ha", "hb")) == 1, within=1)
    assert took <= 0.2
    # Asked one by one, the wire at fault is known, and the others are not.
    net.run(0.5)
    names = {str(arc) for arc in net.controller.graph.arcs}
    assert len(names) == 6
    everybody_reaches_everybody(net)
    net.silence("A", "P", on=False)
    net.run(15)
    assert len(tags(net, "ha", "hb")) == 2


def test_a_flapping_wire_changes_rules_at_a_bounded_pace() -> None:
    net = ready(two_paths())
    before = net.controller.updater.changes
    for _ in range(50):
        net.unplug("A", "P")
        net.run(0.05)
        net.unplug("A", "P", up=True)
        net.run(0.05)
    net.run(6)
    # Each loss is followed at once; what comes back is waited for until it stays.
    assert net.controller.updater.changes - before < 20
    everybody_reaches_everybody(net)


def stream_untagged(net: Network, seconds: float) -> tuple[list[bytes], list[bytes]]:
    """Send from one host to the other for so long; return what was sent, and what came."""
    sent = []
    for number in range(round(500 * seconds)):
        sent.append(frame(mac(1), mac(2), struct.pack("!I", number)))
        net.send("ha", sent[-1])
        net.run(0.002)
    net.run(1)
    return sent, [each for each in net.received["hb"] if each[12:14] == b"\x08\x00"]


def test_a_controller_that_starts_anew_takes_over_without_a_lost_packet() -> None:
    net = ready(
        two_paths(),
    )
    rules = {dpid: dict(switch.rules) for dpid, switch in net.switches.items()}
    before = net.controller.tables.pairs
    net.restart_controller()
    sent, got = stream_untagged(net, 5.0)
    assert got == sent
    assert net.controller.tables.pairs.keys() == before.keys()
    # Hosts are known again although they said nothing: their rules told of them.
    assert set(net.controller.hosts.known) == {mac(1), mac(2)}
    assert all(len(switch.rules) <= len(rules[dpid]) + 3 for dpid, switch in net.switches.items())


@pytest.mark.parametrize("late", [("B",), ("B", "P", "Q")])
@pytest.mark.parametrize("seconds", [0.9, 2.0, 8.0])
def test_a_takeover_waits_for_switches_that_connect_late(late: tuple[str, ...], seconds: float) -> None:
    """They try again every few seconds only (Open vSwitch: 8 s), each in its own time."""
    net = ready(two_paths())
    net.restart_controller({name: seconds + 0.1 * number for number, name in enumerate(late)})
    sent, got = stream_untagged(net, seconds + 4.0)
    assert got == sent
    assert len(tags(net, "ha", "hb")) == 2


def test_the_network_forwards_without_its_controller_and_floods_arp_again() -> None:
    net = ready(east_asia())
    net.disconnect()
    for switch in net.switches.values():
        switch.pass_time(net.now + 60)
    everybody_reaches_everybody(net)
    question = arp(mac(1), "10.0.0.1", "10.0.0.4")
    net.send("bej", question)
    net.run(1)
    assert net.received["syd"].count(question) == 1


def test_a_switch_that_restarts_is_healed() -> None:
    net = ready(two_paths())
    # Its paths were silent meanwhile, and come back under tags of their own.
    before = {key for key, rule in net.switches[1].rules.items() if not rule.lease and key[0] != PATHS}
    net.disconnect("A")
    net.switches[1].restart()
    net.run(0.5)
    net.connect("A")
    took = net.run_until(lambda: net.switches[1].rules.keys() >= before, within=2)
    assert took < 0.5
    net.run_until(lambda: len(net.controller.tables.pairs) == 2 and len(tags(net, "ha", "hb")) == 2, within=3)
    everybody_reaches_everybody(net)


def test_rules_that_vanish_or_are_strange_are_mended_by_the_audit() -> None:
    net = ready(two_paths())
    victim = net.switches[3]
    strange = Rule(0, 200, Match(eth_type=0x0800))
    for key in [key for key in victim.rules if key[0] == 3]:
        assert not list(victim.handle(net.now, DeleteRule(key)))
    assert not list(victim.handle(net.now, AddRule(strange)))
    net.run(35)
    assert strange.key not in victim.rules
    everybody_reaches_everybody(net)


def test_a_switch_without_controller_is_used_only_where_there_is_no_other_way() -> None:
    net = ready(two_paths())
    net.disconnect("P")
    net.run(8)
    assert net.codes() == {"stale-link"}
    ways = [path.switches for path in net.controller.tables.pairs["ha", "hb"].selection.paths]
    assert ways == [(1, 4, 2)]
    everybody_reaches_everybody(net)
    net.disconnect("Q")
    net.run(8)
    everybody_reaches_everybody(net)


def broadcasts_arrive(net: Network) -> bool:
    """Return whether a broadcast of each station arrives at all others."""
    for each in net.received.values():
        each.clear()
    sent = {name: frame(mac(number), "ff:ff:ff:ff:ff:ff") for number, name in enumerate(net.stations, 1)}
    for name, data in sent.items():
        net.send(name, data)
    net.run(1)
    return all(
        set(got) >= {data for other, data in sent.items() if other != name} for name, got in net.received.items()
    )


@pytest.mark.parametrize("edges", [("ha", "hb"), ()])
def test_a_dead_switch_whose_ports_stay_up_is_left_where_there_is_another_way(edges: tuple[str, ...]) -> None:
    net = ready(two_paths(), **({} if edges else {"edges": ()}))
    flooding = next(iter(net.controller.plan.floods.values())).ports
    transit = next(name for name in ("P", "Q") if len(flooding[net.shape.dpid(name)]) == 2)
    net.disconnect(transit)
    for end in ("A", "B"):
        net.silence(end, transit)
    net.run(8)
    assert net.codes() == {"stale-link"}
    everybody_reaches_everybody(net)
    assert broadcasts_arrive(net)


@pytest.mark.parametrize("away", ["all", "one", "shortly"])
def test_a_cable_that_was_pulled_while_its_switch_was_away_is_left_as_soon_as_it_returns(away: str) -> None:
    net = ready(two_paths(), edges=())
    flooding = next(iter(net.controller.plan.floods.values())).ports[net.shape.dpid("A")]
    transit = next(name for name in ("P", "Q") if net.port_of("A", name).port in flooding)
    pulled = net.port_of("A", transit)
    gone = () if away == "all" else ("A",)
    net.disconnect(*gone)
    net.run({"all": 2, "one": 6, "shortly": 1}[away])
    if away == "all":
        net.unplug("A", transit)
    else:
        # The other end does not see it: there is a converter between them.
        net.switches[pulled.switch].set_port(pulled.port, up=False)
        net.silence("A", transit)
    net.run(1)
    net.connect(*gone)
    net.run(5)
    assert not [key for key in net.controller.topology.heard if pulled == key[0]]
    everybody_reaches_everybody(net)
    assert broadcasts_arrive(net)
    net.run(5)
    assert not [key for key in net.controller.topology.heard if pulled in key]


def test_a_switch_that_restarts_before_an_update_gets_all_of_its_rules() -> None:
    net = ready(two_paths(), edges=())
    net.run(25)
    # While another switch has not confirmed, nothing of the update is sent.
    net.control[net.shape.dpid("B")] = 0.15
    policies = replace(net.controller.policies, drained=frozenset({net.shape.dpid("Q")}))
    net.controller.set_policies(net.now, policies)
    net.run(0.1)
    assert net.controller.updater.step is Step.PREPARE
    dpid = net.shape.dpid("P")
    net.disconnect("P")
    emptied = Pipeline(dpid, {})
    emptied.ports, net.switches[dpid] = net.switches[dpid].ports, emptied
    net.connect("P")
    net.run(3)
    everybody_reaches_everybody(net)
    assert broadcasts_arrive(net)


def test_a_capacity_is_that_of_a_link_and_not_of_a_port() -> None:
    net = ready(two_paths())
    port_at_a, at_p = net.port_of("A", "P"), net.port_of("P", "A")
    assert net.controller.traffic.configured[port_at_a] < 1e9
    net.unplug("A", "P")
    net.run(3)
    # The cable leads to another port of B, of which nothing is configured.
    at_b = net._add_port("B", "more")
    net.controller.handle(net.now, at_b.switch, PortStatus(net.switches[at_b.switch].ports[at_b.port], gone=False))
    del net.peer[at_p]
    net.wire(port_at_a, at_b)
    net.silent.discard(port_at_a)
    net.controller.handle(net.now, port_at_a.switch, net.switches[port_at_a.switch].set_port(port_at_a.port, up=True))
    net.run(10)
    link = next(link for link in net.controller.topology.links() if link.source == port_at_a)
    assert link.target == at_b
    assert net.controller.traffic.capacity_of(link, net.controller.topology) >= 1e9


def test_all_trees_are_compared_in_turn_however_often_something_becomes_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = ready(generated(6, seed=1, more=1.0, hosts=6))
    net.run(30)
    monkeypatch.setattr(controller, "MAX_TREE_ARCS", 1)
    compared: list[int] = []

    class Work(planner.Work):
        def __init__(self, before: Plan, state: planner.NetworkState) -> None:
            super().__init__(before, state)
            compared.extend(state.review[: state.most_trees])

    monkeypatch.setattr(planner, "Work", Work)
    trees = set(net.controller.plan.trees)
    for _ in trees:
        net.controller._throttle.improvement(net.now)
        net.controller._begin_plan(net.now)
    assert len(trees) > 2
    assert set(compared) == trees


def test_arp_is_passed_on_while_many_hosts_wait_for_their_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    net = ready(generated(6, seed=1, more=1.0, hosts=6))
    net.run(5)
    monkeypatch.setattr(controller, "MAX_HOST_RULES", 1)
    at = net.stations["h1"]
    net.controller.hosts.adopt(net.now, [Host(mac(1000 + number), at) for number in range(200)])
    net.controller._throttle.change(net.now)
    net.run(0.1)
    assert net.controller.compiler.is_behind
    request = arp(mac(1), "10.0.0.1", "10.0.0.99")
    net.send("h0", request)
    net.run(0.5)
    assert net.controller.compiler.is_behind
    assert request in net.received["h3"]
    net.run(20)
    assert not net.controller.compiler.is_behind
    assert len(net.controller.compiler._hosts) == len(net.controller.hosts.known)


def hosts_in_place(net: Network) -> int:
    """Hosts that each switch which has to knows."""
    wanted = [
        {switch for switch, has in net.controller.compiler.target.items() if host_key(each) in has}
        for each in net.controller.hosts.known
    ]
    known = zip(net.controller.hosts.known, wanted, strict=True)
    return sum(
        bool(switches) and all(host_key(each) in net.switches[switch].rules for switch in switches)
        for each, switches in known
    )


def host_key(host: str) -> tuple[int, int, Match]:
    return DESTINATIONS, 30, Match(eth_dst=host)


def test_hosts_are_taken_over_one_part_after_another_although_switches_are_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each part is confirmed before the next one begins, which would abort it; what breaks is followed at once."""
    net = ready(generated(6, seed=1, more=1.0, hosts=6))
    net.run(5)
    monkeypatch.setattr(controller, "MAX_HOST_RULES", 1)
    monkeypatch.setattr(virtual, "CONTROL", 0.05)
    net.run(5)
    at = net.stations["h1"]
    before = net.controller.updater.changes
    net.controller.hosts.adopt(net.now, [Host(mac(1000 + number), at) for number in range(40)])
    net.controller._throttle.change(net.now)
    net.run(2)
    assert net.controller.compiler.is_behind
    assert hosts_in_place(net) > 6 + 5
    # Some 0.2 s for each part: prepare, switch and their answers.
    assert net.controller.updater.changes - before < 2 / 0.15
    plans = len(net.controller.planning)
    one, other = (net.shape.wires[0].one, net.shape.wires[0].other)
    net.unplug(one, other)
    net.run(0.02)
    assert len(net.controller.planning) == plans + 1
    net.run(20)
    assert not net.controller.compiler.is_behind
    assert hosts_in_place(net) == 46


def with_old_layout(net: Network) -> None:
    """Give switches the rules that version 1 would have: paths in table 3, delivery in 4, and no trees in between."""
    plan = net.controller.plan
    to_tree = {rules.to_tree(tree).match.metadata: tree.tag for tree in plan.trees.values()}
    moved = {PATHS: 3, DELIVERY: 4}
    for switch in net.switches.values():
        old = []
        kept = [rule for rule in switch.rules.values() if rule.table != TREES and not rule.lease]
        # It had no detours.
        kept = [rule for rule in kept if rule.match.vlan_pcp is None and rule.priority != rules.TURNING]
        for rule in kept:
            for group in rules.groups_of(rule):
                rule = replace(rule, actions=(rules.buckets_of(group) or ())[0].actions)
            made = replace(rule, cookie=rules.OLD_COOKIE | rule.cookie & 0xFFFFFFFF)
            made = replace(made, table=moved.get(rule.table, rule.table), goto=moved.get(rule.goto or 0, rule.goto))
            if rule.goto == TREES:
                tag = plan.floods[NOBODY].tag if rule.metadata is None else to_tree[rule.metadata]
                made = replace(made, actions=(PushTag(tag),), goto=3, metadata=None)
            old.append(made)
        switch.restart()
        for rule in old:
            assert not list(switch.handle(net.now, AddRule(rule)))


@pytest.mark.parametrize("far", ["", "A", "P", "B"])
def test_rules_of_the_layout_before_carry_traffic_until_all_switches_have_the_new_one(far: str) -> None:
    """Whichever switch is the last to change: packets of both layouts cross the others."""
    net = ready(two_paths())
    old_slots = net.controller.tables.pairs["ha", "hb"].slots
    with_old_layout(net)
    if far:
        net.control[net.shape.dpid(far)] = 0.2
    net.restart_controller()
    sent = []
    for number in range(2500):
        data = frame(mac(1), mac(2), struct.pack("!I", number))
        known = net.controller.tables.pairs.get(("ha", "hb"))
        slots = known.slots if known is not None else old_slots
        for each in (data, tagged(data, slots[number % len(slots)])):
            net.send("ha", each)
            sent.append(each)
        net.run(0.002)
    net.run(3)
    assert sorted(net.received["hb"]) == sorted(sent)
    assert net.controller.hosts.known.keys() == {mac(1), mac(2)}
    for switch in net.switches.values():
        assert all(rules.is_ours(rule) for rule in switch.rules.values())
        assert (TREES, 5, Match(vlan=TAGGED)) not in switch.rules
    assert not net.codes()


def test_a_port_gets_broadcasts_once_it_is_settled_whatever_was_planned_before() -> None:
    shape = two_paths()
    # Edges have plans made every two seconds anyway.
    net = ready(replace(shape, stations=tuple(replace(each, edge=False) for each in shape.stations)))
    place = net.stations["hb"]
    for up in (False, True):
        net.controller.handle(net.now, place.switch, net.switches[place.switch].set_port(place.port, up=up))
        net.run(3 if not up else 0.01)
    # A host appears, and the plan for it takes in all that was to come.
    net.send("ha", frame(mac(77), "ff:ff:ff:ff:ff:ff"))
    net.run(5)
    net.received["hb"].clear()
    net.send("ha", frame(mac(77), "ff:ff:ff:ff:ff:ff"))
    net.run(1)
    assert len(net.received["hb"]) == 1
