"""UDP and QUIC over two paths: numbers of ours on packets that have none, where the far edge asks for them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.ovs import OUTSIDE
from braid_lab.fabric.shapes import two_paths
from braid_lab.fabric.tcp_transfer import run_iperf3
from braid_lab.process import Process, wait_until
from braid_lab.servers.catalog import READY, argv

#: Little, so that Python's QUIC is not what limits, however busy the machine.
MBIT = 2.0
#: 10 ms apart, so that without order nearly every second datagram would come too early.
SHAPE = two_paths(mbit=MBIT, delay_ms=10, other_ms=20)
#: More than either path carries, less than both do; and less than either carries.
BETWEEN, WITHIN = "2.8M", "0.8M"
#: IP and UDP headers; the frame's own.
HEADERS, MTU, SHIM = 28, 1500, 8
SECONDS = 3

#: A number of ours, of epoch 7 and lane 0, before an IPv4 packet that nobody reads.
NUMBERED = "88b6" + "0700080000000001" + "45" + "00" * 59
#: Sends a frame by a device: to, from, and what follows, in hex.
SENDER = """
import socket, sys
device, *words = sys.argv[1:]
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as door:
    door.bind((device, 0))
    door.send(bytes.fromhex("".join(words).replace(":", "").replace("\\n", "")))
"""


@dataclass(frozen=True)
class Measured:
    """What the datagrams' receiver saw, what was sent by each path, the fewest first, and what the edge counted."""

    seen: dict[str, Any]
    sent: list[int]
    reasons: dict[str, int]


@pytest.fixture(scope="module")
def network() -> Iterator[EdgedNetwork]:
    """Two paths of 2 Mbit/s; the edge at hb takes numbers off, the one at ha would not."""
    with edged_network(SHAPE, shims=("hb",)) as made:
        made.settle("ha", "hb", 2)
        # That hb takes numbers is told by its question, and may come later than the paths.
        ping = ["bash", "-c", f"echo > /dev/udp/{made.net.stations['hb'].address}/9"]

        def numbers() -> bool:
            made.net.stations["ha"].place.run(ping)
            return reasons(made, "ha")["shim_added"] > 0

        wait_until(numbers, what="numbers of ours", timeout=20, poll=0.05)
        yield made


def datagrams(network: EdgedNetwork, length: int, rate: str, *words: str) -> dict[str, Any]:
    """Send so long datagrams from ha to hb (`-R`: back); return what their receiver saw."""
    stations = network.net.stations
    options = ["-u", "-l", str(length), "-b", rate, *words]
    told = run_iperf3(stations["ha"], stations["hb"], network.net.folder, SECONDS, options)
    seen: dict[str, Any] = told["end"]["streams"][0]["udp"]
    return seen


def packets(network: EdgedNetwork, source: str, target: str) -> list[int]:
    return [path["tx_packets"] for path in network.edges[source].paths_to(target)]


def reasons(network: EdgedNetwork, edge: str) -> dict[str, int]:
    counted: dict[str, int] = network.edges[edge].status()["reasons"]
    return counted


def measured(network: EdgedNetwork, source: str, target: str, length: int, rate: str, *words: str) -> Measured:
    """Send datagrams while the plan stays the same; return what was seen and counted where they come from."""

    def measure() -> tuple[dict[str, Any], list[list[int]], list[dict[str, int]]]:
        sent, counted = [packets(network, source, target)], [reasons(network, source)]
        seen = datagrams(network, length, rate, *words)
        return seen, [*sent, packets(network, source, target)], [*counted, reasons(network, source)]

    seen, sent, counted = network.measure_undisturbed("ha", "hb", 2, measure)
    counts = [after - before for before, after in zip(*sent, strict=True)]
    return Measured(seen, sorted(counts), {name: counted[1][name] - was for name, was in counted[0].items()})


