"""`pages/flows`: traffic of the corpus, captured while each site is loaded once: the paper's Figs. 6 and 7.

The line has 40 ms of round trip and a rate that is never the bottleneck: how many connections a browser opens depends
on how long its requests take.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from pathlib import Path

from braid_lab.capture import flows, summary
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.pages.testbed import DELAY_MS, MBIT, Extent, journal, plan
from braid_lab.net.links import LinkSpec
from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import UplinkSpec, network
from braid_lab.pages.loaders import loader
from braid_lab.pages.sites import served
from braid_lab.process import Process

LINE = UplinkSpec("line", LinkSpec(rate="100Mbit/s", delay=f"{DELAY_MS:g}ms", queue="200ms"), families=frozenset({4}))

FULL = Extent(sites=100, loads=1)
QUICK = Extent(sites=60, loads=1)
SMOKE = Extent(sites=2, loads=1)

#: As much of each packet as a ClientHello needs.
SNAP_BYTES = 2000

#: [host] §4: "The average number of flows is around 42", the largest 281, the largest flow "close to 5MB".
PAPER_MEAN, PAPER_LARGEST, PAPER_LARGEST_MB = 42.0, 281.0, 5.0


@contextlib.contextmanager
def captured(place: Namespace, device: str, file: Path) -> Iterator[None]:
    """Capture a device's packets into a file for the length of a block."""
    # As root, to write where root alone may; each packet at once, so that the last ones are there when it is stopped.
    argv: list[str | Path] = [
        "tcpdump",
        "--immediate-mode",
        "-Z",
        "root",
        "-U",
        "-s",
        str(SNAP_BYTES),
        "-i",
        device,
        "-w",
        file,
    ]
    with Process(argv, log=file.with_suffix(".log"), namespace=place.name) as process:
        process.wait_stderr("listening on")
        yield


@experiment(
    "pages/flows",
    "Flows of the web sites, from a capture of their own",
    paper="host-flow-balancing §4, Figs. 6 and 7",
    sites=True,
)
def flows_of_sites(run: Run) -> None:
    """Load each site once over HTTP/1.1, as the paper did, and count."""
    made = plan(run, run.of_form(full=FULL, quick=QUICK, smoke=SMOKE), ("line",), "http/1.1")
    book = journal(run, made.settings())
    done = {row["site"] for row in book.rows}
    left = [site for site in made.sites if site.name not in done]
    run.display.expect(1 + len(left))
    with contextlib.ExitStack() as stack:
        with run.step("build a host with one line, and sites"):
            net = stack.enter_context(network([LINE]))
            sites = stack.enter_context(served(net, made.sites, made.protocol))
            load = stack.enter_context(loader(made.loader, net.host, sites, made.protocol))
        for site in left:
            file = net.scratch / f"{site.name}.pcap"
            with run.step(f"{site.name}, {site.flows} flows, {site.size / 1e6:.1f} MB"):
                with captured(net.host, LINE.name, file):
                    load(site)
                visits = [visit.plain() for visit in flows.read([file]).visits]
                book.add({"site": site.name, "visits": visits})
                file.unlink()
    book.finish()
    _record(run, flows.Traffic(visits=[flows.Visit.of(each) for row in book.rows for each in row["visits"]]))
    most = max(site.flows for site in made.sites)
    expected = statistics.fmean(site.flows for site in made.sites)
    run.notes.append(
        f"Loader: {made.loader}. {len(made.sites)} sites of the corpus, spread over all sizes. A browser that asks "
        f"for everything at once would open {expected:.1f} connections on average, {most} at most."
    )


def _record(run: Run, traffic: flows.Traffic) -> None:
    counts = [len(visit.flows) for visit in traffic.visits]
    sizes = summary.flows_bytes(traffic)
    spread = (min(counts), max(counts))
    run.figure("sites", len(counts))
    run.figure("flows_mean", statistics.fmean(counts), paper=PAPER_MEAN, runs=len(counts), spread=spread)
    run.figure("flows_largest", max(counts), paper=PAPER_LARGEST)
    run.figure("sites_over_30_flows", sum(count > 30 for count in counts) / len(counts))
    run.figure("flow_kb_median", statistics.median(sizes) / 1e3, unit="kB", runs=len(sizes))
    run.figure("flows_to_300_kb", summary.small_share(sizes), runs=len(sizes))
    run.figure("flow_mb_largest", max(sizes) / 1e6, unit="MB", paper=PAPER_LARGEST_MB)
    run.figure("concurrency_mean", statistics.fmean(visit.concurrency for visit in traffic.visits))
    found = summary.estimates(traffic.visits, [MBIT, MBIT])
    single = sum(each.single for each in found)
    for name in ("wrr", "least_loaded", "packets"):
        run.figure(f"what_if_reduction_{name}", 1 - sum(getattr(each, name) for each in found) / single)
    for name, draw in (("flows_per_site", summary.flows_per_site), ("flow_sizes", summary.flow_sizes)):
        with run.plot(name) as plot:
            draw(plot.subplots(), traffic)
    run.series(
        "flows",
        [
            {"site": visit.site, "server": flow.name, "protocol": flow.protocol, "bytes": flow.bytes}
            for visit in traffic.visits
            for flow in visit.flows
        ],
    )
    run.series("what_if", [vars(each) for each in found])
    run.notes.append(
        "`what_if_…` are estimates over two equal lines, from capacity alone: by how much the mean load time would "
        "fall if nothing but the lines' rates took time."
    )
