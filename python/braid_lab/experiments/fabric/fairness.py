"""Ten flows over the same paths, and flows on a single path beside them: [mpsdn] §IV-A3.

Jain's index of the ten, second by second: (Σx)² / (n Σx²), 1 if all get the same; beside it the index of ten flows
over one line of the same rate between hosts without an edge, which is CUBIC's own. Then the effect of splitting on
flows that are not split: hosts without an edge send over one of the links while others split over both.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from braid_lab.concurrency import run_concurrently
from braid_lab.experiment import Run, experiment
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.shapes import Shape, Station, Wire, parallel
from braid_lab.fabric.tcp_transfer import GOODPUT_SHARE, flows, transfer
from braid_lab.process import wait_until

#: [mpsdn] §IV-A3: ten flows; its topology's lines have 10 Mbit/s.
FLOWS, MBIT, DELAY_MS = 10, 10.0, 20.0


@dataclass(frozen=True)
class Extent:
    """Seconds of a transfer, and seconds that are left out while windows open."""

    seconds: int
    opening: int


FULL = Extent(60, 10)
QUICK = Extent(25, 8)
SMOKE = Extent(3, 1)


def jain(rates: Sequence[float]) -> float:
    """Return Jain's index."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def shape() -> Shape:
    """Return two paths, the first slightly faster so that single paths use it, and two hosts without an edge."""
    half = DELAY_MS / 2
    wires = tuple(Wire(*ends, MBIT, half) for ends in (("A", "P"), ("P", "B"))) + tuple(
        Wire(*ends, MBIT, half + 0.25) for ends in (("A", "Q"), ("Q", "B"))
    )
    stations = (Station("ha", "A", edge=True), Station("hb", "B", edge=True), Station("x", "A"), Station("y", "B"))
    return Shape(("A", "B", "P", "Q"), wires, stations)


def plain_line() -> Shape:
    """Return one line with the rate of both paths, and hosts without an edge."""
    line = parallel([(2 * MBIT, DELAY_MS)])
    return replace(line, stations=tuple(replace(station, edge=False) for station in line.stations))


def _ten(network: EdgedNetwork, extent: Extent) -> list[list[float]]:
    """Return each flow's goodput, second by second, once windows are open."""
    stations = network.net.stations
    return flows(stations["ha"], stations["hb"], network.net.folder, extent.seconds, FLOWS)[extent.opening :]


@experiment("fabric/fairness", "Flows that share split paths, and single paths beside them", paper="mpsdn §IV-A3")
def fairness(run: Run) -> None:
    """Measure both."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(4)
    run.table.append(["", "Jain per second", "Jain overall", "Mbit/s"])
    with run.part("one line"):
        _one_line(run, extent)
    with edged_network(shape()) as network:
        with run.step("network, controller, edges"):
            network.settle("ha", "hb", 2)
        with run.part(f"{FLOWS} flows"):
            _split_by_all(run, network, extent)
        with run.part("a split flow beside a single one"):
            _split_by_one(run, network, extent)


def _one_line(run: Run, extent: Extent) -> None:
    with edged_network(plain_line()) as network, run.step(f"one line: {extent.seconds} s"):
        stations = network.net.stations
        reach = ["ping", "-c", "1", "-W", "1", stations["hb"].address]
        wait_until(
            lambda: not stations["ha"].place.run(reach, check=False).status, what="hosts to be known", timeout=60
        )
        course = _ten(network, extent)
    mean = statistics.fmean(jain(second) for second in course)
    run.figure("jain_mean_one_line", mean, better="higher")
    run.table.append([f"{FLOWS} over one line", f"{mean:.3f}", "", ""])


def _split_by_all(run: Run, network: EdgedNetwork, extent: Extent) -> None:
    with run.step(f"{FLOWS} flows: {extent.seconds} s"):
        course = _ten(network, extent)
    indices = [jain(second) for second in course]
    run.figure(
        "jain_mean",
        statistics.fmean(indices),
        better="higher",
        paper=0.81,
        runs=len(indices),
        spread=(min(indices), max(indices)),
    )
    overall = jain([statistics.fmean(rates) for rates in zip(*course, strict=True)])
    run.figure("jain_overall", overall, better="higher")
    total = statistics.fmean(sum(second) for second in course)
    run.figure("share_ten_flows", total / (2 * MBIT * GOODPUT_SHARE), better="higher")
    run.table.append(
        [f"{FLOWS} over both paths", f"{statistics.fmean(indices):.3f}", f"{overall:.3f}", f"{total:.1f}"]
    )
    run.series(
        "course",
        [{"s": at, "flow": flow, "mbit": mbit} for at, each in enumerate(course) for flow, mbit in enumerate(each)],
    )


def _split_by_one(run: Run, network: EdgedNetwork, extent: Extent) -> None:
    stations, folder = network.net.stations, network.net.folder
    with run.step(f"a split flow beside a single one: {extent.seconds} s"):
        split_flow, single = run_concurrently(
            [
                functools.partial(transfer, stations["ha"], stations["hb"], folder, extent.seconds),
                functools.partial(transfer, stations["x"], stations["y"], folder, extent.seconds),
            ]
        )
    rates = {"split": split_flow.steady(extent.opening), "single beside it": single.steady(extent.opening)}
    run.figure("mbit_split_beside_single", rates["split"], unit="Mbit/s")
    # Half of the link is its fair share, as beside any other flow there.
    due = MBIT * GOODPUT_SHARE / 2
    run.figure("single_share_of_its_due", rates["single beside it"] / due, better="higher")
    run.table += [[name, "", "", f"{mbit:.1f}"] for name, mbit in rates.items()]
