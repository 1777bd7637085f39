"""UDP and QUIC over two paths: numbers of ours on packets that have none, where the far edge asks for them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.shapes import two_paths
from braid_lab.fabric.stream import ask
from braid_lab.process import Process
from braid_lab.serve.servers import READY, argv

MBIT = 5.0
#: 10 ms apart, so that without order nearly every second datagram would come too early.
SHAPE = two_paths(mbit=MBIT, delay_ms=10, other_ms=20)
#: More than either path carries, less than both do.
BETWEEN = "7M"
#: IP and UDP headers; the frame's own.
HEADERS, MTU, SHIM = 28, 1500, 8


@pytest.fixture(scope="module")
def network() -> Iterator[EdgedNetwork]:
    """Two paths of 5 Mbit/s; the edge at hb takes numbers off, the one at ha would not."""
    with edged_network(SHAPE, shims=("hb",)) as made:
        made.settle("ha", "hb", 2)
        yield made


def datagrams(network: EdgedNetwork, length: int, rate: str, *words: str, seconds: float = 4) -> dict[str, Any]:
    """Send so long datagrams from ha to hb (`-R`: back); return what their receiver saw."""
    stations = network.net.stations
    options = ["-u", "-l", str(length), "-b", rate, *words]
    told = ask(stations["ha"], stations["hb"], network.net.folder, seconds, options)
    seen: dict[str, Any] = told["end"]["streams"][0]["udp"]
    return seen


def packets(network: EdgedNetwork, source: str, target: str) -> list[int]:
    return [path["packets"] for path in network.edges[source].paths_to(target)]


def reasons(network: EdgedNetwork, edge: str) -> dict[str, int]:
    counted: dict[str, int] = network.edges[edge].status()["reasons"]
    return counted


def test_datagrams_take_both_paths_and_arrive_in_order(network: EdgedNetwork) -> None:
    network.settle("ha", "hb", 2)
    before, counted = packets(network, "ha", "hb"), reasons(network, "ha")["numbered"]
    seen = datagrams(network, 1200, BETWEEN)
    counts = [after - was for after, was in zip(packets(network, "ha", "hb"), before, strict=True)]
    assert min(counts) > 0.45 * sum(counts)
    assert reasons(network, "ha")["numbered"] - counted >= seen["packets"]
    assert seen["lost_packets"] <= 0.002 * seen["packets"]
    assert seen["out_of_order"] <= 0.002 * seen["packets"]
    (inward,) = network.edges["hb"].status()["inward"]
    assert inward["segments"]["held"] > 0.2 * seen["packets"]


def test_an_edge_that_does_not_ask_is_sent_none(network: EdgedNetwork) -> None:
    network.settle("ha", "hb", 2)
    before = packets(network, "hb", "ha")
    seen = datagrams(network, 1200, "2M", "-R", seconds=2)
    counts = sorted(after - was for after, was in zip(packets(network, "hb", "ha"), before, strict=True))
    # TCP's own connection beside it is split; the datagrams are not.
    assert counts[1] > seen["packets"] > 100 > counts[0]
    assert reasons(network, "hb")["numbered"] == 0


def test_what_has_no_room_keeps_to_one_path_and_is_counted(network: EdgedNetwork) -> None:
    network.settle("ha", "hb", 2)
    before, counted = packets(network, "ha", "hb"), reasons(network, "ha")
    seen = datagrams(network, MTU - HEADERS, "2M", seconds=2)
    counts = sorted(after - was for after, was in zip(packets(network, "ha", "hb"), before, strict=True))
    assert counts[1] > seen["packets"] > 100 > counts[0]
    assert seen["lost_packets"] <= 0.002 * seen["packets"]
    after = reasons(network, "ha")
    assert after["no_room"] - counted["no_room"] >= seen["packets"]
    # As long as fits goes by both.
    before = packets(network, "ha", "hb")
    datagrams(network, MTU - HEADERS - SHIM, "2M", seconds=2)
    counts = [after - was for after, was in zip(packets(network, "ha", "hb"), before, strict=True)]
    assert min(counts) > 0.4 * sum(counts)


def test_a_quic_download_gets_what_neither_path_carries_alone(network: EdgedNetwork) -> None:
    network.settle("ha", "hb", 2)
    source, target = network.net.stations["ha"], network.net.stations["hb"]
    size = 5_000_000
    log = network.net.folder / "http3"
    with Process(argv("http3", [source.address]), log=log, namespace=source.place.name) as server:
        server.wait_output(READY, timeout=20)
        fetch = [sys.executable, "-m", "braid_lab.load.download3", source.address, str(size)]
        with Process(fetch, log=network.net.folder / "download3", namespace=target.place.name) as client:
            client.wait_output("flowing", timeout=30)
            began = time.monotonic()
            client.wait(timeout=60)
            seconds = time.monotonic() - began
    told = json.loads(client.stdout().splitlines()[-1])
    assert (told["bytes"], told["error"]) == (size, None)
    # The nine tenths that were still to come.
    assert 8e-6 * 0.9 * size / seconds > 1.2 * MBIT
