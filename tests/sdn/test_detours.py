"""Detours of trees: packets that meet a port which is down, while nobody tells the switches anything."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid_lab.fabric.pipeline import Outcome
from braid_lab.fabric.shapes import Shape, Station, Wire, fat_tree, generated, two_paths
from braid_sdn.fabric.model import Arc, Graph, PortId
from braid_sdn.fabric.monitor.probe import tagged
from braid_sdn.fabric.plan import planner
from braid_sdn.fabric.plan.plan import Host, Plan, Tree
from braid_sdn.fabric.plan.planner import NetworkState, make
from braid_sdn.fabric.switches import rules
from braid_sdn.fabric.switches.rules import PATHS
from braid_sdn.openflow.messages import (
    AddRule,
    DeleteGroup,
    GroupsReply,
    GroupsRequest,
    Malformed,
    Refused,
    Rule,
    SetFailoverGroup,
    ToGroup,
    ToSwitch,
)

from .virtual import Network, everybody_reaches_everybody, frame, graph_of, mac, ready, tags

HOST_PORT = 99

RING = Shape(
    ("A", "B", "P", "Q"),
    tuple(Wire(*ends) for ends in (("A", "P"), ("P", "B"), ("A", "Q"), ("Q", "B"))),
    (Station("ha", "A"), Station("hb", "B")),
)


def planned(graph: Graph, hosts: int) -> Plan:
    known = tuple(Host(mac(number), PortId(number, HOST_PORT)) for number in range(1, hosts + 1))
    return make(Plan(), NetworkState(graph, known, failover=graph.switches))


def walk(tree: Tree, graph: Graph, start: int, down: set[PortId]) -> list[int] | None:
    """Return the switches that a packet passes on its way to a tree's root; None if it is dropped."""
    here, marked, passed = start, False, [start]
    while here != tree.root:
        assert len(passed) <= 2 * len(graph.switches), f"goes round: {passed}"
        other = tree.detour_port(here)
        port = tree.onward.get(here)
        if marked:
            port = tree.detour.onward.get(here) if tree.detour is not None else None
        elif port is not None and PortId(here, port) in down and other is not None:
            port, marked = other, True
        if port is None or PortId(here, port) in down:
            return None
        here = graph.by_port[here][port].target.switch
        passed.append(here)
    return passed


@given(st.integers(3, 14), st.integers(0, 1 << 30), st.floats(0.0, 2.0), st.floats(0.0, 1.0))
@settings(max_examples=150)
def test_no_packet_goes_round_whichever_links_fail(size: int, seed: int, more: float, share: float) -> None:
    chance = random.Random(seed)
    graph = graph_of(generated(size, seed=seed, more=more))
    plan = planned(graph, size)
    down = {end for arc in graph.arcs if arc.source < arc.target and chance.random() < share for end in _ends(arc)}
    for tree in plan.trees.values():
        for start in graph.switches:
            walk(tree, graph, start, down)


@given(st.integers(3, 14), st.integers(0, 1 << 30), st.floats(0.0, 2.0))
@settings(max_examples=100)
def test_of_one_link_that_fails_every_switch_with_a_detour_leads_around(size: int, seed: int, more: float) -> None:
    graph = graph_of(generated(size, seed=seed, more=more))
    for tree in planned(graph, size).trees.values():
        for switch, port in tree.onward.items():
            down = set(_ends(graph.by_port[switch][port]))
            has_detour = tree.detour_port(switch) is not None
            assert (walk(tree, graph, switch, down) is not None) == has_detour


def _ends(arc: Arc) -> tuple[PortId, PortId]:
    return arc.source, arc.target


def test_in_a_ring_of_four_both_ways_of_each_host_are_served() -> None:
    graph = graph_of(RING)
    plan = planned(graph, 2)
    for root, start in ((1, 2), (2, 1)):
        tree = plan.trees[root]
        for arc in graph.arcs:
            passed = walk(tree, graph, start, set(_ends(arc)))
            assert passed is not None
            assert passed[-1] == root


def ring(size: int) -> Shape:
    names = tuple(f"s{number}" for number in range(size))
    return Shape(names, tuple(Wire(one, names[number - 1]) for number, one in enumerate(names)))


def spines(leaves: int) -> Shape:
    names = tuple(f"l{number}" for number in range(leaves))
    return Shape(("s1", "s2", *names), tuple(Wire(spine, leaf) for spine in ("s1", "s2") for leaf in names))


