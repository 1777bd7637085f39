"""The fabric's controller: speed and accuracy of discovery, cost, and recovery.

Real Open vSwitch (userspace datapath) with emulated lines where switches and time matter; fake OpenFlow switches for
size, since hundreds of real ones do not fit this machine; pure computation for paths. [mpsdn] has only the method
(§III-A, §III-B) and no figures to compare with.
"""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from braid_lab.experiment import Run, experiment
from braid_lab.fabric.controller import Fabric, configuration, controller
from braid_lab.fabric.ovs import OvsNetwork, ovs_network
from braid_lab.fabric.shapes import Shape, east_asia, fat_tree, generated, two_paths
from braid_lab.net import scratch
from braid_lab.net.namespace import namespace
from braid_lab.process import Process, wait_until
from braid_sdn.fabric.model import Arc, Graph, PortId
from braid_sdn.fabric.monitor.probe import Kind, Probe, seal
from braid_sdn.fabric.plan.mdi import Thresholds, select
from braid_sdn.fabric.plan.paths import candidates


@dataclass(frozen=True)
class Extent:
    """Sizes of generated networks to discover, repetitions, and path computations per size."""

    sizes: tuple[int, ...]
    runs: int
    computations: int
    settle: float


FULL = Extent((20, 100, 500), 3, 50, 30.0)
QUICK = Extent((20, 100, 500), 1, 10, 6.0)
SMOKE = Extent((20,), 1, 2, 1.0)

#: Delay of the line whose latency is measured, ms.
DELAY_MS = 25.0

FRAMES = [sys.executable, "-m", "braid_lab.fabric.raw_frames"]


@experiment("fabric/control", "The fabric's controller: discovery, latency, paths, recovery", paper="mpsdn §III")
def control(run: Run) -> None:
    """Measure every part."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(3 * len(extent.sizes) + 7)
    _paths(run, extent)
    for size in extent.sizes:
        with run.part(f"discovery of {size} switches"):
            _discovery(run, extent, size)
        with run.part(f"changes among {size} switches"):
            _changes(run, extent, size)
    with run.part("latency"):
        _latency(run, extent)
    with run.part("recovery"):
        _recovery(run)
    with run.part("rules"):
        _rules(run)
    run.notes.append(
        "Discovery: from the first switch's connection to the discovery of the last link, with fake switches in one "
        "process on the same two cores. Latency errors contain the emulator's own, up to 0.25 ms."
    )


# Paths, computed only.


def graph_of(shape: Shape) -> Graph:
    """Return a shape as the controller's graph, without load."""
    arcs = []
    for number, wire in enumerate(shape.wires, 1):
        ends = [PortId(shape.dpid(wire.one), 2 * number), PortId(shape.dpid(wire.other), 2 * number + 1)]
        for source, target in (ends, ends[::-1]):
            arcs.append(Arc(source, target, 1e6 * wire.mbit, 0.0, wire.delay_ms / 1000))
    return Graph.of(arcs)


def _paths(run: Run, extent: Extent) -> None:
    chance = run.random
    rows = []
    for size in extent.sizes:
        graph = graph_of(generated(size, seed=run.seed))
        took, counts = [], []
        with run.step(f"paths among {size} switches"):
            for _ in range(extent.computations):
                source, target = chance.sample(sorted(graph.switches), 2)
                began = time.perf_counter()
                chosen = select(candidates(graph, source, target), Thresholds())
                took.append(1000 * (time.perf_counter() - began))
                counts.append(len(chosen.paths) if chosen else 0)
                rows.append({"switches": size, "ms": took[-1], "paths": counts[-1]})
        run.measure(f"paths_ms_{size}", took, unit="ms", better="lower")
        run.figure(f"paths_chosen_{size}", statistics.fmean(counts), unit="paths")
    run.series("paths", rows)


# Discovery, with fake switches.


@contextlib.contextmanager
def simulated_network(
    word: str, config: str = "", *, switches: str = "fake_switches"
) -> Iterator[tuple[Fabric, Process]]:
    """Run a controller and simulated switches; `switches` is their program."""
    with namespace("control") as place:
        folder = scratch.directory() / place.name
        folder.mkdir()
        with controller(place, folder, config, "--listen", "127.0.0.1:6653") as fabric:
            argv = [sys.executable, "-m", f"braid_lab.fabric.{switches}", "127.0.0.1", "6653", word]
            with Process(argv, log=folder / "switches", namespace=place.name) as simulated:
                yield fabric, simulated


def _discovery(run: Run, extent: Extent, size: int) -> None:
    shape = generated(size, seed=run.seed)
    seconds, planning = [], []
    with run.step(f"discover {size} switches"):
        for _ in range(extent.runs):
            with simulated_network(f"generated:{size}:{run.seed}") as (fabric, fake):
                fake.wait_output("^ready", timeout=60)
                wanted = 2 * len(shape.wires)
                figures = wait_until(
                    functools.partial(discovered, fabric, wanted), what=f"{wanted} links", timeout=90, poll=0.1
                )
                seconds.append(figures["last_link_s"] - figures["first_switch_s"])
                planning += [1000 * each for each in figures["planning_s"]]
    run.measure(f"discovery_s_{size}", seconds, unit="s", better="lower")
    run.measure(f"planning_ms_{size}", planning, unit="ms", better="lower")


