"""`pages/video`: web sites in one window while a clip plays in another, over HTTP/3 ([host] §5.2.2, Figs. 12 and 13).

The reference is the clip alone over a single line: "where there is no web traffic and video traffic has exclusive
access to the available link capacity". The clip begins anew with each group of sites, which are loaded while it
plays.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from braid_lab.concurrency import run_concurrently
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.pages import charts
from braid_lab.experiments.pages.testbed import MBIT, Extent, Plan, by_site, journal, plan, reductions, two_lines
from braid_lab.net import scratch
from braid_lab.pages import loaders, video
from braid_lab.pages.corpus import Site
from braid_lab.pages.loaders import Load, loader, window
from braid_lab.pages.sites import PORT, served
from braid_lab.pages.video import Clip, Playback
from braid_lab.plots import COLOURS
from braid_lab.process import LabError
from braid_lab.product import Braid
from braid_lab.programs.devtools import Tab

#: [host] §5.2.2: the video "is 3 minutes long".
CLIP_SECONDS = 180.0

#: Bytes of a group of sites: over a single line, beside the clip, they take less than the clip does.
GROUP_BYTES = 0.6 * CLIP_SECONDS * (MBIT - video.QUALITIES[-1]) * 1e6 / 8

FULL = Extent(sites=100, loads=10)
QUICK = Extent(sites=4, loads=1)
SMOKE = Extent(sites=1, loads=1)

#: [host] §5.2.2: "around 22%".
PAPER_REDUCTION = 0.22

WAYS = ("reference", "single", "wrr", "fastest", "bond")


@dataclass(frozen=True)
class Windows:
    """A host whose user has both windows open; the reference has no pages."""

    load: Load | None
    tab: Tab
    #: The daemon whose flow statistics tell the throughput as the paper's switch did; without Braid, None.
    daemon: Braid | None

    def flow_bytes(self) -> dict[str, int]:
        """Return the bytes that each QUIC flow has received, by the host's address of it."""
        if self.daemon is None:
            return {}
        flows = self.daemon.json("flows")["flows"]
        quic = [each for each in flows if each["protocol"] == "udp" and (each["remote"] or "").endswith(f":{PORT}")]
        return {f"{each['inner']} {each['remote']}": each["rx_bytes"] for each in quic}


@experiment(
    "pages/video",
    "Web sites beside a video over two equal lines, HTTP/3",
    paper="host-flow-balancing §5.2.2, Figs. 12 and 13",
    sites=True,
)
def beside_video(run: Run) -> None:
    """Load groups of sites, each during the clip."""
    loaders.require("browser")
    made = plan(run, run.of_form(full=FULL, quick=QUICK, smoke=SMOKE), WAYS, "h3")
    book = journal(run, made)
    done = {(row["turn"], row["group"]) for row in book.rows}
    groups = list(enumerate(grouped(made.sites)))
    left = [
        (turn, number, group) for turn in range(made.loads) for number, group in groups if (turn, number) not in done
    ]
    run.display.expect(2 + len(left))
    with contextlib.ExitStack() as stack:
        with run.step("encode the clip"):
            seconds = run.of_form(full=CLIP_SECONDS, quick=CLIP_SECONDS, smoke=20.0)
            clip = video.encode(Path(scratch.directory()) / "clip", seconds)
        with run.step(f"build {len(WAYS)} hosts with two lines, sites and windows"):
            hosts = {way: stack.enter_context(_host(way, made, clip, run.seed)) for way in WAYS}
        for turn, number, group in left:
            with run.step(f"{len(group)} sites, {sum(site.size for site in group) / 1e6:.1f} MB, beside the clip"):
                book.add({"turn": turn, "group": number, "rows": _group(hosts, group, clip)})
    book.finish()
    _record(run, made, [row for each in book.rows for row in each["rows"]])


def grouped(sites: Sequence[Site]) -> list[list[Site]]:
    """Split sites into groups that are loaded during one clip."""
    groups: list[list[Site]] = [[]]
    for site in sites:
        if groups[-1] and sum(each.size for each in groups[-1]) + site.size > GROUP_BYTES:
            groups.append([])
        groups[-1].append(site)
    return groups


@contextlib.contextmanager
def _host(way: str, made: Plan, clip: Clip, seed: int) -> Iterator[Windows]:
    with (
        two_lines("single" if way == "reference" else way, seed) as lines,
        served(lines.net, made.sites, made.protocol, others={video.HOST: clip.folder}) as sites,
        window(lines.net.host, sites, made.protocol) as tab,
        contextlib.ExitStack() as stack,
    ):
        load = None
        if way != "reference":
            load = stack.enter_context(loader(made.loader, lines.net.host, sites, made.protocol))
        # The bond's flows are those of its tunnel.
        yield Windows(load, tab, None if way == "bond" else lines.daemon)


