"""A host that has joined a hub, behind emulated links; traffic that bypasses the bond binds to a link's address."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from braid_lab import remote_hub
from braid_lab.experiment import Run
from braid_lab.experiments.bond.cases import Link
from braid_lab.net.links import Emulated, LinkSpec
from braid_lab.net.mptcp import use_all_uplinks
from braid_lab.net.remote_host import remote_host
from braid_lab.net.topology import Topology, Uplink, UplinkSpec, network
from braid_lab.process import LabError, Process, wait_until
from braid_lab.product import Braid, braid
from braid_lab.remote_hub import Hub
from braid_lab.servers.catalog import READY

#: The bond's device at the host.
BOND_DEVICE = "braid-bond"

#: States of a link that carries packets.
CARRYING = ("active", "returning")


@dataclass(frozen=True)
class Site:
    """A running network with the bond up."""

    net: Topology
    hub: Hub
    daemon: Braid

    @property
    def server(self) -> str:
        """Address of the server of streams."""
        return self.net.server(1)

    def bond(self) -> dict[str, Any]:
        """Return the output of `braid bond --json`."""
        return self.daemon.json("bond")

    def carrying(self) -> set[str]:
        """Return the uplinks whose links carry packets."""
        return {link["uplink"] for link in self.bond()["links"] if link["state"] in CARRYING}

    def wait_carrying(self, *, timeout: float = 20.0) -> None:
        """Wait until every uplink's link carries packets and the bond takes flows."""
        wait_until(
            lambda: self.carrying() == set(self.net.uplinks) and self.bond()["state"] == "up",
            what="all links of the bond to carry packets",
            timeout=timeout,
            poll=0.1,
        )

    def emulator(self, name: str) -> Emulated:
        """Return an uplink's emulator."""
        return emulator(self.net.uplinks[name])

    def background(self, place: str, *words: str, ready: str = READY) -> Process:
        """Run `python -m WORDS…` as `start` does."""
        return self.start(place, words[0].rpartition(".")[2], [sys.executable, "-m", *words], ready=ready)

    def start(self, place: str, name: str, argv: Sequence[str | Path], *, ready: str) -> Process:
        """Run a program in a namespace for as long as the network lives; returns when it is ready."""
        process = Process(argv, log=self.net.scratch / f"{place}-{name}", namespace=place)
        self.net.stack.callback(process.stop)
        process.wait_output(ready, timeout=20)
        return process


def emulator(uplink: Uplink) -> Emulated:
    """Return the emulator of an uplink that has one."""
    if uplink.emulator is None:
        raise LabError(f"{uplink.name} is no emulated line")
    return uplink.emulator


class Emulable(Protocol):
    """An object that describes an emulated link."""

    def line(self, seed: int) -> LinkSpec:
        """Return its parameters."""
        ...


@contextlib.contextmanager
def site(
    links: Mapping[str, Emulable | None],
    *,
    seed: int,
    configuration: str = "",
    hub_configuration: str = "",
    offload: bool = True,
    far_offload: bool = False,
    program: Path | None = None,
    observed: frozenset[str] = frozenset(),
) -> Iterator[Site]:
    """Build these links, a hub beyond them, and a host that has joined it; IPv4 only.

    A link of None is a plain cable. `configuration` is the host's (braid.toml), `hub_configuration` the hub's
    (hub.toml). Cables with `offload` carry super-packets whole and leave checksums undone, as between machines whose
    devices do that work; `far_offload` is for the hub's own. `program` is the binary for both ends, if not the one
    that was built. Lines that are `observed` have a machine that sees them, and carry packets as on a wire.
    """
    specs = [
        UplinkSpec(
            name,
            link.line(seed + number) if link else None,
            families=frozenset({4}),
            offload=offload and name not in observed,
            observed=name in observed,
        )
        for number, (name, link) in enumerate(links.items())
    ]
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network(specs))
        # A run builds several networks, and each hub has a store of its own.
        folder = net.scratch / net.host.name.rpartition("-")[0]
        folder.mkdir()
        far = stack.enter_context(remote_host(net, offload=far_offload))
        hub = stack.enter_context(remote_hub.running_hub(far, folder / "hub", hub_configuration, program))
        file = folder / "braid.toml"
        file.write_text(configuration)
        daemon = stack.enter_context(braid(net.host, folder / "braid", "--config", file, program=program))
        daemon.call("join", hub.invite("lab"))
        made = Site(net, hub, daemon)
        made.wait_carrying()
        use_all_uplinks(net)
        yield made


@contextlib.contextmanager
def delay_walks(place: Site, links: Mapping[str, Link], seed: int) -> Iterator[None]:
    """Vary the delays of links that have a random walk, for the length of a block."""
    over = threading.Event()

    def follow(name: str, link: Link) -> None:
        assert link.delay_walk is not None  # noqa: S101
        for delay in link.delay_walk.trace(random.Random(seed)):
            place.emulator(name).request({"set": {"delay": f"{delay:.3f} ms"}})
            if over.wait(link.delay_walk.every_s):
                return

    threads = [threading.Thread(target=follow, args=each) for each in links.items() if each[1].delay_walk]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def emulators_kept_up(run: Run, place: Site) -> float:
    """Return the 99th percentile of packet lateness on the worst link, ms.

    If an emulator lost packets that it should not lose, the measurement is void (`Run.too_slow`).
    """
    latest = 0.0
    for name in place.net.uplinks:
        stats = place.emulator(name).request({"stats": {}})["stats"]
        for direction in (stats["up"], stats["down"]):
            if direction["kernel_dropped_before"] or direction["device_refused"]:
                run.too_slow(f"the emulator of link {name} lost packets")
            latest = max(latest, direction["late_us"]["p99"] / 1000)
    return latest