@pytest.mark.parametrize(
    ("shape", "inhabited", "share"),
    [
        (RING, range(1, 3), 1.0),
        (ring(8), range(1, 9), 0.64),
        (spines(8), range(3, 11), 0.88),
        (fat_tree(4), None, 0.94),
        (generated(20, seed=1, more=0.5), range(1, 21), 0.7),
        (generated(20, seed=1, more=2.0), range(1, 21), 0.95),
    ],
)
def test_most_links_on_the_ways_of_hosts_are_bridged(shape: Shape, inhabited: range | None, share: float) -> None:
    """With latencies that are measured, and so never quite alike."""
    chance = random.Random(1)
    wires = tuple(replace(wire, delay_ms=chance.uniform(0.1, 0.3)) for wire in shape.wires)
    graph = graph_of(replace(shape, wires=wires))
    switches = list(inhabited or (shape.dpid(station.switch) for station in shape.stations))
    hosts = tuple(Host(mac(number), PortId(switch, HOST_PORT)) for number, switch in enumerate(switches))
    bridged = []
    for tree in make(Plan(), NetworkState(graph, hosts, failover=graph.switches)).trees.values():
        for start in set(switches) - {tree.root}:
            for here in (walk(tree, graph, start, set()) or [])[:-1]:
                down = set(_ends(graph.by_port[here][tree.onward[here]]))
                bridged.append(walk(tree, graph, start, down) is not None)
    assert sum(bridged) / len(bridged) >= share - 0.02


def test_a_network_without_any_other_way_has_no_detours() -> None:
    wires = (Wire("A", "B"), Wire("B", "C"))
    graph = graph_of(Shape(("A", "B", "C"), wires))
    assert {tree.detour for tree in planned(graph, 3).trees.values()} == {None}


def test_detours_lead_over_switches_with_groups_alone() -> None:
    graph = graph_of(RING)
    hosts = tuple(Host(mac(number), PortId(number, HOST_PORT)) for number in (1, 2))
    before = make(Plan(), NetworkState(graph, hosts, failover=graph.switches))
    # Q has none any more: what led over it is given up under the tag that there is.
    after = make(before, NetworkState(graph, hosts, failover=graph.switches - {4}))
    for root, tree in after.trees.items():
        assert (tree.tag, tree.onward) == (before.trees[root].tag, before.trees[root].onward)
        assert tree.detour is None
    assert {tree.detour for tree in make(Plan(), NetworkState(graph, hosts)).trees.values()} == {None}


def test_new_detours_lead_over_no_switch_that_lost_the_controller_and_old_ones_stay() -> None:
    graph = graph_of(RING)
    hosts = tuple(Host(mac(number), PortId(number, HOST_PORT)) for number in (1, 2))
    state = NetworkState(graph, hosts, failover=graph.switches)
    before = make(Plan(), state)
    for away in (3, 4):
        now = replace(state, unreachable=frozenset({away}))
        for tree in make(Plan(), now).trees.values():
            # The other ways round the ring lead over it.
            assert tree.detour is None or away not in tree.detour.onward
        assert make(before, replace(now, review=(1, 2))).trees == before.trees


@pytest.mark.parametrize("seed", range(5))
def test_a_link_that_a_detour_alone_loses_changes_next_to_nothing_and_a_review_makes_up_for_it(seed: int) -> None:
    graph = graph_of(generated(40, seed=seed, more=1.0))
    hosts = tuple(Host(mac(number), PortId(number, HOST_PORT)) for number in range(1, 41))
    before = make(Plan(), NetworkState(graph, hosts, failover=graph.switches))
    for arc in graph.arcs[:20]:
        cut = Graph.of([each for each in graph.arcs if each.source not in _ends(arc)], graph.switches)
        after = make(before, NetworkState(cut, hosts, failover=graph.switches))
        bare = make(_bare(before), NetworkState(cut, hosts))
        for root, tree in after.trees.items():
            # What is urgent is as without detours.
            assert tree.onward == bare.trees[root].onward
            had, has = before.trees[root].detour, tree.detour
            assert had is not None
            assert has is not None
            lost = had.onward.items() - has.onward.items()
            assert lost <= {tuple(end) for end in _ends(arc)}
            assert len(has.onward) == len(had.onward) - len(lost)
        again = make(after, NetworkState(cut, hosts, failover=graph.switches, review=tuple(after.trees)))
        for root, tree in again.trees.items():
            assert tree is after.trees[root] or tree.tag != after.trees[root].tag
        last = make(again, NetworkState(cut, hosts, failover=graph.switches, review=tuple(again.trees)))
        assert last.trees == again.trees


