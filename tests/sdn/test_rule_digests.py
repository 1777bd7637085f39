"""Rules of a few networks, to the last byte on the wire: what a network does not use does not change them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from braid_lab.fabric.shapes import Shape, Station, east_asia, fat_tree, generated, two_paths
from braid_sdn.fabric.acl import Acl, AclEntry, Action, End
from braid_sdn.fabric.plan.policies import LinkEnd, Policies, link_of
from braid_sdn.fabric.settings import FloodSettings
from braid_sdn.fabric.switches.flood_limit import NO_LIMIT
from braid_sdn.openflow.messages import AddRule, DeleteGroup, DeleteRule, SetFailoverGroup, SetMeter
from braid_sdn.openflow.wire import HEADER, Session

from .virtual import Network, arp, frame, mac, ready, settled

#: Nothing here is about paths that are measured.
pytestmark = pytest.mark.usefixtures("rare_probes")

MIXED = replace(two_paths(), stations=(*two_paths().stations, Station("hc", "A"), Station("hd", "B")))
SHAPES = {
    "two paths": MIXED,
    "east asia": east_asia(),
    "fat tree": fat_tree(4),
    "generated": generated(9, seed=5, hosts=12),
}
#: Of all changes of rules, groups and meters in `life`; taken at d584a210, before there were tenants. A change of
#: rules that is meant changes these as well; those of two networks that come to have more than 256 hosts are of
#: 2026-11-30, since when switches lead packets to the trees alone whose hosts they know.
DIGESTS = {
    "two paths": "6d88ede12a0b3f1ae8bc8e49d2d2b5630666e7c7f5a9bb754c28fa865d4ce630",
    "east asia": "24a244bbb842012605fd593419b75809e9a1ea91cfc1e27b73502efc014c839e",
    "fat tree": "91344300458953706c382304b034afb6c4ac6373c8abe7db6e5284e9a13c553d",
    "generated": "bbf91e1d1e37df2dcf593ef68c54b507c211cf8de9c55a1f6e9305daf921f0e5",
}


def recorded(net: Network) -> list[bytes]:
    """Return a list to which each change of a switch's rules goes as it is on the wire, without its number."""
    told: list[bytes] = []
    deliver, session = net._deliver, Session()

    def deliver_and_record(dpid: int, message: object) -> None:
        deliver(dpid, message)
        if isinstance(message, AddRule | DeleteRule | SetFailoverGroup | DeleteGroup | SetMeter):
            data = session.encode(message)
            told.append(dpid.to_bytes(8, "big") + data[:4] + data[HEADER.size :])

    net._deliver = deliver_and_record  # type: ignore[method-assign]
    return told


def life(shape: Shape, net: Network | None = None) -> Iterator[bytes]:
    """Have a network, a new one if none is given, live through everything that changes rules; yield the changes."""
    lists = Acl((AclEntry(Action.DENY, End(mac=mac(1)), End(mac=mac(2))),))
    net = net or ready(shape)
    told = recorded(net)
    net.restart_controller()
    net.run(4)
    chance, names = random.Random(1), list(net.stations)
    wire = shape.wires[0]
    net.unplug(wire.one, wire.other)
    net.run(2)
    net.unplug(wire.one, wire.other, up=True)
    # A host that moves, and one that sends so much that its port is muted.
    net.send(names[1], frame(mac(1), "ff:ff:ff:ff:ff:ff"))
    for number in range(700):
        net.send(names[0], arp(mac(1000 + number), "10.0.0.1", f"10.0.1.{chance.randrange(250)}"))
    net.run(2)
    last = shape.wires[-1]
    forbidden = link_of(LinkEnd(shape.dpid(last.one)), LinkEnd(shape.dpid(last.other)))
    pinned = {(mac(3), mac(4)): (1, 3, 2)} if shape is MIXED else {}
    policies = Policies(frozenset({shape.dpid(wire.one)}), frozenset({forbidden}), pinned)
    net.controller.set_policies(net.now, policies)
    net.run(2)
    net.controller.set_acl(net.now, lists)
    net.run(3)
    net.disconnect(wire.other)
    net.run(2)
    net.connect(wire.other)
    net.run(12)
    assert shape is not MIXED or net.controller.plan.pinned
    yield from sorted(told)
    session = Session()
    for dpid, switch in sorted(net.switches.items()):
        known = [session.encode(AddRule(rule)) for rule in switch.rules.values()]
        yield from sorted(dpid.to_bytes(8, "big") + each[HEADER.size :] for each in known)


#: The same of switches with meters; taken at bbede4fe, before floods were limited.
METERED_DIGESTS = {
    "two paths": "3c99bf7e30c110ea663e392b649e8e5bf485a3990fc04f42fff9fe1909c96cf4",
    "east asia": "fed9e214c9150b05f40d2d72880397ab86edd73a0c849e4e86c8da902755c40e",
}


@pytest.mark.parametrize("name", METERED_DIGESTS)
def test_switches_with_meters_have_the_rules_that_they_had_where_floods_are_not_limited(name: str) -> None:
    net = Network(SHAPES[name], flood=FloodSettings(NO_LIMIT))
    for switch in net.switches.values():
        switch.meters = 300
    made = hashlib.sha256(b"\n".join(life(SHAPES[name], settled(net)))).hexdigest()
    assert made == METERED_DIGESTS[name]


@pytest.mark.parametrize("name", SHAPES)
def test_a_network_without_tenants_has_the_rules_that_it_had(name: str) -> None:
    made = hashlib.sha256(b"\n".join(life(SHAPES[name]))).hexdigest()
    assert made == DIGESTS[name]
