"""Trunks: a port of several tenants, whose frames have a VID there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from braid_sdn.fabric.acl import Acl, AclEntry, Action, End, Place
from braid_sdn.fabric.monitor.probe import tagged
from braid_sdn.fabric.settings import HostSettings
from braid_sdn.fabric.switches import rules
from braid_sdn.openflow.messages import DeleteRule, Output, PushTag, Rule

from .tenant_network import (
    BLUE,
    BLUE_VID,
    RED,
    RED_VID,
    WIRES,
    arrivals,
    greet,
    network,
    number_of,
    settled,
    tenants,
    with_trunk,
)
from .virtual import Network, arp, frame, mac

#: Nothing here is about paths that are measured.
pytestmark = pytest.mark.usefixtures("rare_probes")

#: Hosts behind the trunk, which is at h3's place: MACs of their own, and one IP address.
IN_BLUE, IN_RED = "02:00:00:00:88:01", "02:00:00:00:88:02"
ALL = "ff:ff:ff:ff:ff:ff"


def trunked(**settings: object) -> Network:
    net = settled(network(WIRES, **{"tenants": with_trunk(tenants(), "A", "h3"), **settings}))
    greet_from_trunk(net)
    return net


def greet_from_trunk(net: Network) -> None:
    net.send("h3", tagged(frame(IN_BLUE, ALL), BLUE_VID))
    net.send("h3", tagged(frame(IN_RED, ALL), RED_VID))
    net.run(3)


def test_hosts_behind_a_trunk_are_of_the_tenant_of_their_vid() -> None:
    net = trunked()
    known = net.controller.hosts.known
    assert [(known[each].tenant, known[each].vid) for each in (IN_BLUE, IN_RED)] == [(BLUE, BLUE_VID), (RED, RED_VID)]
    for colour, own, vid in (("blue", IN_BLUE, BLUE_VID), ("red", IN_RED, RED_VID)):
        for name in (f"{colour}1", f"{colour}2", f"{colour}4"):
            there = mac(number_of(net, name))
            assert arrivals(net, "h3", tagged(frame(own, there), vid)) == [(name, frame(own, there))]
            assert arrivals(net, name, frame(there, own)) == [("h3", tagged(frame(there, own), vid))]
        # Broadcasts, both ways.
        others = sorted(name for name in net.stations if name.startswith(colour))
        got = arrivals(net, "h3", tagged(frame(own, ALL), vid))
        assert sorted(got) == [(name, frame(own, ALL)) for name in others]
        data = frame(mac(number_of(net, f"{colour}2")), ALL)
        assert ("h3", tagged(data, vid)) in arrivals(net, f"{colour}2", data)


def test_nothing_passes_without_a_vid_of_a_tenant_there() -> None:
    net = trunked()
    for data in (
        frame(IN_BLUE, ALL),
        tagged(frame(IN_BLUE, ALL), 50),
        tagged(frame(IN_BLUE, ALL), 0),
        tagged(frame(IN_BLUE, ALL), net.controller.plan.floods[BLUE].tag),
        frame(IN_BLUE, mac(number_of(net, "blue2"))),
    ):
        assert arrivals(net, "h3", data) == []
    # A tag of red's within blue's VID is data, and stays in blue.
    red = net.controller.plan.floods[RED].tag
    inner = tagged(frame(IN_BLUE, ALL), red)
    assert {name for name, _ in arrivals(net, "h3", tagged(inner, BLUE_VID))} == {"blue1", "blue2", "blue3", "blue4"}


def test_requests_for_addresses_are_passed_to_and_from_a_trunk_in_the_tenant() -> None:
    net = trunked()
    for own, vid in ((IN_BLUE, BLUE_VID), (IN_RED, RED_VID)):
        net.send("h3", tagged(arp(own, "10.0.0.1", "10.0.0.77"), vid))
    net.run(2)
    assert net.controller.hosts.by_address("10.0.0.1", BLUE) is net.controller.hosts.known[IN_BLUE]
    assert net.controller.hosts.by_address("10.0.0.1", RED) is net.controller.hosts.known[IN_RED]
    for each in net.received.values():
        each.clear()
    question = arp(mac(number_of(net, "red2")), "10.0.0.2", "10.0.0.1")
    net.send("red2", question)
    net.run(1)
    assert {name: got for name, got in net.received.items() if got} == {"h3": [tagged(question, RED_VID)]}
    # Of an address that nobody has, everybody in the tenant is asked.
    net.received["h3"].clear()
    question = arp(mac(number_of(net, "blue2")), "10.0.0.2", "10.0.0.66")
    net.send("blue2", question)
    net.run(2)
    assert net.received["h3"] == [tagged(question, BLUE_VID)]
    assert net.received["red1"] == []


def test_a_host_that_is_silent_is_asked_under_its_vid() -> None:
    net = trunked(host_lifetime=8.0)
    net.answers["h3"] = {}
    asked: list[bytes] = []
    leave = net._leave

    def leave_and_note(source: object, data: bytes) -> None:
        if source == net.stations["h3"] and data[12:16] == b"\x81\x00\x00" + bytes([BLUE_VID]):
            asked.append(data)
        leave(source, data)  # type: ignore[arg-type]

    net._leave = leave_and_note  # type: ignore[method-assign]
    net.send("h3", tagged(arp(IN_BLUE, "10.0.0.1", "10.0.0.77"), BLUE_VID))
    net.run(1)
    asked.clear()
    net.run(7.5)
    assert [each for each in asked if each[16:18] == b"\x08\x06"]


def test_a_host_moves_between_a_trunk_and_a_port() -> None:
    net = trunked()
    there = mac(number_of(net, "blue2"))
    net.send("blue4", frame(IN_BLUE, ALL))
    net.run(2)
    assert arrivals(net, "blue2", frame(there, IN_BLUE)) == [("blue4", frame(there, IN_BLUE))]
    net.send("h3", tagged(frame(IN_BLUE, ALL), RED_VID))
    net.run(2)
    assert net.controller.hosts.known[IN_BLUE].tenant == RED
    assert "h3" not in [
        name for name, got in arrivals(net, "blue2", frame(there, IN_BLUE)) if got[14:16] == b"\0\x28"
    ]
    greet_from_trunk(net)
    assert arrivals(net, "blue2", frame(there, IN_BLUE)) == [("h3", tagged(frame(there, IN_BLUE), BLUE_VID))]


def test_a_muted_trunk_keeps_its_tenants_apart() -> None:
    net = trunked()
    for number in range(700):
        net.send("h3", tagged(arp(mac(1000 + number), "10.0.0.1", "10.0.0.2"), BLUE_VID))
    net.run(1)
    assert "packet-in-flood" in net.codes()
    muted = [rule for rule in net.switches[1].rules.values() if (rule.table, rule.priority) == (rules.SOURCES, 50)]
    assert len(muted) == 4
    for vid, colour in ((BLUE_VID, "blue"), (RED_VID, "red")):
        for data in (arp(mac(5000), "10.0.0.1", "10.0.0.2"), frame(mac(5000), ALL), frame(mac(5000), mac(5001))):
            got = {name for name, _ in arrivals(net, "h3", tagged(data, vid))}
            assert got == {f"{colour}{number}" for number in range(1, 5)}


def test_a_controller_that_begins_anew_knows_hosts_behind_a_trunk_and_deletes_nothing_before_its_plan() -> None:
    net = trunked()
    gone: list[object] = []
    deliver = net._deliver

    def deliver_and_note(dpid: int, message: object) -> None:
        gone.extend([message] if isinstance(message, DeleteRule) else [])
        deliver(dpid, message)

    net._deliver = deliver_and_note  # type: ignore[method-assign]
    net.restart_controller()
    net.run(0.5)
    assert gone == []
    assert net.controller.hosts.known[IN_BLUE].vid == BLUE_VID
    net.run(8)
    there = mac(number_of(net, "blue2"))
    assert arrivals(net, "blue2", frame(there, IN_BLUE)) == [("h3", tagged(frame(there, IN_BLUE), BLUE_VID))]


def test_rules_of_a_trunk_that_let_across_are_found_when_a_switch_connects() -> None:
    net = trunked()
    switch = net.switches[1]
    fine = set(switch.rules)
    here = net.controller.admission.ports_of
    ports = here(next(each for each in net.controller.hellos() if each.dpid == 1), list(switch.rules.values()))
    assert all(ports.fits(rule) for rule in switch.rules.values())
    trunk = net.stations["h3"].port
    wrong = 0
    for key in fine:
        rule = switch.rules[key]
        for one, other in ((BLUE_VID, RED_VID), (BLUE << 48, RED << 48)):
            changed = swapped(rule, one, other)
            if changed != rule and trunk in (
                rule.match.in_port,
                *(getattr(each, "port", 0) for each in rule.actions),
            ):
                wrong += 1
                assert not ports.fits(changed), changed
    assert wrong == 7
    # Nor may packets between switches get another tenant's tag on the way, or have nobody's.
    blue = net.controller.plan.floods[BLUE].tag
    path = next(rule for rule in switch.rules.values() if rule.table == rules.PATHS and rule.match.vlan == blue)
    on = replace(path, actions=(Output(net.port_of("A", "P").port),), goto=None, metadata=None)
    assert ports.fits(on)
    assert not ports.fits(replace(on, actions=(PushTag(net.controller.plan.floods[RED].tag), *on.actions)))
    assert not ports.fits(replace(on, match=replace(on.match, vlan=1)))


def swapped(rule: Rule, one: int, other: int) -> Rule:
    """Return a rule with one number in place of another in what it matches."""
    match = rule.match
    if one < 4096 and match.vlan == one:
        return replace(rule, match=replace(match, vlan=other))
    if match.metadata == one:
        return replace(rule, match=replace(match, metadata=other))
    return rule


def test_a_list_decides_packets_of_a_trunk_too() -> None:
    acl = Acl(
        (
            AclEntry(Action.DENY, End(place=Place(switch="A", port="h3")), End(mac=mac(5))),
            AclEntry(Action.DENY, End(mac=IN_RED)),
            AclEntry(Action.PERMIT),
        )
    )
    net = trunked(acl=acl)
    greet(net)
    names = list(net.stations)
    assert mac(5) == mac(number_of(net, names[4]))
    assert arrivals(net, "h3", tagged(frame(IN_BLUE, mac(5)), BLUE_VID)) == []
    assert arrivals(net, "h3", tagged(frame(IN_RED, ALL), RED_VID)) == []
    there = mac(number_of(net, "blue1"))
    assert [name for name, _ in arrivals(net, "h3", tagged(frame(IN_BLUE, there), BLUE_VID))] == ["blue1"]


def test_a_static_host_behind_a_trunk_is_known_before_it_speaks() -> None:
    host = HostSettings(IN_BLUE, "A", "h3", frozenset({"10.0.0.9"}), BLUE_VID)
    net = settled(network(tenants=with_trunk(tenants(), "A", "h3"), hosts=(host,)))
    there = mac(number_of(net, "blue2"))
    assert arrivals(net, "blue2", frame(there, IN_BLUE)) == [("h3", tagged(frame(there, IN_BLUE), BLUE_VID))]


def test_without_trunks_no_rule_looks_at_a_vid_of_hosts() -> None:
    net = settled(network())
    added = [rule for each in net.switches.values() for rule in each.rules.values() if rule.table == rules.SOURCES]
    assert not [rule for rule in added if isinstance(rule.match.vlan, int) and rule.priority < rules.ADMITTED - 1]


def test_a_muted_trunk_sends_no_frames_of_other_vids_to_the_controller() -> None:
    net = settled(network(tenants=with_trunk(tenants(), "A", "h3")))
    for _ in range(4):
        before = net.controller.packet_ins
        for number in range(700):
            net.send("h3", tagged(arp(mac(1000 + number), "10.0.0.1", "10.0.0.2"), 99))
        net.run(0.5)
    assert net.controller.packet_ins - before < 700


def test_a_tenant_at_a_trunk_takes_no_broadcasts_from_another() -> None:
    net = settled(network(tenants=with_trunk(tenants(), "A", "h3")))
    got: list[bytes] = []
    leave = net._leave

    def leave_and_note(source: object, data: bytes) -> None:
        if source == net.stations["blue1"] and data[12:14] == b"\x88\xcc":
            got.append(data)
        leave(source, data)  # type: ignore[arg-type]

    net._leave = leave_and_note  # type: ignore[method-assign]
    net.run(3)
    net.send("h3", tagged(got[-1], BLUE_VID))
    net.run(3)
    data = frame(mac(number_of(net, "red1")), "ff:ff:ff:ff:ff:ff")
    assert "h3" in [name for name, _ in arrivals(net, "red1", data)]