def _group(hosts: dict[str, Windows], group: Sequence[Site], clip: Clip) -> list[dict[str, Any]]:
    """Play the clip on all hosts while the group's sites are loaded; return a row for each load and each playback."""
    rows: list[dict[str, Any]] = []
    run_concurrently([functools.partial(video.begin, host.tab) for host in hosts.values()])
    began, before = time.monotonic(), _playbacks(hosts)
    # No page is under way, so the clip's is the flow of this moment.
    flows_before = {way: host.flow_bytes() for way, host in hosts.items()}
    browsing = {way: host.load for way, host in hosts.items() if host.load is not None}
    for site in group:
        work: list[Callable[[], Any]] = [functools.partial(load, site) for load in browsing.values()]
        for way, page in zip(browsing, run_concurrently(work), strict=True):
            rows.append({"way": way, "site": site.name, **page.row()})
    seconds, after = time.monotonic() - began, _playbacks(hosts)
    flows_after = {way: host.flow_bytes() for way, host in hosts.items()}
    if any(each.played_s >= clip.seconds for each in after.values()):
        raise LabError(f"the clip of {clip.seconds:.0f} s ended before the group of {len(group)} sites")
    for way, each in after.items():
        mbit = 8e-6 * (each.bytes - before[way].bytes) / seconds
        told = {"video_mbit": mbit, "flow_mbit": None, **asdict(each)}
        grown = [flows_after[way].get(flow, 0) - count for flow, count in flows_before[way].items()]
        if grown:
            told["flow_mbit"] = 8e-6 * max(grown) / seconds
        rows.append({"way": way, "site": None, "seconds": seconds, **told})
    return rows


def _playbacks(hosts: dict[str, Windows]) -> dict[str, Playback]:
    return {way: video.playback(host.tab) for way, host in hosts.items()}


def _record(run: Run, made: Plan, rows: Sequence[dict[str, Any]]) -> None:
    pages = [row for row in rows if row["site"] is not None]
    plays = [row for row in rows if row["site"] is None]
    runs = len(made.sites) * made.loads
    found = {way: reductions(pages, way) for way in WAYS[2:]}
    worst = min(("wrr", "fastest"), key=lambda way: found[way][0])
    spread = (min(found[worst][1]), max(found[worst][1]))
    run.figure("mean_reduction", found[worst][0], better="higher", paper=PAPER_REDUCTION, runs=runs, spread=spread)
    reference = _mbit(plays, "reference")
    run.table.append(["", "mean s", "reduction", "video Mbit/s", "vs reference", "stalls", "switches"])
    shares = {}
    for way in WAYS:
        mine = [row for row in plays if row["way"] == way]
        shares[way] = _mbit(plays, way) / reference
        stalls, switches = (sum(row[name] for row in mine) for name in ("stalls", "switches"))
        run.figure(f"video_mbit_{way}", _mbit(plays, way), unit="Mbit/s", better="higher", runs=len(mine))
        polled = [row["flow_mbit"] for row in mine if row["flow_mbit"] is not None]
        if polled:
            run.measure(f"video_flow_mbit_{way}", polled, unit="Mbit/s", better="higher")
        run.figure(f"stalls_{way}", stalls, better="lower", runs=len(mine))
        run.figure(f"stalled_s_{way}", sum(row["stalled_s"] for row in mine), unit="s", better="lower")
        run.figure(f"quality_switches_{way}", switches, better="lower", runs=len(mine))
        cells = ["\N{EN DASH}", "\N{EN DASH}"]
        if way != "reference":
            mean = statistics.fmean(by_site(pages, way).values())
            run.figure(f"mean_s_{way}", mean, unit="s", better="lower", runs=runs)
            cells[0] = f"{mean:.2f}"
        if way in found:
            paper = PAPER_REDUCTION if way == "wrr" else None
            run.figure(f"mean_reduction_{way}", found[way][0], better="higher", paper=paper, runs=runs)
            cells[1] = f"{found[way][0]:.3f}"
        run.table.append([way, *cells, f"{_mbit(plays, way):.3f}", f"{shares[way]:.3f}", str(stalls), str(switches)])
    lowest = min(("wrr", "fastest"), key=lambda way: shares[way])
    run.figure("video_throughput_vs_reference", shares[lowest], better="higher", runs=len(plays) // len(WAYS))
    run.series("pages", pages)
    run.series("video", plays)
    means = {way: statistics.fmean(by_site(pages, way).values()) for way in WAYS[1:]}
    charts.bars(run, "mean", means, {"wrr": 1 - PAPER_REDUCTION}, "Mean page load time beside a video (Fig. 12)")
    with run.plot("video") as plot:
        axes = plot.subplots()
        for place, way in enumerate(WAYS):
            axes.bar(place, _mbit(plays, way), width=0.6, color=COLOURS.get(way, COLOURS["asked"]))
        axes.set_xticks(range(len(WAYS)), WAYS)
        axes.set_ylabel("media received, Mbit/s")
        axes.set_title("Throughput of the video beside web sites (the paper's Fig. 13)", loc="left")
    run.notes += [
        f"Loader: {made.loader}. A clip of up to {video.QUALITIES[-1]:g} Mbit/s, dash.js, lines of {MBIT:g} Mbit/s. "
        "`video_throughput_vs_reference` and `mean_reduction` are the worse of wrr and fastest.",
        "The throughput is that of media as the player counts it, from the first picture to the end of the group's "
        "last page; so it has what a player fetches ahead at the beginning.",
    ]


def _mbit(plays: Sequence[dict[str, Any]], way: str) -> float:
    """Return the mean rate of media over all groups, weighted by their lengths."""
    mine = [row for row in plays if row["way"] == way]
    megabits: float = sum(row["video_mbit"] * row["seconds"] for row in mine)
    seconds: float = sum(row["seconds"] for row in mine)
    return megabits / seconds
