"""Accuracy of `braid emulate`, and the load that it carries on this machine.

A train of UDP packets crosses one link between two namespaces; its rate, delays and losses on arrival are compared
with the settings. Rates are those of Ethernet frames. Then the ceiling: TCP through a link without limits, and the
emulator's own processor time while it carries two links of 100 Mbit/s both ways and one of 300.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from braid_lab.experiment import Run, experiment
from braid_lab.fixtures import run_client
from braid_lab.net import scratch
from braid_lab.net.links import Emulated, End, LinkSpec, emulated
from braid_lab.net.namespace import Namespace, namespace
from braid_lab.plots import COLOURS
from braid_lab.process import Process, processor_seconds
from braid_lab.servers import catalog

#: UDP payload that makes full frames of 1514 bytes.
FULL = 1472
FRAME_BITS = 8 * 1514
SMALL = 100


@dataclass(frozen=True)
class Extent:
    """Seconds per measurement, packets of a loss measurement, repetitions, and the emulator's settings."""

    seconds: float
    losses: int
    runs: int
    rates_mbit: tuple[int, ...] = (1, 10, 30, 100, 200, 300)
    delays_ms: tuple[int, ...] = (5, 15, 40, 100, 300)
    loss_shares: tuple[float, ...] = (0.001, 0.01, 0.05, 0.2)


FULL_EXTENT = Extent(seconds=4.0, losses=100_000, runs=3)
QUICK = Extent(seconds=1.0, losses=40_000, runs=1)
SMOKE = Extent(seconds=0.2, losses=2_000, runs=1, rates_mbit=(10,), delays_ms=(15,), loss_shares=(0.2,))


@dataclass(frozen=True)
class Pair:
    """Two namespaces to be joined by links."""

    near: Namespace
    far: Namespace

    @contextlib.contextmanager
    def linked(self, line: LinkSpec, number: int = 0) -> Iterator[Emulated]:
        """Join them by an emulated link with the addresses 10.N.0.1 and 10.N.0.2."""
        near, far = End(self.near, f"near{number}"), End(self.far, f"far{number}")
        with emulated(near, far, line, scratch=scratch.directory()) as link:
            self.near.ip(f"address add 10.{number}.0.1/24 dev {near.device}")
            self.far.ip(f"address add 10.{number}.0.2/24 dev {far.device}")
            # The first packet of a train must not wait for address resolution.
            self.near.run(["ping", "-c", "1", "-W", "5", f"10.{number}.0.2"], check=False)
            yield link

    def train(self, *, count: int, size: int, per_second: float, full: bool = False) -> dict[str, Any]:
        """Send a train over the first link and return its results; `full` as in `trains`."""
        return trains([(self.near, self.far, "10.0.0.2")], count=count, size=size, per_second=per_second, full=full)[
            0
        ]


def trains(
    ways: Sequence[tuple[Namespace, Namespace, str]], *, count: int, size: int, per_second: float, full: bool = False
) -> list[dict[str, Any]]:
    """Send trains at once over several routes, each from, to and to which address; return their results.

    `full` keeps the links full even if the senders themselves are delayed for a moment.
    """
    probe = [sys.executable, "-m", "braid_lab.clients.packet_train"]
    with contextlib.ExitStack() as stack:
        receivers, senders = [], []
        for at, (_, place, address) in enumerate(ways):
            log = scratch.directory() / f"receive-{at}"
            argv = [*probe, "receive", address]
            receivers.append(stack.enter_context(Process(argv, log=log, namespace=place.name)))
        for receiver in receivers:
            receiver.wait_output("^ready$")
        for at, (place, _, address) in enumerate(ways):
            log = scratch.directory() / f"send-{at}"
            argv = [*probe, "send", address, str(count), str(size), str(per_second), "1" if full else "0.001"]
            senders.append(stack.enter_context(Process(argv, log=log, namespace=place.name)))
        for sender in senders:
            sender.wait()
        return [json.loads(receiver.wait().stdout.partition("\n")[2]) for receiver in receivers]


@experiment("emulate/accuracy", "Accuracy of the link emulator")
def accuracy(run: Run) -> None:
    """Measure rate, delay, jitter, loss, and the ceiling."""
    extent = run.of_form(full=FULL_EXTENT, quick=QUICK, smoke=SMOKE)
    rows: list[dict[str, Any]] = []
    # One more each for delay at speed, bursts and the ceiling; two each for jitter and the processor.
    run.display.expect(len(extent.rates_mbit) + len(extent.delays_ms) + len(extent.loss_shares) + 7)
    with namespace("near") as near, namespace("far") as far:
        pair = Pair(near, far)
        for part in (_rates, _delays, _losses, _jitter):
            with run.part(part.__name__.lstrip("_")):
                part(run, pair, extent, rows)
        for load in (_ceiling, _processor):
            with run.part(load.__name__.lstrip("_")):
                load(run, pair, extent)
    run.series("trains", rows)
    _plot(run, rows)
    run.notes.append(
        "Errors of rates and delays include the probe's own: a Python sender and the kernel's stamps on one machine. "
        "cpu_share is the emulator's processor time as a share of the whole machine, in both directions together."
    )


