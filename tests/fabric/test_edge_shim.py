"""UDP and QUIC over two paths: the shim adds sequence numbers to flows without any that fill a path."""

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

#: Low, so that Python's QUIC is not the limit, even on a busy machine.
MBIT = 2.0
#: 10 ms apart, so that without reordering nearly every second datagram would come too early.
SHAPE = two_paths(mbit=MBIT, delay_ms=10, other_ms=20)
#: More than either path carries, less than both do; and less than half of what either carries.
BETWEEN, WITHIN = "2.8M", "0.8M"
#: IP and UDP headers; the frame's MTU; the shim's header.
HEADERS, MTU, SHIM = 28, 1500, 8
SECONDS = 3

#: A shim header, of epoch 7 and lane 0, before an IPv4 packet that nobody reads.
NUMBERED = "88b6" + "0700080000000001" + "45" + "00" * 59
#: Sends a frame by a device; arguments in hex: destination, source, and the rest.
SENDER = """
import socket, sys
device, *words = sys.argv[1:]
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as door:
    door.bind((device, 0))
    door.send(bytes.fromhex("".join(words).replace(":", "").replace("\\n", "")))
"""
#: Sends as much to an address as makes a flow heavy.
BURST = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
    for _ in range(60):
        door.sendto(bytes(1200), (sys.argv[1], 9))
"""


@dataclass(frozen=True)
class Measured:
    """Results: what the receiver saw, packets sent by each path (fewest first), and the edge's counters."""

    seen: dict[str, Any]
    sent: list[int]
    reasons: dict[str, int]


@pytest.fixture(scope="module")
def network() -> Iterator[EdgedNetwork]:
    """Two paths of 2 Mbit/s; the edge at hb accepts the shim, the one at ha does not."""
    with edged_network(SHAPE, shims=("hb",)) as made:
        made.settle("ha", "hb", 2)
        # hb announces in its requests that it accepts the shim, which may happen later than the paths.
        burst = [sys.executable, "-c", BURST, made.net.stations["hb"].address]

        def numbers() -> bool:
            made.net.stations["ha"].place.run(burst)
            return reasons(made, "ha")["shim_added"] > 0

        wait_until(numbers, what="numbers of ours", timeout=20, poll=0.05)
        yield made


def datagrams(network: EdgedNetwork, length: int, rate: str, *words: str) -> dict[str, Any]:
    """Send datagrams of this size from ha to hb (`-R`: back); return what their receiver saw."""
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
    """Send datagrams while the plan stays the same; return the receiver's and the sender's counters."""

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
    # The slower path gets what the quick one cannot carry: 0.8 of 2.8 Mbit/s.
    assert 0.2 * sum(made.sent) < made.sent[0] < 0.4 * sum(made.sent)
    # The first ones take one path.
    assert made.reasons["shim_added"] >= 0.8 * seen["packets"]
    assert seen["lost_packets"] <= 0.002 * seen["packets"]
    assert seen["out_of_order"] <= 0.002 * seen["packets"]
    (ingress,) = network.edges["hb"].status()["ingress"]
    assert ingress["segments"]["held"] > 0.2 * seen["packets"]


def test_a_flow_that_one_path_carries_is_not_numbered(network: EdgedNetwork) -> None:
    made = measured(network, "ha", "hb", 1200, WITHIN)
    assert made.reasons["shim_added"] == 0
    assert made.sent[1] >= made.seen["packets"] > 100 > made.sent[0]


def test_an_edge_that_does_not_ask_is_sent_none(network: EdgedNetwork) -> None:
    made = measured(network, "hb", "ha", 1200, WITHIN, "-R")
    # Only TCP's own connection beside it is split; the datagrams are not.
    assert made.sent[1] >= made.seen["packets"] > 100 > made.sent[0]
    assert reasons(network, "hb")["shim_added"] == 0


def test_what_has_no_room_keeps_to_one_path_and_is_counted(network: EdgedNetwork) -> None:
    made = measured(network, "ha", "hb", MTU - HEADERS, WITHIN)
    assert made.sent[1] >= made.seen["packets"] > 100 > made.sent[0]
    assert made.seen["lost_packets"] <= 0.002 * made.seen["packets"]
    assert made.reasons["no_shim_room"] >= made.seen["packets"]
    # As long as they fit, datagrams use both paths if one does not carry them.
    made = measured(network, "ha", "hb", MTU - HEADERS - SHIM, BETWEEN)
    assert made.sent[0] > 0.2 * sum(made.sent)


def test_numbers_that_nobody_asked_for_go_nowhere(network: EdgedNetwork) -> None:
    network.settle("ha", "hb", 2)
    source, box = network.net.stations["ha"], network.net.stations["hb"].box
    assert box is not None
    # A host sends it to the other host, as its edge would have written it.
    target = network.net.stations["hb"]
    macs = [each.place.run(["cat", "/sys/class/net/eth0/address"]).stdout for each in (target, source)]
    before = reasons(network, "ha")
    source.place.run([sys.executable, "-c", SENDER, "eth0", *macs, NUMBERED])
    wait_until(
        lambda: reasons(network, "ha")["host_shim"] == before["host_shim"] + 1, what="the host's to be dropped"
    )
    # A packet for an edge that did not request the shim.
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
        # The remaining nine tenths.
        return 8e-6 * 0.9 * size / seconds

    with Process(argv("http3", [source.address]), log=log, namespace=source.place.name) as server:
        server.wait_output(READY, timeout=20)
        # A busy machine only slows it down: if one of three downloads has the rate, the paths carry it.
        speeds = (network.measure_undisturbed("ha", "hb", 2, measure) for _ in range(3))
        assert any(speed > 1.2 * MBIT for speed in speeds)