def discovered(fabric: Fabric, links: int) -> dict[str, Any] | None:
    """Return the controller's figures once it knows so many links and no rule is being changed."""
    figures = fabric.api_get("figures")
    return figures if figures["links"] == links and figures["planning_s"] and not figures["changing"] else None


# Changes, with fake switches.

HOSTS = 20


def _changes(run: Run, extent: Extent, size: int) -> None:
    """Measure the time until new hosts are reachable everywhere, and until a cut wire is avoided everywhere."""
    shape = generated(size, seed=run.seed, hosts=HOSTS)
    appear, unplug = [], []
    with run.step(f"changes among {size} switches"):
        for _ in range(extent.runs):
            word = f"generated:{size}:{run.seed}:{HOSTS}"
            with simulated_network(word, configuration(shape)) as (fabric, fake):
                fake.wait_output("^ready", timeout=60)
                links = 2 * len(shape.wires)
                wait_until(functools.partial(discovered, fabric, links), what="links", timeout=90, poll=0.1)
                appear.append(_changed(fabric, fake, signal.SIGUSR1, links, HOSTS))
                unplug.append(_changed(fabric, fake, signal.SIGUSR2, links - 2, HOSTS))
    run.measure(f"hosts_in_place_s_{size}", appear, unit="s", better="lower")
    run.measure(f"wire_pulled_in_place_s_{size}", unplug, unit="s", better="lower")


def _changed(fabric: Fabric, fake: Process, sign: signal.Signals, links: int, hosts: int) -> float:
    """Trigger a change, and wait until all switches have the rules for it; return the seconds that took."""
    before, began = fabric.api_get("figures")["changes"], time.monotonic()
    fake.signal(sign)

    def done() -> bool:
        figures = fabric.api_get("figures")
        found = (figures["links"], figures["hosts"]) == (links, hosts)
        return found and figures["changes"] > before and not figures["changing"]

    wait_until(done, what="the change to be in place", timeout=120, poll=0.01)
    return time.monotonic() - began


# Latency, with real switches and emulated lines.


def _latency(run: Run, extent: Extent) -> None:
    shape = two_paths(mbit=100, delay_ms=2 * DELAY_MS, other_ms=20)
    asked = {frozenset((wire.one, wire.other)): wire.delay_ms for wire in shape.wires}
    with run.step(f"latency of lines of {DELAY_MS:g} ms"), ovs_network(shape) as net:
        with controller(net.place, net.folder, configuration(shape)) as fabric:
            _whole(fabric, 2 * len(shape.wires))
            time.sleep(extent.settle)
            links = fabric.api_get("status")["links"]
    errors: dict[float, list[float]] = {}
    for link in links:
        wanted = asked[frozenset((link["source_switch"], link["target_switch"]))]
        errors.setdefault(wanted, []).append(abs(link["latency_ms"] - wanted))
    for wanted, found in sorted(errors.items()):
        run.measure(f"latency_error_ms_{wanted:g}", found, unit="ms", better="lower")
    run.passes("latency_error_at_most_0.5_ms", max(errors[DELAY_MS]) <= 0.5)


def _whole(fabric: Fabric, links: int, *, problems: bool = False) -> dict[str, Any]:
    """Wait until everything is discovered and no change is in progress."""

    def ready() -> dict[str, Any] | None:
        status = fabric.api_get("status")
        good = len(status["links"]) == links and not status["changing"] and status["generation"]
        return status if good and (problems or not status["health"]) else None

    return wait_until(ready, what=f"{links} links", timeout=60, poll=0.05)


# Recovery.


@contextlib.contextmanager
def _counting(net: OvsNetwork, pause: float) -> Iterator[Process]:
    station = net.stations["hb"]
    argv = [*FRAMES, "count", "eth0", str(pause)]
    with Process(argv, log=net.folder / "count", namespace=station.place.name) as process:
        process.wait_output("^ready", timeout=20)
        yield process


@contextlib.contextmanager
def _sending(net: OvsNetwork, count: int, per_second: float) -> Iterator[Process]:
    source, target = net.stations["ha"], net.stations["hb"]
    argv = [*FRAMES, "send", "eth0", target.mac, str(count), str(per_second), "0"]
    with Process(argv, log=net.folder / "send", namespace=source.place.name) as process:
        yield process


def _counted(process: Process) -> tuple[int, float]:
    told = json.loads(process.wait().stdout.splitlines()[-1])
    return sum(len(each) for each in told["seen"].values()), told["longest_gap_s"]


