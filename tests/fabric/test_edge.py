"""Edges, controller and Open vSwitch together: one TCP flow over two paths, in order, under changes."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from braid_lab.fabric.edges import EdgedNetwork, edged_network, split_flow
from braid_lab.fabric.shapes import two_paths
from braid_lab.fabric.tcp_transfer import Transfer, transfer
from braid_lab.observe import answered_pings
from braid_lab.process import run, wait_until
from braid_lab.product import binary
from conftest import came_in_order

#: 10 ms apart, so that without reordering nearly every second segment would come too early.
SHAPE = two_paths(mbit=10, delay_ms=10, other_ms=20)
#: More than either path carries, less than both do: no queue overflows.
BETWEEN = "14M"


@pytest.fixture(scope="module")
def network() -> Iterator[EdgedNetwork]:
    """Two switches, two paths of 10 Mbit/s, a host and an edge at each end."""
    with edged_network(SHAPE) as made:
        made.settle("ha", "hb", 2)
        yield made


def send(network: EdgedNetwork, seconds: float, *options: str) -> Transfer:
    stations = network.net.stations
    return transfer(stations["ha"], stations["hb"], network.net.folder, seconds, *options)


def pinged(network: EdgedNetwork, address: str) -> bool:
    station = network.net.stations["ha"]
    return station.place.run(["ping", "-c", "1", "-W", "1", address], check=False).status == 0


def packets(network: EdgedNetwork) -> list[int]:
    return network.edges["ha"].sent_to("hb")


def test_one_flow_gets_what_neither_path_carries_alone_and_in_order(network: EdgedNetwork) -> None:
    edges = network.edges
    flow = functools.partial(send, network, 6, "-b", BETWEEN)
    came_in_order(
        network.measure_undisturbed("ha", "hb", 2, lambda: split_flow(edges["ha"], edges["hb"], "hb", flow))
    )


def test_what_has_no_numbers_keeps_to_one_path(network: EdgedNetwork) -> None:
    network.settle("ha", "hb", 2)
    before = packets(network)
    address = network.net.stations["hb"].address
    assert answered_pings(network.net.stations["ha"].place, 50, 0.01, address) == list(range(1, 51))
    counts = sorted(after - before for after, before in zip(packets(network), before, strict=True))
    assert counts[0] == 0
    assert counts[1] >= 50
    assert pinged(network, "fd77::2")


def test_a_path_that_falls_silent_is_left_and_the_flow_goes_on(network: EdgedNetwork) -> None:
    network.settle("ha", "hb", 2)
    found: list[Transfer] = []
    sending = threading.Thread(target=lambda: found.append(send(network, 10)))
    before = sum(packets(network))
    sending.start()
    line = network.net.lines["A", "P"]
    try:
        wait_until(lambda: sum(packets(network)) > before + 1000, what="traffic")
        line.blackhole(True)
        wait_until(lambda: len(network.edges["ha"].paths_to("hb")) == 1, what="one path", timeout=5)
        sending.join()
    finally:
        line.blackhole(False)
        sending.join()
    # One path of 10 Mbit/s is left.
    assert sum(found[0].goodput[-3:]) / 3 > 5
    network.settle("ha", "hb", 2)


def test_edges_go_on_without_their_controller(network: EdgedNetwork) -> None:
    network.settle("ha", "hb", 2)
    fabric = network.fabric
    assert fabric.process is not None
    fabric.process.signal(signal.SIGKILL)
    fabric.process.wait()

    def silent() -> bool:
        return [each["code"] for each in network.edges["ha"].status()["health"]] == ["controller-silent"]

    wait_until(silent, what="the edge to say that its controller is silent", timeout=10)
    assert send(network, 4, "-b", BETWEEN).steady(2) > 12
    fabric.start()
    network.settle("ha", "hb", 2)
    assert not network.edges["ha"].status()["health"]


def test_hosts_go_on_over_single_paths_without_their_edge(network: EdgedNetwork) -> None:
    network.settle("ha", "hb", 2)
    edge = network.edges["ha"]
    assert edge.process is not None
    edge.process.signal(signal.SIGKILL)
    edge.process.wait()
    address = network.net.stations["hb"].address
    try:
        # Tagged packets reach nobody until the controller notices that the edge is gone.
        wait_until(functools.partial(pinged, network, address), what="a ping", timeout=20)
    finally:
        edge.start()
    network.settle("ha", "hb", 2)


def test_what_cannot_be_is_refused_by_name(network: EdgedNetwork) -> None:
    box = network.edges["ha"].box
    folder = network.net.folder
    where = f"unix:{folder}/fabric.sock"

    def refused(status: int, *words: str) -> str:
        argv: list[str | Path] = [
            binary(),
            "--run-dir",
            folder,
            "edge",
            "run",
            "--name",
            "new",
            "--hold",
            "hold1",
            *words,
        ]
        said = run(argv, namespace=box.name, check=False, timeout=20)
        assert said.status == status, said.text
        return said.stderr

    assert "device nowhere" in refused(1, "--inside", "inside", "--outside", "nowhere", "--controller", where)
    devices = ("--inside", "inside", "--outside", "outside")
    assert "attached already" in refused(1, *devices, "--controller", where)
    assert "is not a controller's address" in refused(2, *devices, "--controller", "fabric.sock")
    assert "--paths" in refused(2, *devices)
    assert "both --inside and --outside" in refused(
        2, "--inside", "inside", "--outside", "inside", "--controller", where
    )
    assert "is given twice" in refused(2, *devices, "--controller", where, "--controller", where)
    assert "one port" in refused(2, *devices, "--outside", "another", "--controller", where)
    assert "--key-file" in refused(2, *devices, "--controller", "http://127.0.0.1:8653")
    said = run([binary(), "--run-dir", folder, "edge", "status", "nobody"], check=False)
    assert said.status == 3
    # The other edge was not disturbed.
    assert pinged(network, network.net.stations["hb"].address)
