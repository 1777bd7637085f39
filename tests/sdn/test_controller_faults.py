"""The whole controller in virtual time: everything that can be plugged in, or said, wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from braid_lab.fabric.pipeline import Pipeline
from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric.api import report
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import Kind, Probe, seal
from braid_sdn.fabric.settings import EdgeSettings, LinkSettings
from braid_sdn.fabric.switches import rules
from braid_sdn.openflow.messages import (
    AddRule,
    FlowStatsReply,
    Match,
    Output,
    PacketIn,
    PortStatus,
    Rule,
)

from .virtual import KEY, Network, everybody_reaches_everybody, frame, mac, ready, tags


def test_forged_and_replayed_discovery_is_refused_and_named() -> None:
    net = ready(two_paths())
    links = len(net.controller.topology.links())
    net.send("ha", seal(Probe(Kind.LINK, PortId(2, 1), 0, 1, round(net.now * 1e9)), b"a key that somebody made up"))
    true = seal(Probe(Kind.LINK, PortId(2, 1), 0, 1, round((net.now - 6) * 1e9)), KEY)
    net.send("ha", true)
    net.run(1)
    assert net.codes() == {"forged-probe"}
    assert len(net.controller.topology.links()) == links
    assert net.controller.problems.count("forged-probe") == 2


def test_a_cable_between_two_ports_of_a_switch_is_named_and_not_used() -> None:
    net = Network(two_paths())
    one, other = net._add_port("A", "x1"), net._add_port("A", "x2")
    net.wire(one, other)
    net.connect()
    net.run(6)
    assert net.codes() == {"loop"}
    for each in net.received.values():
        each.clear()
    net.send("ha", frame(mac(1), "ff:ff:ff:ff:ff:ff", b"once"))
    net.run(1)
    assert len([each for each in net.received["hb"] if b"once" in each]) == 1


def test_a_wire_that_works_one_way_is_named_and_not_used() -> None:
    net = Network(two_paths())
    net.silent.add(net.port_of("A", "P"))
    net.connect()
    net.run(10)
    assert net.codes() == {"one-way-link", "link-unknown"}
    (one_way,) = (each for each in report.problems(net.controller, net.now) if each.code == "one-way-link")
    # The direction that works.
    assert one_way.subject.startswith("P:")
    assert len(net.controller.topology.links()) == 6
    assert len(tags(net, "ha", "hb")) == 1


def test_an_edge_that_is_a_switch_is_named_and_left_out() -> None:
    shape = two_paths()
    net = Network(shape)
    edge = EdgeSettings("ha", "A", "A-P", probe=False)
    net.controller.settings = replace(net.settings, edges=(edge, *net.settings.edges[1:]))
    net.connect()
    net.run(5)
    assert net.codes() == {"miscabled-edge"}
    assert not net.controller.tables.pairs


def test_an_edge_that_is_nowhere_is_named() -> None:
    net = ready(two_paths(), edges=(EdgeSettings("ha", "A", "ha"), EdgeSettings("hc", "C", "hc")))
    assert "edge-unknown" in net.codes()


def test_an_edge_that_answers_no_probes_is_named_and_its_hosts_stay_on_single_paths() -> None:
    edges = (EdgeSettings("ha", "A", "ha", probe=False), EdgeSettings("hb", "B", "hb", probe=True))
    net = ready(two_paths(), edges=edges)
    net.run(5)
    assert net.codes() == {"edge-silent", "pair-unserved"}
    assert not net.controller.tables.pairs
    everybody_reaches_everybody(net)
    # From here on it sends them back.
    net.reflect.add("hb")
    net.run(6)
    assert net.codes() == set()
    assert set(net.controller.tables.pairs) == {("ha", "hb"), ("hb", "ha")}


def test_a_full_table_is_named_and_paths_lead_around_it() -> None:
    net = Network(two_paths())
    net.switches[3].room = 9
    net.connect()
    net.run(8)
    assert "table-full" in net.codes()
    assert len(net.switches[3].rules) <= 9
    ways = [path.switches for path in net.controller.tables.pairs["ha", "hb"].selection.paths]
    assert ways == [(1, 4, 2)]


def test_rubbish_from_a_switch_harms_nobody() -> None:
    net = ready(two_paths())
    for data in (b"", b"\x00", bytes(13), bytes(60), b"\xff" * 60, frame(mac(9), mac(1))[:14]):
        net.controller.handle(net.now, 1, PacketIn(99, data))
    net.controller.handle(net.now, 77, PacketIn(1, bytes(60)))
    net.run(1)
    everybody_reaches_everybody(net)


def fail_open(net: Network, *names: str) -> None:
    """Have switches lose their controller, and flood everything by themselves, as with fail_mode=standalone."""
    net.disconnect(*names)
    for name in names:
        switch = net.switches[net.shape.dpid(name)]
        switch.restart()
        flood = tuple(Output(number) for number in switch.ports)
        assert not list(switch.handle(net.now, AddRule(Rule(0, 0, Match(), flood))))


@pytest.mark.usefixtures("rare_probes")
def test_a_switch_that_floods_by_itself_is_named_and_makes_no_copies() -> None:
    net = ready(two_paths())
    fail_open(net, "P")
    everyone = frame(mac(1), "ff:ff:ff:ff:ff:ff", b"once")
    # Before anybody notices, and after.
    for _ in range(10):
        net.received["hb"].clear()
        net.send("ha", everyone)
        net.run(0.5)
        assert net.received["hb"].count(everyone) == 1
    assert "fail-open" in net.codes()
    assert not {"shared-segment", "one-way-link"} & net.codes()
    everybody_reaches_everybody(net)
    net.switches[3].restart()
    net.connect("P")
    net.run(70)
    assert not net.codes()


@pytest.mark.usefixtures("rare_probes")
def test_switches_that_lost_their_rules_without_a_restart_are_named() -> None:
    net = ready(two_paths())
    for fail_open_there in (True, False):
        net.disconnect()
        for switch in net.switches.values():
            started = switch.started
            switch.restart()
            switch.started = started if fail_open_there else None
        net.run(20)
        net.connect()
        net.run(5)
        assert ("fail-open" in net.codes()) is fail_open_there
        net.run(70)
    net.disconnect()
    net.run(5)
    net.connect()
    net.run(5)
    assert not net.codes()


def test_a_rule_of_others_that_we_cannot_read_is_named_while_it_is_there() -> None:
    net = ready(two_paths())
    known = tuple(net.switches[1].handle(net.now, net.controller.audit.ask(net.now, 1, 0)))
    (listed,) = [each for each in known if isinstance(each, FlowStatsReply)]
    text = "table=0,priority=300,eth_type=0x800,ipv4_dst=10.0.0.2"
    net.controller.handle(net.now, 1, FlowStatsReply(listed.rules, None, (text,)))
    assert "foreign-rule" in net.codes()
    net.run(40)
    assert not net.codes()


@pytest.mark.usefixtures("rare_probes")
def test_rules_of_another_programme_are_removed_and_named() -> None:
    net = ready(two_paths())
    strange = Rule(0, 300, Match(eth_type=0x0800), (Output(1),))
    net.run(35)
    assert not net.codes()
    assert not list(net.switches[1].handle(net.now, AddRule(strange)))
    net.run(35)
    assert strange.key not in net.switches[1].rules
    assert "foreign-rule" in net.codes()


@pytest.mark.usefixtures("rare_probes")
def test_a_second_controller_is_named_and_its_frames_are_not_called_forged() -> None:
    net = ready(two_paths())
    net.run(5)
    theirs = rules.marker(77)
    assert theirs.key != rules.marker(net.controller.nonce).key
    for _ in range(8):
        assert not list(net.switches[1].handle(net.now, AddRule(theirs)))
        there = net.port_of("A", "P")
        forged = seal(Probe(Kind.LINK, PortId(1, 1), 0, 1, round(net.now * 1e9)), b"the key of another controller")
        net.controller.handle(net.now, 1, PacketIn(there.port, forged))
        net.run(5)
    assert net.codes() == {"second-controller"}
    # It has gone.
    net.run(100)
    assert not net.codes()


def test_a_predecessor_that_was_killed_is_no_second_controller() -> None:
    net = ready(two_paths())
    net.restart_controller()
    net.controller.nonce = 5
    net.run(40)
    assert not net.codes()


def test_a_link_that_falls_silent_although_its_ports_are_up_is_named() -> None:
    """As a port that a switch's own spanning tree blocks."""
    net = ready(two_paths())
    net.silence("A", "P")
    net.run(6)
    assert {"silent-link", "link-unknown"} == net.codes()
    net.silence("A", "P", on=False)
    net.run(6)
    assert not net.codes()


