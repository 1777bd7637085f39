"""Page loads while both lines' rates change every second ([host] §6.2).

A page is loaded again and again while WiFi and LTE follow the walk of [host] Fig. 15: on WiFi alone, on LTE
alone, by `wrr` whose weights are set to the true rates each second (the paper's way), by `wrr` whose weights Braid
measures, and by `fastest`. The paper's page load times: 8.6, 6.7 and, with true weights, 5.8 s.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.measure.walks import CAMPUS_SECONDS, GAP_MBIT, Campus, campus
from braid_lab.fixtures import run_client, serve
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.plots import COLOURS
from braid_lab.process import LabError
from braid_lab.product import Braid, braid

UPLINKS = ("wifi", "lte")
LINES = (
    UplinkSpec("wifi", LinkSpec(rate="50Mbit/s", delay="5ms", queue="250ms")),
    UplinkSpec("lte", LinkSpec(rate="5Mbit/s", delay="25ms", queue="250ms")),
)

#: The paper's figures, s.
PAPER_S = {"wifi": 8.6, "lte": 6.7, "wrr_true": 5.8}
#: [host] §6.1: "WiFi having a higher capacity up 160 Mbps", and outdoors "4G/LTE provides a relatively steady
#: capacity of around 30 Mbps".
PAPER_WIFI_MBIT, PAPER_LTE_MBIT = 160.0, 30.0
CASES = ("wifi", "lte", "wrr_true", "wrr", "fastest")

#: A page that takes longer than this is given up and counts as that long: a gap in the only line.
PAGE_TIMEOUT_S = 40.0
#: Span of the walk whose pages are left out together for the standard error of a ratio: longer than most pages that a
#: gap catches.
SPAN_S = 20.0


@dataclass
class Loads:
    """Page load times of one case, and the page under way at its end."""

    seconds: list[float] = field(default_factory=list)
    #: Second of the walk in which each page began.
    begun: list[float] = field(default_factory=list)
    #: Connections that Braid has opened, and those of them on WiFi in a second of a gap.
    opened: int = 0
    into_gaps: int = 0


@dataclass(frozen=True)
class Case:
    """The routing of one case while the walk is played."""

    #: Takes each second's rates, Mbit/s.
    weigh: Callable[[float, float], None] = lambda *_: None
    #: Returns the connections opened so far, by uplink; nothing where Braid does not run.
    opened: Callable[[], dict[str, int]] = dict


@experiment("balance/dynamic", "Page loads while the lines' rates change", paper="host-flow-balancing §6.2")
def dynamic(run: Run) -> None:
    """Play the walk once for each case."""
    seconds = run.of_form(full=400, quick=60, smoke=6)
    walk = campus(run.seed, seconds=seconds)
    run.display.expect(len(CASES))
    measured: dict[str, Loads] = {}
    with network(LINES) as net:
        serve(net, "http1")

        def load(number: int) -> float:
            page = run_client(net.host, "page", run.seed, number, *net.servers(), timeout=PAGE_TIMEOUT_S)
            return float(page["seconds"])

        for case in CASES:
            with run.part(case), run.step(f"{case}: {seconds} s"), using(net, case) as routing:
                measured[case] = play(net, walk, routing, load)
    _record_walk(run, walk)
    record(run, measured)


def _record_walk(run: Run, walk: Campus) -> None:
    """Record and draw the rates that were set, Fig. 15."""
    run.figure("walk_s", len(walk.lte), unit="s", paper=CAMPUS_SECONDS)
    run.figure("walk_wifi_mbit_largest", max(walk.wifi), unit="Mbit/s", paper=PAPER_WIFI_MBIT)
    indoors, outdoors = walk.lte[: walk.indoors], walk.lte[walk.indoors :]
    run.measure("walk_lte_mbit_indoors", indoors, unit="Mbit/s")
    run.measure("walk_lte_mbit_outdoors", outdoors, unit="Mbit/s", paper=PAPER_LTE_MBIT)
    run.series(
        "walk", [{"s": second, "wifi": walk.wifi[second], "lte": walk.lte[second]} for second in range(len(walk.lte))]
    )
    with run.plot("walk") as plot:
        axes = plot.subplots()
        axes.step(range(len(walk.wifi)), walk.wifi, where="post", label="WiFi", color=COLOURS["dsl"])
        axes.step(range(len(walk.lte)), walk.lte, where="post", label="LTE", color=COLOURS["lte"], linestyle="--")
        axes.set_xlabel("s")
        axes.set_ylabel("Mbit/s")
        axes.set_title("Rates of both lines (the paper's Fig. 15)", loc="left")
        axes.legend()


@contextlib.contextmanager
def using(net: Topology, case: str) -> Iterator[Case]:
    """Route the host's traffic as the case requires."""
    if case in UPLINKS:
        with net.only(case):
            yield Case()
        return
    run_dir = net.scratch / "braid"
    if case != "wrr_true":
        with braid(net.host, run_dir, "--policy", case) as daemon:
            yield Case(opened=lambda: _opened(daemon))
        return
    config = net.scratch / "weights.toml"
    config.write_text(_weights(1, 1))
    with braid(net.host, run_dir, "--config", config) as daemon:

        def weigh(wifi: float, lte: float) -> None:
            config.write_text(_weights(wifi, lte))
            _reload(daemon)

        yield Case(weigh, lambda: _opened(daemon))


def _opened(daemon: Braid) -> dict[str, int]:
    return {uplink["name"]: uplink["flows_opened"] for uplink in daemon.json("uplinks")["uplinks"]}


def _reload(daemon: Braid) -> None:
    daemon.call("reload")


