"""The cost of a delay difference: [mpsdn] Fig. 3, without order, with the paper's Algorithm 1, and with ours.

Two paths of 10 Mbit/s: one of 25 ms, the other slower by the imbalance. Without order and with Algorithm 1 both paths
are forced on the flow, as in the figure; our controller decides itself, by its own bounds. These three split by
weighted round robin, as the paper does; beside them ours with packets on the path on which they arrive first, the
controller's default. All four are measured at the same time, each over lines of its own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from braid_lab.concurrency import run_concurrently
from braid_lab.experiment import Run, experiment
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.shapes import MININET_QUEUE, Shape, beside, parallel
from braid_lab.fabric.tcp_transfer import GOODPUT_SHARE, Transfer, transfer

#: [mpsdn] Fig. 3: "base latency 25ms, 10Mbit/s paths, 15-seconds iperf".
BASE_MS, MBIT = 25.0, 10.0

#: Goodput of a single path, Mbit/s.
SINGLE = MBIT * GOODPUT_SHARE

#: The paper's scheduler.
WRR = 'scheduler = "wrr"\n'

#: Use both paths, however different.
FORCED = WRR + 'leave_out_mdi = 0.5\nleave_out_skew = "60 s"\n'

#: Prefixes of the networks that are measured in parallel, by their edges' mode.
FORCED_MODES = {"none": "N", "paper": "P"}

#: The controller's `[paths]` where it decides itself, by mode.
FREE_MODES = {"ours": WRR, "earliest_arrival": 'scheduler = "earliest-arrival"\n'}

#: [mpsdn] §IV-A2: "beyond 0.4 the aggregated bandwidth falls below the bandwidth of a single path even when using the
#: resequencing buffer".
PAPER_KEPT_TO = 0.4


@dataclass(frozen=True)
class Extent:
    """Imbalances, seconds of a transfer, and seconds that are left out while the window opens."""

    imbalances: tuple[float, ...]
    seconds: int
    opening: int


FULL = Extent(tuple(step / 20 for step in range(10)), 15, 5)
QUICK = Extent((0.0, 0.3, 0.42), 12, 5)
SMOKE = Extent((0.3,), 2, 1)


def slower_ms(imbalance: float) -> float:
    """Return the other path's latency: eq. 1, d_max / (d_max + d_min) - 0.5, solved for d_max."""
    return BASE_MS * (0.5 + imbalance) / (0.5 - imbalance)


def single_kept_to(mbit: Mapping[float, float]) -> float | None:
    """Return the largest imbalance before goodput first falls below a single path's; None if that is the smallest."""
    kept = list(itertools.takewhile(lambda imbalance: mbit[imbalance] >= SINGLE, sorted(mbit)))
    return kept[-1] if kept else None


@experiment("fabric/mdi", "Goodput over paths of different delay", paper="mpsdn Fig. 3")
def mdi(run: Run) -> None:
    """Measure each imbalance in all modes."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(2 * len(extent.imbalances))
    run.table.append(
        [
            "MDI",
            "other path ms",
            "none Mbit/s",
            "Algorithm 1 Mbit/s",
            "ours Mbit/s",
            "earliest arrival Mbit/s",
            "paths",
        ]
    )
    rows: list[dict[str, float | str | int]] = []
    worst: dict[str, list[float]] = {mode: [] for mode in FREE_MODES}
    by_algorithm1: dict[float, float] = {}
    for imbalance in extent.imbalances:
        other = slower_ms(imbalance)
        with run.part(f"MDI {imbalance:g}"), contextlib.ExitStack() as stack:
            with run.step(f"MDI {imbalance:g}: networks, controllers, edges"):
                forced, free = _networks(stack, other, imbalance)
            with run.step(f"MDI {imbalance:g}: {extent.seconds} s"):
                found = _measure(forced, free, extent.seconds)
            pairs = [network.pair("ha", "hb") for network in free.values()]
            paths = [str(len(pair["paths"]) if pair else 0) for pair in pairs]
            means = {mode: each.steady(extent.opening) for mode, each in found.items()}
            for mode, mean in means.items():
                run.figure(f"mbit_{mode}_{imbalance:g}", mean, unit="Mbit/s", better="higher")
                rows += [
                    {"mdi": imbalance, "mode": mode, "s": second, "mbit": mbit}
                    for second, mbit in enumerate(found[mode].goodput)
                ]
            for mode, ratios in worst.items():
                ratios.append(means[mode] / SINGLE)
            by_algorithm1[imbalance] = means["paper"]
            cells = (f"{means[mode]:.1f}" for mode in means)
            run.table.append([f"{imbalance:g}", f"{other:.0f}", *cells, ", ".join(paths)])
    for name, mode in (("worst_vs_single", "ours"), ("worst_vs_single_earliest_arrival", "earliest_arrival")):
        if worst[mode]:
            run.figure(name, min(worst[mode]), better="higher")
    kept_to = single_kept_to(by_algorithm1)
    if kept_to is not None:
        run.figure("single_kept_to_mdi_paper", kept_to, paper=PAPER_KEPT_TO)
    run.series("course", rows)
    run.notes.append(
        f"Means after {extent.opening} s; a single path carries {SINGLE:.2f} Mbit/s. Queues of {MININET_QUEUE}, "
        "Mininet's default. The paper shows only a chart; with its buffer it falls below the single path beyond 0.4, "
        "and `single_kept_to_mdi_paper` is the largest imbalance measured before Algorithm 1 does. The last column "
        "counts the paths of ours and of earliest arrival at the end."
    )


def _networks(
    stack: contextlib.ExitStack, other: float, imbalance: float
) -> tuple[EdgedNetwork, dict[str, EdgedNetwork]]:
    lines = [(MBIT, BASE_MS), (MBIT, other)]
    shapes = [parallel(lines, prefix=prefix, queue=MININET_QUEUE) for prefix in FORCED_MODES.values()]
    words = {"none": "off", "paper": "algorithm1"}
    order = {
        station.name: words[mode]
        for (mode, _), shape in zip(FORCED_MODES.items(), shapes, strict=True)
        for station in shape.stations
    }
    both: Shape = beside(*shapes)
    forced = stack.enter_context(edged_network(both, order=order, limits=FORCED))
    alone = parallel(lines, queue=MININET_QUEUE)
    free = {mode: stack.enter_context(edged_network(alone, limits=limits)) for mode, limits in FREE_MODES.items()}
    for prefix in FORCED_MODES.values():
        forced.settle(f"h{prefix.lower()}a", f"h{prefix.lower()}b", 2)
    # The controller chooses the paths itself; well below the bound it takes both.
    for network in free.values():
        network.settle("ha", "hb", 2 if imbalance < 0.35 else None)
    return forced, free


def _measure(forced: EdgedNetwork, free: dict[str, EdgedNetwork], seconds: int) -> dict[str, Transfer]:
    def one(network: EdgedNetwork, prefix: str) -> Transfer:
        stations = network.net.stations
        return transfer(stations[f"h{prefix}a"], stations[f"h{prefix}b"], network.net.folder, seconds)

    work = {mode: functools.partial(one, forced, prefix.lower()) for mode, prefix in FORCED_MODES.items()}
    work |= {mode: functools.partial(one, network, "") for mode, network in free.items()}
    return dict(zip(work, run_concurrently(list(work.values())), strict=True))
