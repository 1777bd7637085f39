"""A split flow beside the same flow over its best path alone, which it should never be worse than.

Each case has two networks side by side, at the same time: one with the case's paths, and one with the best of them
alone. Each has an Open vSwitch of its own, whose one thread forwards all that passes its switches: a common one
divides its time between both, and at 100 Mbit/s that is what is measured. Hosts are unmodified, CUBIC, one iperf3
stream each, a QUIC stream of quinn's, or a fetch of a small file. [mpsdn] §V-3 names the weakness: a flow over
several paths is as fragile as the worst of them.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from braid_lab.concurrency import run_concurrently
from braid_lab.experiment import Run, experiment
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.file_servers import files
from braid_lab.fabric.quic_transfer import quic_transfer
from braid_lab.fabric.shapes import Shape, Station, parallel
from braid_lab.fabric.tcp_transfer import Transfer, transfer
from braid_lab.process import Process, wait_until

#: Seconds left out while windows open.
OPENING = 2
#: Seconds of the window in which the split is at its worst.
WINDOW = 2
#: Connections of others over one of the paths.
OTHERS = 4
#: Seconds for which others may send before the controller has planned with their load.
MAX_REPLAN_TIME = 20
#: Seconds within which lines of unknown capacity are measured, and the fastest, Mbit/s, that can be.
MAX_MEASURING_TIME = 30
MEASURABLE_MBIT = 30
#: Bytes of a short flow.
SHORT_BYTES = 100_000


@dataclass(frozen=True)
class Case:
    """Paths as Mbit/s and ms one way, and what is wrong with the last of them."""

    name: str
    paths: tuple[tuple[float, float], ...]
    #: Random loss on the last path, as for `braid emulate`.
    loss: str = ""
    #: True if others' connections share the last path.
    others: bool = False
    #: True if they are there already, and the controller has planned with their load.
    others_first: bool = False
    #: True if the controller knows the lines' rates.
    configured: bool = True
    #: Sends from one station to another.
    send: Callable[..., Transfer] = transfer

    @property
    def best(self) -> tuple[float, float]:
        """The path that is used alone beside it: the widest healthy one, of equal ones the quickest."""
        paths = self.paths[:-1] if self.loss or self.others else self.paths
        return max(paths, key=lambda path: (path[0], -path[1]))

    def shape(self) -> Shape:
        """Return the network with all paths."""
        one = parallel(self.paths)
        last = f"P{len(self.paths)}"
        wires = tuple(replace(wire, loss=self.loss) if wire.one == last else wire for wire in one.wires)
        others = (Station("x", last), Station("y", "B")) if self.others else ()
        return replace(one, wires=wires, stations=(*one.stations, *others))


CASES = (
    Case("healthy", ((10, 20), (10, 20))),
    Case("loss", ((10, 20), (10, 20)), loss="0.5%"),
    Case("others", ((10, 20), (10, 20)), others=True),
    Case("others_there", ((10, 20), (10, 20)), others=True, others_first=True),
    Case("unknown_capacity", ((10, 20), (50, 20)), configured=False),
    Case("wide", ((100, 10), (100, 20))),
    Case("skew", ((10, 10), (10, 75))),
    Case("healthy_quic", ((10, 20), (10, 20)), send=quic_transfer),
    Case("loss_quic", ((10, 20), (10, 20)), loss="0.5%", send=quic_transfer),
    Case("others_quic", ((10, 20), (10, 20)), others=True, send=quic_transfer),
    Case("skew_quic", ((10, 10), (10, 75)), send=quic_transfer),
)


SHORT_CASES = (
    Case("short_rates", ((2, 20), (5, 20), (10, 20))),
    Case("short_skew", ((10, 75), (10, 10))),
)

NAMES = [case.name for case in (*CASES, *SHORT_CASES)]
#: One of each kind: with stations of others, and short.
SMOKE_NAMES = ["others", "short_skew"]


@dataclass(frozen=True)
class Networks:
    """The network with the case's paths, and the one with the best of them alone."""

    split: EdgedNetwork
    alone: EdgedNetwork


@experiment("fabric/floor", "A split flow beside its best path alone", paper="mpsdn §V-3", cases=NAMES)
def floor(run: Run) -> None:
    """Measure each case."""
    seconds = run.of_form(full=60, quick=30, smoke=4)
    runs = run.of_form(full=3, quick=1, smoke=1)
    names = run.cases(run.of_form(full=NAMES, quick=NAMES, smoke=SMOKE_NAMES))
    run.display.expect(len(names) * (1 + runs))
    run.table.append(["case", "split Mbit/s", "best path alone", "ratio", "second half", "worst 2 s"])
    rows: list[dict[str, float | str | int]] = []
    for case in (case for case in SHORT_CASES if case.name in names):
        with run.part(case.name):
            _short(run, case, run.of_form(full=100, quick=30, smoke=3))
    for case in (case for case in CASES if case.name in names):
        with run.part(case.name), contextlib.ExitStack() as stack:
            with run.step(f"{case.name}: networks, controller, edges"):
                networks = _networks(stack, case)
            pairs = []
            for number in range(runs):
                with run.step(f"{case.name}: {seconds} s"):
                    pairs.append(_together(networks, case, seconds))
                rows += [
                    {"case": case.name, "run": number, "s": second, "split": a, "alone": b}
                    for second, (a, b) in enumerate(zip(pairs[-1][0].goodput, pairs[-1][1].goodput, strict=False))
                ]
            _record(run, case, pairs)
    run.series("course", rows)
    run.notes.append(
        "Ratios of goodput, split by best path alone, both at the same time: over the whole transfer, its second "
        f"half, and the worst {WINDOW} s after the first {OPENING}. Of short flows, {SHORT_BYTES // 1000} kB each: "
        "median of the times from the first SYN to the last byte, ms, in turns, and the ratio of times."
    )


