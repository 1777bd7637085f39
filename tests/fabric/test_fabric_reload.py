"""A reload of capacities and paths with real Open vSwitch and edges: of a thousand pings a second none is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from braid_lab.fabric.controller import configuration
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.shapes import Shape, two_paths
from braid_lab.process import wait_until
from conftest import nothing_lost

#: Without delay: pings that are under way when they end count as lost.
SHAPE = two_paths(mbit=1000, delay_ms=0)


def by_switch(shape: Shape, switch: str, **more: Any) -> Shape:
    """A shape in which all wires of a switch are other ones."""
    its = [switch in (wire.one, wire.other) for wire in shape.wires]
    wires = (replace(wire, **more) if is_its else wire for wire, is_its in zip(shape.wires, its, strict=True))
    return replace(shape, wires=tuple(wires))


#: The file says that the path by P carries three times as much as the other.
UNEVEN = by_switch(SHAPE, "P", mbit=3000.0)


@pytest.fixture(scope="module")
def network() -> Iterator[EdgedNetwork]:
    with edged_network(SHAPE) as made:
        made.settle("ha", "hb", 2)
        yield made


def reload(network: EdgedNetwork, shape: Shape = SHAPE, before: str = "", paths: str = "") -> None:
    fabric = network.fabric
    fabric.config.write_text(f"{before}\n{configuration(shape, probe=True)}\n[paths]\n{paths}\n")
    assert fabric.process is not None
    fabric.process.signal(signal.SIGHUP)


def shares(network: EdgedNetwork) -> dict[str, float]:
    """The share of each path from ha to hb by the switch in its middle."""
    pair = network.pair("ha", "hb")
    return {path["switches"][1]: round(path["share"], 1) for path in pair["paths"]} if pair else {}


def forecasts(network: EdgedNetwork) -> int:
    """The number of paths of which the edge ha is told what to expect."""
    return sum(len(each["paths"]) for each in network.fabric.api_get("edges/ha")["egress"])


def events(network: EdgedNetwork) -> set[str]:
    """The names of all events."""
    return {each["event"] for each in network.fabric.api_get("events")["events"]}


def tags(network: EdgedNetwork) -> list[int]:
    pair = network.pair("ha", "hb")
    assert pair is not None
    return sorted(path["tag"] for path in pair["paths"])


def test_capacities_and_paths_are_reloaded_under_traffic_without_loss(network: EdgedNetwork) -> None:
    fabric = network.fabric
    before = tags(network)
    with nothing_lost(network.net, "ha", "hb", log="reload"):
        reload(network, UNEVEN)
        wait_until(lambda: shares(network) == {"P": 0.8, "Q": 0.2}, what="the other shares", timeout=30)
        assert tags(network) == before
        # Edges walk their slots, and then go by forecasts again.
        reload(network, UNEVEN, paths='scheduler = "wrr"\nresequence_skew = "20 ms"')
        wait_until(lambda: forecasts(network) == 0, what="no forecasts", timeout=30)
        reload(network)
        wait_until(lambda: forecasts(network) == 2, what="forecasts", timeout=30)
        wait_until(lambda: shares(network) == {"P": 0.5, "Q": 0.5}, what="the first shares", timeout=30)
        # Keys that take a restart are named, all others are followed.
        reload(network, UNEVEN, before='listen = "127.0.0.1:6633"')
        wait_until(lambda: shares(network) == {"P": 0.8, "Q": 0.2}, what="the other shares", timeout=30)
        wait_until(lambda: "restart-needed" in fabric.codes(), what="the key that takes a restart", timeout=20)
        reload(network)
        wait_until(lambda: shares(network) == {"P": 0.5, "Q": 0.5}, what="the first shares", timeout=30)
        assert "restart-needed" not in fabric.codes()
    told = [each["fields"] for each in fabric.api_get("events")["events"] if each["event"] == "reloaded"]
    assert told[0] == {"taken": "link"}
    assert {"taken": "link", "restart": "listen"} in told


def test_a_capacity_is_set_by_command_and_a_host_added_without_loss(network: EdgedNetwork) -> None:
    fabric = network.fabric
    with nothing_lost(network.net, "ha", "hb", log="set"):
        said = fabric.call("set-capacity", "A", "P", "250 Mbit/s").stdout
        assert said == "A – P has 250 Mbit/s in each direction: 1 link\n"
        wait_until(lambda: shares(network) == {"P": 0.2, "Q": 0.8}, what="the other shares", timeout=30)
        said = fabric.call("add-host", "02:00:00:00:77:77", "B", "hb", "10.77.9.9").stdout
        assert said == "02:00:00:00:77:77 stays at B:hb\n"
        shown = fabric.call("policies", check=False).stdout
        assert "250.0 Mbit/s" in shown
        assert "B:hb 10.77.9.9" in shown
        # The journal compares states a second apart, and misses one that ends sooner.
        wait_until(lambda: {"capacity-set", "host-added"} <= events(network), what="the events", timeout=20)
        for words in (("unset-capacity", "A", "P"), ("remove-host", "02:00:00:00:77:77")):
            said = fabric.call(*words).stdout
            # Once more changes nothing, and is no error.
            assert fabric.call(*words).stdout != said
        wait_until(lambda: shares(network) == {"P": 0.5, "Q": 0.5}, what="the first shares", timeout=30)
    wait_until(lambda: {"capacity-unset", "host-removed"} <= events(network), what="the events", timeout=20)
    assert fabric.call("set-capacity", "A", "Z", "1 Mbit/s", check=False).status == 2
    assert fabric.call("set-capacity", "A", "P", "much", check=False).status == 2
    assert fabric.call("permit", "A", "P").status == 0
