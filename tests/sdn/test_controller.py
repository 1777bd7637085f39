"""The whole controller in virtual time: discovery, hosts, changes without loss, and everything that can go wrong."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid_lab.fabric.shapes import Shape, east_asia, fat_tree, generated, two_paths
from braid_sdn.fabric import report
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.probe import Kind, Probe, seal, tagged
from braid_sdn.fabric.rules import PATHS
from braid_sdn.fabric.settings import EdgeSettings
from braid_sdn.fabric.topology import Hearing, Topology
from braid_sdn.openflow.messages import AddRule, DeleteRule, Match, PacketIn, PortStatus, Rule

from .virtual import KEY, Network, arp, frame, mac, port


def ready(shape: Shape, **more: object) -> Network:
    """A network whose controller has found everything, and whose stations have spoken once."""
    net = Network(shape, **more)
    net.connect()
    net.run(3)
    for number, name in enumerate(net.stations, 1):
        net.send(name, frame(mac(number), "ff:ff:ff:ff:ff:ff", b"here I am"))
    net.run(2)
    for each in net.received.values():
        each.clear()
    return net


def everybody_reaches_everybody(net: Network) -> None:
    """Each station sends a frame to each other one; each arrives once, at its station alone."""
    names = list(net.stations)
    for each in net.received.values():
        each.clear()
    sent = {}
    for a, source in enumerate(names, 1):
        for b, target in enumerate(names, 1):
            if a != b:
                sent[target, source] = frame(mac(a), mac(b))
                net.send(source, sent[target, source])
    net.run(1)
    for name in names:
        got = [each for each in net.received[name] if each[12:14] == b"\x08\x00"]
        assert sorted(got) == sorted(data for (target, _), data in sent.items() if target == name)


@pytest.mark.parametrize(
    "shape", [two_paths(), east_asia(), fat_tree(4), generated(30, hosts=8)], ids=["two", "asia", "fat", "random"]
)
def test_links_and_hosts_are_found_and_hosts_reach_one_another(shape: Shape) -> None:
    net = ready(shape)
    assert len(net.controller.topology.links()) == 2 * len(shape.wires)
    assert len(net.controller.hosts.known) == len(shape.stations)
    everybody_reaches_everybody(net)
    assert report.problems(net.controller, net.now) == []


@given(st.integers(2, 14), st.integers(0, 1000), st.floats(0, 1.5))
@settings(max_examples=15)
def test_any_network_is_found_and_serves_its_hosts(switches: int, seed: int, more: float) -> None:
    net = ready(generated(switches, seed=seed, more=more, hosts=min(4, switches)))
    assert len(net.controller.topology.links()) == 2 * len(net.shape.wires)
    everybody_reaches_everybody(net)


def test_broadcasts_reach_every_host_once() -> None:
    net = ready(fat_tree(4))
    everyone = frame(mac(1), "ff:ff:ff:ff:ff:ff", b"all")
    net.send("h0.0", everyone)
    net.run(1)
    assert {name: got.count(everyone) for name, got in net.received.items()} == {
        name: int(name != "h0.0") for name in net.stations
    }


def test_latencies_are_what_the_wires_take() -> None:
    """[mpsdn] §III-A: a probe's time, less half of the echoes of both ends."""
    net = ready(two_paths(delay_ms=25, other_ms=60))
    measured = {round(1000 * arc.latency, 3) for arc in net.controller.graph.arcs}
    assert measured == {12.5, 30.0}


def tags(net: Network, source: str, target: str) -> list[int]:
    return [path.tag for path in net.controller.tables.pairs[source, target].paths]


def test_packets_with_a_tag_take_its_path_to_the_far_edge_tag_and_all() -> None:
    net = ready(two_paths())
    data = frame(mac(1), mac(2))
    for tag in tags(net, "ha", "hb"):
        net.send("ha", tagged(data, tag))
    net.run(1)
    assert sorted(net.received["hb"]) == sorted(tagged(data, tag) for tag in tags(net, "ha", "hb"))


def test_nobody_but_an_edge_may_use_tags() -> None:
    """What a host tags by itself goes nowhere, whatever tag it guesses."""
    net = ready(fat_tree(4))
    for tag in range(1, 64):
        net.send("h0.0", tagged(frame(mac(1), mac(3)), tag))
    net.run(1)
    assert not any(net.received.values())


def test_rules_grow_with_paths_and_hosts_not_with_flows() -> None:
    net = ready(two_paths())
    before = {dpid: len(switch.rules) for dpid, switch in net.switches.items()}
    for number in range(200):
        net.send("ha", frame(mac(1), mac(2), struct.pack("!H", number)))
    net.run(1)
    assert {dpid: len(switch.rules) for dpid, switch in net.switches.items()} == before


