"""Tenants are carried and kept apart: by the rules that switches have after each single message."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace

import pytest

from braid_sdn.fabric.monitor.probe import tagged
from braid_sdn.fabric.plan.plan import Plan
from braid_sdn.fabric.plan.policies import through
from braid_sdn.fabric.switches import rules
from braid_sdn.fabric.tenants import DEFAULT, TAGS, Tenants
from braid_sdn.openflow.messages import AddRule, DeleteRule, PushTag

from .tenant_network import (
    BLUE,
    RED,
    arrivals,
    assert_apart,
    assert_together,
    colour,
    greet,
    network,
    settled,
    tenants,
)
from .virtual import Network, arp, frame, mac

#: Nothing here is about paths that are measured.
pytestmark = pytest.mark.usefixtures("rare_probes")


def test_each_tenant_is_whole_and_none_reaches_another() -> None:
    net = settled(network())
    assert_together(net)
    assert_apart(net)


def test_masks_have_the_tags_of_a_tenant_and_no_others() -> None:
    known = tenants((100, 227), (4000, 4094))
    for number in known.numbers:
        masks = [each if isinstance(each, tuple) else (each, 0xFFF) for each in known.masks(number)]
        matched = {vid for vid in range(4096) if any(vid & mask == value for value, mask in masks)}
        assert matched == set(known.tags(number)) == {vid for vid in TAGS if known.of_tag(vid) == number}


def test_tags_in_use_are_those_of_their_tenants() -> None:
    net = settled(network())
    plan: Plan = net.controller.plan
    assert {tenant: net.settings.tenants.of_tag(each.tag) for tenant, each in plan.floods.items()} == {
        each: each for each in (DEFAULT, BLUE, RED)
    }
    assert all(net.settings.tenants.of_tag(tree.tag) == tree.tenant for tree in plan.trees.values())
    assert len(plan.trees) == 6
    assert set(plan.pairs) == {(a, b) for c in ("blue", "red") for a, b in ((f"{c}3", f"{c}4"), (f"{c}4", f"{c}3"))}
    for (source, _), pair in plan.pairs.items():
        wanted = {"blue": BLUE, "red": RED}[colour(source)]
        assert {net.settings.tenants.of_tag(path.tag) for path in pair.paths} == {wanted}


def test_the_same_address_is_a_host_of_each_tenant() -> None:
    net = settled(network())
    names = list(net.stations)
    for station in ("blue2", "red2"):
        number = names.index(station) + 1
        net.send(station, arp(mac(number), "10.0.0.2", "10.0.0.9"))
    net.run(2)
    for each in net.received.values():
        each.clear()
    for station in ("blue1", "red1"):
        net.send(station, arp(mac(names.index(station) + 1), "10.0.0.1", "10.0.0.2"))
    net.run(2)
    asked = {name: [data[6:12].hex(":") for data in got] for name, got in net.received.items() if got}
    assert asked == {"blue2": [mac(names.index("blue1") + 1)], "red2": [mac(names.index("red1") + 1)]}


def test_an_edge_sends_under_tags_of_its_tenant_alone() -> None:
    """Hosts behind an edge that does not run can send any tag."""
    net = settled(network())
    assert_apart(net, tags=40, rng=random.Random(1))


def test_a_tenants_port_is_no_link_whatever_frames_come_there() -> None:
    net = network()
    net.relay |= {"blue1": "blue2", "red1": "h2", "h1": "red2", "h3": "h2"}
    settled(net)
    net.relay |= {"h2": "h3", "blue2": "blue1"}
    net.run(10)
    assert {ends.switch for link in net.controller.topology.heard for ends in link} == {1, 2, 3, 4}
    assert len(net.controller.topology.heard) == 8
    assert {"tenant-link", "link-not-listed"} <= net.codes()
    assert_apart(net, tags=20, rng=random.Random(2))


def test_a_muted_port_reaches_its_own_tenant_alone() -> None:
    net = settled(network())
    for number in range(700):
        net.send("blue1", arp(mac(1000 + number), "10.0.0.1", "10.0.0.2"))
    net.run(1)
    assert "packet-in-flood" in net.codes()
    assert any(rule.table == rules.SOURCES and rule.priority == 50 for rule in net.switches[1].rules.values())
    assert_apart(net)
    # A controller with another configuration, by which that port is another tenant's, finds leases that are not over.
    ports = net.settings.tenants
    red, blue = ports.listed[1], ports.listed[0]
    moved = type(ports)(
        (
            type(blue)(blue.name, blue.first, blue.last, tuple(each for each in blue.ports if each[1] != "blue1")),
            type(red)(red.name, red.first, red.last, (*red.ports, ("A", "blue1"))),
        ),
        ports.links,
    )
    follow_settings(net, moved)
    net.restart_controller()
    net.run(0.1)
    for data in (arp(mac(5), "10.0.0.1", "10.0.0.2"), frame(mac(4), mac(7))):
        assert not [name for name, _ in arrivals(net, "blue1", data) if colour(name) == "blue"]
    net.run(8)
    assert "red2" in {name for name, _ in arrivals(net, "blue1", frame(mac(4), "01:00:5e:01:02:03"))}


def follow_settings(net: Network, wanted: Tenants) -> None:
    net.settings = replace(net.settings, tenants=wanted)


@pytest.mark.parametrize("late", ["A", "P"])
def test_ranges_that_change_while_a_switch_is_away_let_nothing_across(late: str) -> None:
    """Blue and red change their tags while a switch keeps its rules, and two controllers begin one after another."""
    net = settled(network())
    net.disconnect(late)
    follow_settings(net, tenants((RED, 3499), (BLUE, 2499)))
    look_after_changes(net, random.Random(late), every=1)
    net.restart_controller(late={late: 6.0})
    for _ in range(11):
        net.run(1)
        assert_apart(net)
    net.restart_controller(late={late: 2.0})
    for _ in range(6):
        net.run(1)
        assert_apart(net)
    greet(net)
    assert_together(net)


@pytest.mark.parametrize("away", ["A", "B"])
def test_a_switch_of_another_configuration_reaches_nobody_beside_it(away: str) -> None:
    """Its rules are of tags that are another tenant's by now, and it is plugged into one that has new rules."""
    wires = (("A", "B"),)
    net = settled(network(wires))
    net.disconnect(away)
    follow_settings(net, tenants((RED, 3499), (BLUE, 2499), wires))
    look_after_changes(net, random.Random(away), every=1, tags=4)
    # The first plan does not wait for it.
    net.restart_controller(late={away: 14.0})
    net.run(19)
    greet(net)
    assert_together(net)
    assert_apart(net, tags=20, rng=random.Random(away))


