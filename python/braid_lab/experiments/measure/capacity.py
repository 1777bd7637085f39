"""Capacity as Braid measures it, compared with the emulator's settings.

`measure/capacity`: a line of a fixed rate, with a short and a long queue, with and without random loss and other
traffic of half its rate through Braid, in each direction. *passive*: four transfers fill the line, and from two
seconds after the first saturated estimate each answer of `braid uplinks` counts. Nothing should be sent for the
measurement: what leaves by the line beside the transfers is counted. *transfer*: `braid measure`, before these
transfers; each of its results counts, also one that says of itself that it is a lower bound. So do those of its other
methods: *dispersion* with the same URL, *echo*, which is dispersion without one, and *packet_size*, the variable
packet size.

`measure/tracking`: the rate walks, once a second or, as a radio link's, at any moment; `--traces DIR` plays all
recordings of a directory instead. Each second's estimate, also one that is a lower bound, is compared with the rate
of the next, and so is the last second's true rate; the lag is the one at which the estimates are nearest to the
line's earlier rates. New flows that are sent into a gap are counted where there is a choice, by `balance/dynamic`.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.measure.walks import campus, cellular
from braid_lab.fixtures import serve
from braid_lab.net.egress import Egress, counted_egress
from braid_lab.net.links import End, LinkSpec
from braid_lab.net.rate_traces import FROM_SECONDS, RateTrace, lte
from braid_lab.net.topology import OBSERVER_NEAR, Topology, Uplink, UplinkSpec, network
from braid_lab.plots import COLOURS
from braid_lab.process import LabError, Process
from braid_lab.product import Braid, braid
from braid_lab.servers import catalog

#: The emulator counts Ethernet frames, Braid IP packets.
IP_SHARE = 1500 / 1514

#: Parallel transfers: as many as fill the line between them whatever one loses.
TRANSFERS = 4

DELAY = "20ms"

#: Port of the server of other traffic.
CROSS_PORT = 5202

#: Interval between two looks, s.
LOOK_SECONDS = 0.25

#: An estimate counts from this time after the first one, s.
SETTLED_SECONDS = 2.0

#: Mean rate of the made-up radio link, Mbit/s.
RADIO_MBIT = 8.0

#: A line with less than this part of its mean rate stalls.
STALLED_SHARE = 0.1

#: The first seconds of a walk fill the line.
FILLING_SECONDS = 3

#: Error of a transfer from which it is wrong that the line was full at the rate it says, and that of other methods.
WRONG_ERROR = 0.1
WRONG_ERROR_OF_TRAINS = 0.2

#: Methods of `braid measure` that send little, their words, and whether they have the URL of transfers.
TRAINS = {
    "dispersion": ("dispersion", True),
    "echo": ("dispersion", False),
    "packet_size": ("variable-packet-size", False),
}


@dataclass(frozen=True)
class Case:
    """A line and the direction that is filled."""

    mbit: float
    queue_ms: int
    loss: float
    #: Other traffic, as a fraction of the rate.
    cross: float
    down: bool

    def __str__(self) -> str:
        text = f"{self.mbit:g} Mbit/s {self.direction}, queue {self.queue_ms} ms, loss {self.loss:.0%}"
        return f"{text}, other traffic {self.cross:.0%}"

    @property
    def direction(self) -> str:
        """The direction as `braid measure` calls it."""
        return "down" if self.down else "up"

    @property
    def truth(self) -> float:
        """The rate in Mbit/s as Braid counts it."""
        return self.mbit * IP_SHARE


@dataclass(frozen=True)
class Extent:
    """The cases, seconds of each and of a walk, and transfers for each case."""

    cases: tuple[Case, ...]
    seconds: float
    walk_seconds: int
    transfers: int


def _every(
    rates: Sequence[float], queues: Sequence[int], losses: Sequence[float], cross: Sequence[float]
) -> list[Case]:
    return [Case(*values) for values in itertools.product(rates, queues, losses, cross, (True, False))]


FULL = Extent(
    tuple(_every((1, 5, 20, 50, 100), (20, 300), (0, 0.01), (0, 0.5))), seconds=12.0, walk_seconds=400, transfers=5
)
QUICK = Extent(
    (
        *_every((5, 20, 50), (20, 300), (0,), (0,)),
        Case(1, 300, 0, 0, down=True),
        Case(20, 300, 0.01, 0, down=True),
        Case(20, 300, 0, 0.5, down=True),
        Case(50, 20, 0, 0.5, down=False),
    ),
    seconds=5.0,
    walk_seconds=40,
    transfers=1,
)
SMOKE = Extent(tuple(_every((20,), (300,), (0,), (0,))), seconds=4.0, walk_seconds=5, transfers=1)


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


def _looks(net: Topology, daemon: Braid, seconds: float, *, down: bool) -> Iterator[Look]:
    """Fill the line for a while and look at the estimate."""
    (name,) = net.uplinks
    with _transfer(net, seconds, down=down):
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            time.sleep(LOOK_SECONDS)
            look = _look(daemon, name, down=down, start=start)
            if look:
                yield look


@contextlib.contextmanager
def _other_traffic(net: Topology, case: Case) -> Iterator[None]:
    """Send datagrams at a fixed rate through Braid, in the case's direction."""
    if not case.cross:
        yield
        return
    words = ["iperf3", "--client", net.server(), "--port", str(CROSS_PORT), "--forceflush"]
    words += [
        "--udp",
        "--length",
        "1400",
        "--bitrate",
        f"{case.mbit * case.cross:g}M",
        "--time",
        "0",
        *(["--reverse"] if case.down else []),
    ]
    server = ["iperf3", "--server", "--forceflush", "--bind", net.server(), "--port", str(CROSS_PORT)]
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(Process(server, log=net.scratch / "cross-server", namespace=net.internet.name))
        serving.wait_output(catalog.READY, timeout=30)
        client = stack.enter_context(Process(words, log=net.scratch / "cross", namespace=net.host.name))
        client.wait_output(r"\bsec\b", timeout=30)
        yield


