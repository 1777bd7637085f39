"""`balance/latency`: the round-trip time that bulk transfers add to a call, without and with `[shape]`.

Four downloads, four uploads or both fill a line with a queue of 300 ms, of a fixed rate or one that walks. An echo
train stands for pings, a stream of 64 kbit/s for a call. Their round trips are compared with those on the idle line,
and the goodput of the transfers with that of the same transfers without shaping. Both begin once transfers have run
for a while: Braid shapes nothing before it has measured the line.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond.figures import EchoProbe, GoodputTrace, RoundTrips, round_trips
from braid_lab.experiments.measure.walks import cellular
from braid_lab.experiments.race.figures import percentile
from braid_lab.fixtures import echo_train
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.process import LabError, Process
from braid_lab.product import braid
from braid_lab.servers.catalog import READY

DELAY, QUEUE = "20ms", "300ms"

#: Transfers in each direction that is filled.
TRANSFERS = 4

#: Servers of the transfers, the pings and the call, by number.
BULK, PING, CALL = 1, 2, 3

PING_SECONDS, PING_BYTES = 0.01, 64
#: 64 kbit/s of payload, as in telephony.
CALL_SECONDS, CALL_BYTES = 0.02, 160

#: Time from the begin of the transfers to the first round trip that counts, s. Slow start and the first measurement
#: of the line take two.
LEARN_SECONDS = 5.0

#: Verb of `braid_lab.clients.tcp_stream` for each direction.
VERBS = {"down": "take", "up": "give"}

CONFIGURATIONS: Mapping[str, str] = {"plain": "", "shaped": "[shape]\nenabled = true\n"}


@dataclass(frozen=True)
class Case:
    """A line, and the directions that are filled."""

    name: str
    down_mbit: float
    up_mbit: float
    directions: tuple[str, ...]
    #: True if the rate walks around `down_mbit`, in both directions.
    walks: bool = False

    def line(self) -> LinkSpec:
        """Return the line's parameters."""
        return LinkSpec(
            rate_down=f"{self.down_mbit:g}Mbit/s", rate_up=f"{self.up_mbit:g}Mbit/s", delay=DELAY, queue=QUEUE
        )


FULL = (
    *(Case(f"down_{rate}", rate, rate / 2, ("down",)) for rate in (5, 20, 50)),
    *(Case(f"up_{rate}", 2 * rate, rate, ("up",)) for rate in (5, 20, 50)),
    Case("both_20_5", 20, 5, ("down", "up")),
    Case("walk_down", 20, 20, ("down",), walks=True),
    Case("walk_up", 20, 20, ("up",), walks=True),
)
BY_NAME = {case.name: case for case in FULL}
QUICK = ("down_20", "up_5", "both_20_5", "walk_down")
SMOKE = ("down_20",)


@dataclass(frozen=True)
class Found:
    """Round trips of the idle and of the full line by kind of probe, and the goodput of all transfers."""

    idle: dict[str, RoundTrips]
    full: dict[str, RoundTrips]
    mbit: float

    def added(self, kind: str, share: float) -> float:
        """Return by how much a percentile of the round trips exceeds the idle line's median, ms."""
        return percentile(self.full[kind].ms, share) - statistics.median(self.idle[kind].ms)


@experiment("balance/latency", "Round trips beside bulk transfers, without and with shaping", cases=tuple(BY_NAME))
def latency(run: Run) -> None:
    """Measure every case."""
    names = run.cases(run.of_form(full=tuple(BY_NAME), quick=QUICK, smoke=SMOKE))
    seconds = run.of_form(full=60.0, quick=20.0, smoke=3.0)
    run.display.expect(2 * len(names))
    run.table.append(
        [
            "case",
            "plain: added p50 ms",
            "p99",
            "call lost",
            "shaped: added p50 ms",
            "p99",
            "call lost",
            "goodput kept",
        ]
    )
    for case in (BY_NAME[name] for name in names):
        with run.part(case.name):
            found = {}
            for kind, configuration in CONFIGURATIONS.items():
                with run.step(f"{case.name}: {kind}"):
                    found[kind] = _measured(case, configuration, seconds, run.seed)
            _record(run, case, found)