def test_a_controller_that_begins_anew_changes_nothing() -> None:
    net = settled(network())
    before = {
        dpid: {key: rule for key, rule in each.rules.items() if not rule.lease} for dpid, each in net.switches.items()
    }
    net.restart_controller()
    net.run(0.5)
    after = {
        dpid: {key: rule for key, rule in each.rules.items() if not rule.lease} for dpid, each in net.switches.items()
    }
    assert after == before
    net.run(8)
    assert_together(net)


@pytest.mark.parametrize("seed", range(3))
def test_after_each_message_of_a_random_story_nothing_is_across(seed: int) -> None:
    rng = random.Random(seed)
    net = network()
    look_after_changes(net, rng, every=7)
    settled(net)
    names, down = list(net.stations), set[tuple[str, str]]()
    for _ in range(10):
        match rng.randrange(7):
            case 0:
                station = rng.choice(names)
                net.send(station, frame(mac(rng.randrange(1, len(names) + 4)), "ff:ff:ff:ff:ff:ff"))
            case 1:
                wire = rng.choice((("A", "P"), ("P", "B"), ("A", "Q"), ("Q", "B")))
                net.unplug(*wire, up=wire in down)
                down ^= {wire}
            case 2:
                net.restart_controller(late={rng.choice("ABPQ"): rng.random() * 5})
            case 3:
                switch = rng.choice("ABPQ")
                net.disconnect(switch)
                net.at(net.now + rng.random() * 4, functools.partial(connect_once, net, switch))
            case 4:
                station = rng.choice(names)
                net.send(station, arp(mac(names.index(station) + 1), "10.0.0.1", "10.0.0.2"))
            case 5:
                switch = rng.choice("ABPQ")
                net.disconnect(switch)
                net.switches[net.shape.dpid(switch)].restart()
                net.connect(switch)
            case 6:
                follow_settings(net, rng.choice((tenants(), tenants((RED, 3499), (BLUE, 2499)))))
                net.restart_controller()
        net.run(rng.random() * 2)
        assert_apart(net)
    for wire in down:
        net.unplug(*wire, up=True)
    net.run(8)
    greet(net)
    assert_apart(net, tags=5, rng=rng)
    assert_together(net)


