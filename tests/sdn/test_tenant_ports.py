"""Ports of which a switch changes the numbers, where tenants are kept apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from braid_sdn.fabric.monitor.probe import tagged
from braid_sdn.openflow.messages import PacketIn, PacketOut, PortStatus

from .tenant_network import arrivals, colour, network, number_of, settled
from .virtual import Network, arp, frame, mac

#: Nothing here is about paths that are measured.
pytestmark = pytest.mark.usefixtures("rare_probes")


def swap_stations(net: Network, switch: str, one: str, other: str) -> None:
    """Give two stations' ports each other's number, as a restart of a switch's machine may."""
    ports = net.switches[net.shape.dpid(switch)].ports
    a, b = net.stations[one].port, net.stations[other].port
    ports[a], ports[b] = replace(ports[b], number=a), replace(ports[a], number=b)
    net.stations[one], net.stations[other] = net.stations[other], net.stations[one]


def tell_of_ports(net: Network, switch: str, *stations: str) -> None:
    """Have a switch say what is at stations' ports now."""
    dpid = net.shape.dpid(switch)
    for station in stations:
        net.controller.handle(net.now, dpid, PortStatus(net.switches[dpid].ports[net.stations[station].port], False))


def assert_blue2_apart(net: Network) -> None:
    to_blue2 = frame(mac(number_of(net, "blue1")), mac(number_of(net, "blue2")))
    assert {colour(name) for name, _ in arrivals(net, "blue1", to_blue2)} <= {"blue"}
    forged = frame(mac(number_of(net, "blue2")), mac(number_of(net, "blue1")))
    assert {colour(name) for name, _ in arrivals(net, "red2", forged)} <= {"red"}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_switch_comes_back_with_other_numbers_of_ports(restarts: bool) -> None:
    net = settled(network())
    net.disconnect("B")
    swap_stations(net, "B", "blue2", "red2")
    if restarts:
        net.switches[net.shape.dpid("B")].restart()
    net.connect("B")
    net.run(20)
    assert_blue2_apart(net)


def test_ports_are_renamed_while_connected() -> None:
    net = settled(network())
    swap_stations(net, "B", "blue2", "red2")
    tell_of_ports(net, "B", "blue2", "red2")
    net._flush()
    net.run(20)
    assert_blue2_apart(net)


def test_the_number_of_a_links_port_becomes_a_hosts() -> None:
    net = settled(network())
    net.disconnect("A")
    link, host = net.port_of("A", "P"), net.stations["blue1"]
    ports = net.switches[net.shape.dpid("A")].ports
    ports[link.port], ports[host.port] = (
        replace(ports[host.port], number=link.port),
        replace(ports[link.port], number=host.port),
    )
    far = net.peer.pop(link)
    net.wire(host, far, net.delay[far])
    net.stations["blue1"] = link
    tags = sorted(net.controller.updater.tags_in_use())
    net.connect("A")
    for _ in range(10):
        net.run(0.1)
        for tag in tags:
            for other in ("red2", "h2"):
                data = tagged(frame(mac(number_of(net, "blue1")), mac(number_of(net, other))), tag)
                assert {colour(name) for name, _ in arrivals(net, "blue1", data)} <= {"blue"}, (tag, net.now)


def test_a_port_that_was_removed_once_is_forgotten_once() -> None:
    net = settled(network())
    dpid = net.shape.dpid("B")
    forgotten: list[int] = []
    gone = net.switches[dpid].ports.pop(net.stations["h2"].port)
    net.controller.handle(net.now, dpid, PortStatus(gone, True))
    net._flush()
    net.run(5)
    net.controller.compiler.forget = forgotten.append  # type: ignore[method-assign, assignment]
    for _ in range(3):
        net.disconnect("B")
        net.run(1)
        net.connect("B")
        net.run(5)
    assert len(forgotten) <= 1


def test_held_arp_does_not_go_to_a_switch_whose_ports_are_looked_at() -> None:
    net = settled(network())
    dpid, source = net.shape.dpid("B"), net.stations["blue1"]
    net.send("blue2", arp(mac(number_of(net, "blue2")), "10.0.0.2", "10.0.0.77"))
    net.run(3)
    net.controller.poll_messages()
    # A host that came just now asks for it.
    question = arp("02:00:00:00:99:01", "10.0.0.99", "10.0.0.2")
    net.controller.handle(net.now, source.switch, PacketIn(source.port, question))
    swap_stations(net, "B", "blue2", "red2")
    tell_of_ports(net, "B", "blue2", "red2")
    said = net.controller.poll_messages()
    for step in range(1, 14):
        net.controller.handle_timeout(net.now + 0.05 * step)
        said += net.controller.poll_messages()
    assert dpid in net.controller.admission.applicants
    assert not [each for switch, each in said if switch == dpid and isinstance(each, PacketOut)]
