"""The cost of reordering at an edge, and packets lost there.

One flow over two layer-3 paths, 10 ms apart, so that about half of its segments wait at the far edge: all of them
pass the edge's TAP device and its single thread. The processor time is that of the far edge's process alone, without
the kernel's work for it in interrupts; the kernel counts packets for which the device had no room.
"""

from __future__ import annotations

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


def _segments(site: RoutedSites) -> dict[str, Any]:
    segments: dict[str, Any] = site.edges["hb"].status()["ingress"][0]["segments"]
    return segments


@experiment("fabric/edge", "Cost of reordering at an edge", paper="mpsdn §III-D")
def edge(run: Run) -> None:
    """Measure each rate."""
    rates = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    seconds = run.of_form(full=FULL_SECONDS, quick=QUICK_SECONDS, smoke=SMOKE_SECONDS)
    run.display.expect(len(rates))
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
