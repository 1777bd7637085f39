"""One TCP flow over two layer-3 paths between Braid's edges: [mpsdn] §IV-B, Figs. 6 to 8.

The paper's two paths between Oslo and Longyearbyen had at least 10 Mbit/s and round trips of 40 ms; ours are
emulated, with a separate router on each. Shares are equal, as in the paper. A single path, both paths with
reordering, and both without it (as in the paper's Figs. 6 and 7) are measured at the same time, each between sites of
its own.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braid_lab.concurrency import run_concurrently
from braid_lab.experiment import Better, Run, experiment
from braid_lab.fabric.file_servers import files
from braid_lab.fabric.multihomed import received_mbit, stream_server
from braid_lab.fabric.routed_sites import RoutedSites, routed
from braid_lab.fabric.shapes import Wire
from braid_lab.fabric.tcp_transfer import Transfer, transfer
from braid_lab.plots import COLOURS
from braid_lab.process import Process, wait_until
from braid_lab.servers import vsftpd

MBIT, DELAY_MS = 10.0, 20.0

#: Share of a full frame (1500 bytes and the Ethernet header) that is TCP payload, with timestamps and no
#: encapsulation.
GOODPUT_SHARE = 1448 / 1514

IPERF3_PORT = 5201

#: Paths, and the edges' `--reordering` option, by kind of measurement.
KINDS: dict[str, tuple[tuple[int, ...], str]] = {"single": ((1,), "adaptive"), "multi": ((1, 2), "adaptive")}
UNORDERED = {"unordered": ((1, 2), "off")}

COLOUR = {"single": COLOURS["dsl"], "multi": COLOURS["wrr"], "unordered": COLOURS["race"]}


@dataclass(frozen=True)
class Extent:
    """Seconds of the long transfer and of its opening, of the stream, and bytes of the files."""

    seconds: int
    opening: int
    stream: int
    bytes: int
    #: Seconds of the transfer in Fig. 7.
    shown: tuple[float, float] = (6.0, 6.1)


#: [mpsdn] §IV-B: "goodput over 140 seconds", "a 70MB file".
FULL = Extent(140, 10, 60, 70_000_000)
QUICK = Extent(20, 4, 10, 15_000_000)
SMOKE = Extent(3, 1, 1, 500_000, shown=(1.0, 1.5))


@experiment("fabric/l3", "One TCP flow over layer-3 paths", paper="mpsdn §IV-B, Figs. 6-8")
def l3(run: Run) -> None:
    """Measure goodput, order and applications."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(5)
    with contextlib.ExitStack() as stack:
        with run.step("sites, routers, edges"):
            sites = {kind: _sites(stack, *what) for kind, what in (KINDS | UNORDERED).items()}
        with run.part("one flow"):
            _one_flow(run, sites, extent)
        with run.part("stream"):
            _stream(run, sites, extent)
        _files(run, sites, extent)
    run.notes.append(
        f"Two paths of {MBIT:g} Mbit/s, {2 * DELAY_MS:g} ms round trip, queues of 100 ms. The paper shows only "
        "charts; of them it says that goodput is 'roughly doubled', that numbers grow 'almost monotonically' "
        "and that all applications 'significantly benefit'."
    )


def _one_flow(run: Run, sites: Mapping[str, RoutedSites], extent: Extent) -> None:
    with run.step(f"one flow: {extent.seconds} s"):
        work = [functools.partial(_watched, site, extent.seconds) for site in sites.values()]
        found = dict(zip(sites, run_concurrently(work), strict=True))
    _goodput(run, {kind: made for kind, (made, _) in found.items()}, extent)
    _order(run, {kind: seen for kind, (_, seen) in found.items()}, extent)


def _stream(run: Run, sites: Mapping[str, RoutedSites], extent: Extent) -> None:
    with run.step(f"greedy stream: {extent.stream} s"), contextlib.ExitStack() as stack:
        streams = []
        for kind in KINDS:
            source, target = (sites[kind].stations[name] for name in ("ha", "hb"))
            stack.enter_context(stream_server(source.place, source.address, sites[kind].folder / "pour"))
            streams.append(functools.partial(received_mbit, target.place, source.address, extent.stream))
        _application(run, "stream", run_concurrently(streams))


def _files(run: Run, sites: Mapping[str, RoutedSites], extent: Extent) -> None:
    if not vsftpd.program().exists():
        run.notes.append("vsftpd is not installed (tools/setup bench), so nothing is fetched by FTP.")
    with contextlib.ExitStack() as stack:
        served = {
            kind: stack.enter_context(files(sites[kind].stations["ha"], sites[kind].folder, extent.bytes))
            for kind in KINDS
        }
        for application in ("http", "ftp") if vsftpd.program().exists() else ("http",):
            with run.part(application), run.step(f"{application}: {extent.bytes / 1e6:g} MB"):
                fetches = [
                    functools.partial(served[kind].fetch, sites[kind].stations["hb"], application) for kind in KINDS
                ]
                _application(run, application, run_concurrently(fetches))


