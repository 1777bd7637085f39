"""Tenants beside all else that the configuration and an operator may want: lists, static hosts, policies, reloads."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from braid_sdn.fabric.acl import Acl, AclEntry, Action, End, Place
from braid_sdn.fabric.api import metrics, policy, report
from braid_sdn.fabric.api.events import Event
from braid_sdn.fabric.cluster.store import Cluster, Member
from braid_sdn.fabric.config import Config, ConfigError
from braid_sdn.fabric.plan.policies import LinkEnd, Policies, link_of
from braid_sdn.fabric.service import Service
from braid_sdn.fabric.settings import EdgeSettings, FloodSettings, HostSettings, Settings
from braid_sdn.fabric.switches import rules
from braid_sdn.fabric.switches.acl import FIRST_PRIORITY
from braid_sdn.fabric.switches.admission import MAX_ASKED
from braid_sdn.fabric.tenants import DEFAULT, Tenants
from braid_sdn.openflow.messages import AddRule, BarrierReply, DeleteRule, Hello, Malformed, PacketIn, Port, RuleKey

from .tenant_network import (
    BLUE,
    RED,
    arrivals,
    assert_apart,
    assert_together,
    follow,
    greet,
    network,
    number_of,
    settled,
    tenants,
    with_trunk,
)
from .virtual import Network, arp, frame, mac, port

#: Nothing here is about paths that are measured.
pytestmark = pytest.mark.usefixtures("rare_probes")


def between(net: Network, source: str, target: str, payload: bytes = b"hello") -> list[str]:
    """Return at whom a frame from one station to another arrives."""
    data = frame(mac(number_of(net, source)), mac(number_of(net, target)), payload)
    return [name for name, _ in arrivals(net, source, data)]


def moved(known: Tenants, port: str, switch: str) -> Tenants:
    """Return the tenants with a port of blue's as one of red's."""
    blue, red = known.listed
    left = tuple(each for each in blue.ports if each != (switch, port))
    return replace(known, listed=(replace(blue, ports=left), replace(red, ports=(*red.ports, (switch, port)))))


# Access control.


def test_a_list_decides_within_a_tenant_and_opens_no_way_to_another() -> None:
    names = list(network().stations)
    at = {name: mac(number) for number, name in enumerate(names, 1)}
    acl = Acl(
        (
            AclEntry(Action.DENY, End(mac=at["blue1"]), End(mac=at["blue2"])),
            AclEntry(Action.DENY, End(place=Place(edge="blue3")), End(mac=at["blue4"])),
            AclEntry(Action.PERMIT, End(mac=at["blue1"]), End(mac=at["red2"])),
            AclEntry(Action.PERMIT),
        )
    )
    net = settled(network(acl=acl))
    assert between(net, "blue1", "blue2") == []
    assert between(net, "blue3", "blue4") == []
    assert between(net, "blue2", "blue1") == ["blue1"]
    assert between(net, "blue1", "blue4") == ["blue4"]
    assert between(net, "red1", "red2") == ["red2"]
    assert_apart(net, tags=10)
    # A controller that begins anew admits the list's rules as well, and changes none of them.
    changes: list[RuleKey] = []
    deliver = net._deliver

    def deliver_and_note(dpid: int, message: object) -> None:
        if isinstance(message, AddRule | DeleteRule):
            key = message.key if isinstance(message, DeleteRule) else message.rule.key
            changes.extend([key] if key[0] == rules.INGRESS and key[1] >= FIRST_PRIORITY else [])
        deliver(dpid, message)

    net._deliver = deliver_and_note  # type: ignore[method-assign]
    net.restart_controller()
    net.run(8)
    assert changes == []
    assert between(net, "blue1", "blue2") == []
    assert between(net, "blue1", "blue4") == ["blue4"]


# Static hosts, and such that move.


def test_a_static_host_is_known_to_its_tenant_before_it_speaks() -> None:
    hosts = (
        HostSettings("02:00:00:00:77:01", "B", "blue2", frozenset({"10.0.0.9"})),
        HostSettings("02:00:00:00:77:02", "B", "red2", frozenset({"10.0.0.9"})),
    )
    net = settled(network(hosts=hosts))
    for station, wanted in (("blue1", "blue2"), ("red1", "red2")):
        for each in net.received.values():
            each.clear()
        net.send(station, arp(mac(number_of(net, station)), "10.0.0.1", "10.0.0.9"))
        net.run(1)
        assert {name for name, got in net.received.items() if got} == {wanted}
    known = net.controller.hosts.known
    assert {each: known[each].tenant for each in net.controller.hosts.static} == {
        "02:00:00:00:77:01": BLUE,
        "02:00:00:00:77:02": RED,
    }
    data = frame(mac(number_of(net, "red1")), "02:00:00:00:77:01")
    assert "blue2" not in [name for name, _ in arrivals(net, "red1", data)]


def test_a_host_that_moves_to_another_tenant_is_reached_there_alone() -> None:
    net = settled(network())
    number = number_of(net, "blue1")
    net.send("blue1", arp(mac(number), "10.0.0.1", "10.0.0.99"))
    net.run(1)
    assert net.controller.find_host("blue/10.0.0.1") is not None
    assert net.controller.find_host(f"blue/{mac(number)}") is net.controller.find_host(mac(number)) is not None
    assert net.controller.find_host(f"red/{mac(number)}") is None
    net.send("red2", frame(mac(number), "ff:ff:ff:ff:ff:ff"))
    net.run(2)
    assert net.controller.hosts.known[mac(number)].tenant == RED
    # Its address was of the other tenant.
    assert net.controller.find_host("10.0.0.1") is None
    to_it = frame(mac(number_of(net, "red1")), mac(number))
    assert [name for name, _ in arrivals(net, "red1", to_it)] == ["red2"]
    # Blue floods what is for a host that it does not know any more.
    to_it = frame(mac(number_of(net, "blue2")), mac(number))
    assert {name for name, _ in arrivals(net, "blue2", to_it)} == {"blue1", "blue3", "blue4"}


# Policies.


def test_policies_hold_for_each_tenant() -> None:
    net = settled(network())
    drained = net.shape.dpid("P")
    net.controller.set_policies(net.now, Policies(drained=frozenset({drained})))
    net.run(5)
    assert_together(net)
    assert_apart(net)
    plan = net.controller.plan
    trees = [tree for tree in plan.trees.values() if tree.tenant in (BLUE, RED, DEFAULT)]
    assert len(trees) == 6
    ways = {tag for pair in plan.pairs.values() for path in pair.paths for tag in path.steps}
    assert drained not in {step.switch for step in ways}
    net.controller.set_policies(net.now, Policies(forbidden=frozenset({link_of(LinkEnd(1), LinkEnd(3))})))
    net.run(5)
    assert {tuple(path.switches for path in pair.selection.paths) for pair in net.controller.plan.pairs.values()} == {
        ((1, 4, 2),),
        ((2, 4, 1),),
    }
    assert_together(net)


def test_hosts_of_a_tenant_are_pinned_and_those_of_two_are_refused() -> None:
    net = settled(network())
    blue1, blue2, red2 = (mac(number_of(net, name)) for name in ("blue1", "blue2", "red2"))
    for via in ((1, 3, 2), (1, 4, 2)):
        net.controller.set_policies(net.now, Policies().with_pin(blue1, blue2, via))
        net.run(4)
        pinned = net.controller.plan.pinned[blue1, blue2]
        assert (pinned.tenant, net.settings.tenants.of_tag(pinned.tag)) == (BLUE, BLUE)
        assert tuple(step.switch for step in pinned.steps) == via[:2]
        assert_together(net)
        assert_apart(net)
    for one, other in ((blue1, red2), ("blue3", "red4")):
        with pytest.raises(policy.PolicyError, match="are of two tenants: no packet passes between them") as refused:
            policy.wanted(net.controller, ["pairs", one, other, "pin"], {"via": "A,P,B"})
        assert refused.value.status == 409
    # A pin from before they were of two tenants leads nowhere.
    net.controller.set_policies(net.now, Policies().with_pin(blue1, red2, (1, 3, 2)))
    net.run(4)
    assert net.controller.plan.pinned == {}
    assert_apart(net)


# Reloads.


def test_a_reload_moves_a_port_to_another_tenant() -> None:
    net = settled(network())
    net.settings = replace(net.settings, tenants=moved(net.settings.tenants, "blue1", "A"))
    follow(net)
    net.run(4)
    greet(net)
    assert between(net, "blue1", "red2") == ["red2"]
    # Frames for hosts that a tenant does not know are flooded within it.
    assert set(between(net, "blue1", "blue2")) == {"red1", "red2", "red3", "red4"}
    assert between(net, "blue3", "blue2") == ["blue2"]
    assert set(between(net, "blue3", "blue1")) == {"blue2", "blue4"}


def test_a_reload_to_tenants_and_away_from_them() -> None:
    whole = network()
    net = network(tenants=Tenants())
    settled(net)
    assert between(net, "blue1", "red2") == ["red2"]
    net.settings = whole.settings
    follow(net)
    net.run(4)
    greet(net)
    assert_together(net)
    assert_apart(net, tags=10)
    net.settings = replace(whole.settings, tenants=Tenants())
    follow(net)
    net.run(4)
    greet(net)
    assert between(net, "blue1", "red2") == ["red2"]
    assert not net.controller.admission.applicants


def test_a_service_takes_tenants_over_and_keeps_those_before_if_they_are_bad(tmp_path: Path) -> None:
    told: list[Event] = []

    def bad() -> Config:
        raise ConfigError("fabric.toml: tenant 2.tags: 2499-2499 is of tenant 'blue' too\nfabric.toml: x")

    def config(known: Tenants, **more: object) -> Config:
        return Config(replace(Settings(secrets.token_bytes(16), tenants=known), **more))  # type: ignore[arg-type]

    ports = (Port(1, "blue1", "06:00:00:00:00:01", True, 1e9),)

    async def story() -> None:
        service = Service(config(Tenants()), tmp_path, told.append)
        service.connected(1.0, Hello(1, ports, "test"))
        service.reload(lambda: config(tenants()))
        # The switch is connected still, and is admitted before all else.
        assert service.controller.settings.tenants == tenants()
        assert list(service.controller.admission.applicants) == [1]
        service.reload(bad)
        assert service.controller.settings.tenants == tenants()
        (problem,) = [each for each in report.problems(service.controller, 1.0) if each.code == "reload-refused"]
        assert "tenant 2.tags: 2499-2499 is of tenant 'blue' too" in problem.text
        service.reload(lambda: config(tenants(), failover=False))
        service.reload(lambda: config(Tenants(), names={1: "A"}))
        assert service.controller.settings.names == {1: "A"}
        assert list(service.controller.topology.switches) == [1]
        # Edges and hosts need no new controller, tenants do, and names of switches where there are tenants.
        edge, host = EdgeSettings("e", "A", "1", key=b"k" * 16), HostSettings("02:00:00:00:77:01", "A", "1")
        before = service.controller
        service.reload(lambda: config(Tenants(), names={1: "A"}, edges=(edge,), hosts=(host,)))
        assert service.controller.settings.edges == (edge,)
        assert service.controller is before
        service.reload(lambda: config(tenants(), names={1: "A"}, edges=(edge,), hosts=(host,)))
        before = service.controller
        service.reload(lambda: config(tenants(), names={1: "B"}, edges=(edge,), hosts=(host,)))
        known = service.controller.settings
        assert (known.names, known.edges, known.hosts) == ({1: "B"}, (edge,), (host,))
        assert service.controller is not before
        assert service._api._auth.keys == {"e": edge.key}
        service.reload(lambda: config(Tenants(), names={1: "A"}))
        assert not service._api._auth.keys
        # A leader that begins anew has those that were read last.
        assert service._new_controller().settings.tenants == Tenants()
        service.stop()

    asyncio.run(story())
    assert [(each.name, each.warning, each.fields.get("tenants")) for each in told if "switch" not in each.name] == [
        ("tenants-changed", False, "blue, red"),
        ("reload-refused", True, None),
        ("reloaded", False, None),
        ("tenants-changed", False, "none"),
        ("reloaded", False, None),
        ("tenants-changed", False, "blue, red"),
        ("tenants-changed", False, "blue, red"),
        ("tenants-changed", False, "none"),
    ]


# API, explanations and metrics.


def test_tenants_are_shown_explained_and_counted() -> None:
    net = settled(network())
    now = net.now
    for station in ("blue2", "red2"):
        net.send(station, arp(mac(number_of(net, station)), "10.0.0.2", "10.0.0.9"))
    net.run(1)
    shown = {each["name"]: each for each in report.tenants_of(net.controller, now)["tenants"]}
    assert list(shown) == ["default", "blue", "red"]
    assert (shown["blue"]["tags"], shown["blue"]["hosts"]) == ("2000-2499", 4)
    assert shown["red"]["ports"] == ["A:red1", "B:red2", "A:red3", "B:red4"]
    assert shown["default"]["tags"] == "2-1999 2500-2999 3500-4094"
    # A flood, two trees, and two paths each way between its edges.
    assert [each["tags_used"] for each in shown.values()] == [3, 7, 7]
    across = report.explain(net.controller, now, mac(number_of(net, "blue1")), "red/10.0.0.2")
    assert across["tenants"] == ["blue", "red"]
    assert across["single"] is None
    assert "they are of two tenants, blue and red: no packet passes between them" in across["steps"]
    with pytest.raises(
        report.UnknownEndError, match=r"of several tenants: write blue/10\.0\.0\.2 or red/10\.0\.0\.2"
    ):
        report.explain(net.controller, now, "blue/10.0.0.2", "10.0.0.2")
    text = metrics.exposition(net.controller, now)
    assert 'braid_fabric_tenant_hosts{tenant="blue"} 4' in text
    assert 'braid_fabric_tenant_tags_used{tenant="red"} 7' in text


def test_a_switch_that_is_not_admitted_is_named_and_not_asked_for_ever() -> None:
    net = settled(network())
    dpid = net.shape.dpid("P")
    net.disconnect("P")
    net.control[dpid] = 5.0
    net.connect("P")
    net.run(1)
    assert "switch-waits" not in net.codes()
    net.run(2)
    (problem,) = [each for each in report.problems(net.controller, net.now) if each.code == "switch-waits"]
    assert (problem.subject, problem.text.partition(";")[0]) == (
        "P",
        "is not part of the network before its first barrier is answered",
    )
    # One that follows another controller has asked for nothing.
    net.controller.cluster = Cluster(Member("me"), False, Member("other"), 1)
    assert "switch-waits" not in net.codes()
    net.controller.cluster = None
    net.control[dpid] = 0.0
    net.run(25)
    assert "switch-waits" not in net.codes()
    net.disconnect("P")
    net.connect("P")
    # Rules are asked for once the barrier before is answered.
    net.controller.handle(net.now, dpid, BarrierReply(net.controller.admission.applicants[dpid].first))
    net.controller.poll_messages()
    for _ in range(20):
        net.controller.handle(net.now, dpid, Malformed("statistics"))
    asked = [message for to, message in net.controller.poll_messages() if to == dpid]
    assert len(asked) == MAX_ASKED - 1


def test_how_long_a_reload_stops_packets_between_switches() -> None:
    net = settled(network())
    net.settings = replace(net.settings, tenants=moved(net.settings.tenants, "blue1", "A"))
    follow(net)
    net.run(0.1)
    assert between(net, "blue3", "blue2") == []
    assert between(net, "h1", "h2") == []
    took = net.run_until(lambda: "blue2" in between(net, "blue3", "blue2"), within=5)
    assert took < 2.0


def test_ports_of_tenants_that_are_not_there_are_named() -> None:
    known = tenants()
    blue, red = known.listed
    listed = (replace(blue, ports=(*blue.ports, ("A", "eth77"), ("Z", "eth1"))), red)
    net = settled(network(tenants=replace(known, listed=listed)))
    texts = {
        each.subject: each.text
        for each in report.problems(net.controller, net.now)
        if each.code == "tenant-port-unknown"
    }
    assert {subject: text.partition(", and ")[2] for subject, text in texts.items()} == {
        "A:eth77": "its switch has no such port: see names and cables",
        "Z:eth1": "its switch is not connected: see names and cables",
    }


def test_a_switch_that_is_looked_at_is_not_said_to_be_away() -> None:
    net = network(flood=FloodSettings(None, {("P", "x"): 1e6}), hosts=(HostSettings(mac(77), "P", "x"),))
    known = net.settings.tenants
    listed = (replace(known.listed[0], ports=(*known.listed[0].ports, ("P", "x"))), *known.listed[1:])
    net.settings = replace(net.settings, tenants=replace(known, listed=listed))
    follow(net)
    net = settled(net)
    net.disconnect("P")

    def told() -> set[str]:
        codes = ("tenant-port-unknown", "flood-port-unknown", "host-unknown")
        found = [each for each in report.problems(net.controller, net.now) if each.code in codes]
        assert len(found) == len(codes)
        return {each.text.partition("switch ")[2].removeprefix("P ") for each in found}

    assert told() == {"is not connected: see names and cables", "is not connected"}
    net.control[net.shape.dpid("P")] = 0.5
    net.connect("P")
    seen = []
    for _ in range(40):
        if net.shape.dpid("P") not in net.controller.admission.applicants:
            break
        seen += [each for each in told() if each not in seen]
        net.run(0.1)
    assert seen == [
        f"is not part of the network before its {what}"
        for what in (
            "first barrier is answered",
            "rules are listed",
            "deletion of rules of another configuration is confirmed",
        )
    ]
    assert told() == {"has no such port: see names and cables", "has no port x: see names and cables"}


def test_a_list_that_the_controller_before_asked_for_admits_nobody() -> None:
    net = settled(network())
    dpid = net.shape.dpid("A")
    net.control[dpid] = 1.0
    net.controller._ask_rules(net.now, dpid)
    net._flush()
    net.run(0.01)
    learned = "02:00:00:00:99:99"
    data = frame(learned, "ff:ff:ff:ff:ff:ff")
    net.controller.handle(net.now, dpid, PacketIn(net.stations["blue1"].port, data))
    net.run_until(lambda: learned in net.controller.compiler._hosts, within=3)
    net.settings = replace(net.settings, tenants=moved(net.settings.tenants, "blue1", "A"))
    follow(net)
    roles = net.controller._roles_of_ports(next(each for each in net.controller.hellos() if each.dpid == dpid), [])
    net.run_until(lambda: dpid not in net.controller.admission.applicants, within=20)
    assert [rule for rule in net.switches[dpid].rules.values() if not roles.fits(rule)] == []


def test_a_switch_with_a_wide_id_is_named_for_as_long_and_served_once_there_are_no_tenants() -> None:
    net = settled(network())
    wide = Hello(0x0123_4567_89AB_CDEF, (port(1, "eth1"),), "test")
    net.controller.handle_switch(net.now, wide)
    net.run(61)
    named = "wide-id" in net.codes()
    net.settings = replace(net.settings, tenants=Tenants())
    follow(net)
    assert (named, wide.dpid in net.controller.topology.switches) == (True, True)


def test_edges_and_hosts_that_are_nowhere_are_named_with_the_reason() -> None:
    whole = network()
    known = replace(
        with_trunk(whole.settings.tenants, "A", "h3"),
        links=whole.settings.tenants.links,
    )
    places = {"1": ("Z", "x", 0), "2": ("A", "x", 0), "3": ("A", "A-P", 0), "4": ("A", "h3", 7), "5": ("A", "h3", 0)}
    places["6"] = ("A", "h1", 7)
    hosts = tuple(HostSettings(f"02:00:00:00:77:0{number}", *at[:2], vid=at[2]) for number, at in places.items())
    edges = (*whole.settings.edges, EdgeSettings("lost", "A", "A-P"))
    net = settled(network(tenants=known, hosts=hosts, edges=edges))
    told = {each.subject: each.text for each in report.problems(net.controller, net.now)}
    assert told["lost"] == "port A-P of switch A is an end of a [[link]], where nobody else can be"
    assert [told[host.mac] for host in hosts] == [
        "switch Z is not connected",
        "switch A has no port x: see names and cables",
        told["lost"],
        "at the trunk A:h3 no tenant has frames under VID 7",
        "at the trunk A:h3 no tenant has frames without a vid",
        "port h1 of switch A is no trunk, so it has no VID 7",
    ]
