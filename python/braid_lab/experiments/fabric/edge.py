"""The cost of reordering at an edge, and packets lost there.

One flow over two layer-3 paths, 10 ms apart, so that about half of its segments wait at the far edge: all of them
pass the edge's TAP device and its single thread. The processor time is that of the far edge's process alone, without
the kernel's work for it in interrupts; the kernel counts packets for which the device had no room.

Then the same flow over cables, as fast as the machine: in turns over both paths, over one of them, where nothing
waits, and over one without edges. All of it, hosts and routers too, shares the machine's processors.
"""

from __future__ import annotations

import statistics
from typing import Any

from braid_lab.experiment import Run, experiment
from braid_lab.fabric.routed_sites import RoutedSites, routed
from braid_lab.fabric.shapes import Wire
from braid_lab.fabric.tcp_transfer import transfer
from braid_lab.process import processor_seconds

#: Rates of each of the two paths, Mbit/s.
FULL, QUICK, SMOKE = (10.0, 25.0, 50.0, 100.0, 200.0), (25.0, 100.0), (25.0,)
DELAYS_MS = (10.0, 20.0)
FULL_SECONDS, QUICK_SECONDS, SMOKE_SECONDS = 20, 8, 2
FULL_TURNS, QUICK_TURNS, SMOKE_TURNS = 5, 3, 1

#: Rate that the edges are told for a cable, Mbit/s.
CABLE_MBIT = 2000.0

#: Paths of the edges over cables, by the name of the way; without any there are no edges.
CABLES: dict[str, tuple[int, ...]] = {"cables": (1, 2), "cable": (1,), "cable_without_edges": ()}


def _segments(site: RoutedSites) -> dict[str, Any]:
    segments: dict[str, Any] = site.edges["hb"].status()["ingress"][0]["segments"]
    return segments


@experiment("fabric/edge", "Cost of reordering at an edge", paper="mpsdn §III-D")
def edge(run: Run) -> None:
    """Measure each rate."""
    rates = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    seconds = run.of_form(full=FULL_SECONDS, quick=QUICK_SECONDS, smoke=SMOKE_SECONDS)
    turns = run.of_form(full=FULL_TURNS, quick=QUICK_TURNS, smoke=SMOKE_TURNS)
    run.display.expect(len(rates) + turns * len(CABLES))
    run.table.append(["paths Mbit/s", "goodput Mbit/s", "processor s per Gbit", "waited", "dropped by its device"])
    for mbit in rates:
        with (
            run.part(f"2 · {mbit:g} Mbit/s"),
            run.step(f"2 · {mbit:g} Mbit/s: {seconds} s"),
            routed([Wire("A", "B", mbit, delay) for delay in DELAYS_MS]) as site,
        ):
            site.use((1, 2), (mbit, mbit))
            process = site.edges["hb"].process
            assert process is not None  # noqa: S101
            before = processor_seconds(process.pid)
            made = transfer(site.stations["ha"], site.stations["hb"], site.folder, seconds)
            spent = processor_seconds(process.pid) - before
            # Packets for which the far edge's device had no room.
            dropped, segments = site.box(1).counters("braid-hold")["tx"]["dropped"], _segments(site)
            gigabits = made.mbit * seconds / 1000
            waited = segments["held"] / (segments["held"] + segments["in_order"])
            run.figure(f"mbit_{mbit:g}", made.mbit, unit="Mbit/s")
            run.figure(f"processor_s_per_gbit_{mbit:g}", spent / gigabits, unit="s/Gbit", better="lower")
            run.figure(f"waited_{mbit:g}", waited)
            run.figure(f"dropped_{mbit:g}", dropped, unit="packets", better="lower")
            run.table.append(
                [f"2 · {mbit:g}", f"{made.mbit:.1f}", f"{spent / gigabits:.2f}", f"{waited:.2f}", str(dropped)]
            )
    _over_cables(run, turns, seconds)


def _over_cables(run: Run, turns: int, seconds: int) -> None:
    reached: dict[str, list[float]] = {name: [] for name in CABLES}
    spent: list[float] = []
    for turn in range(1, turns + 1):
        for name, paths in CABLES.items():
            with (
                run.part(f"{name}, turn {turn}"),
                run.step(f"{name}, turn {turn}: {seconds} s"),
                routed([Wire("A", "B")] * 2, emulate=False) as site,
            ):
                if paths:
                    site.use(paths, [CABLE_MBIT] * len(paths))
                else:
                    site.route_over(1)
                made = transfer(site.stations["ha"], site.stations["hb"], site.folder, seconds)
                reached[name].append(made.mbit)
                if len(paths) > 1:
                    process = site.edges["hb"].process
                    assert process is not None  # noqa: S101
                    spent.append(processor_seconds(process.pid) / (made.mbit * seconds / 1000))
    for name, mbit in reached.items():
        run.figure(
            f"mbit_{name}",
            statistics.median(mbit),
            unit="Mbit/s",
            better="higher",
            runs=len(mbit),
            spread=(min(mbit), max(mbit)),
        )
        run.table.append([name.replace("_", " "), f"{statistics.median(mbit):.0f}", "", "", ""])
    run.figure(
        "processor_s_per_gbit_cables",
        statistics.median(spent),
        unit="s/Gbit",
        better="lower",
        runs=len(spent),
        spread=(min(spent), max(spent)),
    )