def _sites(stack: contextlib.ExitStack, paths: Sequence[int], order: str) -> RoutedSites:
    made = stack.enter_context(routed([Wire("A", "B", MBIT, DELAY_MS)] * 2))
    made.use(paths, [MBIT] * len(paths), "--reordering", order)
    return made


def _watched(site: RoutedSites, seconds: float) -> tuple[Transfer, dict[str, list[Any]]]:
    """Send for `seconds`; return what arrived, with its sequence numbers."""
    words = ["eth0", str(IPERF3_PORT), f"{seconds + 5:g}"]
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_capture", *words]
    target = site.stations["hb"]
    with Process(argv, log=site.folder / "segments", namespace=target.place.name) as watcher:
        watcher.wait_output("^ready$", timeout=20)
        made = transfer(site.stations["ha"], target, site.folder, seconds)
        wait_until(lambda: not watcher.running, what="the capture to end", timeout=30)
        seen: dict[str, list[Any]] = json.loads(watcher.stdout().splitlines()[-1])
    return made, seen


def _goodput(run: Run, found: dict[str, Transfer], extent: Extent) -> None:
    """Draw Fig. 6."""
    steady = {kind: each.steady(extent.opening) for kind, each in found.items()}
    for kind, each in found.items():
        paths = 1 if kind == "single" else 2
        better: Better = "higher" if kind == "multi" else "none"
        run.figure(f"mbit_{kind}", each.mbit, unit="Mbit/s", better=better)
        share = steady[kind] / (paths * MBIT * GOODPUT_SHARE)
        run.figure(f"share_{kind}", share, better=better)
        run.figure(f"put_aside_{kind}", each.out_of_order, unit="segments")
    run.table.append(["", "single Mbit/s", "both paths Mbit/s", "gain"])
    for name, kind in (("one flow", "multi"), ("one flow as it comes", "unordered")):
        gain = found[kind].mbit / found["single"].mbit
        run.table.append([name, f"{found['single'].mbit:.1f}", f"{found[kind].mbit:.1f}", f"{gain:.2f}"])
    run.figure("gain", found["multi"].mbit / found["single"].mbit, better="higher", paper=2.0)
    run.figure("gain_steady", steady["multi"] / steady["single"], better="higher", paper=2.0)
    seconds = range(len(found["single"].goodput))
    run.series(
        "course",
        [{"s": at + 1} | {kind: round(each.goodput[at], 3) for kind, each in found.items()} for at in seconds],
    )
    with run.plot("goodput") as plot:
        axes = plot.subplots()
        for kind, each in found.items():
            axes.plot([at + 1 for at in seconds], each.goodput, label=kind, color=COLOUR[kind], linewidth=1)
        axes.set_title("One flow over layer-3 paths (the paper's Fig. 6)", loc="left")
        axes.set_xlabel("s")
        axes.set_ylabel("goodput, Mbit/s")
        axes.set_ylim(bottom=0)
        axes.legend(ncols=3)


def behind(numbers: Sequence[int]) -> float:
    """Return the share of segments that arrive after one that lies behind them in the stream."""
    highest, late = -1, 0
    for number in numbers:
        late += number < highest
        highest = max(highest, number)
    return late / len(numbers)


def _order(run: Run, seen: dict[str, dict[str, list[Any]]], extent: Extent) -> None:
    """Draw Fig. 7."""
    rows = []
    with run.plot("sequence") as plot:
        axes = plot.subplots()
        for kind, each in seen.items():
            run.figure(f"behind_{kind}", behind(each["number"]), better="lower" if kind == "multi" else "none")
            shown = [
                (at, number)
                for at, number in zip(each["s"], each["number"], strict=True)
                if extent.shown[0] <= at < extent.shown[1]
            ]
            rows += [{"kind": kind, "s": at, "bytes": number} for at, number in shown]
            zero = min(number for _, number in shown)
            # Relative to the first number of each, so that slopes and order can be compared.
            heights = [(number - zero) / 1e3 for _, number in shown]
            axes.plot([at for at, _ in shown], heights, ".", label=kind, color=COLOUR[kind], markersize=2)
        axes.set_title("Sequence numbers at the receiver (the paper's Fig. 7)", loc="left")
        axes.set_xlabel("s")
        axes.set_ylabel("kB")
        # Rising points leave the upper left free; to look for a place among all of them takes long.
        axes.legend(loc="upper left", ncols=3, markerscale=4)
    run.series("sequence", rows)


def _application(run: Run, name: str, mbit: Sequence[float]) -> None:
    """Record the figures of Fig. 8."""
    single, multi = mbit
    run.figure(f"mbit_{name}_single", single, unit="Mbit/s")
    run.figure(f"mbit_{name}_multi", multi, unit="Mbit/s", better="higher")
    run.figure(f"gain_{name}", multi / single, better="higher")
    run.table.append([name, f"{single:.1f}", f"{multi:.1f}", f"{multi / single:.2f}"])
