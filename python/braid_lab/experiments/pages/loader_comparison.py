"""`pages/loaders`: the client that replays pages beside Chromium, which it stands for in sweeps.

Both load the same sites at the same time, each over a line and over two of its own. The client is trusted where its
mean page load time and its gain from a second line are those of the browser within TRUSTED.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Mapping, Sequence

from braid_lab.concurrency import run_concurrently
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.pages.testbed import Extent, journal, plan, two_lines
from braid_lab.journal import Journal
from braid_lab.pages import loaders
from braid_lab.pages.corpus import Site
from braid_lab.pages.loaders import Load, LoaderName, loader
from braid_lab.pages.sites import PROTOCOLS, served
from braid_lab.process import LabError

FULL = Extent(sites=50, loads=1)
QUICK = Extent(sites=2, loads=1)
SMOKE = Extent(sites=1, loads=1)

WAYS = ("single", "wrr")

#: Largest deviation of a page load time, and of a gain, at which the client is trusted.
TRUSTED = 0.10


@experiment(
    "pages/loaders",
    "The client that replays pages beside Chromium",
    paper="host-flow-balancing §5",
    cases=PROTOCOLS,
    sites=True,
)
def compare(run: Run) -> None:
    """Compare them over each protocol."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    names: tuple[LoaderName, ...] = ("fast",) if run.form == "smoke" else ("browser", "fast")
    for name in names:
        loaders.require(name)
    cases = run.cases(PROTOCOLS if run.form != "smoke" else PROTOCOLS[:1])
    book = journal(run, {"loaders": names, "ways": WAYS, "cases": cases})
    run.display.expect(len(cases) * (1 + extent.sites) - len(book.rows))
    run.table.append(["protocol", "browser s", "fast s", "fast / browser", "browser gain", "fast gain"])
    for protocol in cases:
        with run.part(protocol):
            sites = plan(run, extent, WAYS, protocol).sites
            _measure(run, book, protocol, sites, names)
            _record(run, protocol, names, [row["seconds"] for row in book.rows if row["protocol"] == protocol])
    # A protocol that failed goes on where it ended, too.
    if not run.failures:
        book.finish()


def _measure(run: Run, book: Journal, protocol: str, sites: Sequence[Site], names: tuple[LoaderName, ...]) -> None:
    """Load the sites that the journal does not have yet by all loaders and ways at the same time."""
    done = {row["site"] for row in book.rows if row["protocol"] == protocol}
    with contextlib.ExitStack() as stack:
        with run.step(f"{protocol}: build hosts with two lines, and sites"):
            loads: dict[tuple[str, str], Load] = {}
            for name in names:
                for way in WAYS:
                    net = stack.enter_context(two_lines(way, run.seed)).net
                    serving = stack.enter_context(served(net, sites, protocol))
                    loads[name, way] = stack.enter_context(loader(name, net.host, serving, protocol))
        for site in [each for each in sites if each.name not in done]:
            with run.step(f"{protocol}: {site.name}, {site.flows} flows, {site.size / 1e6:.1f} MB"):
                work = [functools.partial(load, site) for load in loads.values()]
                pages = dict(zip(loads, run_concurrently(work), strict=True))
            for key, page in pages.items():
                if page.missing:
                    raise LabError(f"{site.name}, {' '.join(key)}: {page.missing} objects did not arrive")
            seconds = {name: {way: pages[name, way].seconds for way in WAYS} for name in names}
            book.add({"protocol": protocol, "site": site.name, "seconds": seconds})


def _record(
    run: Run, protocol: str, names: tuple[LoaderName, ...], sites: Sequence[Mapping[str, Mapping[str, float]]]
) -> None:
    """Record a protocol's figures; `sites` are each one's seconds by loader and way."""
    seconds = {(name, way): [each[name][way] for each in sites] for name in names for way in WAYS}
    short = protocol.replace("/", "").replace(".", "")
    means = {key: statistics.fmean(each) for key, each in seconds.items()}
    gains = {name: 1 - means[name, "wrr"] / means[name, "single"] for name in names}
    run.figure(f"fast_gain_{short}", gains["fast"], runs=len(sites))
    if "browser" not in names:
        return
    ratios = [fast / real for fast, real in zip(seconds["fast", "single"], seconds["browser", "single"], strict=True)]
    ratio = means["fast", "single"] / means["browser", "single"]
    run.figure(f"fast_vs_browser_{short}", ratio, runs=len(sites), spread=(min(ratios), max(ratios)))
    run.figure(f"browser_gain_{short}", gains["browser"], runs=len(sites))
    run.passes(f"trusted_{short}", abs(ratio - 1) <= TRUSTED and abs(gains["fast"] - gains["browser"]) <= TRUSTED)
    run.table.append(
        [
            protocol,
            *(f"{means[name, 'single']:.2f}" for name in names),
            f"{ratio:.2f}",
            *(f"{gains[name]:.3f}" for name in names),
        ]
    )
