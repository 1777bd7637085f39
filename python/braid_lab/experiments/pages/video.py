"""`pages/video`: web sites in one window while a clip plays in another, over HTTP/3 ([host] §5.2.2, Figs. 12 and 13).

"We continuously streamed a short video", "background traffic for the simultaneously occurring web flows": pages begin
once the player has as much ahead as it wants. Until then it takes whatever its line gives, also alone, and its
throughput says nothing of the clip's. Each way loads its pages one after the other at its own pace, as the paper's
host does: none waits for a slower one, so no video recovers while no page is under way.

The reference is the clip alone over a single line: "where there is no web traffic and video traffic has exclusive
access to the available link capacity". It is taken over the very time that a way's pages take. The clip begins anew
with each group of sites.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from braid_lab.concurrency import repeated, run_concurrently
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.pages import charts
from braid_lab.experiments.pages.testbed import (
    MBIT,
    Extent,
    Plan,
    by_site,
    compared,
    journal,
    load_row,
    plan,
    reductions,
    two_lines,
)
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

#: Interval at which the reference is polled.
POLL_SECONDS = 0.5

#: [host] §5.2.2: the video "is 3 minutes long". The short form's is as long as its one group of sites needs.
FULL_CLIP, QUICK_CLIP, SMOKE_CLIP = 180.0, 150.0, 80.0

FULL = Extent(sites=100, loads=10)
QUICK = Extent(sites=3, loads=1)
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
    book = journal(run, made.settings())
    done = {(row["turn"], row["group"]) for row in book.rows}
    seconds = run.of_form(full=FULL_CLIP, quick=QUICK_CLIP, smoke=SMOKE_CLIP)
    groups = list(enumerate(grouped(made.sites, seconds)))
    left = [
        (turn, number, group) for turn in range(made.loads) for number, group in groups if (turn, number) not in done
    ]
    run.display.expect(2 + len(left))
    with contextlib.ExitStack() as stack:
        with run.step("encode the clip"):
            clip = video.encode(Path(scratch.directory()) / "clip", seconds)
        with run.step(f"build {len(WAYS)} hosts with two lines, sites and windows"):
            hosts = {way: stack.enter_context(_host(way, made, clip, run.seed)) for way in WAYS}
        for turn, number, group in left:
            with run.step(f"{len(group)} sites, {sum(site.size for site in group) / 1e6:.1f} MB, beside the clip"):
                book.add({"turn": turn, "group": number, "rows": _group(run, hosts, group, clip)})
    book.finish()
    _record(run, made, [{"turn": each["turn"], **row} for each in book.rows for row in each["rows"]])


def grouped(sites: Sequence[Site], seconds: float) -> list[list[Site]]:
    """Split sites into groups that are loaded during one clip of so many seconds.

    Over a single line, beside the clip, a group takes less time than there is from the moment at which a player has
    what it wants ahead, after as much time over 2 Mbit/s, until it has fetched the clip's end. A tenth is left for
    round trips.
    """
    most = 0.9 * (seconds - 2 * video.FULL_SECONDS) * (MBIT - video.QUALITIES[-1]) * 1e6 / 8
    groups: list[list[Site]] = [[]]
    for site in sites:
        if groups[-1] and sum(each.size for each in groups[-1]) + site.size > most:
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


@dataclass(frozen=True)
class Moment:
    """A playback, and the bytes of the host's QUIC flows, at a time."""

    at: float
    playback: Playback
    flows: dict[str, int]


def _moment(host: Windows) -> Moment:
    return Moment(time.monotonic(), video.playback(host.tab), host.flow_bytes())


