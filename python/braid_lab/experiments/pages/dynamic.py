"""`pages/dynamic`: sites of the corpus while both lines' rates follow a walk ([host] §6.2, Figs. 16 and 17).

It is `balance/dynamic` with a browser. The paper loaded each site for the whole walk of 400 s; here a walk of fewer
seconds with the same parts is played for each of some sites.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from dataclasses import dataclass

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.balance.dynamic import CASES, LINES, PAGE_TIMEOUT_S, Loads, play, record, using
from braid_lab.experiments.measure.walks import campus
from braid_lab.experiments.pages.testbed import Extent, journal, plan
from braid_lab.net.topology import network
from braid_lab.pages.corpus import Site
from braid_lab.pages.loaders import Load, PageError, loader
from braid_lab.pages.sites import served

#: [host] §6.2: "For WRR, 50% of downloads are completed in under 3.9 s. The corresponding numbers for WiFi and LTE
#: are 6.3 s and 4.8 s", of each site's mean.
PAPER_MEDIANS = {"wifi": 6.3, "lte": 4.8, "wrr_true": 3.9}


@dataclass(frozen=True)
class Part:
    """Amount of measurement: sites, and the seconds of each one's walk."""

    sites: int
    seconds: int


FULL = Part(sites=20, seconds=200)
QUICK = Part(sites=1, seconds=25)
SMOKE = Part(sites=1, seconds=2)


@experiment(
    "pages/dynamic",
    "Web sites while the lines' rates change, HTTP/1.1",
    paper="host-flow-balancing §6.2, Figs. 16 and 17",
    sites=True,
)
def dynamic(run: Run) -> None:
    """Play a walk for each site and each case, in turn: at these rates one browser fills a processor."""
    part = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    made = plan(run, Extent(sites=part.sites, loads=1), CASES, "http/1.1")
    book = journal(run, made.settings() | {"seconds": part.seconds})
    done = {(row["site"], row["case"]) for row in book.rows}
    run.display.expect(1 + len(made.sites) * len(CASES) - len(done))
    with contextlib.ExitStack() as stack:
        with run.step("build a host with two lines, and sites"):
            net = stack.enter_context(network(LINES))
            sites = stack.enter_context(served(net, made.sites, made.protocol))
            load = stack.enter_context(loader(made.loader, net.host, sites, made.protocol, timeout=PAGE_TIMEOUT_S))
        for turn, site in enumerate(made.sites):
            walk = campus(run.seed + turn, seconds=part.seconds)
            for case in CASES:
                if (site.name, case) in done:
                    continue
                with run.step(f"{site.name}, {case}: {part.seconds} s"), using(net, case) as weigh:
                    seconds = play(net, walk, weigh, functools.partial(_load, load, site)).seconds
                book.add({"site": site.name, "case": case, "seconds": seconds})
    book.finish()
    measured = {
        case: Loads([each for row in book.rows if row["case"] == case for each in row["seconds"]]) for case in CASES
    }
    record(run, measured)
    for case in CASES:
        means = [statistics.fmean(row["seconds"]) for row in book.rows if row["case"] == case]
        paper = PAPER_MEDIANS.get(case)
        run.measure(f"median_of_sites_s_{case}", means, unit="s", better="lower", paper=paper)
    run.series("sites", [row | {"seconds": each} for row in book.rows for each in row["seconds"]])
    run.notes.append(f"Loader: {made.loader}. A page that failed or took longer counts as {PAGE_TIMEOUT_S:g} s.")


def _load(load: Load, site: Site, _: int) -> float:
    """Load a site, whatever the number of the page."""
    try:
        page = load(site)
    except PageError:
        return PAGE_TIMEOUT_S
    # A browser is quick to give up on a line that is dead.
    return PAGE_TIMEOUT_S if page.missing else page.seconds