@dataclass(frozen=True)
class Found:
    """Result of `braid measure`."""

    error: float
    took_s: float
    #: Bytes spent, and the same as a part of those that ten seconds at the full rate would take.
    spent: int
    share: float
    saturated: bool


def _url(net: Topology, case: Case) -> list[str]:
    return ["--url", f"http://{net.server()}/{'stream' if case.down else 'sink'}"]


def _results(daemon: Braid, name: str, case: Case, times: int, words: Sequence[str]) -> Iterator[Found]:
    for _ in range(times):
        (found,) = daemon.json("measure", name, "--direction", case.direction, *words)["measurements"]
        yield Found(
            error=abs(found["rate_bit_s"] / 1e6 / case.truth - 1),
            took_s=found["took_ms"] / 1e3,
            spent=found["spent_bytes"],
            share=found["spent_bytes"] * 8 / (case.mbit * 1e6 * 10),
            saturated=found["saturated"],
        )


@experiment("measure/capacity", "Capacity measured from a line's own traffic, and by transfers")
def capacity(run: Run) -> None:
    """Measure every case."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(len(extent.cases))
    errors: list[float] = []
    firsts: list[float] = []
    transfers: list[Found] = []
    egresses: list[Egress] = []
    trains: dict[str, list[tuple[Case, Found]]] = {method: [] for method in TRAINS}
    rows: list[dict[str, object]] = []
    run.table = [["", "passive: error p50", "p95", "known after s", "transfer: error", "s", "of 10 s' bytes"]]
    run.table[0] += [f"{method}: error" for method in TRAINS]
    for case in extent.cases:
        with run.part(str(case)), run.step(str(case)):
            looks, found, egress, of_trains = _measured(case, extent)
            transfers += found
            egresses.append(egress)
            for method, results in of_trains.items():
                trains[method] += [(case, each) for each in results]
            rows += [{"case": str(case), "method": "passive", "s": look.at, "mbit": look.mbit} for look in looks]
            known = _settled_errors(looks, case.truth)
            errors += known
            cells = [*(f"{_percentile(known, of):.3f}" for of in (0.5, 0.95))] if known else ["never", ""]
            if looks:
                firsts.append(looks[0].at)
            else:
                run.notes.append(f"{case}: no saturated second was seen.")
            cells += [f"{looks[0].at:.1f}" if looks else ""]
            cells += [
                f"{statistics.median(each.error for each in found):.3f}",
                f"{statistics.median(each.took_s for each in found):.1f}",
                f"{statistics.median(each.share for each in found):.3f}",
            ]
            cells += [f"{statistics.median(each.error for each in results):.3f}" for results in of_trains.values()]
            run.table.append([str(case), *cells])
            bounds = sum(not each.saturated for each in found)
            if bounds:
                run.notes.append(f"{case}: {bounds} of {len(found)} transfers said to be a lower bound.")
    run.series("estimates", rows)
    if not errors:
        raise LabError("no case was measured")
    run.figure("error_p50_passive", _percentile(errors, 0.5), better="lower", runs=len(errors))
    run.figure("error_p95_passive", _percentile(errors, 0.95), better="lower", runs=len(errors))
    run.figure("cases_known_passive", len(firsts) / len(extent.cases), better="higher")
    run.measure("time_to_first_s_passive", firsts, unit="s", better="lower")
    run.measure("probe_bytes_passive", [each.other for each in egresses], unit="B", better="lower")
    run.measure("reachability_bytes_passive", [each.reachability for each in egresses], unit="B", better="none")
    found_errors = [each.error for each in transfers]
    run.figure("error_p50_transfer", _percentile(found_errors, 0.5), better="lower", runs=len(transfers))
    run.figure("error_p95_transfer", _percentile(found_errors, 0.95), better="lower", runs=len(transfers))
    run.figure("saturated_transfer", sum(each.saturated for each in transfers) / len(transfers), better="higher")
    wrong = [each for each in transfers if each.saturated and each.error > WRONG_ERROR]
    run.figure("wrongly_saturated_transfer", len(wrong) / len(transfers), better="lower")
    run.measure("time_to_first_s_transfer", [each.took_s for each in transfers], unit="s", better="lower")
    run.measure("probe_bytes_transfer", [each.spent for each in transfers], unit="B", better="lower")
    run.measure("share_of_ten_seconds_transfer", [each.share for each in transfers], better="lower")
    for method, of_cases in trains.items():
        _figures_of_trains(run, method, of_cases)


def _figures_of_trains(run: Run, method: str, results: Sequence[tuple[Case, Found]]) -> None:
    """Give the figures of a method that sends little: errors with other traffic apart."""
    for suffix, has_cross in ((method, False), (f"{method}_cross", True)):
        errors = [found.error for case, found in results if bool(case.cross) == has_cross]
        if errors:
            run.figure(f"error_p50_{suffix}", _percentile(errors, 0.5), better="lower", runs=len(errors))
            run.figure(f"error_p95_{suffix}", _percentile(errors, 0.95), better="lower", runs=len(errors))
    saturated = [found for _, found in results if found.saturated]
    wrong = [found for found in saturated if found.error > WRONG_ERROR_OF_TRAINS]
    run.figure(f"saturated_{method}", len(saturated) / len(results), better="higher")
    run.figure(f"wrongly_saturated_{method}", len(wrong) / len(results), better="lower")
    run.measure(f"time_to_first_s_{method}", [found.took_s for _, found in results], unit="s", better="lower")
    run.measure(f"probe_bytes_{method}", [found.spent for _, found in results], unit="B", better="lower")


def _measured(case: Case, extent: Extent) -> tuple[list[Look], list[Found], Egress, dict[str, list[Found]]]:
    """Return the passive estimates of a case, results of transfers, what left beside, and other methods' results."""
    line = LinkSpec(
        rate=f"{case.mbit:g}Mbit/s", delay=DELAY, queue=f"{case.queue_ms}ms", loss=f"{100 * case.loss:g}%"
    )
    with network((UplinkSpec("line", line, observed=True),)) as net:
        serve(net, "iperf3", "http1")
        with braid(net.host, net.scratch / "braid") as daemon, _other_traffic(net, case):
            (name,) = net.uplinks
            trains = {
                method: list(
                    _results(
                        daemon,
                        name,
                        case,
                        extent.transfers,
                        ["--method", word, *(_url(net, case) if has_url else [])],
                    )
                )
                for method, (word, has_url) in TRAINS.items()
            }
            found = list(_results(daemon, name, case, extent.transfers, _url(net, case)))
        # Another daemon, which knows nothing of them.
        observer = net.uplinks["line"].observer
        assert observer is not None  # noqa: S101
        ports = (catalog.IPERF3_PORT, CROSS_PORT)
        with (
            braid(net.host, net.scratch / "braid") as daemon,
            _other_traffic(net, case),
            counted_egress(End(observer, OBSERVER_NEAR), net.server(), ports) as egress,
        ):
            looks = list(_looks(net, daemon, extent.seconds, down=case.down))
    if not egress.expected:
        raise LabError("nothing of the transfers was counted on its way to the line")
    return [look for look in looks if look.saturated], found, egress, trains


