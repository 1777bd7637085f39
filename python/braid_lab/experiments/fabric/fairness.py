"""Ten flows over the same paths, and flows on a single path beside them: [mpsdn] §IV-A3.

Jain's index of the ten, second by second: (Σx)² / (n Σx²), 1 if all get the same; beside it that of ten flows over
one line of the same rate between hosts without an edge, which is CUBIC's own. Then whether splitting harms who does
not split: hosts without an edge send over one of the links while others split over both.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from braid_lab.experiment import Run, experiment
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.shapes import Shape, Station, Wire, parallel
from braid_lab.fabric.stream import GOODPUT_SHARE, at_once, flows, transfer
from braid_lab.process import wait_until

#: [mpsdn] §IV-A3: ten flows; its topology's lines have 10 Mbit/s.
FLOWS, MBIT, DELAY_MS = 10, 10.0, 20.0


@dataclass(frozen=True)
class Extent:
    """Seconds of a transfer, and how many of them windows have to open."""

    seconds: int
    opening: int


QUICK = Extent(25, 8)
FULL = Extent(60, 10)


def jain(rates: Sequence[float]) -> float:
    """Return Jain's index."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def shape() -> Shape:
    """Return two paths, the first a little quicker so that single paths take it, and two hosts without an edge."""
    half = DELAY_MS / 2
    wires = tuple(Wire(*ends, MBIT, half) for ends in (("A", "P"), ("P", "B"))) + tuple(
        Wire(*ends, MBIT, half + 0.25) for ends in (("A", "Q"), ("Q", "B"))
    )
    stations = (Station("ha", "A", edge=True), Station("hb", "B", edge=True), Station("x", "A"), Station("y", "B"))
    return Shape(("A", "B", "P", "Q"), wires, stations)


def plain_line() -> Shape:
    """Return one line that carries as much as both paths, and hosts without an edge."""
    line = parallel([(2 * MBIT, DELAY_MS)])
    return replace(line, stations=tuple(replace(station, edge=False) for station in line.stations))


def _ten(network: EdgedNetwork, extent: Extent) -> list[list[float]]:
    """Return what each of the flows brought, second by second, once windows are open."""
    stations = network.net.stations
    return flows(stations["ha"], stations["hb"], network.net.folder, extent.seconds, FLOWS)[extent.opening :]


@experiment("fabric/fairness", "Flows that share split paths, and single paths beside them", paper="mpsdn §IV-A3")
def fairness(run: Run) -> None:
    """Measure both."""
    extent = QUICK if run.quick else FULL
    run.display.expect(4)
    with edged_network(plain_line()) as network, run.step(f"one line: {extent.seconds} s"):
        stations = network.net.stations
        reach = ["ping", "-c", "1", "-W", "1", stations["hb"].address]
        wait_until(
            lambda: not stations["ha"].place.run(reach, check=False).status, what="hosts to be known", timeout=60
        )
        one_line = _ten(network, extent)
    run.figure("jain_mean_one_line", statistics.fmean(jain(second) for second in one_line), better="higher")
    with edged_network(shape()) as network:
        with run.step("network, controller, edges"):
            network.settle("ha", "hb", 2)
        stations, folder = network.net.stations, network.net.folder
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
        overall = [statistics.fmean(rates) for rates in zip(*course, strict=True)]
        run.figure("jain_overall", jain(overall), better="higher")
        total = statistics.fmean(sum(second) for second in course)
        run.figure("share_ten_flows", total / (2 * MBIT * GOODPUT_SHARE), better="higher")
        run.series(
            "course",
            [
                {"s": at, "flow": flow, "mbit": mbit}
                for at, each in enumerate(course)
                for flow, mbit in enumerate(each)
            ],
        )
        with run.step(f"a split flow beside a single one: {extent.seconds} s"):
            split, single = at_once(
                [
                    functools.partial(transfer, stations["ha"], stations["hb"], folder, extent.seconds),
                    functools.partial(transfer, stations["x"], stations["y"], folder, extent.seconds),
                ]
            )
    whole = MBIT * GOODPUT_SHARE
    run.figure("mbit_split_beside_single", split.steady(extent.opening), unit="Mbit/s")
    # Half of the one link is its due, as beside any other flow there.
    run.figure("single_share_of_its_due", single.steady(extent.opening) / (whole / 2), better="higher")
    run.table.append(
        ["Jain per second", "over one line", "Jain overall", "single beside split Mbit/s", "split Mbit/s"]
    )
    run.table.append(
        [
            f"{statistics.fmean(indices):.3f}",
            f"{statistics.fmean(jain(second) for second in one_line):.3f}",
            f"{jain(overall):.3f}",
            f"{single.steady(extent.opening):.1f}",
            f"{split.steady(extent.opening):.1f}",
        ]
    )
