"""Capacity as Braid measures it from its own traffic, compared with the emulator's settings.

`measure/capacity`: four transfers fill one line of a fixed rate, with a short and a long queue, with and without
random loss, in each direction. From two seconds after the first saturated one, each answer of `braid uplinks` counts.
Nothing is sent for the measurement. `measure/tracking`: the rate walks, once a second; each second's estimate is
compared with the rate of the next, and so is the last second's true rate.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.measure.walks import campus, cellular
from braid_lab.fixtures import serve
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology, Uplink, UplinkSpec, network
from braid_lab.plots import COLOURS
from braid_lab.process import LabError, Process
from braid_lab.product import Braid, braid

#: The emulator counts Ethernet frames, Braid IP packets.
IP_SHARE = 1500 / 1514

#: Parallel transfers: as many as fill the line between them whatever one loses.
TRANSFERS = 4

DELAY = "20ms"

#: Interval between two looks, s.
LOOK_SECONDS = 0.25

#: An estimate counts from this time after the first one, s.
SETTLED_SECONDS = 2.0


@dataclass(frozen=True)
class Case:
    """A line and the direction that is filled."""

    mbit: float
    queue_ms: int
    loss: float
    down: bool

    def __str__(self) -> str:
        direction = "down" if self.down else "up"
        return f"{self.mbit:g} Mbit/s {direction}, queue {self.queue_ms} ms, loss {self.loss:.0%}"


@dataclass(frozen=True)
class Extent:
    """The cases, and seconds of each and of a walk."""

    rates: tuple[float, ...]
    queues_ms: tuple[int, ...]
    losses: tuple[float, ...]
    seconds: float
    walk_seconds: int

    def cases(self) -> list[Case]:
        """Return every combination."""
        return [
            Case(rate, queue, loss, down)
            for rate in self.rates
            for queue in self.queues_ms
            for loss in self.losses
            for down in (True, False)
        ]


FULL = Extent((1, 5, 20, 50, 100), (20, 300), (0, 0.01), seconds=12.0, walk_seconds=400)
QUICK = Extent((5, 20, 50), (20, 300), (0,), seconds=6.0, walk_seconds=40)
SMOKE = Extent((20,), (300,), (0,), seconds=4.0, walk_seconds=5)


@dataclass(frozen=True)
class Look:
    """An estimate at a time: Mbit/s, and whether a queue stood."""

    at: float
    mbit: float
    saturated: bool
    age_s: float


def _look(daemon: Braid, name: str, *, down: bool, start: float) -> Look | None:
    uplinks: list[dict[str, Any]] = daemon.json("uplinks")["uplinks"]
    uplink = next(each for each in uplinks if each["name"] == name)
    found = uplink.get("rx_capacity" if down else "tx_capacity")
    if found is None:
        return None
    age = found["age_ms"] / 1e3
    return Look(time.monotonic() - start, found["rate_bit_s"] / 1e6, found["basis"] == "saturated", age)


def _transfer(net: Topology, seconds: float, *, down: bool) -> Process:
    words = ["iperf3", "--client", net.server(), "--time", f"{seconds:.0f}", "--parallel", str(TRANSFERS)]
    return Process([*words, *(["--reverse"] if down else [])], log=net.scratch / "transfer", namespace=net.host.name)


def _looks(net: Topology, seconds: float, *, down: bool) -> Iterator[Look]:
    """Fill the line for a while and look at the estimate."""
    (name,) = net.uplinks
    with braid(net.host, net.scratch / "braid") as daemon, _transfer(net, seconds, down=down):
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            time.sleep(LOOK_SECONDS)
            look = _look(daemon, name, down=down, start=start)
            if look:
                yield look


@experiment("measure/capacity", "Capacity measured from a line's own traffic")
def capacity(run: Run) -> None:
    """Measure every case."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(len(extent.cases()))
    errors: list[float] = []
    firsts: list[float] = []
    rows: list[dict[str, object]] = []
    run.table = [["", "error, median", "95th percentile", "first known after s"]]
    for case in extent.cases():
        with run.part(str(case)), run.step(str(case)):
            line = LinkSpec(
                rate=f"{case.mbit:g}Mbit/s", delay=DELAY, queue=f"{case.queue_ms}ms", loss=f"{100 * case.loss:g}%"
            )
            with network((UplinkSpec("line", line),)) as net:
                serve(net, "iperf3")
                looks = [look for look in _looks(net, extent.seconds, down=case.down) if look.saturated]
            rows += [{"case": str(case), "s": look.at, "mbit": look.mbit} for look in looks]
            if not looks:
                run.table.append([str(case), "never", "", ""])
                run.notes.append(f"{case}: no saturated second was seen.")
                continue
            first = looks[0].at
            firsts.append(first)
            truth = case.mbit * IP_SHARE
            own = [abs(look.mbit / truth - 1) for look in looks if look.at >= first + SETTLED_SECONDS]
            errors += own
            if own:
                run.table.append([str(case), *(f"{_percentile(own, of):.3f}" for of in (0.5, 0.95)), f"{first:.1f}"])
    run.series("estimates", rows)
    if not errors:
        raise LabError("no case was measured")
    run.figure("error_p50_passive", _percentile(errors, 0.5), better="lower", runs=len(errors))
    run.figure("error_p95_passive", _percentile(errors, 0.95), better="lower", runs=len(errors))
    run.figure("cases_known_passive", len(firsts) / len(extent.cases()), better="higher")
    run.measure("time_to_first_s", firsts, unit="s", better="lower")
    run.figure("probe_bytes", 0, unit="B", better="lower")


