"""A path that loses some packets: they come by the other path, and flows that keep to one path leave it."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.quic_transfer import quic_transfer
from braid_lab.fabric.shapes import Shape, parallel
from braid_lab.fabric.tcp_transfer import Transfer, transfer
from braid_lab.process import LabError, wait_until

#: Of each path; a TCP connection over one of them gets 9.5.
MBIT = 10.0
LOSS = "0.5%"
#: Longest time until an edge knows that a path loses packets: the window of the losses, a few times.
MAX_LEARNING_TIME = 40
SECONDS = 8
#: Sends datagrams by eight sockets, 50 a second each; arguments: address and seconds.
DATAGRAMS = """
import socket, sys, time
doors = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(8)]
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    for door in doors:
        door.sendto(bytes(1200), (sys.argv[1], 9))
    time.sleep(0.02)
"""


def shape() -> Shape:
    """Two paths of which the second one loses packets, in both directions."""
    healthy = parallel(((MBIT, 20), (MBIT, 20)))
    wires = tuple(replace(wire, loss=LOSS) if wire.one == "P2" else wire for wire in healthy.wires)
    return replace(healthy, wires=wires)


@pytest.fixture(scope="module")
def network() -> Iterator[EdgedNetwork]:
    """Two paths, a host and an edge at each end."""
    with edged_network(shape()) as made:
        made.settle("ha", "hb", 2)
        yield made


def send(network: EdgedNetwork, seconds: float) -> Transfer:
    stations = network.net.stations
    return transfer(stations["ha"], stations["hb"], network.net.folder, seconds)


def paths(network: EdgedNetwork) -> list[dict[str, Any]]:
    return network.edges["ha"].paths_to("hb")


def copied(network: EdgedNetwork) -> list[int]:
    return [path["tag"] for path in paths(network) if path["copied"]]


def counted(network: EdgedNetwork) -> dict[str, int]:
    (ingress,) = network.edges["hb"].status()["ingress"]
    return {
        "sent again": sum(path["repeated_packets"] for path in paths(network)),
        "asked": ingress["segments"]["asked"],
        "came": ingress["segments"]["repaired"],
    }


def test_one_paths_losses_are_hidden_from_tcp(network: EdgedNetwork) -> None:
    def learnt() -> bool:
        send(network, 4)
        return bool(copied(network))

    wait_until(learnt, what="an edge that knows of losses", timeout=MAX_LEARNING_TIME)
    lossy = {path["tag"] for path in paths(network) if path["copied"]}
    assert len(lossy) == 1, "of the other path no copies are kept"
    measure = functools.partial(send, network, SECONDS)
    # A busy machine only slows it down.
    for _ in range(3):
        before = counted(network)
        goodput = network.measure_undisturbed("ha", "hb", 2, measure).steady(2)
        after = counted(network)
        if goodput > 1.4 * MBIT:
            break
    assert goodput > 1.4 * MBIT
    sent, asked, came = (after[name] - before[name] for name in ("sent again", "asked", "came"))
    # Half of some 10,000 packets, of which one in 200 is lost. What is asked for are gaps, of one packet or several.
    # Some are filled by what comes late.
    assert asked >= 5
    assert came >= 5
    assert sent >= 0.8 * came


def test_quic_has_more_than_the_better_path_carries(network: EdgedNetwork) -> None:
    stations = network.net.stations

    def measure() -> float:
        return quic_transfer(stations["ha"], stations["hb"], network.net.folder, SECONDS).steady(2)

    # A busy machine only slows it down.
    speeds = (network.measure_undisturbed("ha", "hb", 2, measure) for _ in range(3))
    assert any(speed > MBIT for speed in speeds)


def datagrams(network: EdgedNetwork, seconds: int) -> None:
    """Send eight flows of datagrams, which no path is filled by. None waits for an answer, which may be lost."""
    stations = network.net.stations
    argv = [sys.executable, "-c", DATAGRAMS, stations["hb"].address, str(seconds)]
    stations["ha"].place.run(argv, timeout=seconds + 30)


def counters(network: EdgedNetwork) -> tuple[int, int]:
    """Return how many packets ha has sent by all paths, and how many of them have come."""
    (ingress,) = network.edges["hb"].status()["ingress"]
    return sum(path["tx_packets"] for path in paths(network)), sum(path["rx_packets"] for path in ingress["paths"])


def test_flows_that_keep_to_one_path_leave_the_one_that_loses_packets() -> None:
    with edged_network(shape(), shims=()) as network:
        network.settle("ha", "hb", 2)

        def avoided() -> list[int]:
            return [path["tag"] for path in paths(network) if path["avoided"]]

        def learnt() -> list[int]:
            datagrams(network, 3)
            return avoided()

        (lossy,) = wait_until(learnt, what="an edge that knows of losses", timeout=MAX_LEARNING_TIME)

        def measure() -> tuple[int, int]:
            before, (sent, came) = {path["tag"]: path["tx_packets"] for path in paths(network)}, counters(network)
            datagrams(network, 4)
            after = {path["tag"]: path["tx_packets"] for path in paths(network)}

            def lost() -> int:
                now_sent, now_came = counters(network)
                return (now_sent - sent) - (now_came - came)

            # Some are on their way still.
            with contextlib.suppress(LabError):
                wait_until(lambda: lost() == 0, what="all datagrams", timeout=5)
            return lost(), after[lossy] - before[lossy]

        lost, sent = network.measure_undisturbed("ha", "hb", 2, measure)
        # Some 1,600 datagrams, of which one in 400 was lost before.
        assert avoided() == [lossy]
        assert lost == 0
        assert sent < 100