def _bare(plan: Plan) -> Plan:
    return replace(plan, trees={root: replace(tree, detour=None) for root, tree in plan.trees.items()})


def test_in_a_large_network_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(RING)
    hosts = tuple(Host(mac(number), PortId(number, HOST_PORT)) for number in (1, 2))
    state = NetworkState(graph, hosts, failover=graph.switches)
    before = make(Plan(), state)
    for most, has in ((7, True), (3, False)):
        monkeypatch.setattr(planner, "MAX_DETOUR_RULES", most)
        assert all(tree.detour is None for tree in make(Plan(), state).trees.values())
        assert all((tree.detour is not None) is has for tree in make(before, state).trees.values())


def test_a_tree_whose_detour_serves_less_than_another_would_gets_that_under_another_tag() -> None:
    graph = graph_of(RING)
    hosts = tuple(Host(mac(number), PortId(number, HOST_PORT)) for number in (1, 2))
    without = make(Plan(), NetworkState(graph, hosts))
    state = NetworkState(graph, hosts, failover=graph.switches)
    # No packet under the old tag meets a switch that does not know of detours.
    kept = make(without, state)
    assert kept.trees == without.trees
    after = make(kept, NetworkState(graph, hosts, failover=graph.switches, review=(1, 2)))
    assert all(tree.detour is not None for tree in after.trees.values())
    assert {tree.tag for tree in after.trees.values()}.isdisjoint(tree.tag for tree in kept.trees.values())
    again = make(after, NetworkState(graph, hosts, failover=graph.switches, review=(1, 2)))
    assert again.trees == after.trees


def test_the_number_of_a_group_tells_its_buckets() -> None:
    for turning in (False, True):
        number = rules.detour_group(3, 4095, turning=turning)
        assert number is not None
        first, second = rules.buckets_of(number) or ()
        assert (first.watch_port, second.watch_port) == (3, 4095)
    assert rules.detour_group(3, 4096, turning=False) is None
    assert rules.buckets_of(7) is None


def test_a_port_whose_number_is_too_large_for_a_group_has_no_detour() -> None:
    def numbered(port: PortId) -> PortId:
        return PortId(port.switch, port.port + 4094)

    graph = graph_of(RING)
    arcs = [replace(arc, source=numbered(arc.source), target=numbered(arc.target)) for arc in graph.arcs]
    assert {tree.detour for tree in planned(Graph.of(arcs, graph.switches), 2).trees.values()} == {None}


# With a controller and switches.


@pytest.mark.parametrize("wire", [0, 1, 2, 3])
def test_hosts_reach_one_another_around_a_cable_that_is_pulled_while_nobody_controls_the_switches(wire: int) -> None:
    net = ready(RING)
    net.disconnect()
    ends = RING.wires[wire]
    net.unplug(ends.one, ends.other)
    everybody_reaches_everybody(net)
    net.unplug(ends.one, ends.other, up=True)
    everybody_reaches_everybody(net)


@pytest.mark.parametrize("is_allowed", [True, False])
def test_without_groups_a_switch_waits_for_the_controller(is_allowed: bool) -> None:
    net = Network(RING, failover=is_allowed)
    for switch in net.switches.values():
        # One less than a switch with two ports may need.
        switch.most_groups = 3 if is_allowed else 1000
    settle(net)
    assert not net.controller.failover
    assert not any(isinstance(action, ToGroup) for rule in every_rule(net) for action in rule.actions)
    everybody_reaches_everybody(net)


def settle(net: Network) -> None:
    net.connect()
    net.run(3)
    for number, name in enumerate(net.stations, 1):
        net.send(name, _hello(number))
    net.run(2)


def _hello(number: int) -> bytes:
    return frame(mac(number), "ff:ff:ff:ff:ff:ff", b"here I am")


def every_rule(net: Network) -> list[Rule]:
    return [rule for switch in net.switches.values() for rule in switch.rules.values()]


def test_a_switch_that_refuses_its_groups_gets_rules_without_them() -> None:
    net = Network(RING)
    # It says that it can have many.
    net.at(net.now + 0.5, lambda: setattr(net.switches[3], "most_groups", 0))
    settle(net)
    assert net.controller.failover == {1, 2, 4}
    assert not any(rules.groups_of(rule) for rule in net.switches[3].rules.values())
    everybody_reaches_everybody(net)
    assert "refused" in net.codes()