def _recovery(run: Run) -> None:
    shape = two_paths(mbit=1000, delay_ms=0)
    with ovs_network(shape) as net, controller(net.place, net.folder, configuration(shape)) as fabric:
        _whole(fabric, 8)
        for one, other in (("ha", "hb"), ("hb", "ha")):
            _reached(net, one, other)
        _whole(fabric, 8)
        with run.step("forged discovery"):
            run.passes("forged_refused", _forged(net, fabric))
        with run.step("the controller is killed and starts again"):
            _controller_restart(run, net, fabric)
        with run.step("a cable is pulled"):
            _pulled(run, net, fabric)
        with run.step("the switches are killed and start again"):
            began = time.monotonic()
            net.stop(how=signal.SIGKILL)
            net.start()
            _reached(net, "ha", "hb")
            run.figure("switch_restart_outage_s", time.monotonic() - began, unit="s", better="lower")
            _whole(fabric, 8)
            run.figure("switch_restart_whole_s", time.monotonic() - began, unit="s", better="lower")


def _reached(net: OvsNetwork, one: str, other: str) -> None:
    """Wait until a host reaches another."""
    ping = ["ping", "-c", "1", "-W", "1", net.stations[other].address]
    wait_until(lambda: net.stations[one].place.run(ping, check=False).status == 0, what="a ping", timeout=30)


def _forged(net: OvsNetwork, fabric: Fabric) -> bool:
    """Send forged link probes from a host: with another key, and a recorded genuine frame."""
    before = len(fabric.api_get("status")["links"])
    frame = seal(Probe(Kind.LINK, PortId(4, 1), 0, 1, time.monotonic_ns()), b"not the controller's key")
    net.stations["ha"].place.run(
        [sys.executable, "-c", "import sys; from braid_lab.fabric.raw_frames import packet_socket\n"
         "packet_socket('eth0').send(bytes.fromhex(sys.argv[1]))", frame.hex()]
    )  # fmt: skip
    wait_until(lambda: "forged-probe" in fabric.codes(), what="the forged frame to be named", timeout=5)
    return len(fabric.api_get("status")["links"]) == before


def _controller_restart(run: Run, net: OvsNetwork, fabric: Fabric) -> None:
    """Kill the controller while a host sends to another, restart it, and wait until its plan is installed."""
    assert fabric.process is not None  # noqa: S101
    count = 4000
    with _counting(net, 3.0) as counting, _sending(net, count, 400) as sending:
        fabric.process.signal(signal.SIGKILL)
        fabric.process.wait()
        fabric.start()
        began = time.monotonic()
        _whole(fabric, 8, problems=True)
        run.figure("controller_restart_s", time.monotonic() - began, unit="s", better="lower")
        sending.wait()
        seen, _ = _counted(counting)
    run.figure("controller_restart_lost", 1 - seen / count, better="lower")


def _pulled(run: Run, net: OvsNetwork, fabric: Fabric) -> None:
    """Pull the cable that a host's packets take; the port loses its link."""
    # By their MACs: a restarted controller learns addresses at the next ARP.
    way = fabric.json("explain", *(net.stations[each].mac for each in ("ha", "hb")))
    one, other = way["single"]["switches"][:2]
    with _counting(net, 3.0) as counting, _sending(net, 2000, 500) as sending:
        sent = _sent(net, f"{one}-{other}")
        wait_until(lambda: _sent(net, f"{one}-{other}") > sent + 100, what="traffic on the cable")
        net.place.ip(f"link set {one}-{other} down")
        sending.wait()
        seen, gap = _counted(counting)
    run.figure("pulled_outage_ms", 1000 * gap, unit="ms", better="lower")
    run.figure("pulled_lost", 1 - seen / 2000, better="lower")
    net.place.ip(f"link set {one}-{other} up")
    _whole(fabric, 8, problems=True)


def _sent(net: OvsNetwork, device: str) -> int:
    """Return how many packets a device has sent."""
    return net.place.counters(device)["tx"]["packets"]


# Rules.


def _rules(run: Run) -> None:
    """Count rules per switch, and check that the count does not grow with flows."""
    shape = east_asia()
    with (
        run.step("rules of the paper's backbone"),
        simulated_network("east-asia", configuration(shape)) as (fabric, _),
    ):
        status = _whole(fabric, 2 * len(shape.wires))
        pairs = fabric.api_get("paths")["pairs"]
    rules = [switch["rules"] for switch in status["switches"]]
    run.figure("rules_per_switch_east_asia", statistics.fmean(rules), unit="rules", spread=(min(rules), max(rules)))
    run.figure("paths_east_asia", sum(len(pair["paths"]) for pair in pairs), unit="paths")
    shape = fat_tree(4)
    with run.step("rules of a fat tree"), simulated_network("fat-tree:4") as (fabric, _):
        status = _whole_tree(fabric, 2 * len(shape.wires))
    rules = [switch["rules"] for switch in status["switches"]]
    run.figure("rules_per_switch_fat_tree", statistics.fmean(rules), unit="rules", spread=(min(rules), max(rules)))


def _whole_tree(fabric: Fabric, links: int) -> dict[str, Any]:
    def ready() -> dict[str, Any] | None:
        status = fabric.api_get("status")
        ruled = all(switch["rules"] > 6 for switch in status["switches"])
        return status if len(status["links"]) == links and ruled and not status["changing"] else None

    return wait_until(ready, what=f"{links} links", timeout=60, poll=0.05)
