"""A split flow beside the same flow over its best path alone, which it should never be worse than.

Each case has two networks side by side, at the same time: one with the case's paths, and one with the best of them
alone. Hosts are unmodified, CUBIC, one iperf3 stream each. [mpsdn] §V-3 names the weakness: a flow over several paths
is as fragile as the worst of them.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from braid_lab.experiment import Run, experiment
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.shapes import Shape, Station, beside, parallel
from braid_lab.fabric.tcp_transfer import Transfer, flows, run_concurrently, transfer

#: Seconds left out while windows open.
OPENING = 2
#: Seconds of the window in which the split is at its worst.
WINDOW = 2
#: Connections of others over one of the paths.
OTHERS = 4


@dataclass(frozen=True)
class Case:
    """Paths as Mbit/s and ms one way, and what is wrong with the last of them."""

    name: str
    paths: tuple[tuple[float, float], ...]
    #: Random loss on the last path, as for `braid emulate`.
    loss: str = ""
    #: True if others' connections share the last path.
    others: bool = False
    #: True if the controller knows the lines' rates.
    configured: bool = True

    @property
    def best(self) -> tuple[float, float]:
        """The path that is used alone beside it: the widest that nothing is wrong with."""
        return max(self.paths[:-1] if self.loss or self.others else self.paths)

    def shape(self) -> Shape:
        """Return both networks."""
        one = parallel(self.paths)
        last = f"P{len(self.paths)}"
        wires = tuple(replace(wire, loss=self.loss) if wire.one == last else wire for wire in one.wires)
        others = (Station("x", last), Station("y", "B")) if self.others else ()
        return beside(replace(one, wires=wires, stations=(*one.stations, *others)), parallel([self.best], prefix="U"))


CASES = (
    Case("healthy", ((10, 20), (10, 20))),
    Case("loss", ((10, 20), (10, 20)), loss="0.5%"),
    Case("others", ((10, 20), (10, 20)), others=True),
    Case("unknown_capacity", ((10, 20), (50, 20)), configured=False),
    Case("wide", ((100, 10), (100, 20))),
    Case("skew", ((10, 10), (10, 75))),
)


NAMES = [case.name for case in CASES]


@experiment("fabric/floor", "A split flow beside its best path alone", paper="mpsdn §V-3", cases=NAMES)
def floor(run: Run) -> None:
    """Measure each case."""
    seconds = run.of_form(full=60, quick=30, smoke=4)
    runs = run.of_form(full=3, quick=1, smoke=1)
    names = run.cases(NAMES)
    run.display.expect(len(names) * (1 + runs))
    run.table.append(["case", "split Mbit/s", "best path alone", "ratio", "second half", "worst 2 s"])
    rows: list[dict[str, float | str | int]] = []
    for case in (case for case in CASES if case.name in names):
        with run.part(case.name), contextlib.ExitStack() as stack:
            with run.step(f"{case.name}: networks, controller, edges"):
                network = stack.enter_context(edged_network(case.shape(), capacities=case.configured))
                network.settle("ha", "hb", len(case.paths))
                network.settle("hua", "hub", 1)
            pairs = []
            for number in range(runs):
                with run.step(f"{case.name}: {seconds} s"):
                    pairs.append(_together(network, case, seconds))
                rows += [
                    {"case": case.name, "run": number, "s": second, "split": a, "alone": b}
                    for second, (a, b) in enumerate(zip(pairs[-1][0].goodput, pairs[-1][1].goodput, strict=False))
                ]
            _record(run, case, pairs)
    run.series("course", rows)
    run.notes.append(
        "Ratios of goodput, split by best path alone, both at the same time: over the whole transfer, its second "
        f"half, and the worst {WINDOW} s after the first {OPENING}."
    )


def _together(network: EdgedNetwork, case: Case, seconds: int) -> tuple[Transfer, Transfer]:
    stations, folder = network.net.stations, network.net.folder
    work: list[Callable[[], object]] = [
        functools.partial(transfer, stations["ha"], stations["hb"], folder, seconds),
        functools.partial(transfer, stations["hua"], stations["hub"], folder, seconds),
    ]
    if case.others:
        work.append(functools.partial(flows, stations["x"], stations["y"], folder, seconds, OTHERS))
    split, alone, *_ = run_concurrently(work)
    assert isinstance(split, Transfer)  # noqa: S101
    assert isinstance(alone, Transfer)  # noqa: S101
    return split, alone


def _ratio(split: list[float], alone: list[float]) -> float:
    return statistics.fmean(split) / max(statistics.fmean(alone), 1e-9)


def _worst(split: list[float], alone: list[float]) -> float:
    starts = range(OPENING, max(OPENING + 1, min(len(split), len(alone)) - WINDOW + 1))
    return min(_ratio(split[at : at + WINDOW], alone[at : at + WINDOW]) for at in starts)


def _record(run: Run, case: Case, pairs: list[tuple[Transfer, Transfer]]) -> None:
    whole = [_ratio(split.goodput, alone.goodput) for split, alone in pairs]
    half = [
        _ratio(split.goodput[len(split.goodput) // 2 :], alone.goodput[len(alone.goodput) // 2 :])
        for split, alone in pairs
    ]
    worst = [_worst(split.goodput, alone.goodput) for split, alone in pairs]
    values = (
        statistics.fmean(split.mbit for split, _ in pairs),
        statistics.fmean(alone.mbit for _, alone in pairs),
        run.measure(f"vs_best_path_{case.name}", whole, better="higher"),
        run.measure(f"vs_best_path_second_half_{case.name}", half, better="higher"),
        run.measure(f"vs_best_path_worst_2_s_{case.name}", worst, better="higher"),
    )
    run.table.append(
        [case.name, *(f"{value:.1f}" for value in values[:2]), *(f"{value:.2f}" for value in values[2:])]
    )
