"""Hosts that go, change, lie and storm: nothing is lost without a word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric.api import report
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.settings import HostSettings
from braid_sdn.fabric.switches import rules
from braid_sdn.fabric.switches.rules import SOURCES
from braid_sdn.openflow.messages import PortStatus

from .virtual import Network, arp, everybody_reaches_everybody, frame, mac, ready, solicitation

EVERYBODY = "ff:ff:ff:ff:ff:ff"


def with_bystanders(**settings: object) -> Network:
    """Two edges, ha at A and hb at B, and a host at each of their switches that is no edge: x and y."""
    net = Network(two_paths(), **settings)
    for name, switch in (("x", "A"), ("y", "B")):
        net.stations[name] = net._add_port(switch, name)
        net.received[name] = []
    net.connect()
    net.run(3)
    for number, name in enumerate(net.stations, 1):
        net.send(name, frame(mac(number), EVERYBODY, b"here I am"))
    net.run(6)
    for each in net.received.values():
        each.clear()
    return net


def got(net: Network, station: str, data: bytes) -> int:
    return net.received[station].count(data)


def announce(net: Network) -> None:
    """Stations x and y tell their addresses."""
    net.send("x", arp(mac(3), "10.0.0.3", "10.0.0.9"))
    net.send("y", arp(mac(4), "10.0.0.4", "10.0.0.9"))
    net.run(1)
    for each in net.received.values():
        each.clear()


# Requests go to the host itself.


@pytest.mark.usefixtures("rare_probes")
def test_a_request_for_a_known_host_goes_to_it_alone() -> None:
    net = with_bystanders()
    announce(net)
    question = arp(mac(3), "10.0.0.3", "10.0.0.4")
    net.send("x", question)
    net.run(0.3)
    assert [got(net, name, question) for name in ("ha", "hb", "x", "y")] == [0, 0, 0, 1]
    # Nobody else speaks for it.
    assert net.received["x"] == []


@pytest.mark.usefixtures("rare_probes")
def test_a_host_that_changed_its_mac_is_found_at_once() -> None:
    net = with_bystanders()
    announce(net)
    question = arp(mac(3), "10.0.0.3", "10.0.0.4")
    net.send("x", question)
    net.run(0.1)
    assert got(net, "y", question) == 1
    answer = arp(mac(40), "10.0.0.4", "10.0.0.3", reply_to=mac(3))
    net.send("y", answer)
    net.run(0.1)
    assert net.received["x"] == [answer]
    ping = frame(mac(3), mac(40))
    net.send("x", ping)
    net.run(0.1)
    assert got(net, "y", ping) == 1
    assert net.controller.hosts.by_address("10.0.0.4").mac == mac(40)  # type: ignore[union-attr]


@pytest.mark.usefixtures("rare_probes")
def test_a_host_that_moved_without_a_word_is_found_by_the_second_request() -> None:
    net = with_bystanders()
    announce(net)
    # y's station is plugged in at A now; the port it left stays up.
    net.stations["z"], net.received["z"] = net._add_port("A", "z"), []
    net.controller.handle(net.now, 1, PortStatus(net.switches[1].ports[net.stations["z"].port]))
    net.run(2)
    question = arp(mac(3), "10.0.0.3", "10.0.0.4")
    net.send("x", question)
    net.run(1)
    assert got(net, "z", question) == 0
    net.send("x", question)
    net.run(0.3)
    assert got(net, "z", question) == 1
    net.send("z", arp(mac(4), "10.0.0.4", "10.0.0.3", reply_to=mac(3)))
    net.run(0.3)
    assert net.controller.hosts.known[mac(4)].port == net.stations["z"]


@pytest.mark.usefixtures("rare_probes")
@pytest.mark.parametrize(
    "told",
    [
        arp(mac(4), "10.0.0.4", "10.0.0.4"),
        arp(mac(4), "10.0.0.4", "10.0.0.4", reply_to=EVERYBODY),
        # The sender of the frame is not the one that it tells of, as with VRRP.
        frame(mac(4), EVERYBODY)[:6]
        + arp(mac(77), "10.0.0.7", "10.0.0.7")[6:12]
        + arp(mac(4), "10.0.0.4", "1.1.1.1")[12:],
        frame(mac(4), EVERYBODY)[:12] + b"\x08\x06 is none that anybody understands".ljust(48, b"\0"),
        solicitation(mac(4), "::", "fd77::4"),
    ],
    ids=["gratuitous request", "gratuitous reply", "of another", "unknown", "duplicate address detection"],
)
def test_what_is_no_request_for_a_known_host_reaches_everybody_once(told: bytes) -> None:
    net = with_bystanders()
    announce(net)
    net.send("y", told)
    net.run(1)
    assert {name: got(net, name, told) for name in net.stations} == {"ha": 1, "hb": 1, "x": 1, "y": 0}


def test_gratuitous_arp_sent_as_a_reply_is_learned() -> None:
    net = with_bystanders()
    net.send("y", arp(mac(4), "10.0.0.4", "10.0.0.4", reply_to=EVERYBODY))
    net.run(0.1)
    assert net.controller.hosts.by_address("10.0.0.4").mac == mac(4)  # type: ignore[union-attr]


def test_a_host_whose_edge_tags_its_answer_is_learned() -> None:
    from braid_sdn.fabric.monitor.probe import tagged

    net = Network(two_paths())
    net.connect()
    net.run(4)
    net.send("ha", frame(mac(1), EVERYBODY))
    net.run(1)
    net.answers["hb"] = {"10.0.0.2": mac(2)}
    question = arp(mac(1), "10.0.0.1", "10.0.0.2")
    net.send("ha", question)
    net.run_until(lambda: question in net.received["hb"], within=1)
    # The edge knows ha, so the answer to it goes over a path.
    answer = arp(mac(2), "10.0.0.2", "10.0.0.1", reply_to=mac(1))
    net.send("hb", tagged(answer, net.controller.tables.pairs["hb", "ha"].slots[0]))
    net.run(1)
    assert net.controller.hosts.by_address("10.0.0.2").mac == mac(2)  # type: ignore[union-attr]


# Ageing.


@pytest.mark.usefixtures("rare_probes")
def test_a_quiet_host_is_asked_before_it_is_forgotten_and_stays_if_it_answers() -> None:
    net = with_bystanders(host_lifetime=20.0)
    announce(net)
    net.answers["y"] = {"10.0.0.4": mac(4)}
    net.run(60)
    assert mac(4) in net.controller.hosts.known
    # One that speaks IPv6 alone, too.
    net.send("x", solicitation(mac(3), "fd77::3", "fd77::4"))
    net.run(0.5)
    net.answers["x"] = {"fd77::3": mac(3)}
    for each in net.received.values():
        each.clear()
    net.run(60)
    assert {mac(3), mac(4)} <= set(net.controller.hosts.known)
    # Nobody heard any of it.
    assert not net.received["ha"]
    assert not net.received["hb"]


@pytest.mark.usefixtures("rare_probes")
def test_a_host_that_is_gone_is_forgotten_and_its_rules_with_it() -> None:
    net = with_bystanders(host_lifetime=20.0)
    announce(net)
    assert any(key[2].eth_src == mac(4) for key in net.switches[2].rules)
    net.run(25)
    assert not net.controller.hosts.known
    for switch in net.switches.values():
        assert not any(mac(4) in (key[2].eth_src, key[2].eth_dst) for key in switch.rules)
    # Edges' hosts went as well; whoever speaks again is reached.
    for number, name in enumerate(net.stations, 1):
        net.send(name, frame(mac(number), EVERYBODY))
    net.run(1)
    everybody_reaches_everybody(net)


@pytest.mark.usefixtures("rare_probes")
def test_a_host_that_sends_is_not_forgotten_although_it_has_no_address() -> None:
    net = with_bystanders(host_lifetime=20.0)
    for _ in range(20):
        net.send("x", frame(mac(3), mac(4)))
        net.run(5)
    assert mac(3) in net.controller.hosts.known
    assert mac(4) not in net.controller.hosts.known


@pytest.mark.usefixtures("rare_probes")
def test_hosts_behind_an_edge_whose_packets_are_tagged_are_not_forgotten() -> None:
    from braid_sdn.fabric.monitor.probe import tagged

    net = with_bystanders(host_lifetime=20.0)
    for _ in range(20):
        tag = net.controller.tables.pairs["ha", "hb"].slots[0]
        net.send("ha", tagged(frame(mac(1), mac(2)), tag))
        net.run(2)
    assert mac(1) in net.controller.hosts.known


@pytest.mark.parametrize("used", [True, False])
def test_probes_of_edges_are_no_sign_of_life_of_their_hosts(used: bool) -> None:
    from braid_sdn.fabric.monitor.probe import tagged

    net = with_bystanders(host_lifetime=20.0)
    for turn in range(20):
        pair = net.controller.tables.pairs["ha", "hb"]
        tags = [path.tag for path in pair.paths]
        # Switches count them as any packet under the tag.
        net.send("ha", tagged(frame(mac(1), mac(2)), pair.slots[0]))
        net.controller.poller.handle_states(net.now, "ha", tags, [])
        net.controller.poller.handle_rx(net.now, "hb", dict.fromkeys(tags, turn * used))
        net.run(2)
    assert (mac(1) in net.controller.hosts.known) == used


def test_a_port_that_goes_down_loses_its_hosts_after_a_moment() -> None:
    net = with_bystanders()
    announce(net)
    y = net.stations["y"]
    for seconds, up in ((5, False), (20, True)):
        net.controller.handle(net.now, y.switch, net.switches[y.switch].set_port(y.port, up=up))
        net.run(seconds)
    assert mac(4) in net.controller.hosts.known
    net.controller.handle(net.now, y.switch, net.switches[y.switch].set_port(y.port, up=False))
    net.run(12)
    assert mac(4) not in net.controller.hosts.known


@pytest.mark.usefixtures("rare_probes")
def test_switches_that_come_back_with_other_hosts_do_not_answer_for_the_old_ones() -> None:
    """The second `mn` on one controller: same switches and addresses, other MACs."""
    net = ready(two_paths())
    net.send("ha", arp(mac(1), "10.0.0.1", "10.0.0.9"))
    net.send("hb", arp(mac(2), "10.0.0.2", "10.0.0.9"))
    net.run(1)
    net.disconnect()
    for switch in net.switches.values():
        switch.restart()
    net.run(5)
    net.connect()
    net.run(3)
    question = arp(mac(11), "10.0.0.1", "10.0.0.2")
    net.send("ha", question)
    net.run_until(lambda: question in net.received["hb"], within=0.3)
    net.send("hb", arp(mac(12), "10.0.0.2", "10.0.0.1", reply_to=mac(11)))
    ping = frame(mac(11), mac(12))
    net.run(0.3)
    net.send("ha", ping)
    net.run(0.3)
    assert got(net, "hb", ping) == 1


@pytest.mark.usefixtures("rare_probes")
def test_a_forgotten_host_is_learned_by_its_next_packet() -> None:
    net = with_bystanders()
    host = net.controller.hosts.known[mac(3)]
    net.controller.forget_host(net.now, host)
    net.run(2)
    assert not any(mac(3) in (key[2].eth_src, key[2].eth_dst) for key in net.switches[1].rules)
    ping = frame(mac(4), mac(3))
    net.send("y", ping)
    net.run(1)
    assert got(net, "x", ping) == 1
    assert mac(3) not in net.controller.hosts.known
    net.send("x", frame(mac(3), mac(4)))
    net.run(1)
    everybody_reaches_everybody(net)
    assert mac(3) in net.controller.hosts.known


# Static hosts.


def static(*hosts: HostSettings, **settings: object) -> Network:
    return ready(two_paths(), hosts=hosts, **settings)


@pytest.mark.usefixtures("rare_probes")
def test_a_static_host_is_there_before_it_speaks_and_never_goes() -> None:
    net = static(HostSettings(mac(60), "B", "hb", frozenset({"10.0.0.60"})), host_lifetime=20.0)
    question = arp(mac(1), "10.0.0.1", "10.0.0.60")
    net.run(30)
    net.send("ha", question)
    net.run(1)
    assert got(net, "hb", question) == 1
    assert report.hosts(net.controller, net.now)["hosts"][-1]["static"] is True
    assert not net.codes()


def test_a_static_host_does_not_move_and_its_address_is_nobody_elses() -> None:
    net = static(HostSettings(mac(60), "B", "hb", frozenset({"10.0.0.60"})))
    net.send("ha", frame(mac(60), EVERYBODY))
    net.send("ha", arp(mac(1), "10.0.0.60", "10.0.0.60"))
    net.run(1)
    assert net.controller.hosts.known[mac(60)].port == net.stations["hb"]
    assert net.controller.hosts.by_address("10.0.0.60").mac == mac(60)  # type: ignore[union-attr]
    assert {"misplaced-host", "address-conflict"} <= net.codes()


def test_a_static_host_at_a_port_that_is_nowhere_is_named() -> None:
    net = static(HostSettings(mac(60), "B", "nowhere"))
    assert net.codes() == {"host-unknown"}


# Quarrels and storms.


@pytest.mark.usefixtures("rare_probes")
def test_an_address_that_two_hosts_claim_is_named_and_requests_reach_both() -> None:
    net = with_bystanders()
    announce(net)
    net.answers["y"] = {"10.0.0.4": mac(4)}
    net.send("x", arp(mac(3), "10.0.0.4", "10.0.0.4", reply_to=EVERYBODY))
    net.run(1)
    assert "address-conflict" in net.codes()
    question = arp(mac(1), "10.0.0.1", "10.0.0.4")
    net.send("ha", question)
    net.run(1)
    assert (got(net, "x", question), got(net, "y", question)) == (1, 1)


@pytest.mark.usefixtures("rare_probes")
def test_an_address_that_moves_to_another_host_is_no_conflict() -> None:
    net = with_bystanders()
    announce(net)
    net.send("x", arp(mac(3), "10.0.0.4", "10.0.0.4", reply_to=EVERYBODY))
    net.run(1)
    assert net.controller.hosts.by_address("10.0.0.4").mac == mac(3)  # type: ignore[union-attr]
    assert not net.codes()


@pytest.mark.parametrize("meters", [0, 1000])
def test_a_storm_of_made_up_hosts_costs_bystanders_nothing_and_leaves_nothing(meters: int) -> None:
    net = with_bystanders()
    for switch in net.switches.values():
        switch.meters = meters
    net.disconnect()
    net.connect()
    net.run(5)
    announce(net)
    seen = count_packet_ins(net, "x")
    lost = 0
    for number in range(2000):
        net.send("x", frame(mac(1000 + number), mac(20000 + number)))
        if number % 100 == 0:
            ping = frame(mac(1), mac(4), number.to_bytes(4, "big"))
            net.send("ha", ping)
            net.run(0.1)
            lost += got(net, "y", ping) != 1
        net.run(0.001)
    assert lost == 0
    assert seen() < 700
    assert {"crowded-port", "packet-in-flood"} <= net.codes()
    limits = [rule.meter for rule in net.switches[1].rules.values() if rule.meter is not None]
    assert bool(limits) == bool(meters)
    net.run(0.1)
    everybody_reaches_everybody(net)
    net.run(70)
    assert len(net.controller.hosts.known) <= 4
    assert sum(1 for key in net.switches[1].rules if key[0] == SOURCES and key[2].eth_src) <= 4
    assert not {"crowded-port", "packet-in-flood"} & net.codes()
    # The port takes hosts again.
    net.send("x", frame(mac(3), EVERYBODY))
    net.run(1)
    assert mac(3) in net.controller.hosts.known


def count_packet_ins(net: Network, station: str) -> Callable[[], int]:
    """Count the packets of a station that reach the controller."""
    before, counted = net.controller._packet, []

    def packet(now: float, arrived: PortId, data: bytes) -> None:
        if arrived == net.stations[station]:
            counted.append(data)
        before(now, arrived, data)

    net.controller._packet = packet  # type: ignore[method-assign, assignment]
    return lambda: len(counted)


@pytest.mark.usefixtures("rare_probes")
def test_a_flood_of_arp_is_kept_from_the_controller_and_arp_still_works() -> None:
    net = with_bystanders()
    announce(net)
    seen = count_packet_ins(net, "x")
    for number in range(2000):
        net.send("x", arp(mac(3), "10.0.0.3", f"10.0.{number >> 8}.{number & 255}"))
        net.run(0.0005)
    assert seen() < 700
    assert "packet-in-flood" in net.codes()
    question = arp(mac(3), "10.0.0.3", "10.0.0.4", reply_to=None)
    net.received["y"].clear()
    net.send("x", question)
    net.run(0.3)
    assert got(net, "y", question) == 1


@pytest.mark.usefixtures("rare_probes")
def test_a_flood_of_forged_discovery_frames_does_not_reach_the_controller_for_long() -> None:
    net = with_bystanders()
    seen = count_packet_ins(net, "x")
    forged = bytes.fromhex("034252414944") + bytes.fromhex("020000000003") + b"\x88\xcc" + bytes(60)
    for _ in range(2000):
        net.send("x", forged)
        net.run(0.0005)
    assert seen() < 700
    everybody_reaches_everybody(net)


def test_a_muted_port_is_no_link_to_the_controller_that_follows() -> None:
    assert not rules.links_in(1, rules.muted(5, [rules.Muted(9)], 7, edge=False))


def test_muted_rules_are_ours_and_leave_by_themselves() -> None:
    assert all(rules.is_ours(rule) and rule.lease for rule in rules.muted(5, [rules.Muted(9)], 7, edge=False))
    assert (
        replace(rules.muted(5, [rules.Muted(9)], 7, edge=True)[0], meter=None)
        == rules.muted(5, [rules.Muted(9)], None, edge=True)[0]
    )
    assert not any(rule.match.eth_type == 0x88B5 for rule in rules.muted(5, [rules.Muted(9)], 7, edge=True))


def test_a_port_is_down_only_where_it_is() -> None:
    net = with_bystanders()
    down, unobserved = net.controller.topology.unreachable([net.stations["x"], PortId(1, 99), PortId(99, 1)])
    assert down == {PortId(1, 99), PortId(99, 1)}
    assert unobserved == set()
    net.disconnect("A")
    assert net.controller.topology.unreachable([net.stations["x"]])[1] == {net.stations["x"]}


@pytest.mark.usefixtures("rare_probes")
def test_a_port_that_goes_down_and_up_again_and_again_is_named_for_a_while() -> None:
    net = with_bystanders()
    x = net.stations["x"]

    def change(*, up: bool) -> None:
        net.controller.handle(net.now, x.switch, net.switches[x.switch].set_port(x.port, up=up))

    # A cable that is plugged elsewhere and back is no flapping, nor is a state that is told again.
    for up in (True, False, False, True, True, False, True, False):
        change(up=up)
    assert "port-flapping" not in net.codes()
    change(up=True)
    assert "port-flapping" in net.codes()
    net.run(30)
    assert "port-flapping" in net.codes()
    net.run(40)
    assert "port-flapping" not in net.codes()
