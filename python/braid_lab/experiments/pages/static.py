"""Pages over two equal lines: `pages/static-tcp` (Fig. 9), `pages/mptcp` (Fig. 10) and `pages/quic` (Fig. 11)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.pages import charts
from braid_lab.experiments.pages.testbed import (
    DELAY_MS,
    MBIT,
    QUEUE_MS,
    Extent,
    Plan,
    by_site,
    measure,
    plan,
    reductions,
)

#: [host] §5.1: "each of the Alexa top 100 webpages 10 times".
FULL = Extent(sites=100, loads=10)
QUICK = Extent(sites=8, loads=1)
SMOKE = Extent(sites=1, loads=1)

#: Both datapaths of WRR; the paper's is OpenFlow.
WRR = ("wrr", "wrr_openflow")

#: Ways of the experiments without MPTCP.
WITHOUT_MPTCP = ("single", *WRR, "fastest", "bond")

#: [host] §5.1: 37 % less on average with WRR, and medians of 12 and 7.5 s.
STATIC_REDUCTION, STATIC_MEDIANS = 0.37, {"single": 12.0} | dict.fromkeys(WRR, 7.5)
#: [host] Fig. 10: MPTCP 37 % less, WRR 51 % less.
MPTCP_REDUCTIONS = {"mptcp": 0.37} | dict.fromkeys(WRR, 0.51)
#: [host] §5.2.1: "around 30%".
QUIC_REDUCTION = 0.30

#: A cell without a value.
NOTHING = "\N{EN DASH}"

#: Ways that are judged: whichever is worse is the figure without a name.
JUDGED = ("wrr", "fastest")


@experiment(
    "pages/static-tcp",
    "Web sites over two equal lines, HTTP/1.1",
    paper="host-flow-balancing §5.1, Fig. 9",
    sites=True,
)
def static_tcp(run: Run) -> None:
    """Repeat Fig. 9 by both datapaths, with `fastest` and `bond` beside it."""
    made = plan(run, run.of_form(full=FULL, quick=QUICK, smoke=SMOKE), WITHOUT_MPTCP, "http/1.1")
    rows = measure(run, made)
    record(run, made, rows, dict.fromkeys(WRR, STATIC_REDUCTION), STATIC_REDUCTION)
    seconds = {way: list(by_site(rows, way).values()) for way in made.ways}
    charts.distributions(run, "cdf", seconds, f"{len(made.sites)} sites over two lines (the paper's Fig. 9)")


@experiment(
    "pages/mptcp",
    "Web sites over two equal lines beside kernel MPTCP, HTTP/1.1",
    paper="host-flow-balancing §5.1, Fig. 10",
    sites=True,
)
def mptcp(run: Run) -> None:
    """Repeat Fig. 10 on the whole corpus: the paper had one site that spoke MPTCP."""
    ways = ("single", "mptcp", *WRR, "fastest", "bond")
    made = plan(run, run.of_form(full=FULL, quick=QUICK, smoke=SMOKE), ways, "http/1.1")
    rows = measure(run, made)
    record(run, made, rows, MPTCP_REDUCTIONS, MPTCP_REDUCTIONS["wrr"])
    means = {way: statistics.fmean(by_site(rows, way).values()) for way in ways}
    # The paper: 0.49 / 0.63.
    paper = (1 - MPTCP_REDUCTIONS["wrr"]) / (1 - MPTCP_REDUCTIONS["mptcp"])
    for way in ways[2:]:
        run.figure(
            f"{way}_vs_mptcp",
            means[way] / means["mptcp"],
            better="lower",
            paper=paper if way in WRR else None,
            runs=len(made.sites) * made.loads,
        )
    run.notes.append(
        "The paper's only site with MPTCP was mptcp.org, and its kernel sent 1.3 MB over one path and 130 kB over "
        f"the other; the present one sent {_shares(rows, 'mptcp')} over the lines."
    )


@experiment(
    "pages/quic",
    "Web sites over two equal lines, HTTP/3",
    paper="host-flow-balancing §5.2.1, Fig. 11",
    sites=True,
)
def quic(run: Run) -> None:
    """Repeat Fig. 11 on the whole corpus: the paper had one site."""
    made = plan(run, run.of_form(full=FULL, quick=QUICK, smoke=SMOKE), WITHOUT_MPTCP, "h3")
    rows = measure(run, made)
    record(run, made, rows, dict.fromkeys(WRR, QUIC_REDUCTION), QUIC_REDUCTION)
    run.notes.append("The paper loaded one page, YouTube's.")


def record(run: Run, made: Plan, rows: Sequence[dict[str, Any]], paper: Mapping[str, float], judged: float) -> None:
    """Record the figures that all three have, their table, bars and raw measurements."""
    run.series("loads", rows)
    runs = len(made.sites) * made.loads
    found = {way: reductions(rows, way) for way in made.ways[1:]}
    worst = min((way for way in JUDGED if way in found), key=lambda way: found[way][0])
    run.figure(
        "mean_reduction",
        found[worst][0],
        better="higher",
        paper=judged,
        runs=runs,
        spread=(min(found[worst][1]), max(found[worst][1])),
    )
    run.table.append(["", "mean s", "median s", "reduction", "first paint s", "largest paint s", "line 1 : line 2"])
    means = {}
    for way in made.ways:
        seconds = by_site(rows, way)
        means[way] = statistics.fmean(seconds.values())
        median = statistics.median(seconds.values())
        run.figure(f"mean_s_{way}", means[way], unit="s", better="lower", runs=runs)
        run.figure(f"median_s_{way}", median, unit="s", better="lower", runs=runs, paper=STATIC_MEDIANS.get(way))
        cells = [f"{means[way]:.2f}", f"{median:.2f}", NOTHING]
        if way in found:
            whole, each = found[way]
            spread = (min(each), max(each))
            run.figure(
                f"mean_reduction_{way}", whole, better="higher", paper=paper.get(way), runs=runs, spread=spread
            )
            cells[-1] = f"{whole:.3f}"
        run.table.append([way, *cells, *_paints(run, rows, way), _shares(rows, way)])
    charts.bars(run, "mean", means, {way: 1 - each for way, each in paper.items()}, "Mean page load time")
    run.notes += [
        f"Loader: {made.loader}. Two lines of {MBIT:g} Mbit/s, {DELAY_MS:g} ms each way, with a queue of "
        f"{QUEUE_MS:g} ms; the paper gives none of them. {len(made.sites)} sites, {made.loads} times each.",
        "A reduction is that of the mean over all sites; its range is that of the single sites. `mean_reduction` "
        "is the worse of wrr and fastest. Theory: 0.5.",
    ]


def _paints(run: Run, rows: Sequence[dict[str, Any]], way: str) -> list[str]:
    """Record a way's first and largest paint, if the loader draws; return the cells of the table."""
    cells = []
    for name in ("fcp_s", "lcp_s"):
        seconds = list(by_site(rows, way, name).values())
        if seconds:
            run.figure(f"{name}_{way}", statistics.fmean(seconds), unit="s", better="lower", runs=len(seconds))
        cells.append(f"{statistics.fmean(seconds):.2f}" if seconds else NOTHING)
    return cells


def _shares(rows: Sequence[dict[str, Any]], way: str) -> str:
    """Return a way's bytes on the two lines as percentages."""
    first, second = (sum(row[line] for row in rows if row["way"] == way) for line in ("line1", "line2"))
    return f"{100 * first / (first + second):.0f} : {100 * second / (first + second):.0f}"