def _percentile(values: Sequence[float], of: float) -> float:
    return sorted(values)[round((len(values) - 1) * of)]


@experiment("measure/tracking", "Capacity of a line whose rate walks", paper="host-flow-balancing §6.1")
def tracking(run: Run) -> None:
    """Follow a cellular walk and the paper's WiFi."""
    seconds = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE).walk_seconds
    walks = {
        "cellular": cellular(seconds, run.seed),
        "campus": campus(run.seed, seconds=seconds).wifi,
    }
    run.display.expect(len(walks))
    for name, walk in walks.items():
        with run.part(name), run.step(f"{name}: {seconds} s"):
            _track(run, name, walk)


def _track(run: Run, name: str, walk: tuple[float, ...]) -> None:
    line = LinkSpec(rate=f"{walk[0]:.3f}Mbit/s", delay=DELAY, queue="300ms")
    with network((UplinkSpec("line", line),)) as net:
        serve(net, "iperf3")
        rows = list(_steps(net, net.uplinks["line"], walk))
    run.series(f"walk_{name}", rows)
    # The first seconds fill the line.
    known = [row for row in rows[3:] if row["estimate"] > 0]
    if not known:
        raise LabError("no estimate was seen")
    estimated = [abs(row["estimate"] / row["next"] - 1) for row in known]
    last = [abs(row["mbit"] * IP_SHARE / row["next"] - 1) for row in known]
    ratio = statistics.median(estimated) / statistics.median(last)
    run.figure(f"error_vs_last_second_{name}", ratio, better="lower", runs=len(known))
    run.figure(f"error_p50_{name}", statistics.median(estimated), better="lower", runs=len(known))
    run.figure(f"error_p50_last_second_{name}", statistics.median(last), runs=len(known))
    lags = [lag for lag in range(4) if lag < len(known)]
    best = min(lags, key=lambda lag: _distance(known, lag))
    run.figure(f"lag_s_{name}", best, unit="s", better="lower")
    with run.plot(f"walk_{name}") as plot:
        axes = plot.subplots()
        axes.step(
            [row["s"] for row in rows], [row["mbit"] for row in rows], where="post", color="black", label="line"
        )
        axes.plot(
            [row["s"] for row in known], [row["estimate"] for row in known], color=COLOURS["wrr"], label="Braid"
        )
        axes.set_xlabel("s")
        axes.set_ylabel("Mbit/s")
        axes.set_ylim(bottom=0)
        axes.legend()


def _distance(rows: list[dict[str, float]], lag: int) -> float:
    """Return the median error of the estimates against the rate `lag` seconds before."""
    pairs = zip(rows[lag:], rows, strict=False)
    return statistics.median(abs(now["estimate"] / (then["mbit"] * IP_SHARE) - 1) for now, then in pairs)


def _steps(net: Topology, uplink: Uplink, walk: tuple[float, ...]) -> Iterator[dict[str, float]]:
    """Play a walk while transfers fill the line; each row has the estimate at the end of a second."""
    emulator = uplink.emulator
    if emulator is None:
        raise LabError("the line is not emulated")
    with braid(net.host, net.scratch / "braid") as daemon, _transfer(net, len(walk) + 2, down=True):
        start = time.monotonic()
        for second, (rate, after) in enumerate(itertools.pairwise(walk)):
            emulator.request({"set": {"rate": f"{rate:.3f}Mbit/s"}})
            # The walk's steps are instants of the wall clock, as the paper's are.
            time.sleep(max(0.0, start + second + 1 - time.monotonic()))
            look = _look(daemon, uplink.name, down=True, start=start)
            estimate = look.mbit if look and look.saturated else 0.0
            yield {
                "s": second,
                "mbit": rate,
                "next": after * IP_SHARE,
                "estimate": estimate,
                "age_s": look.age_s if look else -1.0,
            }
