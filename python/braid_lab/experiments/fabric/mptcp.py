"""One TCP flow over two paths of a fabric beside kernel MPTCP and each path alone: [mpsdn] Fig. 5.

Two paths of 10 Mbit/s, the first of 25 ms, the second of 25, 50 and 100 ms. For MPTCP the hosts have two addresses
and a line to each; for the fabric they have one, and the two paths are in the network. All are measured at the same
time, each over lines of its own, by the same program: the bytes that the receiving application got in 30 s from its
connect() on.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from braid_lab.concurrency import run_concurrently
from braid_lab.experiment import Better, Run, experiment
from braid_lab.fabric.edges import edged_network
from braid_lab.fabric.multihomed import MultihomedPair, multihomed_pair, received_mbit, stream_server
from braid_lab.fabric.shapes import MININET_QUEUE, Wire, parallel
from braid_lab.fabric.tcp_transfer import GOODPUT_SHARE
from braid_lab.net import scratch
from braid_lab.net.links import Emulated
from braid_lab.process import LabError

MBIT, FIRST_MS = 10.0, 25.0
SECOND_MS = (25.0, 50.0, 100.0)

#: With less than this share of the second line's rate, MPTCP had no second subflow.
USED = 0.1

#: Whatever addresses a host has.
EVERYWHERE = "0.0.0.0"  # noqa: S104

KINDS = ("fabric", "mptcp", "first_path", "second_path")


@dataclass(frozen=True)
class Extent:
    """Transfers per delay, their seconds, and delays of the second path, ms."""

    runs: int
    seconds: int
    second_ms: tuple[float, ...] = SECOND_MS


#: [mpsdn] §IV-A5: "a 30 seconds transmission"; Fig. 5: "10 runs".
FULL = Extent(10, 30)
QUICK = Extent(2, 10)
SMOKE = Extent(2, 2, SECOND_MS[:1])


@experiment("fabric/mptcp", "One TCP flow over a fabric's paths beside kernel MPTCP", paper="mpsdn Fig. 5")
def mptcp(run: Run) -> None:
    """Measure each delay."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(len(extent.second_ms) * (1 + extent.runs))
    run.table.append(["second path ms", *(f"{kind.replace('_', ' ')} Mbit/s" for kind in KINDS), "fabric / MPTCP"])
    rows, worst = [], []
    for delay in extent.second_ms:
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        with run.part(f"{FIRST_MS:g} and {delay:g} ms"), contextlib.ExitStack() as stack:
            with run.step(f"{FIRST_MS:g} and {delay:g} ms: networks"):
                measure = stack.enter_context(_beside_one_another(delay, extent.seconds))
            for number in range(extent.runs):
                with run.step(f"{FIRST_MS:g} and {delay:g} ms: transfer {number + 1} of {extent.runs}"):
                    for kind, mbit in measure().items():
                        found[kind].append(mbit)
                        rows.append({"second_ms": delay, "run": number, "kind": kind, "mbit": round(mbit, 3)})
            worst.append(_record(run, delay, found))
    if worst:
        run.figure("worst_vs_mptcp", min(worst), better="higher", runs=extent.runs, spread=(min(worst), max(worst)))
    run.series("runs", rows)
    run.notes.append(
        f"Means of {extent.runs} transfers of {extent.seconds} s, their first second included; ± is the standard "
        f"deviation. Queues of {MININET_QUEUE}, Mininet's default. Both paths carry at most "
        f"{2 * MBIT * GOODPUT_SHARE:.1f} Mbit/s for an application. The paper shows only a chart, no numbers."
    )


def _record(run: Run, delay: float, found: dict[str, list[float]]) -> float:
    """Record a delay's figures; return the fabric's goodput over MPTCP's."""
    means = {kind: statistics.fmean(each) for kind, each in found.items()}
    deviations = {kind: statistics.stdev(each) for kind, each in found.items()}
    for kind, each in found.items():
        better: Better = "higher" if kind == "fabric" else "none"
        spread, name = (min(each), max(each)), f"{kind}_{delay:g}_ms"
        run.figure(f"mbit_{name}", means[kind], unit="Mbit/s", better=better, runs=len(each), spread=spread)
        run.figure(f"deviation_{name}", deviations[kind], unit="Mbit/s", runs=len(each))
    ratio = means["fabric"] / means["mptcp"]
    run.figure(f"vs_mptcp_{delay:g}_ms", ratio, better="higher", runs=len(found["fabric"]))
    run.table.append(
        [f"{delay:g}", *(f"{means[kind]:.1f} ± {deviations[kind]:.1f}" for kind in KINDS), f"{ratio:.2f}"]
    )
    return ratio


@contextlib.contextmanager
def _beside_one_another(delay: float, seconds: float) -> Iterator[Callable[[], dict[str, float]]]:
    """Build all networks; yield a function that measures one transfer over each."""
    wires = [Wire("source", "target", MBIT, each, MININET_QUEUE) for each in (FIRST_MS, delay)]
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        folder = scratch.directory() / f"mptcp-{delay:g}"
        folder.mkdir(parents=True)
        network = enter(edged_network(parallel([(MBIT, FIRST_MS), (MBIT, delay)], queue=MININET_QUEUE)))
        network.settle("ha", "hb", 2)
        station, other = network.net.stations["ha"], network.net.stations["hb"]
        enter(stream_server(station.place, station.address, folder / "fabric"))
        multi, single = (
            enter(multihomed_pair(wires, folder, mptcp=True)),
            enter(multihomed_pair(wires, folder, mptcp=False)),
        )
        # Data goes from the target to the source: the connecting host learns the further addresses, and joins there.
        enter(stream_server(multi.target, EVERYWHERE, folder / "mptcp"))
        for line in range(len(wires)):
            enter(stream_server(single.target, single.address(line, target=True), folder / f"single{line}"))
        work = {
            "fabric": functools.partial(received_mbit, other.place, station.address, seconds),
            "mptcp": functools.partial(_by_both, multi, seconds),
        } | {
            kind: functools.partial(received_mbit, single.source, single.address(line, target=True), seconds)
            for line, kind in enumerate(KINDS[2:])
        }
        yield lambda: dict(zip(work, run_concurrently(list(work.values())), strict=True))


def _by_both(multi: MultihomedPair, seconds: float) -> float:
    """Receive a stream over MPTCP; LabError if one of the lines was hardly used, which is no comparison."""
    before = [_carried(line) for line in multi.lines]
    mbit = received_mbit(multi.source, multi.address(0, target=True), seconds, "--mptcp")
    for number, (line, bytes_before) in enumerate(zip(multi.lines, before, strict=True)):
        if 8e-6 * (_carried(line) - bytes_before) / seconds < USED * MBIT:
            raise LabError(f"MPTCP did not use line {number}")
    return mbit


def _carried(line: Emulated) -> int:
    """Return the bytes that a line has delivered from target to source."""
    count: int = line.request({"stats": {}})["stats"]["down"]["packets"]["delivered"]["bytes"]
    return count
