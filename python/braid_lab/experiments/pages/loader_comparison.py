"""`pages/loaders`: the client that replays pages beside Chromium, which it stands for in sweeps.

Both load the same sites at the same time, each over a line and over two of its own. The client is trusted where its
mean page load time and its gain from a second line are those of the browser within TRUSTED.
"""

from __future__ import annotations

import contextlib
import functools
import statistics

from braid_lab.concurrency import run_concurrently
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.pages.testbed import Extent, plan, two_lines
from braid_lab.pages import loaders
from braid_lab.pages.loaders import Load, LoaderName, loader
from braid_lab.pages.sites import PROTOCOLS, served
from braid_lab.process import LabError

FULL = Extent(sites=50, loads=1)
QUICK = Extent(sites=3, loads=1)
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
    run.display.expect(len(cases) * (1 + extent.sites))
    run.table.append(["protocol", "browser s", "fast s", "fast / browser", "browser gain", "fast gain"])
    for protocol in cases:
        with run.part(protocol):
            _compare(run, protocol, extent, names)


def _compare(run: Run, protocol: str, extent: Extent, names: tuple[LoaderName, ...]) -> None:
    sites = plan(run, extent, WAYS, protocol).sites
    seconds: dict[tuple[str, str], list[float]] = {(name, way): [] for name in names for way in WAYS}
    with contextlib.ExitStack() as stack:
        with run.step(f"{protocol}: build hosts with two lines, and sites"):
            loads: dict[tuple[str, str], Load] = {}
            for name in names:
                for way in WAYS:
                    net = stack.enter_context(two_lines(way, run.seed)).net
                    serving = stack.enter_context(served(net, sites, protocol))
                    loads[name, way] = stack.enter_context(loader(name, net.host, serving, protocol))
        for site in sites:
            with run.step(f"{protocol}: {site.name}, {site.flows} flows, {site.size / 1e6:.1f} MB"):
                work = [functools.partial(load, site) for load in loads.values()]
                for key, page in zip(loads, run_concurrently(work), strict=True):
                    if page.missing:
                        raise LabError(f"{site.name}, {' '.join(key)}: {page.missing} objects did not arrive")
                    seconds[key].append(page.seconds)
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
