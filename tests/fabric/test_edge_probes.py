"""Edges probe their paths by themselves: one that falls silent in the middle of the network is left at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from braid_lab.fabric.cut_gap import Sides, all_pairs_used, cut_gap, settle
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.observe import answered_pings
from braid_lab.process import LabError, Process, wait_until

#: The aim is 0.15 s; a busy machine adds some.
MAX_GAP_S = 0.25


@pytest.fixture(scope="module")
def network() -> Iterator[EdgedNetwork]:
    """Two edges, four paths."""
    sides = Sides(1, 1, 4)
    with edged_network(sides.shape) as made:
        settle(made, sides)
        with all_pairs_used(made, sides):
            yield made


def paths(network: EdgedNetwork) -> dict[int, dict[str, Any]]:
    return {path["tag"]: path for path in network.edges["a0"].paths_to("b0")}


def silent(network: EdgedNetwork, name: str = "a0", target: str = "b0") -> set[int]:
    return {path["tag"] for path in network.edges[name].paths_to(target) if path["silent"]}


def first_tag(network: EdgedNetwork, source: str, target: str) -> int:
    """Return the tag of the path that can be cut."""
    pair = network.pair(source, target)
    assert pair is not None
    tag: int = next(path["tag"] for path in pair["paths"] if "P0" in path["switches"])
    return tag


def probed(network: EdgedNetwork) -> bool:
    """Return true once the controller knows that the edge probes all paths."""
    pair = network.pair("a0", "b0")
    return pair is not None and all(path["edge_probed"] for path in pair["paths"])


def test_a_path_that_is_cut_is_left_within_a_quarter_of_a_second(network: EdgedNetwork) -> None:
    network.settle("a0", "b0", 4)
    # The best of three: a machine that stands still lengthens a gap.
    gaps = [gap for _ in range(3) if (gap := _cut(network)) is not None]
    assert min(gaps) <= MAX_GAP_S
    told = network.fabric.api_get("events?after=0")["events"]
    whys = [each["fields"].get("why", "") for each in told if each["event"] == "paths-used"]
    assert any("A>P0>B is left" in why for why in whys)


def _cut(network: EdgedNetwork) -> float | None:
    gap = cut_gap(network, "a0", "b0")
    network.settle("a0", "b0", 4)
    return gap


def test_an_edge_leaves_a_silent_path_and_takes_it_back_without_its_controller(network: EdgedNetwork) -> None:
    network.settle("a0", "b0", 4)
    wait_until(lambda: probed(network), what="probes of the edge", timeout=20)
    there, back = first_tag(network, "a0", "b0"), first_tag(network, "b0", "a0")
    process, line = network.fabric.process, network.net.lines["A", "P0"]
    assert process is not None
    process.signal(signal.SIGSTOP)
    try:
        line.blackhole(True)
        wait_until(lambda: silent(network) == {there}, what="the silence to be noticed", timeout=5)
        wait_until(lambda: silent(network, "b0", "a0") == {back}, what="the same behind it", timeout=5)
        before = paths(network)[there]["tx_packets"]
        a0, b0 = network.net.stations["a0"], network.net.stations["b0"]
        assert answered_pings(a0.place, 50, 0.01, b0.address) == list(range(1, 51))
        assert paths(network)[there]["tx_packets"] == before
        assert "path-silent" in {each["code"] for each in network.edges["a0"].status()["health"]}
        line.blackhole(False)
        wait_until(lambda: not silent(network), what="the path to be taken back", timeout=10)
        wait_until(lambda: not silent(network, "b0", "a0"), what="the same behind it", timeout=10)
    finally:
        line.blackhole(False)
        process.signal(signal.SIGCONT)
    network.settle("a0", "b0", 4)


@pytest.mark.parametrize("name", ["a0", "b0"])
def test_an_edge_that_stands_still_costs_no_path(network: EdgedNetwork, name: str) -> None:
    network.settle("a0", "b0", 4)
    wait_until(lambda: probed(network), what="probes of the edge", timeout=20)
    process, other = network.edges[name].process, {"a0": "b0", "b0": "a0"}[name]
    assert process is not None
    before = network.edges["a0"].status()["reasons"]["probe"]
    for _ in range(3):
        process.signal(signal.SIGSTOP)
        with pytest.raises(LabError):
            _wait_for_silence(network, other, name, 0.5)
        process.signal(signal.SIGCONT)
        with pytest.raises(LabError):
            _wait_for_silence(network, name, other, 0.5)
    assert network.edges["a0"].status()["reasons"]["probe"] > before


def _wait_for_silence(network: EdgedNetwork, source: str, target: str, seconds: float) -> None:
    wait_until(lambda: silent(network, source, target), what="a silent path", timeout=seconds)


def test_hosts_see_no_probes(network: EdgedNetwork) -> None:
    network.settle("a0", "b0", 4)
    place, folder = network.net.stations["b0"].place, network.net.folder
    argv = ["tcpdump", "-i", "eth0", "-n", "-e", "-U", "ether proto 0x88b6 or vlan"]
    with Process(argv, log=folder / "tcpdump", namespace=place.name) as capture:
        wait_until(lambda: "listening" in capture.stderr(), what="the capture")
        before = network.edges["b0"].status()["reasons"]["probe"]
        wait_until(lambda: network.edges["b0"].status()["reasons"]["probe"] > before + 200, what="probes")
        capture.stop()
        assert not capture.stdout().strip()


def test_an_edge_that_starts_before_the_other_one_leaves_no_path(network: EdgedNetwork) -> None:
    network.settle("a0", "b0", 4)
    near, far = network.edges["a0"], network.edges["b0"]
    far.stop()
    near.stop()
    near.start()
    a0, b0 = network.net.stations["a0"], network.net.stations["b0"]
    # For longer than new paths are not judged. The controller thinks that the other edge is there, so nothing comes.
    a0.place.run(["ping", "-q", "-c", "15", "-i", "0.1", "-W", "0.1", b0.address], check=False)
    far.start()
    network.settle("a0", "b0", 4)
    assert near.process is not None
    assert "following a new table" in near.process.stderr()
    assert "a path is silent" not in near.process.stderr()
