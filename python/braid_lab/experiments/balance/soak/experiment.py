"""The soak experiment."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from braid_lab.clients.churn import Event
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.balance.soak.analysis import DaemonSample, explained, map_growth, rss_growth, slope
from braid_lab.experiments.balance.soak.faults import FaultInjector, Outage, configuration
from braid_lab.fixtures import serve
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.plots import COLOURS
from braid_lab.process import Process
from braid_lab.product import DEGRADED, Braid, braid

UPLINKS = tuple(
    UplinkSpec(name, LinkSpec(rate="50Mbit/s", delay=delay))
    for name, delay in (("dsl", "8ms"), ("lte", "20ms"), ("cable", "12ms"))
)
#: Long TCP connections, UDP and QUIC-like flows, and short connections per second, in each of two places.
FLOWS = ("24", "8", "8", "8")
SAMPLE_INTERVAL_S = 0.5
#: Slightly more than the silence after which a flow counts as lost.
FLOW_TIMEOUT_S = 7.0


@dataclass(frozen=True)
class Plan:
    """Durations of a soak."""

    seconds: float
    #: Shortest and longest pause between faults.
    pause_s: tuple[float, float]
    #: Time after a daemon's start that the growth of memory leaves out: what is allocated in it is allocated once.
    settle_s: float
    #: Share of the time in which the daemon is killed at all; the rest shows its growth.
    kill_share: float


FULL = Plan(seconds=2 * 3600, pause_s=(5, 40), settle_s=300, kill_share=0.75)
QUICK = Plan(seconds=62, pause_s=(0.3, 1.5), settle_s=20, kill_share=0.4)
SMOKE = Plan(seconds=3, pause_s=(0.1, 0.3), settle_s=0, kill_share=0.4)


@experiment("balance/soak", "Random faults of lines, addresses, configurations and daemons: lost flows, growth")
def soak(run: Run) -> None:
    """Inject faults into a gateway and count what its users notice."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    with contextlib.ExitStack() as stack:
        with run.step("three lines, a gateway, a client"):
            net = stack.enter_context(network(UPLINKS, lan_clients=1))
            serve(net, "echo")
            options = ["--config", str(_configured(net, run))]
            daemon = stack.enter_context(braid(net.host, net.scratch / "braid", *options))
            watch = DaemonSampler(daemon)
            loads = {place: stack.enter_context(_load(net, place)) for place in ("gateway", "client")}
        injector = FaultInjector(net, daemon, options, run.seed, watch.pause)
        with run.step(f"inject faults for {plan.seconds:,.0f} s"):
            _inject_faults(run, plan, watch, injector)
        with run.step("collect the flows' reports"):
            said = {place: _finish_load(load) for place, load in loads.items()}
    _record(run, plan, watch, injector, said)


def _configured(net: Topology, run: Run) -> Path:
    file = net.scratch / "soak.toml"
    file.write_text(configuration(net, run.random))
    return file


@contextlib.contextmanager
def _load(net: Topology, place: str) -> Iterator[Process]:
    """Run flows of all kinds, on the gateway itself or on the client behind it."""
    where = net.host if place == "gateway" else net.clients[0]
    addresses = [*net.servers(4), *net.servers(6)]
    argv = [sys.executable, "-m", "braid_lab.clients.churn", *FLOWS, *addresses]
    with Process(argv, log=net.scratch / f"churn-{place}", namespace=where.name) as load:
        load.wait_output("^ready$")
        yield load


def _finish_load(load: Process) -> tuple[list[Event], Counter[str]]:
    """End a load; return its losses and its totals."""
    lines = [json.loads(line) for line in load.stop().stdout.splitlines() if line.startswith("{")]
    return [Event(**line) for line in lines if "totals" not in line], Counter(lines[-1]["totals"])


