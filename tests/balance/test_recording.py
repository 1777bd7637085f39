"""`braid history --record`: a line's capacity, second by second, as `braid emulate` plays it."""

from __future__ import annotations

import contextlib
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braid_lab.net.faults import black_hole
from braid_lab.net.links import LinkSpec
from braid_lab.net.rate_traces import RateTrace
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid, binary
from conftest import MakeNetwork, StartBraid

FAILED, USAGE, UNREACHABLE, DEGRADED = 1, 2, 3, 4

LINE = UplinkSpec("lte", LinkSpec(rate="8Mbit/s", delay="10ms", queue="300ms"))

#: A walk, Mbit/s, two seconds each.
WALK = RateTrace(tuple((2.0 * step, rate) for step, rate in enumerate((6, 3, 8, 4, 7))))
SECONDS = round(WALK.seconds)


def play(net: Topology, trace: Path) -> None:
    """Have the emulated line follow a trace from its beginning."""
    emulator = net.uplinks["lte"].emulator
    assert emulator is not None
    emulator.request({"set": {"direction": "down", "trace": str(trace)}})


@contextlib.contextmanager
def full(net: Topology, daemon: Braid) -> Iterator[None]:
    """Fill the line with downloads, from when its capacity is known on."""
    words = ["iperf3", "--client", net.server(), "--time", "120", "--parallel", "4", "--reverse"]
    with Process(words, log=net.scratch / "load", namespace=net.host.name):
        wait_until(lambda: points(daemon)[-1].get("rx_capacity", {}).get("measured"), what="an estimate", timeout=30)
        yield


def points(daemon: Braid) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.json("history", "lte", "--last", "1 min")["points"]
    return found or [{}]


def down(report: dict[str, Any]) -> dict[str, Any]:
    trace: dict[str, Any] = report["traces"][0]
    assert trace["direction"] == "down"
    return trace


def distance(one: RateTrace, other: RateTrace) -> float:
    """Return the median error of a trace's seconds against another one, which may begin at another time."""

    def error(lag: float) -> float:
        return statistics.median(abs(rate / other.mean(at + lag, 1) - 1) for at, rate in one.rows)

    return min(error(quarter / 4) for quarter in range(round(4 * other.seconds)))


def test_a_recorded_line_is_played_again(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(LINE, serving=("iperf3",))
    daemon = start_braid(net)
    walk, first, second = (net.scratch / name for name in ("walk.csv", "first", "second"))
    WALK.write(walk, 0, WALK.seconds)
    with full(net, daemon):
        play(net, walk)
        # The first seconds are of the line before the walk.
        walking_ms = points(daemon)[-1]["unix_ms"] + 2000
        wait_until(lambda: points(daemon)[-1]["unix_ms"] >= walking_ms, what="a second of the walk alone")
        words = ("history", "lte", "--record", str(first), "--for", f"{SECONDS} s")
        trace = down(daemon.command_json(*words))
        assert trace["file"] == f"{first}-down.csv"
        assert trace["measured_s"] > 0.7 * SECONDS, trace
        recorded = RateTrace.read(Path(trace["file"]))
        play(net, Path(trace["file"]))
        end_ms = points(daemon)[-1]["unix_ms"] + 1000 * (SECONDS + 2)
        # The same again, of seconds that are over.
        wait_until(lambda: points(daemon)[-1]["unix_ms"] >= end_ms, what="the trace to be played", timeout=60)
        words = ("history", "lte", "--record", str(second), "--last", f"{SECONDS} s")
        again = RateTrace.read(Path(down(daemon.command_json(*words))["file"]))
    assert distance(recorded, WALK) < 0.1, recorded
    assert distance(again, recorded) < 0.1, (again, recorded)
    for trace_of in (recorded, again):
        mean = trace_of.mean(0, trace_of.seconds)
        assert mean == pytest.approx(WALK.mean(0, WALK.seconds), rel=0.1)


def test_an_interrupted_recording_plays_and_gaps_are_zero(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(LINE)
    daemon = start_braid(net)
    daemon.json("measure", "lte", "--url", f"http://{net.server()}/stream", "--direction", "down")
    name = net.scratch / "van"
    file = Path(f"{name}-down.csv")
    words: list[str | Path] = ["--run-dir", daemon.run_dir, "history", "lte", "--record", name, "--for", "1 h"]
    with Process([binary(), *words], log=net.scratch / "recording", namespace=net.host.name) as recording:
        wait_until(lambda: file.exists() and "carried on" in file.read_text(), what="a second with a rate")
        with black_hole(net.uplinks["lte"]):
            wait_until(lambda: points(daemon)[-1]["state"] == "dead", what="the line to be dead", timeout=20)
            wait_until(lambda: ",0\n" in file.read_text(), what="a second of the gap")
        # It goes on when another daemon answers.
        daemon.stop()
        recording.wait_stderr("goes on once it answers")
        before = len(file.read_text())
        daemon.up()
        wait_until(lambda: len(file.read_text()) > before, what="the next daemon's seconds", timeout=20)
        recording.signal(signal.SIGINT)
        said = recording.wait()
    assert said.status in (0, DEGRADED), said
    assert str(file) in said.stdout
    assert "# dead or down\n" in file.read_text()
    play(net, file)
    rates = {rate for _, rate in RateTrace.read(file).rows}
    assert min(rates) == 0
    assert max(rates) == pytest.approx(8, rel=0.1)


def test_errors_say_what_to_do_next(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    wait_until(lambda: daemon.json("history", "lte", "--last", "1 min")["points"], what="the first second")
    name = net.scratch / "some"
    taken = Path(f"{name}-up.csv")
    for words, status, said in (
        (("dsl", "--record", name), FAILED, "nothing is known"),
        (("vdsl", "--record", name), USAGE, "there are dsl, lte"),
        (("dsl", "--record", name, "--last", "2 h"), USAGE, "--for"),
        (("dsl", "--record", name, "--step", "5 s"), USAGE, "--step"),
        (("dsl", "--for", "5 s"), USAGE, "--record"),
    ):
        answer = daemon.call("history", *words, check=False)
        assert answer.status == status, (words, answer)
        assert said in answer.stderr, (words, answer)
    taken.write_text("mine")
    answer = daemon.call("history", "dsl", "--record", name, check=False)
    assert answer.status == FAILED, answer
    assert f"{taken} exists already" in answer.stderr
    assert taken.read_text() == "mine"
    daemon.stop()
    answer = daemon.call("history", "dsl", "--record", f"{name}-other", check=False)
    assert answer.status == UNREACHABLE, answer
