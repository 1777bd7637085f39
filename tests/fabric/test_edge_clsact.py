"""Edges whose programs are clsact filters, as before Linux 6.6: they work the same, and are removed at the end."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Iterator

import pytest

from braid_lab.fabric.edges import EdgedNetwork, edged_network, split_flow
from braid_lab.fabric.ovs import INSIDE, OUTSIDE
from braid_lab.fabric.shapes import two_paths
from braid_lab.fabric.tcp_transfer import transfer
from braid_lab.process import wait_until
from conftest import came_in_order

SHAPE = two_paths(mbit=10, delay_ms=10, other_ms=20)


@pytest.fixture(scope="module")
def network() -> Iterator[EdgedNetwork]:
    """Two switches, two paths of 10 Mbit/s, a host and an edge at each end."""
    with edged_network(SHAPE, hook="clsact") as made:
        made.settle("ha", "hb", 2)
        yield made


def filters(network: EdgedNetwork) -> list[str]:
    """Return the first edge's programs that are on its devices."""
    box = network.edges["ha"].box
    shown = [box.run(["tc", "filter", "show", "dev", device, "ingress"]).stdout for device in (INSIDE, OUTSIDE)]
    # A filter's line has its own name and then its program's, which are equal.
    return sorted(re.findall(r" name (braid_\w+)", " ".join(shown)))


def test_one_flow_is_split_and_put_in_order(network: EdgedNetwork) -> None:
    edges, stations = network.edges, network.net.stations
    flow = functools.partial(transfer, stations["ha"], stations["hb"], network.net.folder, 6, "-b", "14M")
    came_in_order(
        network.measure_undisturbed("ha", "hb", 2, lambda: split_flow(edges["ha"], edges["hb"], "hb", flow))
    )


def test_a_killed_edge_lets_everything_pass_and_the_next_one_takes_its_place(network: EdgedNetwork) -> None:
    network.settle("ha", "hb", 2)
    edge = network.edges["ha"]
    assert edge.process is not None
    edge.process.signal(signal.SIGKILL)
    edge.process.wait()
    assert filters(network) == ["braid_join", "braid_split"]
    station, address = network.net.stations["ha"].place, network.net.stations["hb"].address

    def pinged() -> bool:
        return station.run(["ping", "-c", "1", "-W", "1", address], check=False).status == 0

    try:
        # Tagged packets reach nobody until the controller notices that the edge is gone.
        wait_until(pinged, what="a ping", timeout=40)
    finally:
        edge.start()
    network.settle("ha", "hb", 2)
    assert filters(network) == ["braid_join", "braid_split"]


def test_an_edge_that_ends_takes_its_filters_along(network: EdgedNetwork) -> None:
    edge = network.edges["ha"]
    edge.stop()
    try:
        assert filters(network) == []
    finally:
        edge.start()
