"""A flow over two paths when one of them is congested, or cut: [mpsdn] Fig. 4, and a cut.

At T1 other hosts send ten times a link's rate into it; some seconds later they stop. In the paper the flow falls to
nothing, and slowly returns to what one path carries. Then the same with the line cut, without a sign at any port.
Packets are split by weighted round robin, as in the paper, and at the same time in a network of its own by earliest
arrival, the controller's default.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from braid_lab.experiment import Run, experiment
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.shapes import Shape, Station, Wire
from braid_lab.fabric.tcp_transfer import GOODPUT_SHARE, Transfer, nstat, transfer
from braid_lab.process import LabError, Process, wait_until

MBIT, DELAY_MS = 10.0, 20.0
#: Goodput of a single path, Mbit/s.
SINGLE = MBIT * GOODPUT_SHARE
#: Bytes after which the congested link's queue is full: 100 ms.
FILLED = round(MBIT * 1e6 / 8 * 0.1)
#: The kernel's counter of sent bytes.
OCTETS = "IpExtOutOctets"
#: Suffixes of figures, by scheduler.
SCHEDULERS = {"wrr": "", "earliest-arrival": "_earliest_arrival"}
#: Seconds at the end of a fault, in which goodput is that of the remaining path. [mpsdn] §IV-A4: "the throughput
#: slowly grows to the new one-path capacity of 10 Mbit/s".
SETTLED = 2.0
#: Resolution of the goodput, s: the smallest that iperf3 has.
STEP = 0.1


@dataclass(frozen=True)
class Extent:
    """Seconds before, during and after the fault; and repetitions."""

    before: int
    trouble: int
    after: int
    runs: int

    @property
    def seconds(self) -> int:
        """The sum."""
        return self.before + self.trouble + self.after


FULL = Extent(10, 15, 25, 3)
QUICK = Extent(7, 6, 15, 1)
SMOKE = Extent(2, 2, 2, 1)


def shape() -> Shape:
    """Return two paths, and two hosts without an edge that send over the second half of one of them."""
    half = DELAY_MS / 2
    wires = tuple(Wire(*ends, MBIT, half) for ends in (("A", "P"), ("P", "B"), ("A", "Q"), ("Q", "B")))
    stations = (Station("ha", "A", edge=True), Station("hb", "B", edge=True), Station("x", "P"), Station("y", "B"))
    return Shape(("A", "B", "P", "Q"), wires, stations)


@experiment("fabric/congestion", "A flow over two paths when one is congested or cut", paper="mpsdn Fig. 4")
def congestion(run: Run) -> None:
    """Measure both faults."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(1 + 2 * len(SCHEDULERS) * extent.runs)
    run.table.append(
        [
            "fault",
            "scheduler",
            "left after s",
            "below half of one path s",
            "longest silence ms",
            "back on two paths s",
        ]
    )
    rows: list[dict[str, float | str | int]] = []
    with contextlib.ExitStack() as stack:
        with run.step("networks, controllers, edges"):
            networks = {
                scheduler: stack.enter_context(edged_network(shape(), limits=f'scheduler = "{scheduler}"'))
                for scheduler in SCHEDULERS
            }
        for name, trouble in (("congestion", _filled), ("cut", _cut)):
            passages: dict[str, list[Passage]] = {scheduler: [] for scheduler in SCHEDULERS}
            for number in range(extent.runs):
                # One after the other: two floods at once take both processors of a small machine.
                for scheduler, network in networks.items():
                    with (
                        run.part(f"{name}, {scheduler}, {number + 1} of {extent.runs}"),
                        run.step(f"{name}, {scheduler}: {extent.seconds} s"),
                    ):
                        network.settle("ha", "hb", 2)
                        passage = _through(network, extent, trouble)
                        passages[scheduler].append(passage)
                        rows += [
                            {
                                "trouble": name,
                                "scheduler": scheduler,
                                "run": number,
                                "s": round(STEP * index, 1),
                                "mbit": mbit,
                            }
                            for index, mbit in enumerate(passage.made.goodput)
                        ]
            for scheduler, found in passages.items():
                if found:
                    _report(run, name, scheduler, found, extent.trouble)
    run.series("course", rows)
    run.notes.append(
        f"Sampled every {1000 * STEP:.0f} ms, the resolution of outages. The link is filled with "
        f"{10 * MBIT:g} Mbit/s of UDP, ten times what it carries; the paper's 1 Gbit/s would measure this machine. "
        "Back on two paths: from the fault's end to the edge's new table."
    )


