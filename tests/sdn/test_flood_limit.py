"""Limits on floods of hosts: a storm leaves others, and requests for addresses, alone."""

from __future__ import annotations

import asyncio
import functools
import secrets
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from braid_lab.fabric.pipeline import TokenBucket
from braid_lab.fabric.shapes import Shape, Station, Wire, two_paths
from braid_sdn.fabric.api import metrics, report
from braid_sdn.fabric.api.events import Event
from braid_sdn.fabric.config import Config, ConfigError
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.flood_drops import FloodDrops
from braid_sdn.fabric.monitor.probe import tagged
from braid_sdn.fabric.monitor.problems import RETENTION
from braid_sdn.fabric.service import Service
from braid_sdn.fabric.settings import FloodSettings, Settings
from braid_sdn.fabric.switches import flood_limit, rules
from braid_sdn.fabric.switches.flood_limit import NO_LIMIT
from braid_sdn.fabric.switches.rules import DESTINATIONS, UNANSWERED, unanswered
from braid_sdn.fabric.tenants import NOBODY
from braid_sdn.openflow.messages import (
    AddRule,
    DeleteMeter,
    DeleteRule,
    FromSwitch,
    Match,
    MeterCounters,
    PortStatus,
    Refused,
    Rule,
    SetMeter,
)

from . import tenant_network
from .virtual import Network, arp, everybody_reaches_everybody, frame, mac

EVERYBODY = "ff:ff:ff:ff:ff:ff"
GROUP = "01:00:5e:01:02:03"
#: Links of 2 Mbit/s: a storm is a few thousand frames in virtual time.
SHAPE = replace(
    two_paths(mbit=2.0, delay_ms=1),
    stations=(Station("ha", "A"), Station("hb", "B"), Station("x", "A"), Station("y", "B")),
)
METERS = 300


def network(shape: Shape = SHAPE, meters: int = METERS, **settings: object) -> Network:
    """A network that limits floods by its links, whose switches have meters; not connected yet."""
    net = Network(shape, **{"flood": FloodSettings(None), **settings})
    for switch in net.switches.values():
        switch.meters = meters
    for wire in shape.wires:
        for end in (net.port_of(wire.one, wire.other), net.port_of(wire.other, wire.one)):
            net.rate[end], net.queue[end] = 1e6 * wire.mbit, 0.05
    return net


def settled(net: Network) -> Network:
    net.connect()
    net.run(4)
    for number, name in enumerate(net.stations, 1):
        net.send(name, arp(mac(number), f"10.0.0.{number}", "10.0.0.99"))
    net.run(3)
    for each in net.received.values():
        each.clear()
    return net


def udp(source: str, target: str, ports: tuple[int, int], number: int = 0, size: int = 60) -> bytes:
    """A datagram in a frame, with a number."""
    body = struct.pack("!HHHHI", *ports, 12, 0, number)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 32, 0, 0, 64, 17, 0, bytes(4), b"\xff" * 4)
    return frame(source, target, ip + body).ljust(size, b"\0")


def storm(net: Network, seconds: float, *, station: str = "x", size: int = 1000, rate: float = 4e6) -> None:
    """Have a station send broadcasts at a rate, bit/s, from now on."""
    source = mac(list(net.stations).index(station) + 1)
    data = frame(source, EVERYBODY, b"storm").ljust(size, b"\0")
    gap = 8 * size / rate
    for number in range(round(seconds / gap)):
        net.at(net.now + number * gap, lambda: net.send(station, data), outside=True)


def limited(net: Network, switch: str = "A") -> list[Rule]:
    """The rules of a switch that limit floods."""
    return [
        rule
        for key, rule in net.switches[net.shape.dpid(switch)].rules.items()
        if rule.meter and key[0] == DESTINATIONS
    ]


def rates(net: Network, switch: str = "A") -> dict[int, int]:
    """The meters of a switch with their rates."""
    return {number: each.meter.rate for number, each in net.switches[net.shape.dpid(switch)].buckets.items()}


def lost_of_bystanders(net: Network, seconds: float = 3.0) -> dict[str, int]:
    """Have others speak for a while: pings, requests for addresses, a multicast and known hosts' packets.

    Returns how many did not arrive.
    """
    for each in net.received.values():
        each.clear()
    sent: dict[str, list[tuple[str, bytes]]] = {"pings": [], "multicast": [], "requests": [], "own requests": []}
    x = list(net.stations).index("x") + 1
    for number in range(round(seconds / 0.02)):
        ping = frame(mac(1), mac(2), b"ping" + struct.pack("!I", number))
        net.send("ha", ping)
        sent["pings"].append(("hb", ping))
        # 0.2 Mbit/s, a fifth of the limit.
        video = udp(mac(1), GROUP, (5004, 5004), number, 500)
        net.send("ha", video)
        sent["multicast"] += [("hb", video), ("y", video)]
        if number % 25 == 0:
            # Of addresses that nobody has, so that they are flooded; of one that is known; and by DHCP.
            unknown = arp(mac(1), "10.0.0.1", f"10.0.1.{number // 25}")
            net.send("ha", unknown)
            sent["requests"] += [("hb", unknown), ("y", unknown)]
            own = arp(mac(x), f"10.0.0.{x}", f"10.0.2.{number // 25}")
            net.send("x", own)
            dhcp = udp(mac(x), EVERYBODY, (68, 67), number, 342)
            net.send("x", dhcp)
            known = frame(mac(x), mac(4), b"to y" + struct.pack("!I", number))
            net.send("x", known)
            sent["own requests"] += [("y", own), ("hb", own), ("y", dhcp), ("hb", dhcp), ("y", known)]
        net.run(0.02)
    net.run(1)
    return {kind: sum(data not in net.received[name] for name, data in expected) for kind, expected in sent.items()}