def test_datagrams_take_both_paths_and_arrive_in_order(network: EdgedNetwork) -> None:
    made = measured(network, "ha", "hb", 1200, BETWEEN)
    seen = made.seen
    assert made.sent[0] > 0.45 * sum(made.sent)
    assert made.reasons["shim_added"] >= seen["packets"]
    assert seen["lost_packets"] <= 0.002 * seen["packets"]
    assert seen["out_of_order"] <= 0.002 * seen["packets"]
    (ingress,) = network.edges["hb"].status()["ingress"]
    assert ingress["segments"]["held"] > 0.2 * seen["packets"]


def test_an_edge_that_does_not_ask_is_sent_none(network: EdgedNetwork) -> None:
    made = measured(network, "hb", "ha", 1200, WITHIN, "-R")
    # TCP's own connection beside it is split; the datagrams are not.
    assert made.sent[1] > made.seen["packets"] > 100 > made.sent[0]
    assert reasons(network, "hb")["shim_added"] == 0


def test_what_has_no_room_keeps_to_one_path_and_is_counted(network: EdgedNetwork) -> None:
    made = measured(network, "ha", "hb", MTU - HEADERS, WITHIN)
    assert made.sent[1] > made.seen["packets"] > 100 > made.sent[0]
    assert made.seen["lost_packets"] <= 0.002 * made.seen["packets"]
    assert made.reasons["no_shim_room"] >= made.seen["packets"]
    # As long as fits goes by both.
    made = measured(network, "ha", "hb", MTU - HEADERS - SHIM, WITHIN)
    assert made.sent[0] > 0.4 * sum(made.sent)


def test_numbers_that_nobody_asked_for_go_nowhere(network: EdgedNetwork) -> None:
    network.settle("ha", "hb", 2)
    source, box = network.net.stations["ha"], network.net.stations["hb"].box
    assert box is not None
    # A host's: to the other host, as its edge would have written it.
    target = network.net.stations["hb"]
    macs = [each.place.run(["cat", "/sys/class/net/eth0/address"]).stdout for each in (target, source)]
    before = reasons(network, "ha")
    source.place.run([sys.executable, "-c", SENDER, "eth0", *macs, NUMBERED])
    wait_until(
        lambda: reasons(network, "ha")["host_shim"] == before["host_shim"] + 1, what="the host's to be dropped"
    )
    # An edge's, to one that did not ask.
    tag = network.edges["hb"].paths_to("ha")[0]["tag"]
    macs.reverse()
    box.run([sys.executable, "-c", SENDER, OUTSIDE, *macs, f"8100{tag:04x}{NUMBERED}"])
    wait_until(
        lambda: reasons(network, "ha")["unexpected_shim"] == before["unexpected_shim"] + 1,
        what="the edge's to be dropped",
    )


def test_a_quic_download_gets_what_neither_path_carries_alone(network: EdgedNetwork) -> None:
    size = 2_500_000
    source, target = network.net.stations["ha"], network.net.stations["hb"]
    log = network.net.folder / "http3"

    def measure() -> float:
        fetch = [sys.executable, "-m", "braid_lab.clients.http3_download", source.address, str(size)]
        with Process(fetch, log=network.net.folder / "download3", namespace=target.place.name) as client:
            client.wait_output("flowing", timeout=30)
            began = time.monotonic()
            client.wait(timeout=60)
            seconds = time.monotonic() - began
        told = json.loads(client.stdout().splitlines()[-1])
        assert (told["bytes"], told["error"]) == (size, None)
        # The nine tenths that were still to come.
        return 8e-6 * 0.9 * size / seconds

    with Process(argv("http3", [source.address]), log=log, namespace=source.place.name) as server:
        server.wait_output(READY, timeout=20)
        # A busy machine only slows it down: what one of three downloads gets, the paths carry.
        speeds = (network.measure_undisturbed("ha", "hb", 2, measure) for _ in range(3))
        assert any(speed > 1.2 * MBIT for speed in speeds)
