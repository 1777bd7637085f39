"""Two equal lines to all web sites (Fig. 8), used in several ways, and pages loaded in all of them at the same time.

The paper gives neither rates nor delays. Its pages took a median of 12 s over a single interface (Fig. 9); those of
the corpus do so over 2 Mbit/s, which is what the lines have.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braid_lab.concurrency import run_concurrently
from braid_lab.datapath import Datapath
from braid_lab.experiment import Run
from braid_lab.experiments.bond.cases import Link
from braid_lab.experiments.bond.site import site
from braid_lab.journal import Journal
from braid_lab.net.mptcp import use_all_uplinks
from braid_lab.net.open_vswitch import on_datapath
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.pages import corpus, loaders
from braid_lab.pages.corpus import Site
from braid_lab.pages.loaders import LOADERS, Load, LoaderName, PageError, loader
from braid_lab.pages.sites import served
from braid_lab.process import LabError
from braid_lab.product import Braid, braid, commit

MBIT, DELAY_MS, QUEUE_MS = 2.0, 20.0, 1000.0
LINES = ("line1", "line2")

#: Ways to use the lines. `single` and `mptcp` are a host without Braid; `wrr_openflow` is the paper's, whose
#: controller gets the first packet of each flow from Open vSwitch.
WAYS = ("single", "mptcp", "wrr", "wrr_openflow", "fastest", "bond")
WRR = ["--policy", "wrr", *(word for name in LINES for word in ("--weight", f"{name}=1"))]
OPTIONS = {"wrr": WRR, "wrr_openflow": WRR, "fastest": ["--policy", "fastest"]}
DATAPATHS: dict[str, Datapath] = {"wrr_openflow": "packet-in"}


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

    def settings(self) -> dict[str, Any]:
        """Return what its measurements depend on, for a journal."""
        return {"loader": self.loader, "protocol": self.protocol, "ways": self.ways}


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
    with contextlib.ExitStack() as stack:
        # Only while it is built: hosts of other ways are built before its block ends.
        with on_datapath(DATAPATHS.get(way, "ebpf")):
            net = stack.enter_context(network(specs))
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


def journal(run: Run, settings: Mapping[str, Any]) -> Journal:
    """Return the run's journal, with the rows of an interrupted run of the same commit and settings."""
    common = {
        "commit": commit()[0],
        "seed": run.seed,
        "corpus": str(run.corpus),
        "form": run.form,
        "lines": [MBIT, DELAY_MS, QUEUE_MS],
    }
    book = Journal(run.folder / "journal.jsonl", common | dict(settings))
    if book.rows:
        run.display.note(f"{run.name} goes on after {len(book.rows)} rounds of an interrupted run")
    return book


def measure(run: Run, plan: Plan) -> list[dict[str, Any]]:
    """Load every site over all ways at the same time, as often as planned; return a row for each load.

    A run that is interrupted goes on where it ended, if it is run again with the same commit and settings.
    """
    book = journal(run, plan.settings())
    done = {(row["turn"], row["site"]) for row in book.rows}
    rounds = [(turn, site) for turn in range(plan.loads) for site in plan.sites if (turn, site.name) not in done]
    run.display.expect(1 + len(rounds))
    with contextlib.ExitStack() as stack:
        with run.step(f"build {len(plan.ways)} hosts with two lines, and sites"):
            ways = {way: stack.enter_context(_way(way, plan, run.seed)) for way in plan.ways}
        for turn, site in rounds:
            with run.step(f"{site.name}, {site.flows} flows, {site.size / 1e6:.1f} MB"):
                work = [functools.partial(_load, run, name, way, site) for name, way in ways.items()]
                book.add({"turn": turn, "site": site.name, "rows": run_concurrently(work)})
    book.finish()
    return compared(run, plan, [{"turn": row["turn"], **each} for row in book.rows for each in row["rows"]])


@contextlib.contextmanager
def _way(name: str, plan: Plan, seed: int) -> Iterator[Way]:
    mptcp = name == "mptcp"
    with (
        two_lines(name, seed) as lines,
        served(lines.net, plan.sites, plan.protocol, mptcp=mptcp) as sites,
        loader(plan.loader, lines.net.host, sites, plan.protocol, mptcp=mptcp) as load,
    ):
        yield Way(lines.net, load)


def load_row(run: Run, way: str, load: Load, site: Site) -> dict[str, Any]:
    """Load a site and return the row of it, which has an error in place of times if the page failed."""
    row = {"way": way, "site": site.name}
    try:
        return row | load(site).row()
    except PageError as error:
        run.display.note(f"{run.name}: {way}, {error}")
        return row | {"error": str(error)}


def _load(run: Run, name: str, way: Way, site: Site) -> dict[str, Any]:
    before = way.delivered()
    row = load_row(run, name, way.load, site)
    return row | {line: count - before[line] for line, count in way.delivered().items()}


def complete(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the loads that can be compared: those of a site in a turn in which its page failed by no way."""
    failed = {(row["turn"], row["site"]) for row in rows if "error" in row}
    return [row for row in rows if (row["turn"], row["site"]) not in failed]


def compared(run: Run, plan: Plan, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the complete loads, and record what failed: pages, and objects of pages that did not."""
    left = complete(rows)
    errors = [row["error"] for row in rows if "error" in row]
    if not left:
        raise LabError(f"each page failed by some way, the last one like this: {errors[-1]}")
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = [row for row in rows if row["way"] == way]
        run.figure(f"failed_pages_{way}", sum("error" in row for row in mine), better="lower", runs=len(mine))
        missing = [row["missing"] for row in left if row["way"] == way]
        run.figure(f"missing_objects_{way}", sum(missing), better="lower", runs=len(missing))
    if errors:
        names = {row["site"] for row in left}
        gone = [site.name for site in plan.sites if site.name not in names]
        run.notes.append(
            f"{len(errors)} pages failed, and what they are compared with is left out as well. "
            f"Sites without any load left: {', '.join(gone) or 'none'}."
        )
    return left


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