def _row(kind: str, asked: float, got: float, found: dict[str, Any]) -> dict[str, Any]:
    delay = found.get("delay_ms", {})
    return {"kind": kind, "asked": asked, "got": got, "received": found["received"], **delay}


def _rates(run: Run, pair: Pair, extent: Extent, rows: list[dict[str, Any]]) -> None:
    """Send a third more than the rate: the link limits the rate of arrival."""
    for mbit in extent.rates_mbit:
        errors = []
        with run.step(f"rate {mbit} Mbit/s"), pair.linked(LinkSpec(rate=f"{mbit}Mbit/s", queue="50ms")):
            for _ in range(extent.runs):
                per_second = 1.33e6 * mbit / FRAME_BITS
                found = pair.train(
                    count=round(per_second * extent.seconds), size=FULL, per_second=per_second, full=True
                )
                errors.append(abs(found["mbit"] / mbit - 1))
                rows.append(_row("rate", mbit, found["mbit"], found))
        run.measure(f"rate_error_{mbit}mbit", errors, better="lower")


def _delays(run: Run, pair: Pair, extent: Extent, rows: list[dict[str, Any]]) -> None:
    """Delay of a sparse train, then of one that uses three quarters of 200 Mbit/s."""
    for delay in extent.delays_ms:
        with run.step(f"delay {delay} ms"), pair.linked(LinkSpec(delay=f"{delay}ms", queue=None)):
            errors = []
            for _ in range(extent.runs):
                found = pair.train(count=round(200 * extent.seconds), size=SMALL, per_second=200)
                errors.append(abs(found["delay_ms"]["median"] - delay))
                rows.append(_row("delay", delay, found["delay_ms"]["median"], found))
        run.measure(f"delay_error_ms_{delay}ms", errors, unit="ms", better="lower")
    with run.step("delay at 200 Mbit/s"), pair.linked(LinkSpec(rate="200Mbit/s", delay="15ms", queue="100ms")):
        per_second = 150e6 / FRAME_BITS
        errors, tails = [], []
        for _ in range(extent.runs):
            found = pair.train(count=round(per_second * extent.seconds), size=FULL, per_second=per_second)
            # The requested delay includes a frame's transmission time.
            asked = 15 + FRAME_BITS / 200e3
            errors.append(abs(found["delay_ms"]["median"] - asked))
            tails.append(found["delay_ms"]["p99"] - asked)
            rows.append(_row("delay at 200 Mbit/s", asked, found["delay_ms"]["median"], found))
    run.measure("delay_error_ms_200mbit", errors, unit="ms", better="lower")
    run.measure("delay_error_p99_ms_200mbit", tails, unit="ms", better="lower")


def _losses(run: Run, pair: Pair, extent: Extent, rows: list[dict[str, Any]]) -> None:
    """Random loss over many small packets, then loss in bursts (Gilbert-Elliott)."""
    per_second = 30_000.0

    def lost(line: LinkSpec) -> tuple[float, dict[str, Any]]:
        with pair.linked(line):
            found = pair.train(count=extent.losses, size=SMALL, per_second=per_second)
        return 1 - found["received"] / extent.losses, found

    for loss in extent.loss_shares:
        errors = []
        with run.step(f"loss {100 * loss:g} %"):
            for turn in range(extent.runs):
                share, found = lost(LinkSpec(loss=f"{100 * loss:g}%", queue=None, seed=run.seed + turn))
                errors.append(abs(share - loss))
                rows.append(_row("loss", loss, share, found))
        run.measure(f"loss_error_{100 * loss:g}percent", errors, better="lower")
    enter, leave = 0.005, 0.25
    with run.step("loss in bursts"):
        share, found = lost(LinkSpec(extra=("--loss-burst", f"{enter},{leave}"), queue=None, seed=run.seed))
    asked = enter / (enter + leave)
    rows.append(_row("burst loss", asked, share, found))
    run.figure("loss_error_bursts", abs(share - asked), better="lower")
    run.figure("loss_burst_packets", found["missing"] / max(1, found["bursts"]), unit="packets")
    run.notes.append(f"Bursts were configured with p = {enter}, r = {leave}: 4 packets long on average.")