NOTHING = {"pings": 0, "multicast": 0, "requests": 0, "own requests": 0}


@pytest.mark.parametrize("size", [60, 1000])
def test_a_storm_leaves_others_and_its_own_requests_alone(size: int) -> None:
    net = settled(network())
    storm(net, 3.0, size=size)
    assert lost_of_bystanders(net) == NOTHING
    assert "flood-limited" in net.codes()
    # It gets what it may: half of 2 Mbit/s.
    got = sum(len(each) for each in net.received["y"] if b"storm" in each)
    assert 0.8 * 1e6 < 8 * got / 3.0 < 1.2 * 1e6


def test_without_a_limit_the_same_storm_takes_the_links() -> None:
    net = settled(network(flood=FloodSettings(NO_LIMIT)))
    storm(net, 3.0)
    lost = lost_of_bystanders(net)
    assert lost["pings"] > 10
    assert lost["multicast"] > 10
    assert not limited(net)
    assert not rates(net)


def test_half_of_the_slowest_link_of_the_tree_is_the_limit_and_follows_it() -> None:
    net = settled(network())
    assert set(rates(net).values()) == {1000, flood_limit.ADDRESS_RATE}
    # A way over faster links alone has another limit, of the same meters, with all rules as they are.
    told = messages(net)
    with_links(net, 8.0)
    net.run(3)
    changed = [each for _, each in told if isinstance(each, SetMeter)]
    assert {(each.rate, each.is_new) for each in changed} == {(4000, False)}
    assert set(rates(net).values()) == {4000, flood_limit.ADDRESS_RATE}


def test_what_a_switch_says_of_its_ports_cuts_nobody_off() -> None:
    net = settled(network())
    net.controller.settings = replace(net.controller.settings, links=())
    net.controller.traffic.configured.clear()
    for switch in net.controller.topology.switches.values():
        for number, port in list(switch.ports.items()):
            switch.ports[number] = replace(port, speed=1000.0)
    net.controller._throttle.change(net.now)
    net.run(3)
    assert set(rates(net).values()) == {5000, flood_limit.ADDRESS_RATE}


def test_rules_around_what_failed_go_before_other_rates() -> None:
    wires = tuple(
        replace(
            wire,
            mbit=2.0 if {wire.one, wire.other} == {"A", "P"} else 8.0,
            delay_ms=0.3 if "P" in (wire.one, wire.other) else 1,
        )
        for wire in SHAPE.wires
    )
    net = settled(network(replace(SHAPE, wires=wires)))
    net.run(15)
    assert set(rates(net).values()) == {1000, flood_limit.ADDRESS_RATE}
    told = messages(net)
    net.unplug("A", "P")
    net.run(3)
    assert set(rates(net).values()) == {4000, flood_limit.ADDRESS_RATE}
    kinds = [type(message) for switch, message in told if switch == 1 and isinstance(message, SetMeter | AddRule)]
    assert SetMeter in kinds
    assert kinds[0] is AddRule


def test_a_limit_that_is_read_anew_is_followed_by_rates_rules_and_meters() -> None:
    net = settled(network())
    before = limited(net)
    assert before

    def follow(limit: float | None, ports: dict[tuple[str, str], float] | None = None) -> None:
        net.controller.set_flood(net.now, FloodSettings(limit, ports or {}))
        net.run(3)

    told = messages(net)
    follow(4e5)
    assert set(rates(net).values()) == {400, flood_limit.ADDRESS_RATE}
    assert limited(net) == before
    assert not [each for _, each in told if isinstance(each, AddRule) and each.rule.table == DESTINATIONS]
    # A port of its own alone, by which no other rate changes.
    follow(4e5, {("A", "x"): 3e5})
    assert sorted(set(rates(net).values())) == [flood_limit.ADDRESS_RATE, 300, 400]
    follow(NO_LIMIT)
    assert (limited(net), rates(net)) == ([], {})
    follow(None)
    assert sorted(limited(net), key=repr) == sorted(before, key=repr)
    assert set(rates(net).values()) == {1000, flood_limit.ADDRESS_RATE}
    assert "refused" not in net.codes()


