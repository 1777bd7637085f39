"""Networks in which a switch knows its own hosts alone, and those elsewhere that its hosts speak with."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braid_lab.fabric.shapes import fat_tree
from braid_sdn.fabric.switches import compiler
from braid_sdn.fabric.switches.compiler import Compiler
from braid_sdn.fabric.switches.rules import DESTINATIONS, TREES, unanswered
from braid_sdn.fabric.view.conversations import Conversations

from .test_compiler import Fabric, copy
from .virtual import Network, arp, everybody_reaches_everybody, frame, mac, ready

HOSTS = 16


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every network count as large."""
    monkeypatch.setattr(compiler, "MAX_HOSTS_EVERYWHERE", 0)


def address(number: int) -> str:
    return f"10.0.0.{number}"


def tree() -> Network:
    """A fat tree of 20 switches and 16 hosts, whose addresses are known."""
    net = ready(fat_tree(4, hosts=HOSTS))
    for number, name in enumerate(net.stations, 1):
        net.send(name, arp(mac(number), address(number), address(number)))
    net.run(2)
    for each in net.received.values():
        each.clear()
    return net


def remote(net: Network) -> dict[int, set[str]]:
    """Return the hosts elsewhere that each switch has a rule for."""
    found = {}
    for dpid, switch in net.switches.items():
        rules = [rule for rule in switch.rules.values() if rule.table == DESTINATIONS and rule.metadata is not None]
        if rules:
            found[dpid] = {rule.match.eth_dst or "" for rule in rules}
    return found


def trees(net: Network, table: int) -> dict[int, set[object]]:
    """Return the trees, by metadata, that each switch has rules for: in the table of trees, or of hosts there."""
    found: dict[int, set[object]] = {}
    for dpid, switch in net.switches.items():
        for rule in switch.rules.values():
            tree = rule.match.metadata if table == TREES else rule.metadata
            if rule.table == table and isinstance(tree, int):
                found.setdefault(dpid, set()).add(tree)
    return found


def station(net: Network, number: int) -> str:
    return list(net.stations)[number - 1]


def at(net: Network, number: int) -> int:
    return net.stations[station(net, number)].switch


def talk(net: Network, one: int, other: int) -> None:
    """Have a host ask for another one's address, and get its answer."""
    net.send(station(net, one), arp(mac(one), address(one), address(other)))
    net.run(0.05)
    net.send(station(net, other), arp(mac(other), address(other), address(one), reply_to=mac(one)))
    net.run(0.05)


@pytest.mark.usefixtures("large")
def test_a_request_for_an_address_gives_both_ends_their_rules_and_no_other_switch() -> None:
    net = tree()
    assert remote(net) == {}
    talk(net, 1, 2)
    assert remote(net) == {at(net, 1): {mac(2)}, at(net, 2): {mac(1)}}
    assert trees(net, TREES) == trees(net, DESTINATIONS)
    # Neither the request nor the answer went to anybody else, and no data does.
    net.send(station(net, 1), frame(mac(1), mac(2)))
    net.run(0.1)
    assert {name for name, got in net.received.items() if got} == {station(net, 1), station(net, 2)}
    assert net.received[station(net, 2)][-1] == frame(mac(1), mac(2))


@pytest.mark.usefixtures("large")
def test_what_a_switch_is_to_know_of_a_host_is_whole_also_if_it_was_to_know_another_one_there() -> None:
    net = tree()
    neighbour = next(number for number in range(3, HOSTS + 1) if at(net, number) == at(net, 2))
    for number in (2, neighbour):
        rules = net.controller.compiler.ask(at(net, 1), mac(number))
        assert [(rule.table, rule.match.eth_dst) for rule in rules] == [(TREES, None), (DESTINATIONS, mac(number))]


@pytest.mark.usefixtures("large")
def test_a_first_packet_without_a_request_is_flooded_and_the_next_one_is_not() -> None:
    net = tree()
    for count, reached in ((1, HOSTS - 1), (2, 1)):
        for each in net.received.values():
            each.clear()
        net.send(station(net, 1), frame(mac(1), mac(2), bytes([count])))
        net.run(0.1)
        assert sum(len(got) for got in net.received.values()) == reached
        assert net.received[station(net, 2)] == [frame(mac(1), mac(2), bytes([count]))]


@pytest.mark.usefixtures("large")
def test_everybody_reaches_everybody_and_still_does_after_a_restart_of_the_controller() -> None:
    net = tree()
    for one in range(1, HOSTS + 1):
        for other in range(1, HOSTS + 1):
            if one != other:
                net.send(station(net, one), frame(mac(one), mac(other)))
        net.run(0.2)
    everybody_reaches_everybody(net)
    before = remote(net)
    net.restart_controller()
    net.run(20)
    assert remote(net) == before
    everybody_reaches_everybody(net)


@pytest.mark.usefixtures("large")
def test_a_host_that_moves_is_followed_by_those_that_speak_with_it() -> None:
    net = tree()
    talk(net, 1, 2)
    # Where host 3 is, host 2 appears.
    assert at(net, 3) not in (at(net, 1), at(net, 2))
    net.send(station(net, 3), frame(mac(2), "ff:ff:ff:ff:ff:ff"))
    net.run(2)
    for each in net.received.values():
        each.clear()
    net.send(station(net, 1), frame(mac(1), mac(2)))
    net.run(0.1)
    assert {name: got for name, got in net.received.items() if got} == {station(net, 3): [frame(mac(1), mac(2))]}


