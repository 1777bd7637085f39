"""One TCP flow over several paths of an OpenFlow network: [mpsdn] Table II, and more.

Real Open vSwitch, the real controller, and a real edge at both ends; the lines are emulated. Hosts are unmodified:
CUBIC, one iperf3 stream. Only the lines' capacities are configured; the controller determines paths, latencies and
shares.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from braid_lab.concurrency import run_concurrently
from braid_lab.experiment import Run, experiment
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.shapes import MININET_QUEUE, Shape, beside, east_asia, parallel
from braid_lab.fabric.tcp_transfer import GOODPUT_SHARE, Transfer, transfer


@dataclass(frozen=True)
class Case:
    """A pair of hosts, the paths that it should get, and the paper's measurement."""

    name: str
    source: str
    target: str
    mbit: tuple[float, ...]
    paper: float | None = None

    @property
    def most(self) -> float:
        """Highest goodput of its paths, Mbit/s."""
        return sum(self.mbit) * GOODPUT_SHARE


@dataclass(frozen=True)
class Extent:
    """Seconds of a transfer, seconds left out while the window opens, and repetitions."""

    seconds: int
    opening: int
    runs: int


FULL = Extent(60, 10, 3)
QUICK = Extent(20, 7, 1)
SMOKE = Extent(2, 1, 1)

#: [mpsdn] Table II: both pairs, whose paths share no link.
EAST_ASIA = (
    Case("bej_haw", "bej", "haw", (10, 10), 18.2),
    Case("tok_syd", "tok", "syd", (10, 20), 26.8),
)
BEYOND = (Case("four_paths", "ha", "hb", (10, 10, 10, 10)), Case("10_75_ms", "hua", "hub", (10, 10)))


@experiment("fabric/throughput", "One TCP flow over several paths of a fabric", paper="mpsdn Table II")
def throughput(run: Run) -> None:
    """Measure each case."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(2 * (1 + extent.runs))
    run.table.append(["case", "paths Mbit/s", "goodput Mbit/s", "share", "paper Mbit/s", "put aside"])
    # Only the pair's own edges, so that other pairs' plans do not interfere.
    shapes = (
        (east_asia(queue=MININET_QUEUE), EAST_ASIA),
        (beside(parallel([(10, 20)] * 4), parallel([(10, 10), (10, 75)], prefix="U")), BEYOND),
    )
    rows = []
    for shape, cases in run.of_form(full=shapes, quick=shapes, smoke=shapes[:1]):
        names = ", ".join(case.name for case in cases)
        with run.part(names), _network(run, shape, cases) as network:
            found: dict[str, list[Transfer]] = {case.name: [] for case in cases}
            for number in range(extent.runs):
                with run.step(f"{names}: {extent.seconds} s"):
                    for name, made in _together(network, cases, extent.seconds).items():
                        found[name].append(made)
                        rows += [
                            {"case": name, "run": number, "s": second, "mbit": mbit}
                            for second, mbit in enumerate(made.goodput)
                        ]
            for case in cases:
                _record(run, case, found[case.name], extent)
    run.series("course", rows)
    run.notes.append(
        "share: goodput after the window opened, of the theoretical one (1448 of 1518 bytes a frame). Pairs that "
        "share no link are measured at the same time; the paper measured one after the other. Table II's lines have "
        "queues of 1000 packets, Mininet's default; the others of 100 ms."
    )


@contextlib.contextmanager
def _network(run: Run, shape: Shape, cases: tuple[Case, ...]) -> Iterator[EdgedNetwork]:
    with contextlib.ExitStack() as stack:
        with run.step("network, controller, edges"):
            network = stack.enter_context(edged_network(shape))
            for case in cases:
                network.settle(case.source, case.target, len(case.mbit))
        yield network


def _together(network: EdgedNetwork, cases: tuple[Case, ...], seconds: int) -> dict[str, Transfer]:
    """Measure disjoint pairs at the same time."""
    stations, folder = network.net.stations, network.net.folder

    def one(case: Case) -> Transfer:
        return transfer(stations[case.source], stations[case.target], folder, seconds)

    made = run_concurrently([functools.partial(one, case) for case in cases])
    return {case.name: each for case, each in zip(cases, made, strict=True)}


def _record(run: Run, case: Case, found: list[Transfer], extent: Extent) -> None:
    mbit = run.measure(
        f"mbit_{case.name}", [each.mbit for each in found], unit="Mbit/s", better="higher", paper=case.paper
    )
    paper = case.paper / sum(case.mbit) if case.paper else None
    shares = [each.steady(extent.opening) / case.most for each in found]
    share = run.measure(f"share_{case.name}", shares, better="higher", paper=paper)
    aside = run.measure(
        f"put_aside_{case.name}", [each.out_of_order for each in found], unit="segments", better="lower"
    )
    run.table.append(
        [
            case.name,
            " + ".join(f"{each:g}" for each in case.mbit),
            f"{mbit:.1f}",
            f"{share:.3f}",
            f"{case.paper:g}" if case.paper else "-",
            f"{aside:.0f}",
        ]
    )
