"""Two equal lines to all web sites (Fig. 8), used in several ways, and pages loaded in all of them at the same time.

The paper gives neither rates nor delays. Its pages took a median of 12 s over a single interface (Fig. 9); those of
the corpus do so over 2 Mbit/s, which is what the lines have.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from braid_lab.concurrency import run_concurrently
from braid_lab.experiment import Run
from braid_lab.experiments.bond.cases import Link
from braid_lab.experiments.bond.site import site
from braid_lab.journal import Journal
from braid_lab.net.mptcp import use_all_uplinks
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.pages import corpus, loaders
from braid_lab.pages.corpus import Site
from braid_lab.pages.loaders import LOADERS, Load, LoaderName, PageLoad, loader
from braid_lab.pages.sites import served
from braid_lab.product import Braid, braid, commit

MBIT, DELAY_MS, QUEUE_MS = 2.0, 20.0, 1000.0
LINES = ("line1", "line2")

#: Ways to use the lines. `single` and `mptcp` are a host without Braid.
WAYS = ("single", "mptcp", "wrr", "fastest", "bond")
WEIGHTS = [word for name in LINES for word in ("--weight", f"{name}=1")]
OPTIONS = {"wrr": ["--policy", "wrr", *WEIGHTS], "fastest": ["--policy", "fastest"]}


@dataclass(frozen=True)
class Extent:
    """Amount of measurement: how many sites, spread over the corpus, and how often each."""

    sites: int
    loads: int


@dataclass(frozen=True)
class Plan:
    """The sites that an experiment loads, and the ways to load them."""

    ways: tuple[str, ...]
    protocol: str
    sites: list[Site]
    loads: int
    loader: LoaderName


def plan(run: Run, extent: Extent, ways: Sequence[str], protocol: str) -> Plan:
    """Return the plan of a run: its part of the corpus, and its loader."""
    sites = corpus.read(run.corpus) if run.corpus else corpus.generate(run.seed)
    chosen = corpus.spread(sites, min(extent.sites, len(sites)))
    default: LoaderName = "browser"
    if run.form == "smoke":
        # It runs where no browser is installed, and has no time for a large site.
        default, chosen = "fast", sorted(sites, key=lambda each: each.size)[: extent.sites]
    name = next((each for each in LOADERS if each == run.loader), default)
    loaders.require(name)
    return Plan(tuple(ways), protocol, chosen, extent.loads, name)


@dataclass(frozen=True)
class TwoLines:
    """A running host with both lines, and its daemon if Braid runs on it."""

    net: Topology
    daemon: Braid | None


@contextlib.contextmanager
def two_lines(way: str, seed: int) -> Iterator[TwoLines]:
    """Build a host with both lines, used in one of WAYS."""
    link = Link(MBIT, DELAY_MS, queue_ms=QUEUE_MS)
    if way == "bond":
        with site(dict.fromkeys(LINES, link), seed=seed) as place:
            yield TwoLines(place.net, place.daemon)
        return
    specs = [UplinkSpec(name, link.line(seed + number), families=frozenset({4})) for number, name in enumerate(LINES)]
    daemon = None
    with network(specs) as net, contextlib.ExitStack() as stack:
        if way == "single":
            stack.enter_context(net.only(LINES[0]))
        elif way == "mptcp":
            use_all_uplinks(net)
        else:
            run_dir = net.scratch / net.host.name.rpartition("-")[0] / "braid"
            run_dir.parent.mkdir()
            daemon = stack.enter_context(braid(net.host, run_dir, *OPTIONS[way]))
        yield TwoLines(net, daemon)


@dataclass(frozen=True)
class Way:
    """A running way to use the lines, and its loader."""

    net: Topology
    load: Load

    def delivered(self) -> dict[str, int]:
        """Return the bytes that each line has delivered to the host."""
        counted = {}
        for name, uplink in self.net.uplinks.items():
            if uplink.emulator is not None:
                stats = uplink.emulator.request({"stats": {}})["stats"]
                counted[name] = stats["down"]["packets"]["delivered"]["bytes"]
        return counted


def journal(run: Run, plan: Plan) -> Journal:
    """Return the run's journal, with the rows of an interrupted run of the same commit and settings."""
    settings = {
        "commit": commit()[0],
        "seed": run.seed,
        "corpus": str(run.corpus),
        "form": run.form,
        "loader": plan.loader,
        "protocol": plan.protocol,
        "ways": plan.ways,
        "lines": [MBIT, DELAY_MS, QUEUE_MS],
    }
    book = Journal(run.folder / "journal.jsonl", settings)
    if book.rows:
        run.display.note(f"{run.name} goes on after {len(book.rows)} rounds of an interrupted run")
    return book


def measure(run: Run, plan: Plan) -> list[dict[str, Any]]:
    """Load every site over all ways at the same time, as often as planned; return a row for each load.

    A run that is interrupted goes on where it ended, if it is run again with the same commit and settings.
    """
    book = journal(run, plan)
    done = {(row["turn"], row["site"]) for row in book.rows}
    rounds = [(turn, site) for turn in range(plan.loads) for site in plan.sites if (turn, site.name) not in done]
    run.display.expect(1 + len(rounds))
    with contextlib.ExitStack() as stack:
        with run.step(f"build {len(plan.ways)} hosts with two lines, and sites"):
            ways = {way: stack.enter_context(_way(way, plan, run.seed)) for way in plan.ways}
        for turn, site in rounds:
            with run.step(f"{site.name}, {site.flows} flows, {site.size / 1e6:.1f} MB"):
                work = [functools.partial(_load, way, site) for way in ways.values()]
                pages = run_concurrently(work)
                rows = [{"way": way, **page.row(), **shares} for way, (page, shares) in zip(ways, pages, strict=True)]
                book.add({"turn": turn, "site": site.name, "rows": rows})
    book.finish()
    return [{"turn": each["turn"], "site": each["site"], **row} for each in book.rows for row in each["rows"]]


@contextlib.contextmanager
def _way(name: str, plan: Plan, seed: int) -> Iterator[Way]:
    mptcp = name == "mptcp"
    with (
        two_lines(name, seed) as lines,
        served(lines.net, plan.sites, plan.protocol, mptcp=mptcp) as sites,
        loader(plan.loader, lines.net.host, sites, plan.protocol, mptcp=mptcp) as load,
    ):
        yield Way(lines.net, load)


def _load(way: Way, site: Site) -> tuple[PageLoad, dict[str, int]]:
    before = way.delivered()
    page = way.load(site)
    return page, {name: count - before[name] for name, count in way.delivered().items()}


def by_site(rows: Sequence[dict[str, Any]], way: str, key: str = "seconds") -> dict[str, float]:
    """Return each site's mean of a column over its loads by a way."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["way"] == way and row[key] is not None:
            found.setdefault(row["site"], []).append(row[key])
    return {name: statistics.fmean(each) for name, each in found.items()}


def reductions(rows: Sequence[dict[str, Any]], way: str) -> tuple[float, list[float]]:
    """Return by how much a way's mean page load time is below that of a single line, and the same of each site."""
    ours, single = by_site(rows, way), by_site(rows, "single")
    whole = 1 - statistics.fmean(ours.values()) / statistics.fmean(single.values())
    return whole, [1 - ours[name] / single[name] for name in single]