def _record(run: Run, case: Case, found: Mapping[str, Found]) -> None:
    cells = []
    for kind, each in found.items():
        suffix = case.name if kind == "shaped" else f"{case.name}_{kind}"
        count = len(each.full["ping"].ms)
        for share, word in ((0.5, "p50"), (0.99, "p99")):
            added = each.added("ping", share)
            run.figure(f"rtt_added_{word}_ms_{suffix}", added, unit="ms", better="lower", runs=count)
            cells.append(f"{added:.1f}")
        call = each.full["call"]
        run.figure(f"call_added_p99_ms_{suffix}", each.added("call", 0.99), unit="ms", better="lower")
        run.figure(f"call_lost_{suffix}", call.lost, better="lower", runs=len(call.ms))
        cells.append(f"{call.lost:.4f}")
    kept = found["shaped"].mbit / found["plain"].mbit
    run.figure(f"goodput_kept_{case.name}", kept, better="higher")
    run.table.append([case.name, *cells, f"{kept:.3f}"])
    rows = [
        {"kind": kind, "s": round(at, 3), "rtt_ms": round(ms, 3)}
        for kind, each in found.items()
        for at, ms in zip(each.full["ping"].at, each.full["ping"].ms, strict=True)
    ]
    run.series(f"round_trips_{case.name}", rows)


def _measured(case: Case, configuration: str, seconds: float, seed: int) -> Found:
    with network((UplinkSpec("line", case.line()),)) as net:
        _serve(net, "braid_lab.clients.tcp_stream", "serve", net.server(BULK))
        _serve(net, "braid_lab.servers.echo", net.server(PING), net.server(CALL))
        file = net.scratch / "braid.toml"
        file.write_text(configuration)
        with braid(net.host, net.scratch / "braid", "--config", file):
            idle = _listen(net, 2.0, walk=())
            walk = cellular(round(LEARN_SECONDS + seconds), seed, mean=case.down_mbit) if case.walks else ()
            with contextlib.ExitStack() as stack:
                length = LEARN_SECONDS + seconds
                transfers = [stack.enter_context(_transfer(net, way, length)) for way in case.directions]
                _play(net, walk[: round(LEARN_SECONDS)], LEARN_SECONDS)
                full = _listen(net, seconds, walk=walk[round(LEARN_SECONDS) :])
                told = [json.loads(each.wait(timeout=30).stdout) for each in transfers]
    traces = [GoodputTrace.unbroken(each, "a transfer") for each in told]
    return Found(idle, full, sum(trace.mbit(LEARN_SECONDS, length) for trace in traces))


def _serve(net: Topology, module: str, *words: str) -> None:
    argv = [sys.executable, "-m", module, *words]
    process = Process(argv, log=net.scratch / module, namespace=net.internet.name)
    net.stack.callback(process.stop)
    process.wait_output(READY, timeout=20)


def _transfer(net: Topology, direction: str, seconds: float) -> Process:
    words = [sys.executable, "-m", "braid_lab.clients.tcp_stream", VERBS[direction], net.server(BULK), f"{seconds:g}"]
    return Process([*words, "--flows", str(TRANSFERS)], log=net.scratch / direction, namespace=net.host.name)


def _play(net: Topology, walk: tuple[float, ...], seconds: float) -> None:
    """Wait for a time, or play a walk of one rate a second."""
    start = time.monotonic()
    for second, rate in enumerate(walk):
        time.sleep(max(0.0, start + second - time.monotonic()))
        emulator = net.uplinks["line"].emulator
        if emulator is None:
            raise LabError("the line is not emulated")
        emulator.request({"set": {"rate": f"{rate:.3f}Mbit/s"}})
    time.sleep(max(0.0, start + seconds - time.monotonic()))


@contextlib.contextmanager
def _probes(net: Topology) -> Iterator[dict[str, Process]]:
    with contextlib.ExitStack() as stack:
        yield {
            "ping": stack.enter_context(echo_train(net, PING_SECONDS, PING_BYTES, [PING], "ping")),
            "call": stack.enter_context(echo_train(net, CALL_SECONDS, CALL_BYTES, [CALL], "call")),
        }


def _listen(net: Topology, seconds: float, *, walk: tuple[float, ...]) -> dict[str, RoundTrips]:
    """Probe for a time, while a walk is played."""
    with _probes(net) as trains:
        start = time.monotonic()
        _play(net, walk, seconds)
        end = time.monotonic()
        found = {kind: json.loads(train.stop().stdout.splitlines()[-1]) for kind, train in trains.items()}
    return {kind: round_trips([EchoProbe(*probe) for probe in told[0]], start, end) for kind, told in found.items()}
