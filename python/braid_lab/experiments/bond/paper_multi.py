"""`bond/paper-multi`: [l3b] §5.3, UDP flows that begin and end while others go on.

`overflow` with k = 0.5 and T_dwd = 250 ms, as in the paper. Fig. 4 gives the demand as a drawing: the start times of
flows and the 11 Mbit/s beyond the fixed line until 12 s are from the text, the rest is chosen to match.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond import testbed
from braid_lab.experiments.bond.link_counters import Outcome, Row, drop_report, send
from braid_lab.experiments.bond.site import delay_walks, emulators_kept_up, site
from braid_lab.experiments.bond.testbed import Overflow

#: Mbit/s, start, end: "clearly visible when new UDP flows are being turned on (5s, 20s and 50s)".
FLOWS = ((45.0, 0.0, 62.0), (30.0, 5.0, 12.0), (45.0, 20.0, 35.0), (30.0, 50.0, 57.0))
BEGINNINGS, FIRST_END, SECOND_BEGINNING = (5.0, 20.0, 50.0), 12.0, 20.0
SECONDS, QUICK_SECONDS, SMOKE_SECONDS = 62.0, 27.0, 8.0

#: "it required about 5 seconds to reduce load from 11Mb/s to 0Mb/s on the mobile link (12s - 17s)".
PAPER_GIVEN_BACK_S = 5.0

#: Below this the mobile line counts as idle, Mbit/s: it also carries reports.
IDLE_MBIT = 1.0

#: The mobile line carries enough with this share of the demand beyond the fixed line's rate.
MIN_OVERFLOW_SHARE = 0.9

#: Losses within this time of a flow's start belong to its burst, s.
BURST_SECONDS = 2.0


@experiment("bond/paper-multi", "UDP flows that come and go", paper="layer3-bonding §5.3, Figs. 4 and 5")
def paper_multi(run: Run) -> None:
    """Run the flows once."""
    seconds = run.of_form(full=SECONDS, quick=QUICK_SECONDS, smoke=SMOKE_SECONDS)
    run.display.expect(2)
    with contextlib.ExitStack() as stack:
        with run.step("build, and join the hub"):
            configuration = testbed.configuration("overflow", Overflow(0.5, 250))
            place = stack.enter_context(site(testbed.LINKS, seed=run.seed, configuration=configuration))
            stack.enter_context(delay_walks(place, testbed.LINKS, run.seed))
        with run.step("flows begin and end"):
            outcome = send(run, place, testbed.steps(FLOWS, seconds))
        emulators_kept_up(run, place)
        run.notes.append(f"{drop_report(place)}.")
    _record(run, outcome, seconds)
    _draw(run, outcome)


def _record(run: Run, outcome: Outcome, seconds: float) -> None:
    run.figure("loss", outcome.loss, better="lower")
    run.figure("line_loss", outcome.line_loss, better="lower")
    run.figure("in_order", outcome.in_order, better="higher")
    run.figure("demand_kept", outcome.kept, better="higher")
    run.figure("fixed_link_utilisation", outcome.fixed_utilisation, better="higher")
    run.table.append(["flow begins at, s", "mobile line carries enough after, s", "packets lost in 2 s"])
    missed = 0
    for _, start, end in (each for each in FLOWS if each[1] in BEGINNINGS and each[1] + BURST_SECONDS < seconds):
        after, lost = overflow_delay(outcome.rows, start, end), burst(outcome.rows, start)
        if after is None:
            missed += 1
        else:
            run.figure(f"shifted_s_{start:g}", after, unit="s", better="lower")
        run.figure(f"burst_packets_{start:g}", lost, unit="packets", better="lower")
        run.table.append([f"{start:g}", "not while it lasts" if after is None else f"{after:.2f}", f"{lost:g}"])
    run.figure("shifts_missed", missed, unit="flows", better="lower")
    given_back = idle_delay(outcome.rows, FIRST_END, SECOND_BEGINNING)
    if given_back is None:
        said = f"mobile line is not left before {SECOND_BEGINNING:g} s"
    else:
        said = f"mobile line is left after {given_back:.1f} s"
        run.figure("given_back_s", given_back, unit="s", paper=PAPER_GIVEN_BACK_S)
    run.figure("given_back", float(given_back is not None), better="higher")
    run.table.append([f"flow ends at {FIRST_END:g} s", said, f"in the paper {PAPER_GIVEN_BACK_S:g} s"])
    run.series("course", outcome.rows)


def overflow_delay(rows: Sequence[Row], start: float, end: float) -> float | None:
    """Return how long after `start` the mobile line first carried the demand beyond the fixed line, s.

    None if it did not before the flow's `end`: later rates say nothing about it.
    """
    during = (row for row in rows if start <= row["s"] < end)
    enough = (
        row["s"]
        for row in during
        if row["mobile_mbit"] >= MIN_OVERFLOW_SHARE * (row["demand_mbit"] - testbed.FIXED_MBIT)
    )
    first = next(enough, None)
    return None if first is None else first - start


def idle_delay(rows: Sequence[Row], end: float, until: float) -> float | None:
    """Return how long after `end` the mobile line was first idle, s; None if not before `until`."""
    nothing = (row["s"] for row in rows if end <= row["s"] < until and row["mobile_mbit"] < IDLE_MBIT)
    first = next(nothing, None)
    return None if first is None else first - end


def burst(rows: Sequence[Row], start: float) -> float:
    """Return how many packets full lines dropped in the time after `start`."""
    return sum(row["dropped"] for row in rows if start <= row["s"] < start + BURST_SECONDS)


def _draw(run: Run, outcome: Outcome) -> None:
    """Draw Fig. 5."""
    rows = outcome.rows
    at = [row["s"] for row in rows]
    with run.plot("flows", width=8.0, height=7.0) as plot:
        lines, order, losses = plot.subplots(3, 1, sharex=True)
        for name in ("fixed_mbit", "mobile_mbit"):
            lines.plot(at, [row[name] for row in rows], label=name.partition("_")[0], linewidth=1)
        for name, label in (("demand_mbit", "demand"), ("in_order_mbit", "came in order")):
            order.plot(at, [row[name] for row in rows], label=label, linewidth=1)
        losses.bar(at, [row["dropped"] for row in rows], width=0.1)
        for axes, label in ((lines, "Mbit/s"), (order, "Mbit/s"), (losses, "dropped by lines")):
            axes.set_ylabel(label)
        lines.legend()
        order.legend()
        losses.set_xlabel("s")
