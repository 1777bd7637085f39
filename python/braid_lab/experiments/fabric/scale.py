"""The fabric in large networks: what grows with switches, links, hosts and paths, and what that costs.

The real controller, and simulated switches that cost little (`lean_switches`), on the same machine. Each case is a
network: it is discovered, all hosts tell their addresses at once, each asks for another one's, and then the first
wire is pulled.

Other cases are numbers of used paths between real edges over Open vSwitch: one path is cut without a sign at any
port (`cut_gap`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.fabric.control import discovered, simulated_network
from braid_lab.fabric.controller import Fabric
from braid_lab.fabric.cut_gap import FLOWS, SPACING_S, Sides, all_pairs_used, cut_gap, settle
from braid_lab.fabric.edges import edged_network
from braid_lab.fabric.simulated_switches import shape_of
from braid_lab.process import Process, processor_seconds, wait_until

#: Networks by name, as arguments of `lean_switches`; `{seed}` is the run's.
CASES = {
    f"{name}_{hosts}": f"{word}:{hosts}"
    for name, word, every in (
        ("tree4", "fat-tree:4", (10, 100)),
        ("tree8", "fat-tree:8", (10, 100, 1000)),
        ("tree12", "fat-tree:12", (10, 100, 1000, 5000)),
        ("random500", "generated:500:{seed}", (10, 100)),
        ("random1000", "generated:1000:{seed}", (10, 100, 5000)),
    )
    for hosts in every
}
#: Edges on both sides of a cut, and paths of each pair.
CUTS = {f"cut_{sides.used_paths}": sides for sides in (Sides(1, 1, 2), Sides(4, 2, 4), Sides(8, 4, 4))}
FULL = (*CASES, *CUTS)
QUICK = ("tree4_100", "tree8_100", "tree8_1000", "tree12_1000", "cut_4", "cut_64")
SMOKE = ("tree4_10", "cut_4")

#: Seconds for each phase of a case.
DISCOVERY_TIMEOUT = 180.0
HOSTS_TIMEOUT = 300.0
PULL_TIMEOUT = 120.0
#: Seconds between two requests by which the controller's loop is felt, and the cheapest of requests.
PULSE_INTERVAL = 0.02
PULSE = "events?after=9999999999999999"


#: Cuts of each case.
CUT_RUNS = {"full": 9, "quick": 3, "smoke": 1}


@experiment("fabric/scale", "The fabric in large networks", cases=FULL)
def scale(run: Run) -> None:
    """Measure each case."""
    cases = run.cases(run.of_form(full=FULL, quick=QUICK, smoke=SMOKE))
    run.display.expect(4 * len(cases))
    times = ("links s", "hosts s", "asked s", "pulled s", "its CPU s")
    columns = (*times, "rules", "MB", "block ms", "turn ms", "CPU s")
    run.table.append(["network", *columns])
    for case in cases:
        with run.part(case):
            if case in CUTS:
                _cut(run, case, CUTS[case])
            else:
                _case(run, case, CASES[case].format(seed=run.seed))
    run.notes.append(
        "The switches are simulated, in one process on the same machine. block: the longest time for which the "
        "controller answered no request; turn: the most processor time that one turn of its loop took. hosts: from "
        "their first packets until each can be reached from every switch with hosts. asked: from all hosts' requests "
        "for an address until both ends of each have their rules. pulled: from the ports' status until no packet can "
        "enter the pulled wire. CPU: the controller's, in all and until the wire was left. "
        "cut_gap_ms: with real edges and Open vSwitch, all paths used, "
        f"the longest time for which one of {FLOWS} flows of datagrams got no answer after a path was cut silently, "
        f"both ways, at a resolution of {1000 * SPACING_S:g} ms."
    )


@dataclass
class Measured:
    """One network's figures."""

    discovery_s: float = 0.0
    plan_ms: float = 0.0
    hosts_s: float = 0.0
    asked_s: float = 0.0
    left_s: float = 0.0
    left_cpu_s: float = 0.0
    rules: float = 0.0
    memory_mb: float = 0.0
    block_ms: float = 0.0
    turn_ms: float = 0.0
    cpu_s: float = 0.0


class Pulse:
    """Asks the controller for next to nothing, over and over: its longest answer is its loop's longest block."""

    def __init__(self, fabric: Fabric) -> None:
        """Create it; use `with`."""
        self._fabric = fabric
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        #: Seconds.
        self.longest = 0.0

    def _run(self) -> None:
        while not self._stopped.wait(PULSE_INTERVAL):
            began = time.monotonic()
            # An answer that is later than the socket's patience counts with that.
            with contextlib.suppress(OSError, ValueError):
                self._fabric.api_get(PULSE)
            if not self._stopped.is_set():
                self.longest = max(self.longest, time.monotonic() - began)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