def test_a_reload_takes_the_limits_or_all_of_it_stays(tmp_path: Path) -> None:
    told: list[Event] = []

    def bad() -> Config:
        raise ConfigError("fabric.toml: flood.limit: 'x' is no rate")

    def config(flood: FloodSettings) -> Config:
        return Config(Settings(secrets.token_bytes(16), flood=flood))

    async def story() -> None:
        service = Service(config(FloodSettings()), tmp_path, told.append)
        wanted = FloodSettings(2e6, {("A", "x"): NO_LIMIT})
        service.reload(lambda: config(wanted))
        assert service.controller.settings.flood == wanted
        service.reload(bad)
        assert service.controller.settings.flood == wanted
        assert "reload-refused" in {each.code for each in report.problems(service.controller, 1.0)}
        # One that begins anew has the limits that were read last.
        assert service._new_controller().settings.flood == wanted
        service.reload(lambda: config(FloodSettings(None)))
        service.stop()

    asyncio.run(story())
    assert [(each.name, each.warning, each.fields.get("flood")) for each in told] == [
        ("reloaded", False, "2 Mbit/s, A:x off"),
        ("reload-refused", True, None),
        ("reloaded", False, "auto"),
    ]


def test_a_fast_network_is_limited_for_the_hosts_sake() -> None:
    fast = replace(SHAPE, wires=tuple(replace(wire, mbit=10_000.0) for wire in SHAPE.wires))
    net = settled(network(fast))
    assert max(rates(net).values()) == 100_000
    alone = Shape(("A",), (), (Station("ha", "A"), Station("hb", "A")))
    assert max(rates(settled(network(alone))).values()) == 100_000


def test_single_ports_have_their_own_limit_or_none() -> None:
    own = FloodSettings(3e6, {("A", "x"): NO_LIMIT, ("B", "4"): 5e5})
    net = settled(network(flood=own))
    ports = {rule.match.in_port: rule.meter for rule in limited(net) if rule.priority == 1}
    assert ports.keys() == {net.stations["ha"].port}
    assert rates(net)[ports[net.stations["ha"].port] or 0] == 3000
    assert net.stations["y"].port == 4
    assert sorted(set(rates(net, "B").values())) == [flood_limit.ADDRESS_RATE, 500, 3000]
    assert "flood-port-unknown" not in net.codes()
    net.controller.settings = replace(net.settings, flood=FloodSettings(None, {("A", "z"): 1e6, ("C", "x"): 1e6}))
    told = [each for each in report.problems(net.controller, net.now) if each.code == "flood-port-unknown"]
    assert [(each.subject, each.text.partition(", and ")[2].partition(":")[0]) for each in told] == [
        ("A:z", "its switch has no such port"),
        ("C:x", "its switch is not connected"),
    ]


def messages(net: Network) -> list[tuple[int, object]]:
    """Return a list to which each message to a switch goes from now on."""
    told: list[tuple[int, object]] = []
    deliver = net._deliver

    def deliver_and_note(dpid: int, message: object) -> None:
        told.append((dpid, message))
        deliver(dpid, message)

    net._deliver = deliver_and_note  # type: ignore[method-assign]
    return told


def test_a_switch_that_restarts_gets_its_meters_before_its_rules() -> None:
    net = settled(network())
    before = (limited(net), rates(net))
    net.disconnect("A")
    net.switches[1].restart()
    net.run(1)
    assert not rates(net)
    net.connect("A")
    net.run(5)
    assert (sorted(limited(net), key=repr), rates(net)) == (sorted(before[0], key=repr), before[1])
    assert "refused" not in net.codes()
    storm(net, 3.0)
    assert lost_of_bystanders(net) == NOTHING


def test_a_storm_is_limited_from_the_first_packet_after_a_restart_and_where_a_loop_is() -> None:
    net = settled(network())
    net.disconnect("A")
    net.switches[1].restart()
    net.run(1)
    net.connect("A")
    net.run_until(lambda: bool(limited(net)), within=1.0)
    number = next(rule.meter for rule in limited(net) if rule.match.in_port == net.stations["x"].port)
    storm(net, 2.0)
    net.run(2)
    assert 8 * sum(len(each) for each in net.received["y"]) < 1.2 * 1e6 * 2
    # The port hears its own frames, so no broadcasts go out of it; what comes from there is limited as before.
    net.relay["x"] = "x"
    net.run(2)
    net.controller._throttle.change(net.now)
    net.run(2)
    assert net.stations["x"].port not in net.controller.plan.outside[1]
    assert number in rates(net)
    net.received["y"].clear()
    storm(net, 2.0)
    net.run(2)
    assert 8 * sum(len(each) for each in net.received["y"]) < 1.2 * 1e6 * 2


def test_a_controller_that_starts_anew_takes_over_the_meters() -> None:
    net = settled(network())
    before = (limited(net), rates(net))
    told = messages(net)
    net.restart_controller()
    net.run(6)
    assert (limited(net), rates(net)) == before
    assert not [each for _, each in told if isinstance(each, DeleteMeter)]
    assert not [each for _, each in told if isinstance(each, DeleteRule) and each.key[0] == DESTINATIONS]
    assert not [each for _, each in told if isinstance(each, SetMeter) and each.is_new]
    # One whose configuration has another limit, or none.
    net.settings = replace(net.settings, flood=FloodSettings(4e5))
    net.restart_controller()
    net.run(6)
    assert limited(net) == before[0]
    assert set(rates(net).values()) == {400, flood_limit.ADDRESS_RATE}
    net.settings = replace(net.settings, flood=FloodSettings(NO_LIMIT))
    net.restart_controller()
    net.run(6)
    assert (limited(net), rates(net)) == ([], {})
    assert "refused" not in net.codes()