def connect_once(net: Network, switch: str) -> None:
    if net.shape.dpid(switch) not in net.connected:
        net.connect(switch)


def look_after_changes(net: Network, rng: random.Random, *, every: int, tags: int = 1) -> None:
    """Have some frames sent after changes of rules, one change in so many."""
    deliver, changes = net._deliver, itertools.count()

    def deliver_and_look(dpid: int, message: object) -> None:
        deliver(dpid, message)
        if isinstance(message, AddRule | DeleteRule) and next(changes) % every == 0:
            look(net, rng, tags)

    net._deliver = deliver_and_look  # type: ignore[method-assign]


def look(net: Network, rng: random.Random, tags: int) -> None:
    """Send some frames of a few stations at this moment; none arrives across."""
    names = list(net.stations)
    used = [tag for each in net.switches.values() for key in each.rules if (tag := rules.tag_of(key)) is not None]
    for station in rng.sample(names, 3):
        source = mac(names.index(station) + 1)
        frames = [
            frame(source, mac(rng.randrange(1, len(names) + 1))),
            frame(source, rng.choice(("01:00:5e:01:02:03", "ff:ff:ff:ff:ff:ff", "02:ff:ff:ff:ff:01"))),
            arp(source, "10.0.0.1", "10.0.0.2"),
        ]
        frames += [tagged(rng.choice(frames), rng.choice(used)) for _ in range(tags if used else 0)]
        for data in frames:
            for name, _ in arrivals(net, station, data):
                assert colour(name) == colour(station), (station, name, data.hex(), net.now)


def test_a_flood_of_another_tenants_tag_is_found_by_the_check_of_rules() -> None:
    """The test's own eyes: with one wrong rule, something arrives across."""
    net = settled(network())
    red = net.controller.plan.floods[RED].tag
    pipeline = net.switches[1]
    rule = next(
        rule
        for rule in pipeline.rules.values()
        if (rule.table, rule.priority, rule.match.metadata) == (rules.TREES, 0, (BLUE << 48, 0xFFFF << 48))
    )
    list(pipeline.handle(net.now, AddRule(replace(rule, actions=(PushTag(red),)))))
    with pytest.raises(AssertionError):
        assert_apart(net)


def test_floods_of_each_tenant_count_where_a_switch_is_drained() -> None:
    net = settled(network())
    plan = replace(net.controller.plan, trees={}, pairs={}, pinned={})
    assert plan.floods.keys() == {DEFAULT, BLUE, RED}
    between = {switch for switch, ports in plan.floods[BLUE].ports.items() if len(ports) > 1}
    for switch in between:
        assert through(plan, net.controller.graph, switch) == 3
        assert through(replace(plan, floods={BLUE: plan.floods[BLUE]}), net.controller.graph, switch) == 1
    assert between