def _networks(stack: contextlib.ExitStack, case: Case) -> Networks:
    """Build both networks; returns once their controllers know of them what they can."""
    alone = stack.enter_context(edged_network(parallel([case.best]), capacities=case.configured))
    split = stack.enter_context(edged_network(case.shape(), capacities=case.configured))
    alone.settle("ha", "hb", 1)
    split.settle("ha", "hb", len(case.paths))
    if not case.configured:
        wait_until(lambda: _is_measured(split), what="trains of probes", timeout=MAX_MEASURING_TIME)
    return Networks(split, alone)


def _short(run: Run, case: Case, number: int) -> None:
    """Fetch a small file over the split and over the best path, in turns."""
    with contextlib.ExitStack() as stack:
        with run.step(f"{case.name}: networks, controller, edges"):
            networks = _networks(stack, case)
            fetches = []
            for each in (networks.split.net, networks.alone.net):
                place = each.folder / "files-of-hb"
                place.mkdir()
                served = stack.enter_context(files(each.stations["hb"], place, SHORT_BYTES))
                fetches.append(functools.partial(served.fetch_time, each.stations["ha"]))
        with run.step(f"{case.name}: {number} times"):
            times = [(fetches[0](), fetches[1]()) for _ in range(number)]
    split, alone = (1000 * statistics.median(each) for each in zip(*times, strict=True))
    ratio = run.measure(f"{case.name}_time_ratio", [split / alone], better="lower")
    run.table.append([case.name, f"{split:.0f} ms", f"{alone:.0f} ms", f"{ratio:.2f}", "-", "-"])


def _together(networks: Networks, case: Case, seconds: int) -> tuple[Transfer, Transfer]:
    work = [
        functools.partial(case.send, each.stations["ha"], each.stations["hb"], each.folder, seconds)
        for each in (networks.split.net, networks.alone.net)
    ]
    with contextlib.ExitStack() as stack:
        if case.others:
            stack.enter_context(_others(networks.split, case, seconds))
        split, alone = run_concurrently(work)
    return split, alone


@contextlib.contextmanager
def _others(network: EdgedNetwork, case: Case, seconds: int) -> Iterator[None]:
    """Have others send over the last path, until the end of the block at the latest."""
    stations, folder = network.net.stations, network.net.folder
    log = folder / "others"
    length = str(seconds + (MAX_REPLAN_TIME if case.others_first else 0))
    server = ["iperf3", "-s", "-1"]
    client = ["iperf3", "-c", stations["y"].address, "-t", length, "-P", str(OTHERS)]
    with Process(server, log=log.with_suffix(".server"), namespace=stations["y"].place.name):
        wait_until(lambda: "5201" in stations["y"].place.run(["ss", "-ltn"]).stdout, what="iperf3 to listen")
        with Process(client, log=log.with_suffix(".client"), namespace=stations["x"].place.name):
            if case.others_first:
                wait_until(
                    lambda: _is_replanned(network, case), what="a plan with others' load", timeout=MAX_REPLAN_TIME
                )
            yield


def _is_measured(network: EdgedNetwork) -> bool:
    """Return true once the controller has measured a line, while nobody uses it."""
    pair = network.pair("ha", "hb")
    return pair is not None and min(path["capacity_bit_s"] for path in pair["paths"]) < 1e6 * MEASURABLE_MBIT


def _is_replanned(network: EdgedNetwork, case: Case) -> bool:
    """Return true once the controller counts on less than half of the path that others use."""
    pair = network.pair("ha", "hb")
    half = 1e6 * case.paths[-1][0] / 2
    return pair is not None and sum(path["capacity_bit_s"] > half for path in pair["paths"]) < len(case.paths)


def _ratio(split: list[float], alone: list[float]) -> float:
    return statistics.fmean(split) / max(statistics.fmean(alone), 1e-9)


def _worst(split: list[float], alone: list[float]) -> float:
    starts = range(OPENING, max(OPENING + 1, min(len(split), len(alone)) - WINDOW + 1))
    return min(_ratio(split[at : at + WINDOW], alone[at : at + WINDOW]) for at in starts)


def _record(run: Run, case: Case, pairs: list[tuple[Transfer, Transfer]]) -> None:
    whole = [_ratio(split.goodput, alone.goodput) for split, alone in pairs]
    half = [
        _ratio(split.goodput[len(split.goodput) // 2 :], alone.goodput[len(alone.goodput) // 2 :])
        for split, alone in pairs
    ]
    worst = [_worst(split.goodput, alone.goodput) for split, alone in pairs]
    values = (
        statistics.fmean(split.mbit for split, _ in pairs),
        statistics.fmean(alone.mbit for _, alone in pairs),
        run.measure(f"vs_best_path_{case.name}", whole, better="higher"),
        run.measure(f"vs_best_path_second_half_{case.name}", half, better="higher"),
        run.measure(f"vs_best_path_worst_2_s_{case.name}", worst, better="higher"),
    )
    run.table.append(
        [case.name, *(f"{value:.1f}" for value in values[:2]), *(f"{value:.2f}" for value in values[2:])]
    )
