"""`bond/paper-tcp`: [l3b] §5.4, a greedy TCP flow on the fixed line beside UDP flows in the bond.

The TCP flow is bound to the fixed line's own address and so bypasses the bond: it stands for the household's other
traffic. Its goodput while `overflow` (k = 1, w_max = 50) fills the same line depends on how soon the bond gives back
the mobile line's share.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond import testbed
from braid_lab.experiments.bond.figures import GoodputTrace
from braid_lab.experiments.bond.link_counters import Outcome, drop_report, send
from braid_lab.experiments.bond.site import Site, delay_walks, emulators_kept_up, site
from braid_lab.experiments.bond.testbed import Overflow

#: "a k value of 1 and different Tdwd values of 50ms, 500ms, 1000ms", "wmobilemax = 50 in this scenario".
FIG6 = {f"{ms}ms": Overflow(1, ms, w_max=50) for ms in (50, 500, 1000)}

#: "even with a Tdwd value of 500ms": one against two TCP flows beside UDP of 62 Mbit/s, their goodput together.
ONE_OR_TWO = Overflow(1, 500, w_max=50)
PAPER_MBIT = {1: 7.79, 2: 14.30}
ONE_OR_TWO_UDP_MBIT = 62.0

#: UDP rates, Mbit/s, and their times in Fig. 6, s, and in the short form.
FIRST_MBIT, SECOND_MBIT = 41.5, 63.0


@dataclass(frozen=True)
class Times:
    """Start and end times of flows, s."""

    first: tuple[float, float]
    second: tuple[float, float]
    end: float
    #: Of the one or two TCP flows: their start, and the end of all.
    flows: tuple[float, float]


PAPER = Times(first=(10.0, 68.7), second=(88.7, 165.1), end=170.0, flows=(10.0, 88.0))
QUICK = Times(first=(3.0, 11.0), second=(14.0, 22.0), end=23.0, flows=(2.0, 14.0))
SMOKE = Times(first=(1.5, 3.0), second=(4.5, 6.0), end=6.5, flows=(0.5, 2.0))

CASES = (*FIG6, "one", "two")
QUICK_CASES = ("50ms", "1000ms", "one", "two")
SMOKE_CASES = ("50ms", "one")

#: Time spans of the table's TCP goodput.
TIMES = ("alone", "first", "between", "second")

#: Start of a span that is left out while windows open, s.
SETTLE_SECONDS = 1.0


@experiment(
    "bond/paper-tcp", "TCP on the fixed line beside the bond", paper="layer3-bonding §5.4, Fig. 6", cases=CASES
)
def paper_tcp(run: Run) -> None:
    """Run each case."""
    times = run.of_form(full=PAPER, quick=QUICK, smoke=SMOKE)
    names = run.cases(run.of_form(full=CASES, quick=QUICK_CASES, smoke=SMOKE_CASES))
    run.display.expect(2 * len(names))
    run.table.append(["T_dwd, or TCP flows", *(f"TCP {name}, Mbit/s" for name in TIMES), "in the paper", "UDP lost"])
    drawn: dict[str, tuple[GoodputTrace, Outcome]] = {}
    for name in names:
        overflow = FIG6.get(name, ONE_OR_TWO)
        with run.part(name), contextlib.ExitStack() as stack:
            with run.step(f"{name}: build, and join the hub"):
                configuration = testbed.configuration("overflow", overflow)
                place = stack.enter_context(site(testbed.LINKS, seed=run.seed, configuration=configuration))
                place.background(place.net.internet.name, "braid_lab.clients.tcp_stream", "serve", place.server)
                stack.enter_context(delay_walks(place, testbed.LINKS, run.seed))
            if name in FIG6:
                with run.step(f"{name}: TCP, and UDP beside it"):
                    drawn[name] = _fig6(run, place, name, times)
            else:
                with run.step(f"{name}: UDP, and TCP beside it"):
                    _flows(run, place, 1 if name == "one" else 2, times)
            emulators_kept_up(run, place)
            run.notes.append(f"{name}: {drop_report(place)}.")
    if drawn:
        _draw(run, drawn)


def _fig6(run: Run, place: Site, name: str, times: Times) -> tuple[GoodputTrace, Outcome]:
    """Run TCP throughout, and two UDP flows one after the other."""
    demand = [(FIRST_MBIT, *times.first), (SECOND_MBIT, *times.second)]
    trace, outcome = _together(run, place, testbed.steps(demand, times.end), (0.0, times.end), 1)
    spans = {
        "alone": (0.0, times.first[0]),
        "first": times.first,
        "between": (times.first[1], times.second[0]),
        "second": times.second,
    }
    mbit = {when: trace.mbit(start + SETTLE_SECONDS, end) for when, (start, end) in spans.items()}
    for when, value in mbit.items():
        run.figure(f"tcp_mbit_{when}_{name}", value, unit="Mbit/s", better="higher")
    run.figure(f"udp_line_loss_{name}", outcome.line_loss, better="lower")
    run.table.append([name, *(f"{mbit[when]:.1f}" for when in TIMES), "", f"{outcome.loss:.4f}"])
    run.series(f"course_{name}", outcome.rows)
    return trace, outcome


def _flows(run: Run, place: Site, count: int, times: Times) -> None:
    """Run one UDP flow throughout, and `count` TCP flows after a while."""
    start, end = times.flows
    demand = testbed.steps([(ONE_OR_TWO_UDP_MBIT, 0.0, end)], end)
    trace, outcome = _together(run, place, demand, (start, end - start), count)
    mbit = trace.mbit(0, trace.seconds)
    paper = PAPER_MBIT[count]
    run.figure(f"tcp_mbit_{count}_flows", mbit, unit="Mbit/s", paper=paper, better="higher")
    run.table.append([str(count), "", "", "", f"{mbit:.2f}", f"{paper:.2f}", f"{outcome.loss:.4f}"])


def _together(
    run: Run, place: Site, demand: Sequence[Sequence[float]], tcp: tuple[float, float], count: int
) -> tuple[GoodputTrace, Outcome]:
    """Send UDP over the bond, and TCP over the fixed line with the given start and length."""
    after, seconds = tcp
    source = place.net.uplinks["fixed"].address4
    words = ["give", place.server, f"{seconds:g}", "--from", source, "--flows", str(count), "--after", f"{after:g}"]
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", *words]
    with ThreadPoolExecutor(max_workers=1) as pool:
        giving = pool.submit(place.net.host.run, argv, timeout=after + seconds + 30)
        outcome = send(run, place, demand)
        said = json.loads(giving.result().stdout)
    return GoodputTrace.unbroken(said, "TCP on the fixed line"), outcome


def _draw(run: Run, drawn: dict[str, tuple[GoodputTrace, Outcome]]) -> None:
    """Draw Fig. 6."""
    with run.plot("tcp", width=8.0, height=2.5 * len(drawn) + 1) as plot:
        grid = plot.subplots(len(drawn), 1, sharex=True, sharey=True, squeeze=False)
        for axes, (name, (trace, outcome)) in zip(grid.flat, drawn.items(), strict=True):
            step = round(0.2 / trace.bin_s)
            bins = [8e-6 * sum(trace.bytes[at : at + step]) / 0.2 for at in range(0, len(trace.bytes), step)]
            axes.plot([0.2 * at for at in range(len(bins))], bins, label="TCP", linewidth=1)
            at = [row["s"] for row in outcome.rows]
            for line in ("fixed_mbit", "mobile_mbit"):
                axes.plot(at, [row[line] for row in outcome.rows], label=line.partition("_")[0], linewidth=1)
            axes.set_title(f"T_dwd = {name}", fontsize=9)
            axes.set_ylabel("Mbit/s")
        grid[0][0].legend()
        grid[-1][0].set_xlabel("s")