def test_a_configured_link_that_is_nowhere_is_named() -> None:
    shape = two_paths()
    net = ready(shape, links=(LinkSettings(("A", "B"), 1e6), LinkSettings(("A", "P"), 1e6)))
    assert net.codes() == {"link-unknown"}


@pytest.mark.usefixtures("rare_probes")
def test_a_host_that_moved_is_reached_although_a_switch_refuses_to_change_its_rule() -> None:
    """The old rule goes at once; without one the host's packets are flooded, and the switch is named."""
    net = ready(two_paths(), host_lifetime=1e6)
    there = net.switches[net.shape.dpid("A")]
    key = (rules.DESTINATIONS, 30, Match(eth_dst=mac(2)))
    assert key in there.rules
    there.refuses = lambda rule: rule.key == key
    asked = count_of(net, there, lambda rule: rule.key == key)
    place = net.stations["x"] = net._add_port("P", "x")
    net.received["x"] = []
    net.controller.handle(net.now, place.switch, PortStatus(net.switches[place.switch].ports[place.port]))
    net.run(2)
    for text in (b"moved", b"and stays"):
        net.send("x", frame(mac(2), "ff:ff:ff:ff:ff:ff", text))
        net.run(0.2)
    assert key not in there.rules
    data = frame(mac(1), mac(2), b"found")
    net.send("ha", data)
    net.run(0.2)
    assert net.received["x"].count(data) == 1
    assert "refused" in net.codes()
    net.run(600)
    assert "refused" in net.codes()
    # At once, once more, and after 30, 90, 210 and 450 s.
    assert asked() <= 7
    there.refuses = lambda _: False
    net.run_until(lambda: key in there.rules, within=1800)
    net.run(1)
    assert "refused" not in net.codes()