@pytest.mark.usefixtures("large")
@pytest.mark.usefixtures("rare_probes")
def test_the_rule_of_a_conversation_goes_when_nobody_uses_it_for_a_hosts_lifetime() -> None:
    net = tree()
    talk(net, 1, 2)
    talk(net, 3, 4)
    lifetime = net.settings.host_lifetime
    for _ in range(round(lifetime / 10) + 10):
        net.send(station(net, 1), frame(mac(1), mac(2)))
        # Their hosts are there, and send to nobody elsewhere.
        for number in (2, 3, 4):
            net.send(station(net, number), frame(mac(number), "ff:ff:ff:ff:ff:ff"))
        net.run(10)
    assert remote(net) == {at(net, 1): {mac(2)}}
    assert trees(net, TREES) == trees(net, DESTINATIONS)
    everybody = [number for number in (1, 2, 3, 4) if net.controller.hosts.find(mac(number))]
    assert everybody == [1, 2, 3, 4]


@pytest.mark.usefixtures("large")
def test_a_switch_that_leaves_and_comes_back_is_told_what_its_hosts_need() -> None:
    net = tree()
    talk(net, 1, 2)
    name = net.controller.topology.name(at(net, 1))
    net.disconnect(name)
    net.run(1)
    net.connect(name)
    net.run(5)
    assert remote(net)[at(net, 1)] == {mac(2)}
    net.send(station(net, 1), frame(mac(1), mac(2)))
    net.run(0.1)
    assert {each for each, got in net.received.items() if frame(mac(1), mac(2)) in got} == {station(net, 2)}


@pytest.mark.usefixtures("large")
@pytest.mark.usefixtures("rare_probes")
def test_a_host_that_sends_to_nobody_known_is_kept_from_the_controller() -> None:
    net = tree()
    before = net.controller.packet_ins
    for number in range(3000):
        net.send(station(net, 1), frame(mac(1), f"02:ff:00:00:{number >> 8:02x}:{number & 0xFF:02x}"))
        net.run(0.001)
    # Some 100 discovery frames a second are among them.
    assert net.controller.packet_ins - before < 1200
    assert "packet-in-flood" in net.codes()


def test_in_a_small_network_each_switch_knows_each_host_and_no_packet_goes_to_the_controller() -> None:
    net = tree()
    everyone = {mac(number) for number in range(1, HOSTS + 1)}
    known = remote(net)
    assert len(known) == 8
    assert all(len(everyone - macs) == 2 for macs in known.values())
    assert not [
        rule for switch in net.switches.values() for rule in switch.rules.values() if rule.key == unanswered().key
    ]


def test_a_network_that_grows_keeps_its_rules_while_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "MAX_HOSTS_EVERYWHERE", HOSTS)
    net = tree()
    before = remote(net)
    # A seventeenth host.
    net.send(station(net, 1), frame(mac(99), "ff:ff:ff:ff:ff:ff"))
    net.run(2)
    assert not net.controller.compiler.everywhere
    assert remote(net) == before
    everybody_reaches_everybody(net)
    # With half as many, all know all again.
    for number in range(8, HOSTS + 1):
        net.controller.hosts.forget(mac(number))
    net.controller.forget_host(net.now, net.controller.hosts.known[mac(99)])
    net.run(3)
    assert net.controller.compiler.everywhere
    left = {mac(number) for number in range(1, 8)}
    assert {mac for macs in remote(net).values() for mac in macs} == left


@given(st.integers(0, 1 << 30))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rules_of_conversations_changed_step_by_step_are_those_made_anew(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also where the network is now small, now large."""
    monkeypatch.setattr(compiler, "MAX_HOSTS_EVERYWHERE", 4)
    chance = random.Random(seed)
    fabric = Fabric(seed)
    for _ in range(20):
        before = copy(fabric.compiler.target)
        for _ in range(3):
            switch, number = chance.choice(fabric.switches), chance.randrange(6)
            (fabric.compiler.ask if chance.randrange(3) else fabric.compiler.dismiss)(switch, mac(number))
        fabric.change()
        changed = fabric.update()
        fresh = Compiler(everywhere=fabric.compiler.everywhere)
        for each in fabric.compiler.asked():
            fresh.ask(*each)
        fabric.update_anew(fresh)
        if fresh.everywhere == fabric.compiler.everywhere:
            assert fabric.compiler.target == fresh.target
        for switch, has in fabric.compiler.target.items():
            was = before.get(switch, {})
            differing = {key for key in has.keys() | was.keys() if has.get(key) != was.get(key)}
            assert differing <= changed.get(switch, set())


def test_a_conversation_lasts_while_its_counter_moves() -> None:
    known = Conversations(lifetime=100.0)
    assert known.begin(0.0, 1, "a")
    assert not known.begin(1.0, 1, "a")
    assert known.begin(1.0, 1, "b")
    assert known.handle_counters(60.0, 1, [("a", 5), ("b", 0)]) == []
    assert known.handle_counters(101.0, 1, [("a", 5), ("b", 0)]) == ["b"]
    assert known.handle_counters(160.0, 1, [("a", 5)]) == ["a"]
    assert known.forget(1) == []