def test_a_port_that_becomes_a_link_has_no_meter_and_gets_it_back() -> None:
    net = network()
    for name in ("P", "Q"):
        net.switches[net.shape.dpid(name)].meters = 0
    net = settled(net)
    x, y = net.stations["x"], net.stations["y"]
    assert {rule.match.in_port for rule in limited(net)} == {net.stations["ha"].port, x.port}
    places = dict(net.stations)
    for name, end in (("x", x), ("y", y)):
        # The hosts are unplugged, and a cable is between their ports.
        del net.stations[name]
        for up in (False, True):
            status = net.switches[end.switch].set_port(end.port, up=up)
            net.controller.handle(net.now, end.switch, status)
    net.wire(x, y)
    net.run(8)
    assert PortId(1, x.port) in net.controller.topology.neighbours()
    assert {rule.match.in_port for rule in limited(net)} == {net.stations["ha"].port}
    assert len(rates(net)) == 2
    for end in (x, y):
        del net.peer[end]
        for up in (False, True):
            net.controller.handle(net.now, end.switch, net.switches[end.switch].set_port(end.port, up=up))
    net.stations.update(places)
    net.run(8)
    assert {rule.match.in_port for rule in limited(net)} == {net.stations["ha"].port, x.port}
    assert len(rates(net)) == 4
    assert not {"refused", "flood-limited"} & net.codes()


def test_a_meter_that_somebody_deletes_is_made_again() -> None:
    net = settled(network())
    before = rates(net)
    for number in list(net.switches[1].buckets):
        net.switches[1]._delete_meter(number)
    assert not limited(net)
    net.run(35)
    assert rates(net) == before
    assert limited(net)


def test_a_switch_without_meters_has_no_limit_and_is_named() -> None:
    net = network(meters=0)
    settled(net)
    assert not limited(net)
    assert net.controller.unlimited == {1: 4, 2: 4, 3: 2, 4: 2}
    told = {each.subject for each in report.problems(net.controller, net.now) if each.code == "flood-unlimited"}
    assert told == {"A", "B", "P", "Q"}
    everybody_reaches_everybody(net)


def test_a_switch_that_refuses_does_without() -> None:
    net = network()
    net.switches[1].refuses = lambda rule: rule.meter is not None
    net = settled(net)
    assert not limited(net)
    assert limited(net, "B")
    assert "refused" in net.codes()
    everybody_reaches_everybody(net)
    net.run(70)
    assert "refused" not in net.codes()


def test_a_switch_with_few_meters_limits_the_ports_that_it_can() -> None:
    net = settled(network(meters=10))
    ports = sorted(end.port for end in net.stations.values() if end.switch == 1)
    assert ports == [3, 4]
    assert {rule.match.in_port for rule in limited(net)} == {3}
    assert net.controller.unlimited == {1: 1, 2: 1}


@pytest.mark.parametrize("highest", range(0, 40, 3))
def test_no_place_has_another_ones_meter_however_few_there_are(highest: int) -> None:
    """Ports have the first places of a switch, and tenants at trunks the last ones: here they meet."""
    places = [(1, tenant) for tenant in (2001, 2002, 2003)] + [(port, NOBODY) for port in (2, 3, 4)]
    limits = dict.fromkeys(places, 1e6)
    made = flood_limit.of_switch(limits, {1: {10: 2001, 20: 2002, 30: 2003}}, (), highest)
    numbers = [number for each in made.ports for number in (each.meter, each.address_meter)]
    assert sorted(made.meters) == sorted(numbers)
    assert all(number < highest for number in numbers)
    assert len(made.ports) + made.missing == len(limits)
    if highest > 3 * 7:
        assert not made.missing


def test_what_a_known_host_gets_meets_no_meter() -> None:
    net = settled(network(flood=FloodSettings(8000)))
    for number in range(200):
        net.send("x", frame(mac(3), mac(4), struct.pack("!I", number)).ljust(1400, b"\0"))
        net.run(0.01)
    net.run(0.5)
    assert len(net.received["y"]) == 200
    assert all(each.packets == 0 or number > 200 for number, each in net.switches[1].buckets.items())
    assert "flood-limited" not in net.codes()


def test_a_port_that_is_muted_is_limited_too_and_its_own_host_resolves_addresses() -> None:
    net = settled(network())

    def storm_of_strangers() -> Iterator[bytes]:
        for number in range(100_000):
            yield frame(mac(1000 + number % 60_000), mac(61_000 + number % 4000)).ljust(500, b"\0")

    strangers = storm_of_strangers()
    for number in range(6000):
        net.at(net.now + number / 1500, lambda: net.send("x", next(strangers)), outside=True)
    # Known, to addresses that nobody has.
    for number in range(4000):
        data = frame(mac(3), mac(65_000 + number % 500)).ljust(500, b"\0")
        net.at(net.now + number / 1000, lambda d=data: net.send("x", d), outside=True)  # type: ignore[misc]
    net.run(1)
    assert "packet-in-flood" in net.codes()
    own = [arp(mac(3), "10.0.0.3", f"10.0.2.{number}") for number in range(10)]
    for data in own:
        net.send("x", data)
        net.run(0.2)
    net.run(1)
    assert [data in net.received["y"] for data in own] == [True] * 10
    # So does a host that nobody has heard of.
    asked = udp(mac(999), EVERYBODY, (68, 67), 0, 342)
    net.send("x", asked)
    net.run(1)
    assert asked in net.received["y"]
    got = 8 * sum(len(each) for each in net.received["y"])
    assert got < 1.2 * 1e6 * 4.0