def _settled_errors(looks: Sequence[Look], truth: float) -> list[float]:
    """Return the errors of estimates from two seconds after the first one on."""
    return [abs(look.mbit / truth - 1) for look in looks if look.at >= looks[0].at + SETTLED_SECONDS]


def _percentile(values: Sequence[float], of: float) -> float:
    return sorted(values)[round((len(values) - 1) * of)]


@dataclass(frozen=True)
class Walk:
    """Rates of a line in the direction that is filled, from a second of them on."""

    rates: RateTrace
    down: bool = True
    start: float = 0.0

    def mbit(self, second: int) -> float:
        """Return the mean rate of a second as Braid counts it, Mbit/s."""
        return self.rates.mean(self.start + second, 1) * IP_SHARE


def _recorded(folder: Path) -> dict[str, Walk]:
    """Return the recordings of a directory; LabError if there are none."""
    files = {file.stem: file for file in sorted(folder.glob("*-down.csv")) + sorted(folder.glob("*-up.csv"))}
    if not files:
        raise LabError(f"{folder}: recordings NAME-down.csv or NAME-up.csv are wanted, none found")
    return {
        name: Walk(RateTrace.read(file), down=name.endswith("-down"), start=FROM_SECONDS)
        for name, file in files.items()
    }


def _made_up(run: Run, seconds: int) -> dict[str, Walk]:
    steps = {"cellular": cellular(seconds + 1, run.seed), "campus": campus(run.seed, seconds=seconds + 1).wifi}
    walks = {name: Walk(RateTrace(tuple(enumerate(rates)))) for name, rates in steps.items()}
    return {**walks, "radio": Walk(lte(RADIO_MBIT, seconds + 1, run.seed))}


