"""Tenants are kept apart in random networks, whatever hosts send, and whatever is plugged, restarted and reloaded."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from braid_lab.fabric.shapes import Shape, Station, generated
from braid_sdn.fabric.monitor.probe import tagged, untagged
from braid_sdn.fabric.settings import EdgeSettings, LinkSettings
from braid_sdn.fabric.switches import rules
from braid_sdn.fabric.tenants import NOBODY, TAGS, Tenant, Tenants
from braid_sdn.openflow.messages import AddRule, DeleteRule, PacketOut

from .tenant_network import arrivals, follow
from .virtual import Network, arp, frame, mac, solicitation

#: Ranges of tags: those of the tenants of a configuration are some of these.
RANGES = ((100, 227), (2000, 2499), (2500, 2600), (4000, 4094))
COLOURS = ("blue", "red", "green")
#: The station that is at a trunk, if a configuration has one, and the VIDs of the tenants there.
TRUNK = "h8"
VIDS = (30, 31, 32)


def random_shape(rng: random.Random) -> Shape:
    made = generated(rng.randrange(2, 6), seed=rng.randrange(1000), more=rng.random())
    stations = tuple(Station(f"h{number}", rng.choice(made.switches), number % 4 == 0) for number in range(9))
    return replace(made, stations=stations)


def random_tenants(rng: random.Random, shape: Shape) -> Tenants:
    chosen = rng.sample(RANGES, rng.randrange(1, 4))
    ports: list[list[tuple[str, str]]] = [[] for _ in chosen]
    trunks: list[list[tuple[tuple[str, str], int]]] = [[] for _ in chosen]
    vids = rng.sample(VIDS, len(chosen))
    has_trunk = rng.random() < 0.7
    for station in shape.stations:
        place = (station.switch, station.name)
        if station.name == TRUNK and has_trunk:
            for own, vid in zip(trunks, vids, strict=True):
                own += [(place, vid)] if rng.random() < 0.8 else []
        elif number := rng.randrange(len(chosen) + 1):
            ports[number - 1].append(place)
    listed = tuple(
        Tenant(name, *tags, tuple(own), tuple(shared))
        for name, tags, own, shared in zip(COLOURS, chosen, ports, trunks, strict=False)
        if own or shared
    )
    links = frozenset(
        frozenset(((wire.one, one), (wire.other, other)))
        for wire, (one, other) in zip(shape.wires, shape.ports(), strict=True)
    )
    return Tenants(listed or (Tenant("blue", *RANGES[0]),), links)


class Story:
    """A network whose tenants change, and what may reach whom at a moment."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        shape = random_shape(self.rng)
        wires = tuple(
            LinkSettings((wire.one, wire.other), 1e7, ends)
            for wire, ends in zip(shape.wires, shape.ports(), strict=True)
        )
        edges = tuple(
            EdgeSettings(each.name, each.switch, each.name, probe=False) for each in shape.stations if each.edge
        )
        #: The configuration, and the one before while some switch may follow that.
        self.known = [random_tenants(self.rng, shape)]
        self.net = Network(shape, tenants=self.known[0], links=wires, edges=edges)
        self.looks = self.arrived = self.relayed = 0
        #: The stations that sent a frame, with what they sent, by the frame with its outer header or without.
        self.senders: dict[bytes, set[tuple[str, bytes]]] = {}
        deliver = self.net._deliver

        def deliver_and_look(dpid: int, message: object) -> None:
            if isinstance(message, PacketOut):
                self.see(dpid, message)
            deliver(dpid, message)
            if isinstance(message, AddRule | DeleteRule) and self.rng.random() < 0.1:
                self.look(2)

        self.net._deliver = deliver_and_look  # type: ignore[method-assign]
        self.numbers = {name: port.port for name, port in self.net.stations.items()}

    def may_reach(self, one: str, sent: bytes, other: str, got: bytes) -> bool:
        """Return true if a frame comes from a tenant to the same one, by any configuration that is followed."""
        ends = ((one, sent), (other, got))
        owners = [{self.owner(each, *end) for end in ends} for each in self.known]
        return any(len(each) == 1 and NOBODY not in each for each in owners)

    def owner(self, known: Tenants, station: str, data: bytes) -> int:
        """Return whose a frame is at a station's port: at a trunk by its VID."""
        place, number = self.net.stations[station], self.numbers[station]
        words = (self.net.shape.switches[place.switch - 1], station, number)
        is_trunk = bool(known.trunk(*words))
        return known.at(*words, untagged(data)[0] if is_trunk else 0)

    def see(self, dpid: int, message: PacketOut) -> None:
        """Check what the controller itself passes on: a host's frame goes to no other tenant's port."""
        senders = self.senders.get(message.data) or self.senders.get(untagged(message.data)[1], set())
        for name, place in self.net.stations.items() if senders else ():
            if place.switch == dpid and place.port in message.ports:
                self.relayed += 1
                what = (senders, name, message)
                assert any(self.may_reach(*each, name, message.data) for each in senders), what

    def frames(self, station: str) -> Iterator[bytes]:
        """Yield frames by which a station may try to reach others, a few of each kind."""
        rng, names = self.rng, list(self.net.stations)
        source = mac(names.index(station) + 1 if rng.random() < 0.8 else rng.randrange(1, len(names) + 3))
        target = mac(rng.randrange(1, len(names) + 2))
        plain = [
            frame(source, target),
            frame(source, rng.choice(("ff:ff:ff:ff:ff:ff", "01:00:5e:01:02:03", "33:33:00:00:00:01"))),
            arp(source, "10.0.0.1", f"10.0.0.{rng.randrange(1, 9)}", reply_to=rng.choice((None, target))),
            solicitation(source, "fe80::1", f"fe80::{rng.randrange(1, 9)}", answer=rng.random() < 0.5),
        ]
        used = [tag for each in self.net.switches.values() for key in each.rules if (tag := rules.tag_of(key))]
        tags = [rng.choice(used or [2]), rng.choice(TAGS), rng.choice((0, 1, 4095)), rng.choice(VIDS)]
        if station == TRUNK:
            yield tagged(rng.choice(plain), rng.choice(VIDS))
        yield from rng.sample(plain, 2)
        once = tagged(rng.choice(plain), rng.choice(tags))
        yield once
        yield tagged(once, rng.choice(tags))
        # A tag of a provider's bridge outside.
        yield once[:12] + b"\x88\xa8" + rng.choice(tags).to_bytes(2, "big") + once[12:]

    def look(self, stations: int) -> None:
        """Send frames of some stations at this moment; none arrives at another tenant's."""
        for station in self.rng.sample(list(self.net.stations), stations):
            for data in self.frames(station):
                self.looks += 1
                for name, got in arrivals(self.net, station, data):
                    self.arrived += 1
                    what = (station, name, data.hex(), got.hex(), self.net.now)
                    assert self.may_reach(station, data, name, got), what

    def speak(self, station: str) -> None:
        """Have a station send a frame that the controller sees, too."""
        for data in self.frames(station):
            for known in (data, untagged(data)[1]):
                self.senders.setdefault(known, set()).add((station, data))
            self.net.send(station, data)

    def reload(self, wanted: Tenants) -> None:
        self.known = [*self.known[-1:], wanted]
        self.net.settings = replace(self.net.settings, tenants=wanted)

    def step(self) -> None:
        rng, net = self.rng, self.net
        switch = rng.choice(net.shape.switches)
        match rng.randrange(6):
            case 0 | 1:
                for station in rng.sample(list(net.stations), 4):
                    self.speak(station)
            case 2:
                wire = rng.choice(net.shape.wires)
                net.unplug(wire.one, wire.other)
                net.at(net.now + rng.random() * 2, functools.partial(net.unplug, wire.one, wire.other, up=True))
            case 3:
                net.disconnect(switch)
                net.at(net.now + rng.random() * 3, functools.partial(self.connect, switch))
            case 4:
                net.disconnect(switch)
                net.switches[net.shape.dpid(switch)].restart()
                net.connect(switch)
            case 5:
                self.settle()
                self.reload(random_tenants(rng, net.shape))
                if rng.random() < 0.5:
                    follow(net)
                else:
                    net.restart_controller(late={switch: rng.random() * 4})

    def connect(self, switch: str) -> None:
        if self.net.shape.dpid(switch) not in self.net.connected:
            self.net.connect(switch)

    def settle(self) -> None:
        """Wait until all switches follow the last configuration, so that it alone says what may arrive."""
        for switch in self.net.shape.switches:
            self.connect(switch)
        self.net.run(5)
        self.known = self.known[-1:]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_passes_between_tenants_of_a_random_network(seed: int) -> None:
    story = Story(seed)
    story.net.connect()
    story.net.run(2)
    for name in story.net.stations:
        story.speak(name)
    for _ in range(12):
        story.step()
        story.net.run(story.rng.random() * 2)
        story.look(3)
    story.settle()
    for name in story.net.stations:
        story.speak(name)
    story.net.run(2)
    story.look(len(story.net.stations))
    # The test has eyes: much was sent, and something arrived.
    assert story.looks > 500
    assert story.arrived > 50
    assert story.relayed > 0