def _group(run: Run, hosts: dict[str, Windows], group: Sequence[Site], clip: Clip) -> list[dict[str, Any]]:
    """Play the clip on all hosts while the group's sites are loaded; return a row for each load and each playback."""
    run_concurrently([functools.partial(video.begin, host.tab) for host in hosts.values()])
    run_concurrently([functools.partial(video.await_pause, host.tab) for host in hosts.values()])
    # No page is under way, so the clip's is the flow of this moment.
    before = {way: _moment(host) for way, host in hosts.items()}
    browsing = {way: host.load for way, host in hosts.items() if host.load is not None}
    with _polled(hosts["reference"]) as alone:
        work = [functools.partial(_browse, run, way, hosts[way], load, group) for way, load in browsing.items()]
        browsed = dict(zip(browsing, run_concurrently(work), strict=True))
    if alone[-1].playback.played_s + alone[-1].playback.ahead_s > clip.seconds - video.SEGMENT_SECONDS:
        raise LabError(f"the clip of {clip.seconds:.0f} s had come before the group of {len(group)} sites")
    rows: list[dict[str, Any]] = []
    for way, (loads, after) in browsed.items():
        rows += loads
        rows.append({"way": way, "site": None, **_throughput(before[way], after, alone)})
    rows.append({"way": "reference", "site": None, **_throughput(before["reference"], alone[-1], alone)})
    return rows


def _browse(
    run: Run, way: str, host: Windows, load: Load, group: Sequence[Site]
) -> tuple[list[dict[str, Any]], Moment]:
    """Load sites one after the other; return a row for each, and the moment at which the last one was loaded."""
    loads = [load_row(run, way, load, site) for site in group]
    return loads, _moment(host)


@contextlib.contextmanager
def _polled(host: Windows) -> Iterator[list[Moment]]:
    """Poll a host for the length of a block; its moments are there after it, the last one at its end."""
    moments = [_moment(host)]
    with repeated(lambda: moments.append(_moment(host)), POLL_SECONDS):
        yield moments
    moments.append(_moment(host))


def _throughput(before: Moment, after: Moment, alone: Sequence[Moment]) -> dict[str, Any]:
    """Return the rates of a playback, and that of the clip alone over the same time."""
    seconds = after.at - before.at
    bits = 8 * (after.playback.bytes - before.playback.bytes)
    grown = [after.flows.get(flow, 0) - count for flow, count in before.flows.items()]
    return {
        "seconds": seconds,
        "video_mbit": 1e-6 * bits / seconds,
        "alone_mbit": 8e-6 * (bytes_at(alone, after.at) - bytes_at(alone, before.at)) / seconds,
        "flow_mbit": 8e-6 * max(grown) / seconds if grown else None,
        "stalls": after.playback.stalls - before.playback.stalls,
        "stalled_s": after.playback.stalled_s - before.playback.stalled_s,
        "switches": after.playback.switches - before.playback.switches,
        "ahead_s": after.playback.ahead_s,
        "quality": after.playback.quality,
    }


def bytes_at(moments: Sequence[Moment], at: float) -> float:
    """Return the bytes of media that had come at a time, between the moments as if they came evenly."""
    return float(np.interp(at, [each.at for each in moments], [each.playback.bytes for each in moments]))


def _record(run: Run, made: Plan, rows: Sequence[dict[str, Any]]) -> None:
    pages = compared(run, made, [row for row in rows if row["site"] is not None])
    plays = [row for row in rows if row["site"] is None]
    runs = len(made.sites) * made.loads
    found = {way: reductions(pages, way) for way in WAYS[2:]}
    worst = min(("wrr", "fastest"), key=lambda way: found[way][0])
    spread = (min(found[worst][1]), max(found[worst][1]))
    run.figure("mean_reduction", found[worst][0], better="higher", paper=PAPER_REDUCTION, runs=runs, spread=spread)
    run.table.append(["", "mean s", "reduction", "video Mbit/s", "vs reference", "stalls", "switches"])
    shares = {}
    for way in WAYS:
        mine = [row for row in plays if row["way"] == way]
        shares[way] = _mbit(plays, way) / _mbit(plays, way, "alone_mbit")
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
        "The throughput is that of media, from the moment at which the player first pauses to the end of the way's "
        "last page of the group, over that of the clip alone in the same time.",
    ]


def _mbit(plays: Sequence[dict[str, Any]], way: str, column: str = "video_mbit") -> float:
    """Return the mean rate of a way's media, or of the clip alone, over all groups, weighted by their lengths."""
    mine = [row for row in plays if row["way"] == way]
    megabits: float = sum(row[column] * row["seconds"] for row in mine)
    seconds: float = sum(row["seconds"] for row in mine)
    return megabits / seconds