@experiment(
    "measure/tracking", "Capacity of a line whose rate walks", paper="host-flow-balancing §6.1", recordings=True
)
def tracking(run: Run) -> None:
    """Follow a cellular walk, the paper's WiFi and a radio link, or recordings."""
    seconds = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE).walk_seconds
    walks = _recorded(run.traces) if run.traces else _made_up(run, seconds)
    run.display.expect(len(walks))
    for name, walk in walks.items():
        length = min(seconds, int(walk.rates.seconds - walk.start) - 1)
        if length < FILLING_SECONDS:
            raise LabError(f"{name}: it is too short: {walk.start + FILLING_SECONDS + 1:g} s at least are wanted")
        with run.part(name), run.step(f"{name}: {length} s"):
            _track(run, name, walk, length)


def _track(run: Run, name: str, walk: Walk, seconds: int) -> None:
    mean = walk.rates.mean(walk.start, seconds)
    line = LinkSpec(rate=f"{mean:.3f}Mbit/s", delay=DELAY, queue="300ms")
    with network((UplinkSpec("line", line, observed=True),)) as net:
        serve(net, "iperf3")
        rows = list(_seconds(net, net.uplinks["line"], walk, seconds))
    run.series(f"walk_{name}", rows)
    # A second in which the line carries next to nothing is a stall, which nothing before it tells.
    least = STALLED_SHARE * mean * IP_SHARE
    known = [row for row in rows[FILLING_SECONDS:] if row["estimate"] > 0 and row["next"] >= least]
    if not known:
        raise LabError("no estimate was seen")
    estimated = [abs(row["estimate"] / row["next"] - 1) for row in known]
    last = [abs(row["mbit"] / row["next"] - 1) for row in known]
    ratio = statistics.median(estimated) / statistics.median(last)
    run.figure(f"error_vs_last_second_{name}", ratio, better="lower", runs=len(known))
    run.figure(f"error_p50_{name}", statistics.median(estimated), better="lower", runs=len(known))
    run.figure(f"error_p50_last_second_{name}", statistics.median(last), runs=len(known))
    run.figure(f"saturated_share_{name}", statistics.mean(row["saturated"] for row in known), better="higher")
    run.figure(f"lag_s_{name}", lag_s(known), unit="s", better="lower")
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


def lag_s(rows: Sequence[dict[str, float]]) -> int:
    """Return by how many seconds the estimates are behind the line's rate: the lag with the smallest median error.

    Half of the rows are compared at any lag, so that few pairs that are alike by chance do not decide.
    """
    rates = {row["s"]: row["mbit"] for row in rows}
    errors: dict[int, float] = {}
    for lag in range(len(rows)):
        then = [(row["estimate"], rates.get(row["s"] - lag)) for row in rows]
        pairs = [(estimate, rate) for estimate, rate in then if rate]
        if 2 * len(pairs) >= len(rows):
            errors[lag] = statistics.median(abs(estimate / rate - 1) for estimate, rate in pairs)
    return min(errors, key=lambda lag: errors[lag])


def _seconds(net: Topology, uplink: Uplink, walk: Walk, seconds: int) -> Iterator[dict[str, float]]:
    """Play a walk while transfers fill the line; each row has the estimate at the end of a second."""
    emulator = uplink.emulator
    if emulator is None:
        raise LabError("the line is not emulated")
    file = net.scratch / "walk.csv"
    # The line goes on after the transfers, so that its queue drains.
    walk.rates.write(file, walk.start, seconds + 30)
    down = walk.down
    with braid(net.host, net.scratch / "braid") as daemon, _transfer(net, seconds + 2, down=down):
        emulator.request({"set": {"direction": "down" if down else "up", "trace": str(file)}})
        start = time.monotonic()
        for second in range(seconds):
            # The walk's steps are instants of the wall clock, as the paper's are.
            time.sleep(max(0.0, start + second + 1 - time.monotonic()))
            look = _look(daemon, uplink.name, down=down, start=start)
            yield {
                "s": second,
                "mbit": walk.mbit(second),
                "next": walk.mbit(second + 1),
                "estimate": look.mbit if look else 0.0,
                "saturated": float(look.saturated) if look else 0.0,
                "age_s": look.age_s if look else -1.0,
            }
