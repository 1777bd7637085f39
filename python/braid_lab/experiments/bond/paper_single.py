"""`bond/paper-single`: [l3b] §5.2, one UDP flow whose demand rises above the fixed line and falls again.

`overflow` with every pair of parameters of Fig. 3, and `adaptive` on the same ramp. The host that joined is the
sender. `tests/suite/overflow_grid.rs` in `crates/braid-multipath` runs the grid in virtual time, too.
"""

from __future__ import annotations

import contextlib

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond import testbed
from braid_lab.experiments.bond.link_counters import Outcome, drop_report, send
from braid_lab.experiments.bond.site import delay_walks, emulators_kept_up, site
from braid_lab.experiments.bond.testbed import Overflow

#: Losses in the paper (§5.2).
PAPER_LOSS = {
    Overflow(0.1, 50): 0.0625,
    Overflow(0.1, 250): 0.0472,
    Overflow(0.1, 500): 0.041,
    Overflow(0.5, 50): 0.0179,
    Overflow(0.5, 250): 0.0053,
    Overflow(0.5, 500): 0.0034,
    Overflow(1, 50): 0.0114,
    Overflow(1, 250): 0.0029,
    Overflow(1, 500): 0.0015,
}

#: By name; `adaptive` has no parameters.
CELLS: dict[str, Overflow | None] = {**{each.name: each for each in PAPER_LOSS}, "adaptive": None}

#: Cells of the short form, and one of each scheduler.
QUICK_CELLS = ("k0.1_250ms", "k0.5_250ms", "adaptive")
SMOKE_CELLS = ("k0.5_250ms", "adaptive")


@experiment(
    "bond/paper-single",
    "One UDP flow that overflows the fixed line",
    paper="layer3-bonding §5.2, Fig. 3",
    cases=tuple(CELLS),
)
def paper_single(run: Run) -> None:
    """Run the ramp with each scheduler."""
    scale = run.of_form(full=1.0, quick=0.5, smoke=0.05)
    names = run.cases(run.of_form(full=tuple(CELLS), quick=QUICK_CELLS, smoke=SMOKE_CELLS))
    run.display.expect(2 * len(names))
    run.table.append(["", "lost", "by the lines", "in the paper", "fixed line used", "came in order"])
    outcomes: dict[str, Outcome] = {}
    for name in names:
        cell = CELLS[name]
        configuration = testbed.configuration("overflow" if cell else "adaptive", cell)
        with run.part(name), contextlib.ExitStack() as stack:
            with run.step(f"{name}: build, and join the hub"):
                place = stack.enter_context(site(testbed.LINKS, seed=run.seed, configuration=configuration))
                stack.enter_context(delay_walks(place, testbed.LINKS, run.seed))
            with run.step(f"{name}: the ramp"):
                outcome = send(run, place, [testbed.ramp(scale=scale)])
            emulators_kept_up(run, place)
            run.notes.append(f"{name}: {drop_report(place)}.")
            _record(run, name, cell, outcome)
            outcomes[name] = outcome
    run.measure("demand_kept", [each.kept for each in outcomes.values()], better="higher")
    _draw(run, outcomes)


def _record(run: Run, name: str, cell: Overflow | None, outcome: Outcome) -> None:
    paper = PAPER_LOSS.get(cell) if cell else None
    suffix = f"overflow_{name}" if cell else name
    run.figure(f"loss_{suffix}", outcome.loss, better="lower")
    run.figure(f"line_loss_{suffix}", outcome.line_loss, better="lower", paper=paper)
    run.figure(f"fixed_link_utilisation_{suffix}", outcome.fixed_utilisation, better="higher")
    run.figure(f"in_order_{suffix}", outcome.in_order, better="higher")
    said = "" if paper is None else f"{paper:.4f}"
    used, in_order = f"{outcome.fixed_utilisation:.3f}", f"{outcome.in_order:.4f}"
    run.table.append([name, f"{outcome.loss:.4f}", f"{outcome.line_loss:.4f}", said, used, in_order])
    run.series(f"course_{name}", outcome.rows)


def _draw(run: Run, outcomes: dict[str, Outcome]) -> None:
    """Draw Fig. 3: the rate of each line, three plots in a row."""
    height = -(-len(outcomes) // 3)
    with run.plot("ramp", width=10.0, height=1.0 + 2.5 * height) as plot:
        grid = plot.subplots(height, 3, sharey=True, squeeze=False)
        for axes, (name, outcome) in zip(grid.flat, outcomes.items(), strict=False):
            at = [row["s"] for row in outcome.rows]
            for line in ("demand_mbit", "fixed_mbit", "mobile_mbit"):
                style = {"linestyle": "--", "color": "#999999"} if line == "demand_mbit" else {}
                axes.plot(at, [row[line] for row in outcome.rows], label=line.partition("_")[0], linewidth=1, **style)
            axes.set_title(f"{name.replace('_', ', ')}: lines dropped {100 * outcome.line_loss:.2f} %", fontsize=9)
        grid[0][0].set_ylabel("Mbit/s")
        grid[0][0].legend()