def test_a_plan_looks_at_the_links_a_few_times_however_many_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each was a standstill of half a minute among 500 switches."""
    looks: list[int] = []
    look = Topology.links

    def counted(topology: Topology) -> list[Hearing]:
        looks.append(1)
        return look(topology)

    monkeypatch.setattr(Topology, "links", counted)
    net = Network(generated(30, hosts=2))
    net.connect()
    net.run(5)
    before, plans = len(looks), len(net.controller.planning)
    net.unplug(net.shape.wires[0].one, net.shape.wires[0].other)
    net.run(1)
    made = len(net.controller.planning) - plans
    assert made
    assert len(looks) - before <= 4 * made


# Changes.


def stream(net: Network, seconds: float) -> tuple[list[bytes], list[bytes]]:
    """Send a frame from ha to hb every 2 ms by the plain way, and over each path by the table in force."""
    sent = []
    for number in range(round(seconds / 0.002)):
        data = frame(mac(1), mac(2), struct.pack("!I", number))
        net.send("ha", data)
        sent.append(data)
        slots = net.controller.tables.pairs["ha", "hb"].slots
        over = tagged(data, slots[number % len(slots)])
        net.send("ha", over)
        sent.append(over)
        net.run(0.002)
    net.run(1)
    return sent, net.received["hb"]


def test_a_change_for_the_better_loses_and_doubles_nothing() -> None:
    """Make before break: another pair of paths comes in while packets flow."""
    net = ready(two_paths())
    before = tags(net, "ha", "hb")
    # A line that became slower: the tree and the shares move.
    for end in (net.port_of("A", "P"), net.port_of("P", "A")):
        net.controller.traffic.configured[end] = 2e6
        net.delay[end] = 0.05
    net.controller.settings = replace(net.controller.settings, links=())
    first, _ = stream(net, 1.0)
    net.run(40)
    sent, got = stream(net, 3.0)
    assert sorted(got) == sorted([*first, *sent])
    assert net.controller.changer.changes > 1
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
    before = net.controller.changer.changes
    for _ in range(50):
        net.unplug("A", "P")
        net.run(0.05)
        net.unplug("A", "P", up=True)
        net.run(0.05)
    net.run(6)
    # Each loss is followed at once; what comes back is waited for until it stays.
    assert net.controller.changer.changes - before < 20
    everybody_reaches_everybody(net)


# Restarts.


def test_a_controller_that_starts_anew_takes_over_without_a_lost_packet() -> None:
    net = ready(
        two_paths(),
    )
    rules = {dpid: dict(switch.rules) for dpid, switch in net.switches.items()}
    before = net.controller.tables.pairs
    net.restart_controller()
    sent = []
    for number in range(2500):
        sent.append(frame(mac(1), mac(2), struct.pack("!I", number)))
        net.send("ha", sent[-1])
        net.run(0.002)
    net.run(1)
    assert [each for each in net.received["hb"] if each[12:14] == b"\x08\x00"] == sent
    assert net.controller.tables.pairs.keys() == before.keys()
    # Hosts are known again although they said nothing: their rules told of them.
    assert set(net.controller.hosts.known) == {mac(1), mac(2)}
    assert all(len(switch.rules) <= len(rules[dpid]) + 3 for dpid, switch in net.switches.items())


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


# Hosts.


def test_arp_is_answered_for_hosts_that_are_known() -> None:
    net = ready(two_paths())
    net.send("hb", arp(mac(2), "10.0.0.2", "10.0.0.9"))
    net.run(0.5)
    net.received["ha"].clear()
    net.received["hb"].clear()
    net.send("ha", arp(mac(1), "10.0.0.1", "10.0.0.2"))
    net.run(0.5)
    # Nobody was bothered by the question.
    assert net.received["hb"] == []
    (answer,) = net.received["ha"]
    assert answer[:12] == bytes.fromhex("020000000001020000000002")
    assert answer[20:32] == b"\x00\x02" + bytes.fromhex("020000000002") + bytes([10, 0, 0, 2])


def test_an_unknown_address_is_asked_for_everywhere_and_the_answer_finds_its_way() -> None:
    net = Network(two_paths())
    net.connect()
    net.run(4)
    question = arp(mac(1), "10.0.0.1", "10.0.0.2")
    net.send("ha", question)
    net.run_until(lambda: question in net.received["hb"], within=1)
    net.send("hb", arp(mac(2), "10.0.0.2", "10.0.0.1", reply_to=mac(1)))
    net.run_until(lambda: len(net.received["ha"]) > 0, within=0.2)
    assert net.controller.hosts.having("10.0.0.2") is not None


def test_a_host_that_moves_is_followed() -> None:
    net = ready(fat_tree(4))
    everyone = frame(mac(1), "ff:ff:ff:ff:ff:ff")
    net.stations["h0.0"], net.stations["h9"] = net.stations["h3.1"], net.stations["h0.0"]
    del net.stations["h3.1"]
    net.received["h9"] = []
    net.send("h0.0", everyone)
    net.run(1)
    net.send("h1.0", frame(mac(3), mac(1)))
    net.run(1)
    assert frame(mac(3), mac(1)) in net.received["h0.0"]


def test_a_flood_of_made_up_senders_is_bounded_and_named() -> None:
    net = ready(two_paths())
    for number in range(1000, 1400):
        net.send("ha", frame(mac(number), mac(2)))
        net.run(0.001)
    net.run(1)
    assert "crowded-port" in net.codes()
    assert len(net.controller.hosts.known) <= 260


# Bad input.


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
    assert net.codes() == {"one-way-link"}
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