def _weights(wifi: float, lte: float) -> str:
    def uplink(name: str, mbit: float) -> str:
        return f'[[uplink]]\nname = "{name}"\ndevice = "{name}"\nweight = {max(1, round(10 * mbit))}\n'

    return 'policy = "wrr"\n' + uplink("wifi", wifi) + uplink("lte", lte)


def play(net: Topology, walk: Campus, case: Case, load: Callable[[int], float]) -> Loads:
    """Load pages one after another while the walk is played once; `load` returns the seconds of a page by number.

    A page's number is the second of the walk in which it begins, so that all cases load the same page there: sizes of
    pages differ by more than the cases do.
    """
    loads, over = Loads(), threading.Event()
    failures: list[BaseException] = []

    def browse() -> None:
        first = time.monotonic()
        try:
            while not over.is_set():
                begun = time.monotonic()
                try:
                    seconds = load(int(begun - first))
                except LabError:
                    seconds = time.monotonic() - begun
                loads.seconds.append(seconds)
                loads.begun.append(begun - first)
        except BaseException as error:
            failures.append(error)

    _set(net, walk.wifi[0], walk.lte[0])
    opened = first = case.opened()
    browser = threading.Thread(target=browse)
    browser.start()
    start = time.monotonic()
    try:
        for second, (wifi, lte) in enumerate(zip(walk.wifi, walk.lte, strict=True)):
            _set(net, wifi, lte)
            case.weigh(wifi, lte)
            # Steps of the walk are instants of the wall clock.
            time.sleep(max(0.0, start + second + 1 - time.monotonic()))
            before, opened = opened, case.opened()
            if wifi == GAP_MBIT:
                loads.into_gaps += opened.get("wifi", 0) - before.get("wifi", 0)
        loads.opened = sum(opened.values()) - sum(first.values())
    finally:
        over.set()
        # Let the last page end.
        _set(net, 50.0, 50.0)
        browser.join()
    if failures:
        raise failures[0]
    return loads


def _set(net: Topology, wifi: float, lte: float) -> None:
    for name, rate in zip(UPLINKS, (wifi, lte), strict=True):
        emulator = net.uplinks[name].emulator
        if emulator is None:
            raise LabError(f"{name} is not emulated")
        emulator.request({"set": {"rate": f"{rate:.3f}Mbit/s"}})


def ratio_error(one: Loads, other: Loads) -> float | None:
    """Return the standard error of the ratio of two cases' mean page load times on the same walk.

    It is the jackknife's: spans of the walk are left out of both cases in turn. It covers the chance of single pages,
    and not how the ratio differs from walk to walk. None if fewer than three spans are left to compare, or it is not
    known when the pages began.
    """
    if any(len(loads.begun) != len(loads.seconds) for loads in (one, other)):
        return None

    def without(loads: Loads, span: int) -> list[float]:
        pages = zip(loads.begun, loads.seconds, strict=True)
        return [seconds for begun, seconds in pages if int(begun / SPAN_S) != span]

    spans = {int(begun / SPAN_S) for loads in (one, other) for begun in loads.begun}
    left = [(without(one, span), without(other, span)) for span in sorted(spans)]
    ratios = [statistics.mean(top) / statistics.mean(bottom) for top, bottom in left if top and bottom]
    if len(ratios) < 3:
        return None
    return math.sqrt((len(ratios) - 1) * statistics.pvariance(ratios))


def record(run: Run, measured: dict[str, Loads]) -> None:
    """Record the figures, the table and the charts of all cases."""
    means = {case: statistics.mean(loads.seconds) for case, loads in measured.items() if loads.seconds}
    run.table = [["", "pages", "mean s", "median s", "paper s"]]
    for case, mean in means.items():
        seconds = measured[case].seconds
        run.figure(f"page_load_s_{case}", mean, unit="s", better="lower", paper=PAPER_S.get(case), runs=len(seconds))
        paper = f"{PAPER_S[case]:.1f}" if case in PAPER_S else ""
        run.table.append([case, str(len(seconds)), f"{mean:.2f}", f"{statistics.median(seconds):.2f}", paper])
    for case in ("wrr", "fastest"):
        if case in means and "lte" in means:
            paper_reduction = 0.13 if case == "wrr" else None
            run.figure(
                f"reduction_vs_lte_{case}", 1 - means[case] / means["lte"], better="higher", paper=paper_reduction
            )
    if "wrr" in means and "wrr_true" in means:
        run.figure("measured_vs_true", means["wrr"] / means["wrr_true"], better="lower")
        error = ratio_error(measured["wrr"], measured["wrr_true"])
        if error is not None:
            run.figure("measured_vs_true_error", error, better="none")
    for case, loads in measured.items():
        if loads.opened:
            run.figure(f"flows_into_gaps_{case}", loads.into_gaps / loads.opened, better="lower", runs=loads.opened)
    run.series("pages", [{"case": case, "s": each} for case, loads in measured.items() for each in loads.seconds])
    with run.plot("page_load_cdf") as plot:
        axes = plot.subplots()
        for place, (case, loads) in enumerate(measured.items()):
            ordered = sorted(loads.seconds)
            shares = [(number + 1) / len(ordered) for number in range(len(ordered))]
            axes.step(ordered, shares, where="post", label=case, color=list(COLOURS.values())[place])
        axes.set_xlabel("page load time, s")
        axes.set_ylabel("share of pages")
        axes.legend()
    with run.plot("page_load_means") as plot:
        axes = plot.subplots()
        axes.bar(list(means), list(means.values()), width=0.6)
        axes.set_ylabel("mean page load time, s")