def count_of(net: Network, switch: Pipeline, is_counted: Callable[[Rule], bool]) -> Callable[[], int]:
    """Count the rules that a switch is told from now on."""
    seen = 0
    whole = net._deliver

    def deliver(dpid: int, message: object) -> None:
        nonlocal seen
        seen += dpid == switch.dpid and isinstance(message, AddRule) and is_counted(message.rule)
        whole(dpid, message)

    net._deliver = deliver  # type: ignore[method-assign]
    return lambda: seen


@pytest.mark.usefixtures("rare_probes")
def test_paths_are_not_led_again_and_again_through_a_switch_that_takes_none() -> None:
    net = Network(two_paths())
    net.switches[3].refuses = lambda rule: rule.table == rules.PATHS and rule.match.vlan in path_tags(net)
    net.connect()
    net.run(8)
    told = count_of(net, net.switches[3], net.switches[3].refuses)
    net.run(1200)
    # Tried after 1, 3, 7 and 15 minutes: one rule for each direction.
    assert told() == 2 * 4
    assert [path.switches for path in net.controller.tables.pairs["ha", "hb"].selection.paths] == [(1, 4, 2)]


def path_tags(net: Network) -> set[int]:
    paths = [path for pair in net.controller.plan.pairs.values() for path in pair.paths]
    return {path.tag for path in paths if any(step.switch == 3 for step in path.steps)}
