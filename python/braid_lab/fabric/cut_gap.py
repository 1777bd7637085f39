"""Cuts one of many paths between edges, without a sign at any port, and times the gap in flows that take it.

All pairs of edges on two sides send, so all paths are used and probed. Between one of these pairs many flows of
datagrams pass, each on the path that its hash chooses.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from braid_lab.fabric.edges import EdgedNetwork
from braid_lab.fabric.shapes import Shape, Station, Wire
from braid_lab.process import Process, wait_until
from braid_lab.servers import catalog

#: Flows between the two hosts: that none of them takes one of four paths is unlikely (0.001), and noticed.
FLOWS = 24
SPACING_S = 0.01
#: Interval of pings between the other pairs.
PING_S = 0.5
#: Packets on the path before it is cut: two looks of its edge at its counters.
PACKETS_BEFORE = 800
#: The first wire is emulated, so that it can be cut; at this rate it is one among equals.
CUT_MBIT = 999.0

Probe = tuple[float, float | None, str | None]


@dataclass(frozen=True)
class Sides:
    """Edges on the two sides of a network."""

    near: int
    far: int
    #: Paths of each pair, in each direction.
    paths: int

    @property
    def used_paths(self) -> int:
        """Paths of all pairs."""
        return 2 * self.near * self.far * self.paths

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """Names of both sides' edges."""
        return [f"a{number}" for number in range(self.near)], [f"b{number}" for number in range(self.far)]

    @property
    def shape(self) -> Shape:
        """Two switches with the edges, joined by a switch for each path."""
        middles = [f"P{number}" for number in range(self.paths)]
        wires = [
            Wire(*ends, mbit=1000.0 if number else CUT_MBIT)
            for number, middle in enumerate(middles)
            for ends in (("A", middle), (middle, "B"))
        ]
        stations = [
            Station(name, switch, edge=True) for switch, names in zip("AB", self.names, strict=True) for name in names
        ]
        return Shape(("A", "B", *middles), tuple(wires), tuple(stations))


def settle(network: EdgedNetwork, sides: Sides) -> None:
    """Wait until all pairs have all paths."""
    for near, far in itertools.product(*sides.names):
        network.settle(near, far, sides.paths)


@contextlib.contextmanager
def all_pairs_used(network: EdgedNetwork, sides: Sides) -> Iterator[None]:
    """Have all pairs send to each other for the length of a block."""
    stations = network.net.stations
    with contextlib.ExitStack() as stack:
        for near, far in itertools.product(*sides.names):
            argv = ["ping", "-q", "-i", f"{PING_S:g}", stations[far].address]
            log = network.net.folder / f"ping-{near}-{far}"
            stack.enter_context(Process(argv, log=log, namespace=stations[near].place.name))
        yield


def cut_gap(network: EdgedNetwork, source: str, target: str) -> float | None:
    """Cut the first path while flows pass, until the pair has one path less; return the longest gap, seconds.

    None if no flow lost anything: the controller had just chosen other paths.
    """
    stations, line = network.net.stations, network.net.lines["A", "P0"]
    before = network.pair(source, target)
    assert before is not None  # noqa: S101
    tag = next(path["tag"] for path in before["paths"] if "P0" in path["switches"])
    address = stations[target].address
    server = Process(
        [sys.executable, "-m", "braid_lab.servers.echo", address],
        log=network.net.folder / "echo",
        namespace=stations[target].place.name,
    )
    words = [f"{1000 * SPACING_S:g}", "64", *([address] * FLOWS)]
    train = Process(
        [sys.executable, "-m", "braid_lab.clients.echo_train", *words],
        log=network.net.folder / "train",
        namespace=stations[source].place.name,
    )

    def sent() -> int:
        paths = network.edges[source].paths_to(target)
        return next((path["tx_packets"] for path in paths if path["tag"] == tag), 0)

    def is_left() -> bool:
        pair = network.pair(source, target)
        return pair is not None and all("P0" not in path["switches"] for path in pair["paths"])

    with server:
        server.wait_output(catalog.READY, timeout=20)
        with train:
            train.wait_output("^ready$", timeout=20)
            enough = sent() + PACKETS_BEFORE
            wait_until(lambda: sent() >= enough, what="flows on the path", timeout=30)
            try:
                line.blackhole(True)
                wait_until(is_left, what="the path to be left", timeout=30)
            finally:
                line.blackhole(False)
            # All of its results are a long line.
            train.stop(grace=30.0)
            results: list[list[Probe]] = json.loads(train.stdout().splitlines()[-1])
    gap = max(longest_gap(flow) for flow in results)
    return gap if gap > 2 * SPACING_S else None


def longest_gap(flow: Sequence[Probe]) -> float:
    """Return the longest time for which no probe of a flow was answered, seconds, by when they were sent."""
    answered = [sent for sent, came, _ in flow if came is not None]
    gaps = (after - before - SPACING_S for before, after in itertools.pairwise(answered))
    return max((gap for gap in gaps if gap > 0), default=0.0)
