"""Discovery frames that are genuine, at a place where they should not be: hosts that echo and relay them."""

from __future__ import annotations

import pytest

from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric.model import PortId

from .virtual import Network, everybody_reaches_everybody, frame, mac, ready

#: Nothing here is about paths that are measured.
pytestmark = pytest.mark.usefixtures("rare_probes")


def with_hosts() -> Network:
    """Two edges, and a host at each of their switches that is no edge."""
    net = Network(two_paths())
    for name, switch in (("x", "A"), ("y", "B")):
        net.stations[name] = net._add_port(switch, name)
        net.received[name] = []
    net.connect()
    net.run(3)
    for number, name in enumerate(net.stations, 1):
        net.send(name, frame(mac(number), "ff:ff:ff:ff:ff:ff", b"here I am"))
    net.run(6)
    return net


def ends(net: Network) -> set[PortId]:
    """The ports of all links."""
    return {hearing.source for hearing in net.controller.topology.links()}


def test_hosts_that_swap_discovery_frames_make_no_link() -> None:
    net = with_hosts()
    links = ends(net)
    net.relay = {"x": "y", "y": "x"}
    net.run(10)
    assert ends(net) == links
    assert "relayed-probe" in net.codes()
    everybody_reaches_everybody(net)


def test_an_edge_is_not_put_out_of_use_by_frames_that_are_relayed_to_it() -> None:
    net = with_hosts()
    net.relay = {"x": "ha"}
    net.run(10)
    assert "miscabled-edge" not in net.codes()
    assert "relayed-probe" in net.codes()
    assert set(net.controller.tables.pairs) == {("ha", "hb"), ("hb", "ha")}


def test_a_host_that_echoes_discovery_frames_of_its_own_port_harms_itself_alone() -> None:
    for name, code in (("ha", "echoed-probe"), ("x", "loop")):
        net = with_hosts()
        net.relay = {name: name}
        net.run(10)
        assert net.codes() == {code}
        everybody_reaches_everybody(net)
        net.send("y", frame(mac(40), "ff:ff:ff:ff:ff:ff", b"to all"))
        net.run(1)
        got = {name for name, frames in net.received.items() if any(b"to all" in each for each in frames)}
        # Out of a port with a loop behind it no broadcasts go.
        assert got == {"ha", "hb", "x"} - ({name} if code == "loop" else set())


def test_an_echo_from_the_beginning_leaves_an_edge_in_use() -> None:
    net = Network(two_paths())
    net.relay = {"ha": "ha"}
    net.connect()
    net.run(6)
    assert "miscabled-edge" not in net.codes()
    assert set(net.controller.tables.pairs) == {("ha", "hb"), ("hb", "ha")}


def test_a_port_becomes_a_link_after_it_went_down() -> None:
    net = with_hosts()
    x, y = net.stations.pop("x"), net.stations.pop("y")
    for end in (x, y):
        for up in (False, True):
            net.controller.handle(net.now, end.switch, net.switches[end.switch].set_port(end.port, up=up))
    net.wire(x, y)
    net.run(3)
    assert {x, y} <= ends(net)


def test_a_link_that_was_silent_is_one_again_although_hosts_were_seen_at_its_ends() -> None:
    net = ready(two_paths())
    net.run(6)
    links = ends(net)
    net.silence("A", "P")
    net.run(10)
    assert ends(net) != links
    # A frame from beyond gets through before discovery does.
    at = net.port_of("A", "P")
    net._outcomes(at.switch, list(net.switches[at.switch].receive(at.port, frame(mac(40), mac(41)))))
    net.run(1)
    net.silence("A", "P", on=False)
    net.run(3)
    assert ends(net) == links
