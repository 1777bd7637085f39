"""A network of two tenants beside the default one, and the way of each frame through the rules that switches have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from braid_lab.fabric.pipeline import FrameOut
from braid_lab.fabric.shapes import Shape, Station, Wire
from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import tagged
from braid_sdn.fabric.plan.plan import Flood
from braid_sdn.fabric.settings import EdgeSettings, LinkSettings
from braid_sdn.fabric.tenants import Tenant, Tenants

from .virtual import Network, arp, frame, mac

BLUE, RED = 2000, 3000
#: Two hosts of each tenant at either of two switches with two ways between them, and an edge of each.
PLACES = {
    **{f"h{number}": switch for number, switch in enumerate("ABA", 1)},
    **{f"blue{number}": switch for number, switch in enumerate("ABAB", 1)},
    **{f"red{number}": switch for number, switch in enumerate("ABAB", 1)},
}
EDGES = {"blue3", "blue4", "red3", "red4"}
WIRES = (("A", "P"), ("P", "B"), ("A", "Q"), ("Q", "B"))


Wires = tuple[tuple[str, str], ...]


def shape(wires: Wires = WIRES) -> Shape:
    stations = tuple(Station(name, switch, name in EDGES) for name, switch in PLACES.items())
    switches = tuple(sorted({end for wire in wires for end in wire}))
    return Shape(switches, tuple(Wire(*ends, 10.0, 1.0) for ends in wires), stations)


#: VIDs of the tenants at the trunk.
BLUE_VID, RED_VID = 30, 40


def with_trunk(known: Tenants, switch: str, port: str) -> Tenants:
    """Return tenants that share a port."""
    blue, red = known.listed
    return replace(
        known,
        listed=(
            replace(blue, trunks=(((switch, port), BLUE_VID),)),
            replace(red, trunks=(((switch, port), RED_VID),)),
        ),
    )


def tenants(
    blue: tuple[int, int] = (BLUE, 2499), red: tuple[int, int] = (RED, 3499), wires: Wires = WIRES
) -> Tenants:
    ports = {
        colour: tuple((PLACES[name], name) for name in PLACES if name.startswith(colour))
        for colour in ("blue", "red")
    }
    links = frozenset(frozenset(((a, f"{a}-{b}"), (b, f"{b}-{a}"))) for a, b in wires)
    return Tenants((Tenant("blue", *blue, ports["blue"]), Tenant("red", *red, ports["red"])), links)


def network(wires: Wires = WIRES, **settings: object) -> Network:
    """The network, before switches connect."""
    made = shape(wires)
    listed = tuple(LinkSettings((a, b), 1e7, (f"{a}-{b}", f"{b}-{a}")) for a, b in wires)
    edges = tuple(EdgeSettings(name, PLACES[name], name, probe=False) for name in sorted(EDGES))
    return Network(made, **{"tenants": tenants(wires=wires), "links": listed, "edges": edges, **settings})


def settled(net: Network) -> Network:
    net.connect()
    net.run(4)
    greet(net)
    return net


def greet(net: Network) -> None:
    """Have each station send a broadcast, and let rules follow."""
    for number, name in enumerate(net.stations, 1):
        net.send(name, frame(mac(number), "ff:ff:ff:ff:ff:ff", b"here I am"))
    net.run(3)


def follow(net: Network) -> None:
    """Have a controller with the network's settings in place of the one before, as a reload of tenants does."""
    before = net.controller
    net.controller = Controller(
        net.settings,
        stopwatch=lambda: 0.0,
        policies=before.policies,
        last_barrier=before.updater.last_barrier,
    )
    for hello in before.hellos():
        net.controller.handle_switch(net.now, hello)
    net._flush()


def number_of(net: Network, station: str) -> int:
    """Return a station's number, which its MAC has."""
    return list(net.stations).index(station) + 1


def colour(name: str) -> str:
    return name.rstrip("0123456789")


def arrivals(net: Network, station: str, data: bytes) -> list[tuple[str, bytes]]:
    """Return which stations get what if one sends a frame at this moment, by the rules that switches have."""
    names = {place: name for name, place in net.stations.items()}
    found, passed = [], 0
    pending = [(net.stations[station], data)]
    while pending:
        at, now = pending.pop()
        passed += 1
        assert passed < 1000, "the frame goes round"
        for out in list(net.switches[at.switch].receive(at.port, now)):
            if not isinstance(out, FrameOut):
                continue
            here = PortId(at.switch, out.port)
            if here in names:
                found.append((names[here], out.frame))
            elif here in net.peer and here not in net.silent:
                pending.append((net.peer[here], out.frame))
    return found


def attempts(net: Network, station: str) -> Iterator[bytes]:
    """Yield frames by which a station may try to reach others: to each MAC, to groups, and under tags of all."""
    number = number_of(net, station)
    for other in range(1, len(net.stations) + 1):
        yield frame(mac(number), mac(other))
    yield frame(mac(number), "02:ff:ff:ff:ff:01")
    yield frame(mac(number), "01:00:5e:01:02:03")
    yield frame(mac(number), "ff:ff:ff:ff:ff:ff")
    yield arp(mac(number), "10.0.0.1", "10.0.0.2")
    yield arp(mac(number), "10.0.0.1", "10.0.0.2", reply_to=mac(1))


def assert_apart(net: Network, *, tags: int = 0, rng: random.Random | None = None) -> None:
    """No frame of any station arrives at one of another tenant; some of each are sent under tags that are in use."""
    used = sorted(net.controller.updater.tags_in_use())
    for station in net.stations:
        frames = list(attempts(net, station))
        if rng is not None and used:
            frames += [tagged(rng.choice(frames), rng.choice(used)) for _ in range(tags)]
        for data in frames:
            for name, _ in arrivals(net, station, data):
                assert colour(name) == colour(station), (station, name, data.hex(), net.now)


def assert_together(net: Network) -> None:
    """Within a tenant each station reaches each other one, and all get its broadcasts, once."""
    for number, station in enumerate(net.stations, 1):
        others = [name for name in net.stations if colour(name) == colour(station) and name != station]
        for other in others:
            data = frame(mac(number), mac(number_of(net, other)))
            assert arrivals(net, station, data) == [(other, data)], (station, other)
        data = frame(mac(number), "01:00:5e:01:02:03")
        assert sorted(arrivals(net, station, data)) == sorted((name, data) for name in others), station


def floods(net: Network) -> dict[int, Flood]:
    return net.controller.plan.floods