def measure(run: Run, word: str) -> Measured:
    """Run the controller in one network, and return its figures."""
    made = Measured()
    wires = len(shape_of(word).wires)
    with simulated_network(word, switches="lean_switches") as (fabric, switches), Pulse(fabric) as pulse:
        assert fabric.process is not None  # noqa: S101
        pid = fabric.process.pid
        with run.step(f"{word}: discovery"):
            switches.wait_output("^ready", timeout=DISCOVERY_TIMEOUT)
            found = functools.partial(discovered, fabric, 2 * wires)
            figures = wait_until(found, what=f"{2 * wires} links", timeout=DISCOVERY_TIMEOUT, poll=0.2)
            made.discovery_s = figures["last_link_s"] - figures["first_switch_s"]
        with run.step(f"{word}: hosts"):
            switches.signal(signal.SIGUSR1)
            told = _told(switches, "hosts_s", HOSTS_TIMEOUT)
            made.hosts_s = told["hosts_s"]
            _quiet(fabric, HOSTS_TIMEOUT)
        with run.step(f"{word}: requests"):
            switches.signal(signal.SIGUSR1)
            told = _told(switches, "asked_s", HOSTS_TIMEOUT)
            made.asked_s, made.rules = told["asked_s"], told["rules"]
            _quiet(fabric, HOSTS_TIMEOUT)
        with run.step(f"{word}: a wire is pulled"):
            before = processor_seconds(pid)
            switches.signal(signal.SIGUSR2)
            made.left_s = _told(switches, "left_s", PULL_TIMEOUT)["left_s"]
            made.left_cpu_s = processor_seconds(pid) - before
            figures = _quiet(fabric, PULL_TIMEOUT)
        made.plan_ms = 1000 * max(figures["planning_s"])
        made.turn_ms = 1000 * figures["longest_turn_s"]
        made.memory_mb = _peak_memory(pid) / 1e6
        made.cpu_s = processor_seconds(pid)
        made.block_ms = 1000 * pulse.longest
    return made


def _case(run: Run, case: str, word: str) -> None:
    made = measure(run, word)
    for name, value, unit in (
        ("discovery_s", made.discovery_s, "s"),
        ("plan_ms", made.plan_ms, "ms"),
        ("hosts_in_place_s", made.hosts_s, "s"),
        ("requests_in_place_s", made.asked_s, "s"),
        ("pulled_left_s", made.left_s, "s"),
        ("pulled_cpu_s", made.left_cpu_s, "s"),
        ("rules_max", made.rules, "rules"),
        ("memory_mb", made.memory_mb, "MB"),
        ("longest_block_ms", made.block_ms, "ms"),
        ("longest_turn_ms", made.turn_ms, "ms"),
        ("cpu_s", made.cpu_s, "s"),
    ):
        run.figure(f"{name}_{case}", value, unit=unit, better="lower")
    times = made.discovery_s, made.hosts_s, made.asked_s, made.left_s, made.left_cpu_s
    row = (*times, made.rules, made.memory_mb, made.block_ms, made.turn_ms, made.cpu_s)
    run.table.append([case, *(f"{value:.0f}" if value >= 100 else f"{value:.2f}" for value in row)])


def _cut(run: Run, case: str, sides: Sides) -> None:
    """Cut a path of a network with so many used ones, some times."""
    (source, *_), (target, *_) = sides.names
    with contextlib.ExitStack() as stack:
        with run.step(f"{case}: {sides.near + sides.far} edges"):
            network = stack.enter_context(edged_network(sides.shape))
            settle(network, sides)
            stack.enter_context(all_pairs_used(network, sides))
        gaps: list[float] = []
        with run.step(f"{case}: a path is cut"):
            for _ in range(2 * CUT_RUNS[run.form]):
                network.settle(source, target, sides.paths)
                gap = cut_gap(network, source, target)
                gaps += [1000 * gap] if gap is not None else []
                if len(gaps) == CUT_RUNS[run.form]:
                    break
    run.measure(f"cut_gap_ms_{sides.used_paths}", gaps, unit="ms", better="lower")


def _quiet(fabric: Fabric, timeout: float) -> dict[str, Any]:
    """Wait until no rule is being changed, and return the controller's figures."""

    def idle() -> dict[str, Any] | None:
        figures = fabric.api_get("figures")
        return None if figures["changing"] else figures

    return wait_until(idle, what="the last change", timeout=timeout, poll=0.2)


def _told(switches: Process, what: str, timeout: float) -> dict[str, float]:
    """Wait for a line of the switches."""
    told: dict[str, float] = json.loads(switches.wait_output(rf'^\{{"{what}".*', timeout=timeout)[0])
    return told


def _peak_memory(pid: int) -> int:
    """Return the most memory that a process has had, bytes."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None  # noqa: S101
    return 1024 * int(found[1])