def test_a_switch_that_lost_its_groups_gets_them_again_with_the_next_rule_that_leads_there() -> None:
    shape = generated(6, seed=0, more=2.0)
    net = Network(replace(shape, stations=tuple(Station(f"h{name}", name) for name in shape.switches)))
    net.connect()
    net.run(3)
    *early, late = net.stations
    for number, name in enumerate(early, 1):
        net.send(name, _hello(number))
    net.run(4)
    refusing: set[int] = set()
    for dpid, switch in net.switches.items():
        switch.handle = functools.partial(_noting, refusing, dpid, switch.handle)  # type: ignore[method-assign]
        # As by ovs-ofctl del-groups. The controller is not told.
        for number in list(switch.groups):
            assert not list(switch.handle(net.now, DeleteGroup(number)))
    # A new tree, with rules that lead to groups.
    net.send(late, _hello(len(net.stations)))
    net.run(0.5)
    assert "refused" in net.codes()
    net.run(5)
    assert refusing
    for dpid in refusing:
        has = net.switches[dpid].rules
        assert net.controller.compiler.target[dpid].items() <= has.items()
        assert any(rules.groups_of(rule) for rule in has.values())
    # Those that had nothing to refuse are audited in time.
    net.run(40)
    assert net.controller.failover == net.switches.keys()
    everybody_reaches_everybody(net)


def _noting(
    refusing: set[int],
    dpid: int,
    handle: Callable[[float, ToSwitch], Iterator[Outcome]],
    now: float,
    message: ToSwitch,
) -> Iterator[Outcome]:
    for outcome in handle(now, message):
        if isinstance(outcome, Refused):
            refusing.add(dpid)
        yield outcome


def test_a_switch_that_refuses_a_rule_in_spite_of_its_groups_does_without() -> None:
    net = ready(RING)
    one = net.switches[1]
    key, rule = next((key, rule) for key, rule in one.rules.items() if rules.groups_of(rule))
    handle = one.handle

    def refusing(now: float, message: ToSwitch) -> Iterator[Outcome]:
        if isinstance(message, AddRule) and rules.groups_of(message.rule):
            return iter([Refused("group-unknown", message.rule)])
        return handle(now, message)

    one.handle = refusing  # type: ignore[method-assign]
    assert not list(handle(net.now, DeleteGroup(rules.groups_of(rule)[0])))
    assert key not in one.rules
    net.run(40)
    assert 1 not in net.controller.failover
    assert not any(rules.groups_of(each) for each in one.rules.values())
    everybody_reaches_everybody(net)


def test_a_switch_that_refuses_rules_for_marked_packets_has_no_detour() -> None:
    """It would lead them by the tree, and so perhaps round."""
    net = Network(RING)
    net.switches[3].refuses = lambda rule: rule.match.vlan_pcp is not None
    settle(net)
    assert net.controller.failover == {1, 2, 4}
    assert "refused" in net.codes()
    for tree in net.controller.plan.trees.values():
        assert tree.detour is None or 3 not in tree.detour.onward
    assert not any(rules.is_marked(key) for key in net.controller.compiler.target[3])
    everybody_reaches_everybody(net)


def test_a_switch_without_groups_that_refuses_rules_for_marked_packets_is_told_of_none() -> None:
    """All others drop marked packets that they have no rule for."""
    net = Network(RING)
    net.switches[3].most_groups = 0
    net.switches[3].refuses = lambda rule: rule.match.vlan_pcp is not None
    settle(net)
    for dpid, target in net.controller.compiler.target.items():
        assert (rules.no_detour().key in target) == (dpid != 3)
    everybody_reaches_everybody(net)


def test_a_switch_without_groups_has_no_failover_although_it_needs_none() -> None:
    shape = Shape(("A", "B"), (Wire("A", "B"),), (Station("ha", "A"),))
    net = Network(shape)
    net.switches[2].most_groups = 0
    settle(net)
    assert net.controller.failover == {1}


def test_groups_that_were_listed_for_another_audit_do_not_count() -> None:
    net = ready(RING)
    had = {dpid: set(groups) for dpid, groups in net.controller.updater.groups.items()}
    assert any(had.values())
    for dpid, switch in net.switches.items():
        # As of an audit that came to nothing, and was followed by one whose list of groups cannot be read.
        net.controller.handle(net.now, dpid, GroupsReply({}))
        switch.handle = functools.partial(_without_list, switch.handle)  # type: ignore[method-assign]
    net.run(40)
    assert "malformed" in net.codes()
    assert net.controller.updater.groups == had