def test_what_is_dropped_is_counted_and_shown() -> None:
    net = settled(network())
    storm(net, 4.0, rate=3e6)
    net.run(4.5)
    (told,) = [each for each in report.problems(net.controller, net.now) if each.code == "flood-limited"]
    assert told.subject == "A:x"
    assert "1,000 kbit/s" in told.text
    assert f"hosts there: {mac(3)};" in told.text
    shown = {host["mac"]: host for host in report.hosts(net.controller, net.now)["hosts"]}
    assert shown[mac(3)]["flood_limit_bit_s"] == shown[mac(1)]["flood_limit_bit_s"] == 1_000_000
    # 375 a second are sent, 125 pass.
    assert 200 < shown[mac(3)]["flood_dropped_packets_s"] < 300
    assert shown[mac(1)]["flood_dropped_packets_s"] == 0
    dropped = sum(each.dropped for each in net.switches[1].buckets.values())
    net.run(3)
    text = metrics.exposition(net.controller, net.now)
    assert f'braid_fabric_flood_dropped_packets_total{{port="A:x"}} {dropped:g}' in text
    assert "braid_fabric_flood_limited_ports 4" in text
    net.run(60)
    assert "flood-limited" not in net.codes()


def test_tenants_at_a_trunk_have_limits_of_their_own() -> None:
    net = tenant_network.network()
    known = tenant_network.with_trunk(net.settings.tenants, "A", "h3")
    net = tenant_network.network(tenants=known, flood=FloodSettings(1e6))
    for switch in net.switches.values():
        switch.meters = METERS
    tenant_network.settled(net)
    trunk = net.stations["h3"].port
    blue, red = "02:00:00:00:aa:01", "02:00:00:00:bb:01"
    for source, vid in ((blue, tenant_network.BLUE_VID), (red, tenant_network.RED_VID)):
        net.send("h3", tagged(frame(source, EVERYBODY, b"here I am"), vid))
    net.run(3)
    for each in net.received.values():
        each.clear()
    at_trunk = [rule for rule in limited(net) if rule.match.in_port == trunk]
    assert len({rule.meter for rule in at_trunk}) == 4
    flood = tagged(frame(blue, EVERYBODY, b"storm").ljust(1000, b"\0"), tenant_network.BLUE_VID)
    for number in range(2500):
        net.at(net.now + number / 500, lambda: net.send("h3", flood), outside=True)
    quiet = [udp(red, GROUP, (5004, 5004), number, 500) for number in range(100)]
    for data in quiet:
        net.send("h3", tagged(data, tenant_network.RED_VID))
        net.run(0.02)
    net.run(5)
    assert [each for each in net.received["red2"] if each[12:14] == b"\x08\x00"] == quiet
    storm_bits = 8 * sum(len(each) for each in net.received["blue2"] if b"storm" in each)
    assert 4.5e6 < storm_bits < 5.5e6
    assert not net.received["h1"]
    named = [each.subject for each in report.problems(net.controller, net.now) if each.code == "flood-limited"]
    assert named == ["A:h3 (blue)"]
    # The configuration is the same to another controller, and to a switch that connects anew.
    before = (limited(net), rates(net))
    told = messages(net)
    tenant_network.follow(net)
    net.run(8)
    assert (sorted(limited(net), key=repr), rates(net)) == (sorted(before[0], key=repr), before[1])
    assert not [each for _, each in told if isinstance(each, DeleteMeter)]
    assert not [each for _, each in told if isinstance(each, DeleteRule) and each.key[0] == DESTINATIONS]


def test_a_large_network_limits_what_is_flooded_to_hosts_of_other_switches() -> None:
    net = network()
    net.controller.compiler.everywhere = False
    net.controller.compiler._set_mode = lambda *_: None  # type: ignore[method-assign]
    net = settled(net)
    assert [rule.priority for rule in limited(net)].count(UNANSWERED) == 2
    assert (DESTINATIONS, UNANSWERED, unanswered().match) not in net.switches[1].rules
    storm(net, 3.0)
    assert lost_of_bystanders(net) == NOTHING
    # The controller is asked where no rule is, and the first packets are flooded within the limit.
    unknown = frame(mac(3), mac(200)).ljust(1000, b"\0")
    net.run(2)
    net.received["y"].clear()
    for number in range(1000):
        net.at(net.now + number / 500, lambda: net.send("x", unknown), outside=True)
    net.run(3)
    assert 1.5e6 < 8 * sum(len(each) for each in net.received["y"]) < 2.5e6
    net.send("ha", frame(mac(1), mac(4)))
    net.run(1)
    assert (DESTINATIONS, 30, Match(eth_dst=mac(4))) in net.switches[1].rules


