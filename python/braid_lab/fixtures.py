"""Shared by several experiments and the tests: the demo's two uplinks, and servers for a network."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from braid_lab.net.links import LinkSpec
from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import Topology, Uplink, UplinkSpec
from braid_lab.process import Process, wait_until
from braid_lab.servers import catalog

#: A DSL and an LTE line as in a household. A queue of 250 ms is usual for such modems and cells, and holds the first
#: windows of a page's 42 connections; in a queue of 100 ms they lose hundreds of packets, and retransmission timeouts
#: dominate the page load time.
DEMO_UPLINKS = (
    UplinkSpec("dsl", LinkSpec(rate="20Mbit/s", delay="15ms", queue="250ms")),
    UplinkSpec("lte", LinkSpec(rate="30Mbit/s", delay="40ms", queue="250ms")),
)

#: Rates of these lines, Mbit/s.
DEMO_MBIT = {"dsl": 20.0, "lte": 30.0}


def serve(net: Topology, *kinds: str) -> list[Process]:
    """Start servers of these kinds in the internet, for the network's lifetime; returns when all are ready."""
    addresses = [*net.servers(4), *net.servers(6)]
    started = []
    for kind in kinds:
        argv = catalog.argv(kind, addresses)
        process = Process(argv, log=net.scratch / f"serve-{kind}", namespace=net.internet.name)
        net.stack.callback(process.stop)
        started.append(process)
    for process in started:
        process.wait_output(catalog.READY, timeout=60)
    return started


def serve_everything(net: Topology) -> list[Process]:
    """Start all kinds of servers."""
    return serve(net, *catalog.SERVER_KINDS)


@contextlib.contextmanager
def served_everywhere(place: Namespace, folder: Path) -> Iterator[Process]:
    """Serve HTTP/1.1 at every IPv4 address of a namespace, whole networks included; the log goes to a folder."""
    argv = catalog.argv("http1", ["0.0.0.0"])  # noqa: S104 - every address of the namespace
    with Process(argv, log=folder / f"serve-{place.name}", namespace=place.name) as server:
        server.wait_output(catalog.READY, timeout=20)
        yield server


#: Longer than any run; background downloads go on until they are stopped.
ENDLESS_SECONDS = 86_400


@contextlib.contextmanager
def filled(host: Namespace, uplink: Uplink, downloads: int, address: str, folder: Path) -> Iterator[None]:
    """Keep an emulated line full by endless downloads from an address that the host reaches over it."""
    emulator = uplink.emulator
    assert emulator is not None  # noqa: S101
    words = [str(downloads), "0", str(ENDLESS_SECONDS), address]
    argv = [sys.executable, "-m", "braid_lab.clients.bulk", *words]
    with Process(argv, log=folder / f"others-{host.name}", namespace=host.name) as process:

        def full() -> bool:
            down = emulator.request({"stats": {}})["stats"]["down"]["packets"]
            return bool(down["queue_full"]["packets"]) or not process.running

        wait_until(full, what=f"others to fill {uplink.name}", timeout=20)
        yield


@contextlib.contextmanager
def echo_train(
    net: Topology,
    spacing_s: float,
    size: int,
    numbers: Iterable[int],
    name: str = "beats",
    sources: Sequence[str] = (),
) -> Iterator[Process]:
    """Run an echo train from the host to servers; yields once all have replied. Its log is named `name`.

    With `sources`, which are addresses of the host, there is one to each server from each of them.
    """
    words = [sys.executable, "-m", "braid_lab.clients.echo_train", f"{1000 * spacing_s:g}", str(size)]
    ends = [f"@{source}" for source in sources] or [""]
    argv = [*words, *(net.server(number) + end for number in numbers for end in ends)]
    with Process(argv, log=net.scratch / name, namespace=net.host.name) as train:
        train.wait_output("^ready$", timeout=20)
        yield train


def run_client(place: Namespace, kind: str, *words: object, timeout: float = 60.0) -> Any:
    """Run the client `braid_lab.clients.KIND` and return its report."""
    argv = [sys.executable, "-m", f"braid_lab.clients.{kind}", *map(str, words)]
    return json.loads(place.run(argv, timeout=timeout).stdout)