def _jitter(run: Run, pair: Pair, extent: Extent, rows: list[dict[str, Any]]) -> None:
    """Jitter must widen the delays and, unless asked, never change the order."""
    with run.step("jitter 5 ms"), pair.linked(LinkSpec(delay="20ms", jitter="5ms", queue=None, seed=run.seed)):
        found = pair.train(count=round(500 * extent.seconds), size=SMALL, per_second=500)
    rows.append(_row("jitter", 5, found["delay_ms"]["deviation"], found))
    run.figure("jitter_deviation_ms", found["delay_ms"]["deviation"], unit="ms")
    run.passes("jitter_in_order", found["reordered"] == 0)
    line = LinkSpec(delay="20ms", jitter="5ms", queue=None, seed=run.seed, extra=("--reorder",))
    with run.step("jitter with reordering"), pair.linked(line):
        found = pair.train(count=round(500 * extent.seconds), size=SMALL, per_second=500)
    rows.append(_row("jitter, reordering", 5, found["delay_ms"]["deviation"], found))
    run.passes("jitter_reorders_on_request", found["reordered"] > 0)


def _ceiling(run: Run, pair: Pair, extent: Extent) -> None:
    """TCP through an unlimited link: the emulator's own limit, with sender and receiver on the same cores."""
    with run.step("ceiling"), pair.linked(LinkSpec(queue=None)):
        log = scratch.directory() / "ceiling"
        address = "10.0.0.2"
        with Process(catalog.argv("http1", [address]), log=log, namespace=pair.far.name) as server:
            server.wait_output(catalog.READY)
            results = [
                run_client(pair.near, "bulk", 4, 1, extent.seconds, address)["mbit"] for _ in range(extent.runs)
            ]
    run.measure("ceiling_mbit", results, unit="Mbit/s", better="higher")


def _processor(run: Run, pair: Pair, extent: Extent) -> None:
    """The emulator's processor time under loads that it must carry with ease."""
    with run.step("two links of 100 Mbit/s, both ways"), contextlib.ExitStack() as stack:
        line = LinkSpec(rate="100Mbit/s", delay="10ms", queue="100ms")
        links = [stack.enter_context(pair.linked(line, number)) for number in range(2)]
        _burden(run, pair, extent, links, mbit=100.0, case="2x100")
    with (
        run.step("one link of 300 Mbit/s"),
        pair.linked(LinkSpec(rate="300Mbit/s", delay="10ms", queue="100ms")) as link,
    ):
        _burden(run, pair, extent, [link], mbit=300.0, case="300")


def _burden(run: Run, pair: Pair, extent: Extent, links: list[Emulated], *, mbit: float, case: str) -> None:
    """Fill links in both directions for a while; record what arrives and the emulator's processor time."""
    down = [(pair.near, pair.far, f"10.{number}.0.2") for number in range(len(links))]
    up = [(pair.far, pair.near, f"10.{number}.0.1") for number in range(len(links))]
    per_second = 1.1e6 * mbit / FRAME_BITS
    shares, rates = [], []
    for _ in range(extent.runs):
        before = [processor_seconds(link.process.pid) for link in links]
        count = round(per_second * 2 * extent.seconds)
        found = trains([*down, *up], count=count, size=FULL, per_second=per_second, full=True)
        used = sum(processor_seconds(link.process.pid) - start for link, start in zip(links, before, strict=True))
        # The time goes into the trains themselves, not into starting the programs.
        busy = 2 * extent.seconds * (os.cpu_count() or 1)
        shares.append(used / busy)
        rates.append(min(each["mbit"] for each in found) / mbit)
    run.measure(f"cpu_share_{case}", shares, better="lower")
    run.measure(f"rate_share_{case}", rates, better="higher")


def _plot(run: Run, rows: list[dict[str, Any]]) -> None:
    with run.plot("accuracy", width=9, height=3.2) as plot:
        for axes, (kind, unit) in zip(
            plot.subplots(1, 3), (("rate", "Mbit/s"), ("delay", "ms"), ("loss", "share")), strict=True
        ):
            mine = [row for row in rows if row["kind"] == kind]
            asked = sorted({row["asked"] for row in mine})
            axes.plot(asked, asked, color=COLOURS["asked"], linewidth=0.8, label="asked")
            got = [statistics.median(row["got"] for row in mine if row["asked"] == each) for each in asked]
            axes.plot(asked, got, "o", color=COLOURS["wrr"], markersize=4, label="measured")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_title(f"{kind}, {unit}", loc="left")
        axes.legend()