class DaemonSampler:
    """Samples the daemon at intervals."""

    def __init__(self, daemon: Braid) -> None:
        """Start with the running daemon."""
        self._daemon = daemon
        self._pid = daemon.pid
        self.samples: list[DaemonSample] = []
        self.lives = 1

    def pause(self, seconds: float) -> None:
        """Wait, and sample meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.sample()
            # Not a synchronisation: the fault, or the calm after it, lasts this long.
            time.sleep(min(left, SAMPLE_INTERVAL_S))

    def sample(self) -> None:
        """Record the daemon's memory, flows and files; nothing while it is dead."""
        answer = self._daemon.call("status", "--json", check=False)
        if answer.status not in (0, DEGRADED):
            return
        status = json.loads(answer.stdout)
        if status["pid"] != self._pid:
            self._pid, self.lives = status["pid"], self.lives + 1
        flows = status["flows"]["established"] + status["flows"]["embryonic"]
        with contextlib.suppress(FileNotFoundError, IndexError):
            resident = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            files = sum(each.stat().st_size for each in self._daemon.run_dir.iterdir() if each.is_file())
            self.samples.append(
                DaemonSample(time.monotonic(), self.lives, resident, status["memory_bytes"], flows, files)
            )


def _inject_faults(run: Run, plan: Plan, watch: DaemonSampler, injector: FaultInjector) -> None:
    """Inject faults until the time is over, and let the network settle."""
    generator = run.random
    began = time.monotonic()
    injector.do(injector.kill)
    while (gone := time.monotonic() - began) < plan.seconds:
        injector.inject_one(may_kill=gone < plan.kill_share * plan.seconds)
        watch.pause(generator.uniform(*plan.pause_s))
    # The flows must have noticed the last fault before they are asked.
    watch.pause(FLOW_TIMEOUT_S)


def _record(
    run: Run,
    plan: Plan,
    watch: DaemonSampler,
    injector: FaultInjector,
    said: dict[str, tuple[list[Event], Counter[str]]],
) -> None:
    """Turn records into figures."""
    totals = sum((each for _, each in said.values()), Counter[str]())
    lost = [(place, each) for place, (events, _) in said.items() for each in events if each.kind != "short"]
    excused = [explained(each, injector.outages, injector.addresses) for _, each in lost]
    opened = totals["tcp_opened"] + totals["udp_opened"] + totals["quic_opened"]
    run.figure("lost_established_flows", excused.count(False), better="lower", runs=opened)
    run.figure("lost_flows_of_dead_uplinks", excused.count(True), runs=opened)
    unmoved = sum(each.kind in ("udp", "quic") for _, each in lost)
    run.figure("lost_udp_and_quic_flows", unmoved, better="lower", runs=totals["udp_opened"] + totals["quic_opened"])
    run.figure("failed_short_flows", totals["short_lost"], better="lower", runs=totals["short_opened"])
    run.figure("answers", totals["tcp_answers"] + totals["udp_answers"] + totals["quic_answers"])
    samples = watch.samples
    run.figure("rss_growth_per_hour", rss_growth(samples, plan.settle_s), unit="B/h", better="lower")
    run.figure("rss_peak", max(each.rss for each in samples), unit="B", better="lower")
    run.figure("map_growth_per_hour", map_growth(samples), unit="B/h", better="lower")
    files = slope([each.at for each in samples], [float(each.files) for each in samples])
    run.figure("log_growth_per_hour", files, unit="B/h", better="lower")
    run.figure("restarts", injector.restarts)
    run.figure("restarts_unplanned", watch.lives - 1 - injector.restarts, better="lower")
    run.figure("disturbances", sum(injector.done.values()))
    run.notes.append("log and events are rotated at 1 MiB and 256 KiB; one old file of each is kept")
    run.table += [["fault", "times"], *([name, str(times)] for name, times in sorted(injector.done.items()))]
    run.series("looks", [asdict(each) for each in samples])
    run.series("outages", [asdict(each) for each in injector.outages])
    run.series(
        "lost",
        [
            {"place": place, "explained": int(good), **asdict(each)}
            for (place, each), good in zip(lost, excused, strict=True)
        ],
    )
    _draw(run, samples, injector.outages)


def _draw(run: Run, samples: list[DaemonSample], outages: list[Outage]) -> None:
    """Plot the daemon's memory."""
    start = samples[0].at
    with run.plot("growth") as plot:
        axes = plot.add_subplot()
        times = [each.at - start for each in samples]
        axes.plot(times, [each.rss / 1e6 for each in samples], color=COLOURS["wrr"], label="daemon's memory, MB")
        axes.plot(times, [each.maps / 1e6 for each in samples], color=COLOURS["lte"], label="maps, MB")
        for each in outages:
            axes.axvspan(each.began - start, each.ended - start, color=COLOURS["asked"], alpha=0.15)
        axes.set_xlabel("s")
        axes.legend()