def test_counters_that_begin_anew_are_not_taken_for_a_storm() -> None:
    drops, place = FloodDrops(), (PortId(1, 4), NOBODY)

    def told(dropped: int, age: float) -> MeterCounters:
        return MeterCounters(9, 10 * dropped, dropped, age)

    # A meter that was there before this controller.
    assert drops.handle_counters(100.0, place, told(5000, 3600.0)) == 0
    assert drops.handle_counters(102.0, place, told(5020, 3602.0)) == 10
    assert drops.rate(place) == 10
    # It got another rate, by which its counters begin at 0.
    assert drops.handle_counters(104.0, place, told(6, 1.0)) == 3
    assert drops.total == {place: 26}
    drops.keep(1, ())
    assert drops.rate(place) == 0
    # One that was just made has dropped all of it in its time.
    assert drops.handle_counters(106.0, place, told(8, 4.0)) == 2


def test_one_period_with_dropped_packets_is_no_storm() -> None:
    drops, place = FloodDrops(), (PortId(1, 4), NOBODY)
    dropped = [0, 1, 1, 2, 40, 40]
    named = []
    for number, total in enumerate(dropped):
        drops.handle_counters(100.0 + 2 * number, place, MeterCounters(9, 1000, total, 5.0 + 2 * number))
        named.append(
            {
                switch: {each: known.rate for each, known in of.items()}
                for switch, of in drops.storms(100.0 + 2 * number).items()
            }
        )
    assert named == [{}, {}, {}, {}, {1: {9: 19.0}}, {1: {9: 19.0}}]
    assert not drops.storms(108.0 + RETENTION)


def test_a_storm_that_is_over_is_not_named_beside_one_that_goes_on() -> None:
    drops = FloodDrops()
    for number in range(round(RETENTION)):
        now = 100.0 + 2 * number
        for meter, dropped in ((9, min(number, 3)), (10, number)):
            counters = MeterCounters(meter, 10 * dropped, dropped, 5.0 + 2 * number)
            drops.handle_counters(now, (PortId(1, meter), NOBODY), counters)
        named = set(drops.storms(now).get(1, ()))
        # The last packet of the first one was dropped at second 106.
        assert named == (set() if number < 2 else {9, 10} if now < 106.0 + RETENTION else {10})


def test_storms_at_many_ports_of_a_switch_are_few_lines_and_leave_room_for_others() -> None:
    stations = tuple(Station(f"h{number:02}", "A") for number in range(12))
    net = settled(network(Shape(("A", "B"), (Wire("A", "B", 2.0),), stations)))
    # One packet too many.
    storm(net, 0.2, station="h11")
    net.run(3)
    assert not told_of(net, "flood-limited")
    for name in net.stations:
        storm(net, 5.0, station=name, rate=2e6)
    net.run(7)
    named = told_of(net, "flood-limited")
    assert len(named) == report.MAX_NAMED_PORTS + 1
    assert named["A (more ports)"].startswith("drops what is flooded above the limits of 4 more ports")
    assert not net.controller.problems.current(net.now)


def test_a_meter_of_a_fake_switch_lets_its_rate_pass_and_its_burst_at_once() -> None:
    bucket = TokenBucket.of(SetMeter(1, 100, 8, by_bits=True), 10.0)
    frame_of = bytes(250)
    assert [bucket.take(10.0, frame_of) for _ in range(6)] == [True] * 4 + [False] * 2
    # 100 kbit/s are 50 such frames a second, in any second.
    passed = sum(bucket.take(10.0 + number / 512, frame_of) for number in range(1, 513))
    assert passed == 50
    # It never holds more than a burst.
    assert [bucket.take(60.0, frame_of) for _ in range(5)] == [True] * 4 + [False]
    assert (bucket.packets, bucket.dropped) == (523, 465)
    packets = TokenBucket.of(SetMeter(1, 10, 3), 10.0)
    assert [packets.take(10.0, frame_of) for _ in range(4)] == [True] * 3 + [False]
    assert [packets.take(10.25, frame_of) for _ in range(3)] == [True] * 2 + [False]


def router_solicitation(source: str, number: int) -> bytes:
    icmp = bytes([133, 0, 0, 0, 0, 0, 0, 0, number])
    ip = struct.pack("!IHBB16s16s", 6 << 28, len(icmp), 58, 255, bytes(16), b"\xff\x02" + bytes(13) + b"\x02")
    return bytes.fromhex("333300000002" + source.replace(":", "") + "86dd") + ip + icmp


def test_hosts_find_ipv6_routers_beside_a_storm_of_their_own() -> None:
    net = settled(network())
    storm(net, 3.5, size=60)
    asked = [router_solicitation(mac(3), number) for number in range(20)]
    for each in asked:
        net.send("x", each)
        net.run(0.15)
    net.run(1)
    assert all(each in net.received["y"] for each in asked)