def _report(run: Run, fault: str, scheduler: str, passages: Sequence[Passage], trouble: float) -> None:
    """Report the passages through a fault."""
    suffix = fault + SCHEDULERS[scheduler]
    courses = [
        each.made.goodput[round(each.began / STEP) : round((each.began + trouble) / STEP)] for each in passages
    ]
    below = [STEP * sum(mbit < SINGLE / 2 for mbit in course) for course in courses]
    silent = [1000 * STEP * _longest(mbit == 0 for mbit in course) for course in courses]
    half = run.measure(f"seconds_below_half_of_remaining_path_{suffix}", below, unit="s", better="lower")
    gap = run.measure(f"outage_ms_{suffix}", silent, unit="ms", better="lower")
    left = run.measure(f"left_after_s_{suffix}", [each.left for each in passages], unit="s", better="lower")
    last = [statistics.fmean(course[-round(SETTLED / STEP) :]) for course in courses]
    run.measure(
        f"remaining_path_mbit_{suffix}",
        last,
        unit="Mbit/s",
        better="higher",
        paper=MBIT if suffix == "congestion" else None,
    )
    two = run.measure(f"back_on_two_paths_s_{suffix}", [each.back for each in passages], unit="s", better="lower")
    run.table.append([fault, scheduler, f"{left:.2f}", f"{half:.1f}", f"{gap:.0f}", f"{two:.1f}"])


def _longest(flags: Iterator[bool]) -> int:
    """Return the length of the longest run of true values."""
    return max((len(list(group)) for flag, group in itertools.groupby(flags) if flag), default=0)


Trouble = Callable[[EdgedNetwork], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Passage:
    """A transfer during a fault; seconds."""

    made: Transfer
    #: Start of the fault, by the transfer's clock.
    began: float
    #: Time until the edge used the good path alone.
    left: float
    #: Time from the fault's end until the edge used both paths again.
    back: float


def _through(network: EdgedNetwork, extent: Extent, trouble: Trouble) -> Passage:
    """Run a transfer, and inject a fault for a while."""
    stations = network.net.stations
    before = _sent(network)
    # Leaving the block waits for the transfer, also after a failure: the next one would find its server busy.
    with ThreadPoolExecutor(1) as pool:
        folder = network.net.folder
        made = pool.submit(transfer, stations["ha"], stations["hb"], folder, extent.seconds, interval=STEP)
        wait_until(lambda: _sent(network) > before + 20, what="the transfer to begin")
        start = time.monotonic()
        # Not a synchronisation: the passing of time is part of the measurement.
        time.sleep(extent.before)
        began = time.monotonic()
        with trouble(network):
            left = _left(network, extent.trouble)
            time.sleep(max(0.0, began + extent.trouble - time.monotonic()))
        ended = time.monotonic()
        wait_until(lambda: len(network.edges["ha"].paths_to("hb")) == 2, what="two paths", timeout=60)
        back = time.monotonic() - ended
        return Passage(made.result(), began - start, left, back)


def _left(network: EdgedNetwork, patience: float) -> float:
    """Wait until the edge uses one path alone; return how long that took, `patience` if it did not."""
    began = time.monotonic()
    with contextlib.suppress(LabError):
        wait_until(lambda: len(network.edges["ha"].paths_to("hb")) == 1, what="one path", timeout=patience)
        return time.monotonic() - began
    return patience


def _sent(network: EdgedNetwork) -> int:
    return sum(network.edges["ha"].sent_to("hb"))


@contextlib.contextmanager
def _filled(network: EdgedNetwork) -> Iterator[None]:
    """Let two hosts fill the link from P to B."""
    net = network.net
    source, target = net.stations["x"], net.stations["y"]
    server = Process(["iperf3", "-s", "-1"], log=net.folder / "filling-server", namespace=target.place.name)
    with server:
        wait_until(lambda: "5201" in target.place.run(["ss", "-ltn"]).stdout, what="iperf3 to listen")
        argv = [
            "iperf3",
            "-c",
            target.address,
            "-u",
            "-l",
            "1400",
            "-b",
            f"{10 * MBIT:g}M",
            "-t",
            "3600",
        ]
        before = nstat(source, OCTETS)[OCTETS]
        with Process(argv, log=net.folder / "filling", namespace=source.place.name):
            # iperf3's own report comes a second later.
            wait_until(
                lambda: nstat(source, OCTETS)[OCTETS] > before + FILLED,
                what="the link to be filled",
                poll=0.005,
                timeout=30,
            )
            yield


@contextlib.contextmanager
def _cut(network: EdgedNetwork) -> Iterator[None]:
    """Make the line from P to B a black hole."""
    line = network.net.lines["P", "B"]
    line.blackhole(True)
    try:
        yield
    finally:
        line.blackhole(False)