def _without_list(
    handle: Callable[[float, ToSwitch], Iterator[Outcome]], now: float, message: ToSwitch
) -> Iterator[Outcome]:
    return iter([Malformed("a list of groups")]) if isinstance(message, GroupsRequest) else handle(now, message)


def test_equipment_that_marks_packets_stops_no_flood_and_no_path() -> None:
    """Priority 2 is that of packets on a detour."""
    net = ready(two_paths())
    leave = net._leave
    marked = []

    def marking(source: PortId, data: bytes) -> None:
        if data[12:14] == b"\x81\x00" and net.peer.get(source) is not None:
            data = data[:14] + bytes([data[14] & 0x1F | 2 << 5]) + data[15:]
            marked.append(data)
        leave(source, data)

    net._leave = marking  # type: ignore[method-assign]
    flooded = frame(mac(1), "ff:ff:ff:ff:ff:ff", b"to all")
    net.send("ha", flooded)
    used = tags(net, "ha", "hb")
    assert len(used) == 2
    for tag in used:
        net.send("ha", tagged(frame(mac(1), mac(2)), tag))
    net.run(1)
    assert net.received["hb"].count(flooded) == 1
    arrived = [int.from_bytes(each[14:16], "big") for each in net.received["hb"] if each[12:14] == b"\x81\x00"]
    assert sorted(arrived) == sorted(2 << 13 | tag for tag in used)
    assert marked


def test_groups_that_somebody_deleted_or_changed_are_put_right_and_others_left_alone() -> None:
    net = ready(RING)
    one = net.switches[1]
    whole = dict(one.groups)
    assert whole
    number = next(iter(whole))
    spare = rules.detour_group(77, 78, turning=False)
    assert spare is not None
    one.groups[number] = ()
    one.groups[spare] = rules.buckets_of(spare)
    one.groups[7] = ()
    net.run(40)
    assert one.groups == {**whole, 7: ()}
    everybody_reaches_everybody(net)
    # With a group, a switch deletes the rules that lead there.
    assert not list(one.handle(net.now, DeleteGroup(number)))
    net.run(40)
    assert one.groups == {**whole, 7: ()}
    everybody_reaches_everybody(net)
    assert "second-controller" not in net.codes()


def test_a_new_controller_keeps_the_groups_that_it_finds() -> None:
    net = ready(RING)
    had = {dpid: dict(switch.groups) for dpid, switch in net.switches.items()}
    sent: list[ToSwitch] = []
    for switch in net.switches.values():
        heard = functools.partial(_heard, sent, switch.handle)
        switch.handle = heard  # type: ignore[method-assign]
    net.restart_controller()
    net.run(30)
    assert {dpid: dict(switch.groups) for dpid, switch in net.switches.items()} == had
    assert not [each for each in sent if isinstance(each, (SetFailoverGroup, DeleteGroup))]
    everybody_reaches_everybody(net)


def _heard(
    sent: list[ToSwitch], handle: Callable[[float, ToSwitch], Iterator[Outcome]], now: float, message: ToSwitch
) -> Iterator[Outcome]:
    sent.append(message)
    return handle(now, message)


def test_groups_are_few_and_go_with_the_last_rule_that_leads_to_them() -> None:
    net = ready(fat_tree(4, hosts=16))
    for switch in net.switches.values():
        ports = len(switch.ports)
        assert len(switch.groups) <= 2 * ports * (ports - 1)
    net.unplug("e0.0", "a0.0")
    net.run(20)
    for switch in net.switches.values():
        used = {number for rule in switch.rules.values() for number in rules.groups_of(rule)}
        assert switch.groups.keys() == used
    everybody_reaches_everybody(net)


@pytest.mark.parametrize("seed", range(6))
def test_packets_go_on_while_cables_are_pulled_one_after_another_under_control(seed: int) -> None:
    """Detours are made anew in time, and hosts reach one another after each change."""
    chance = random.Random(seed)
    shape = generated(8, seed=seed, more=2.0)
    stations = tuple(Station(f"h{number}", name) for number, name in enumerate(shape.switches[:4], 1))
    net = ready(Shape(shape.switches, shape.wires, stations))
    for _ in range(3):
        wire = chance.choice(shape.wires)
        net.unplug(wire.one, wire.other)
        net.run(chance.choice((0.005, 0.5, 15)))
        net.unplug(wire.one, wire.other, up=True)
        net.run(20)
        everybody_reaches_everybody(net)
    assert any(key[0] == PATHS and rules.is_marked(key) for key in net.switches[1].rules)