def test_a_switch_that_is_full_does_without_limits_first() -> None:
    net = network(replace(SHAPE, wires=tuple(replace(wire, mbit=8.0) for wire in SHAPE.wires)))
    # All but the limits have room.
    net.switches[1].room = 36
    net = settled(net)
    net.run(40)
    assert not limited(net)
    assert limited(net, "B")
    assert net.controller.unlimited[1]
    # Nor is a meter left that nobody needs.
    assert not {number for number in net.switches[1].buckets if number > METERS // 3}
    for each in net.received.values():
        each.clear()
    sent = [frame(mac(1), mac(2), struct.pack("!I", number)).ljust(1000, b"\0") for number in range(800)]
    for number, data in enumerate(sent):
        net.at(net.now + number / 800, functools.partial(net.send, "ha", data), outside=True)
    net.run(3)
    assert sum(data in net.received["hb"] for data in sent) == len(sent)


def test_a_refused_rule_of_a_muted_port_takes_no_limits_with_it() -> None:
    net = settled(network())
    switch = net.switches[1]
    switch.refuses = lambda rule: rule.lease == rules.MUTE_LEASE and rule.meter is not None
    net.controller._mute(net.now, net.stations["x"])
    net.run(1)
    switch.refuses = lambda _rule: False
    before = {rule.key for rule in limited(net)}
    assert before
    added = replace(switch.ports[3], number=9, name="new")
    switch.ports[9] = added
    net.controller.handle(net.now, 1, PortStatus(added, False))
    net.run(3)
    assert before < {rule.key for rule in limited(net)}


def test_ports_beyond_the_first_third_of_meters_are_muted_by_one_for_all() -> None:
    shape = Shape(("A", "B"), (Wire("A", "B", 8.0),), tuple(Station(f"h{number}", "A") for number in range(5)))
    net = settled(network(shape, meters=10))
    own, limits = {rule.match.in_port for rule in limited(net)}, set(rates(net))
    for name in net.stations:
        net.controller._mute(net.now, net.stations[name])
    net.run(0.1)
    meters = {}
    for rule in net.switches[1].rules.values():
        if (
            rule.lease == rules.MUTE_LEASE
            and rule.table == rules.SOURCES
            and rule.priority == 10
            and rule.match.in_port
        ):
            meters[rule.match.in_port] = rule.meter
    third = 3
    assert meters == {place.port: place.port if place.port <= third else 10 for place in net.stations.values()}
    # No limit lost its meter to them.
    assert limits <= set(rates(net))
    assert own == {rule.match.in_port for rule in limited(net)}


def test_each_tenant_of_a_muted_trunk_has_its_rule_limited_or_not() -> None:
    hosts = [rules.Muted(2001, 1, 10, flood_meter=5, address_meter=6), rules.Muted(2002, 2, 20)]
    made = [rule for rule in rules.muted(3, hosts, 3, edge=False) if rule.table == rules.DESTINATIONS]
    assert [rule.meter for rule in made] == [5, None]
    assert len({rule.key for rule in made}) == 2


def told_of(net: Network, code: str) -> dict[str, str]:
    """The problems of a kind by their subjects."""
    return {each.subject: each.text for each in report.problems(net.controller, net.now) if each.code == code}


def with_links(net: Network, mbit: float) -> None:
    """Have all links carry as much from now on."""
    links = tuple(replace(link, capacity=1e6 * mbit) for link in net.controller.settings.links)
    net.controller.settings = replace(net.controller.settings, links=links)
    net.controller._throttle.change(net.now)


def test_a_refused_rate_is_named_by_its_port_and_the_rate_of_the_switch_is_shown() -> None:
    net = settled(network())
    x = net.stations["x"].port
    number = next(rule.meter for rule in limited(net) if rule.match.in_port == x and rule.priority == 1)
    net.switches[1].refuses_meter = lambda meter: meter.number == number
    with_links(net, 8.0)
    net.run(3)
    assert rates(net)[number or 0] == 1000
    named = told_of(net, "refused")
    assert named == {"A:x": "refuses a flood limit of 4,000 kbit/s, and has 1,000 kbit/s: error type 12 code 6"}
    shown = {host["mac"]: host for host in report.hosts(net.controller, net.now)["hosts"]}
    both = [(shown[mac(each)]["flood_limit_bit_s"], shown[mac(each)]["flood_limit_wanted_bit_s"]) for each in (3, 1)]
    assert both == [(1_000_000, 4_000_000), (4_000_000, 4_000_000)]
    assert "braid_fabric_flood_refused_limits 1" in metrics.exposition(net.controller, net.now)
    storm(net, 5.0)
    net.run(6.5)
    assert "than 1,000 kbit/s" in told_of(net, "flood-limited")["A:x"]
    # It is told again with each list of its rules.
    net.run(60)
    assert told_of(net, "refused") == named
    net.switches[1].refuses_meter = lambda _: False
    net.run(35)
    assert rates(net)[number or 0] == 4000
    assert not told_of(net, "refused")


def test_refusals_of_one_switch_are_few_lines() -> None:
    stations = tuple(Station(f"h{number}", "A") for number in range(12))
    net = settled(network(Shape(("A", "B"), (Wire("A", "B", 2.0),), stations)))
    net.switches[1].refuses_meter = lambda _: True
    with_links(net, 8.0)
    net.run(3)
    named = told_of(net, "refused")
    assert len(named) == report.MAX_NAMED_PORTS + 1
    assert named["A (more ports)"].startswith("refuses the flood limits of 4 more ports")


def test_a_rate_that_is_refused_while_somebody_else_leads_is_told_again_and_meters_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = settled(network())
    net.switches[1].refuses_meter = lambda meter: not meter.is_new
    handle = net.controller.handle

    def as_slave(now: float, dpid: int, message: FromSwitch) -> None:
        if isinstance(message, Refused) and message.meter is not None:
            message = replace(message, reason="slave")
        handle(now, dpid, message)

    monkeypatch.setattr(net.controller, "handle", as_slave)
    with_links(net, 8.0)
    net.run(3)
    (shown,) = {
        each["flood_limit_bit_s"]
        for each in report.hosts(net.controller, net.now)["hosts"]
        if each["port"].startswith("A:")
    }
    assert shown == 1e6
    net.switches[1].refuses_meter = lambda _: False
    net.run(35)
    assert set(rates(net).values()) == {4000, flood_limit.ADDRESS_RATE}
    # A new meter that such a switch refuses takes no limits away.
    meter = next(iter(net.controller.updater.wanted_meters[1].values()))
    net.controller.handle(net.now, 1, Refused("slave", meter=meter))
    net.run(10)
    assert limited(net)


def test_meters_that_are_refused_while_somebody_else_leads_are_made_with_their_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = network()
    switch, handle = net.switches[1], net.controller.handle

    def as_slave(now: float, dpid: int, message: FromSwitch) -> None:
        handle(now, dpid, replace(message, reason="slave") if isinstance(message, Refused) else message)

    monkeypatch.setattr(net.controller, "handle", as_slave)
    switch.refuses_meter, switch.refuses = lambda _: True, lambda rule: rule.meter is not None
    settled(net)
    hosts = [each for each in report.hosts(net.controller, net.now)["hosts"] if each["port"].startswith("A:")]
    assert {each["flood_limit_bit_s"] for each in hosts} == {None}
    assert not limited(net)
    switch.refuses_meter, switch.refuses = lambda _: False, lambda _: False
    monkeypatch.undo()
    # Rules may be tried again before they are listed.
    net.controller.updater.forgive(1)
    net.controller._throttle.failure(net.now)
    net.run(3)
    assert limited(net)
    assert set(rates(net).values()) == {1000, flood_limit.ADDRESS_RATE}
    assert not net.controller.unlimited.get(1)


def test_a_refusal_is_not_told_of_a_rate_that_nobody_wants_any_more() -> None:
    net = settled(network())
    net.switches[1].refuses_meter = lambda meter: meter.rate == 4000
    with_links(net, 8.0)
    net.run(3)
    assert told_of(net, "refused")
    updater = net.controller.updater
    wanted = {
        switch: {number: replace(each, rate=3000) if each.rate == 4000 else each for number, each in meters.items()}
        for switch, meters in updater.wanted_meters.items()
    }
    updater.set_meters(wanted)
    assert not told_of(net, "refused")


def test_a_storm_is_named_where_it_was_although_another_place_has_its_meter_now() -> None:
    tenants = tenant_network.network().settings.tenants
    vids = (tenant_network.BLUE_VID, tenant_network.RED_VID)
    listed = tuple(
        replace(each, trunks=((("A", "h1"), vid), (("A", "h3"), vid)))
        for each, vid in zip(tenants.listed, vids, strict=True)
    )
    net = tenant_network.network(tenants=replace(tenants, listed=listed), flood=FloodSettings(1e6))
    for switch in net.switches.values():
        switch.meters = METERS
    tenant_network.settled(net)
    blue = "02:00:00:00:aa:01"
    flood = tagged(frame(blue, EVERYBODY, b"storm").ljust(1000, b"\0"), tenant_network.BLUE_VID)
    for number in range(2500):
        net.at(net.now + number / 500, lambda: net.send("h1", flood), outside=True)
    net.run(7)
    assert list(told_of(net, "flood-limited")) == ["A:h1 (blue)"]
    place = net.stations["h1"]
    net.controller.handle(net.now, place.switch, PortStatus(net.switches[place.switch].ports[place.port], gone=True))
    net.run(4)
    assert not told_of(net, "flood-limited")


def test_a_switch_that_refuses_to_make_a_meter_does_without_and_says_whose_it_was() -> None:
    net = network()
    net.switches[1].refuses_meter = lambda _: True
    net = settled(net)
    assert not limited(net)
    assert limited(net, "B")
    assert "a meter of 1,000 kbit/s for A:" in told_of(net, "refused")["A"]
    everybody_reaches_everybody(net)


def test_limits_that_are_read_anew_are_tried_where_those_of_before_were_refused() -> None:
    net = network()
    net.switches[1].refuses_meter = lambda meter: meter.rate > 500
    net = settled(net)
    assert not limited(net)
    net.controller.set_flood(net.now, FloodSettings(6e5))
    net.run(3)
    assert not limited(net)
    net.controller.set_flood(net.now, FloodSettings(4e5))
    net.run(3)
    assert limited(net)
    assert set(rates(net).values()) == {400, flood_limit.ADDRESS_RATE}
    assert not net.controller.unlimited
    everybody_reaches_everybody(net)
