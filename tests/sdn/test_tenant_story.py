"""Tenants are kept apart in random networks, whatever hosts send, and whatever is plugged, restarted and reloaded."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from braid_lab.fabric.shapes import Shape, Station, generated
from braid_sdn.fabric.monitor.probe import tagged
from braid_sdn.fabric.settings import EdgeSettings, LinkSettings
from braid_sdn.fabric.switches import rules
from braid_sdn.fabric.tenants import TAGS, Tenant, Tenants
from braid_sdn.openflow.messages import AddRule, DeleteRule, PacketOut

from .tenant_network import arrivals, follow
from .virtual import Network, arp, frame, mac, solicitation

#: Ranges of tags: those of the tenants of a configuration are some of these.
RANGES = ((100, 227), (2000, 2499), (2500, 2600), (4000, 4094))
COLOURS = ("blue", "red", "green")


def random_shape(rng: random.Random) -> Shape:
    made = generated(rng.randrange(2, 6), seed=rng.randrange(1000), more=rng.random())
    stations = tuple(Station(f"h{number}", rng.choice(made.switches), number % 4 == 0) for number in range(9))
    return replace(made, stations=stations)


def random_tenants(rng: random.Random, shape: Shape) -> Tenants:
    chosen = rng.sample(RANGES, rng.randrange(1, 4))
    ports: list[list[tuple[str, str]]] = [[] for _ in chosen]
    for station in shape.stations:
        if number := rng.randrange(len(chosen) + 1):
            ports[number - 1].append((station.switch, station.name))
    listed = tuple(
        Tenant(name, *tags, tuple(own)) for name, tags, own in zip(COLOURS, chosen, ports, strict=False) if own
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
        self.looks = self.arrived = 0
        #: Which station sent the last frame from an address.
        self.senders: dict[bytes, str] = {}
        deliver = self.net._deliver

        def deliver_and_look(dpid: int, message: object) -> None:
            if isinstance(message, PacketOut):
                self.see(dpid, message)
            deliver(dpid, message)
            if isinstance(message, AddRule | DeleteRule) and self.rng.random() < 0.1:
                self.look(2)

        self.net._deliver = deliver_and_look  # type: ignore[method-assign]

    def may_reach(self, one: str, other: str) -> bool:
        """Return true if two stations are of one tenant, by any configuration that is followed."""
        places = {each.name: (each.switch, each.name) for each in self.net.shape.stations}
        numbers = {name: port.port for name, port in self.net.stations.items()}
        return any(len({each.at(*places[name], numbers[name]) for name in (one, other)}) == 1 for each in self.known)

    def see(self, dpid: int, message: PacketOut) -> None:
        """Check what the controller itself passes on: a host's frame goes to no other tenant's port."""
        sender = self.senders.get(message.data[6:12])
        for name, place in self.net.stations.items() if sender is not None else ():
            if (
                place.switch == dpid
                and place.port in message.ports
                and message.data[12:14] in (b"\x08\x06", b"\x86\xdd")
            ):
                assert self.may_reach(str(sender), name), (sender, name, message)

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
        tags = [rng.choice(used or [2]), rng.choice(TAGS), rng.choice((0, 1, 4095))]
        yield rng.choice(plain)
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
                for name, _ in arrivals(self.net, station, data):
                    self.arrived += 1
                    assert self.may_reach(station, name), (station, name, data.hex(), self.net.now)

    def speak(self, station: str) -> None:
        """Have a station send a frame that the controller sees, too."""
        for data in self.frames(station):
            self.senders[data[6:12]] = station
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
