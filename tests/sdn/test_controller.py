"""The whole controller in virtual time: discovery, paths and hosts."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid_lab.fabric.shapes import Shape, east_asia, fat_tree, generated, two_paths
from braid_sdn.fabric.api import report
from braid_sdn.fabric.monitor.probe import tagged
from braid_sdn.fabric.view.topology import LinkDirection, Topology

from .virtual import Network, arp, everybody_reaches_everybody, frame, mac, ready, tags


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


def test_packets_with_a_tag_take_its_path_to_the_far_edge_tag_and_all() -> None:
    net = ready(two_paths())
    data = frame(mac(1), mac(2))
    for tag in tags(net, "ha", "hb"):
        net.send("ha", tagged(data, tag))
    net.run(1)
    assert sorted(net.received["hb"]) == sorted(tagged(data, tag) for tag in tags(net, "ha", "hb"))


def test_nobody_but_an_edge_may_use_tags() -> None:
    """Packets that a host tags itself are dropped, whatever tag it guesses."""
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

    def counted(topology: Topology) -> Sequence[LinkDirection]:
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


def test_an_unknown_address_is_asked_for_everywhere_and_the_answer_finds_its_way() -> None:
    net = Network(two_paths())
    net.connect()
    net.run(4)
    question = arp(mac(1), "10.0.0.1", "10.0.0.2")
    net.send("ha", question)
    net.run_until(lambda: question in net.received["hb"], within=1)
    net.send("hb", arp(mac(2), "10.0.0.2", "10.0.0.1", reply_to=mac(1)))
    net.run_until(lambda: len(net.received["ha"]) > 0, within=0.2)
    assert net.controller.hosts.by_address("10.0.0.2") is not None


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
