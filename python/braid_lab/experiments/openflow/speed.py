"""`openflow/speed`: flows opened by packet-in, by a group, by eBPF and by a plain switch, side by side.

Hosts of one shape, each with two plain uplinks and an internet of its own. Offloads are off at all of them, since a
userspace bridge needs whole packets: the bulk ratios compare datapaths, and not segmentation offload. The plain
switch translates by connection tracking, without anything of ours: what the group costs beside that is ours.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from braid_lab.datapath import DATAPATHS, Datapath
from braid_lab.experiment import Better, Run, experiment
from braid_lab.experiments.openflow.plain_nat import plain_nat
from braid_lab.net.open_vswitch import on_datapath
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.process import LabError, Process, processor_seconds
from braid_lab.product import binary, braid

UPLINKS = (UplinkSpec("dsl", offload=False), UplinkSpec("lte", offload=False))

#: Ports of the load's server.
PORTS = "7000-7015"

#: Connections a second at which connection times are measured: below what any of them opens.
PACED_CONNECTIONS = 200

#: Parallel connections of a bulk transfer: two per uplink.
STREAMS = 4


@dataclass(frozen=True)
class Plan:
    """Amount of measurement."""

    rounds: int
    seconds: float


FULL, QUICK, SMOKE = Plan(6, 4.0), Plan(3, 2.0), Plan(1, 0.5)


Kind = Datapath | Literal["plain_ovs"]
KINDS: tuple[Kind, ...] = (*DATAPATHS, "plain_ovs")
#: The kinds in names of figures.
NAMES: dict[Kind, str] = {"ebpf": "ebpf", "packet-in": "openflow", "group": "group", "plain_ovs": "plain_ovs"}


@dataclass(frozen=True)
class Host:
    """A host and the processes of its datapath, whose time is measured."""

    kind: Kind
    net: Topology
    processes: dict[str, int]

    def load(self, *words: str, seconds: float) -> dict[str, Any]:
        """Run the load generator's connections on it."""
        targets = [word for server in self.net.servers() for word in ("--to", server)]
        argv = [str(binary("braid-load")), "connect", *targets, "--ports", PORTS, "--seconds", f"{seconds:g}", *words]
        answer: dict[str, Any] = json.loads(self.net.host.run(argv).stdout.splitlines()[-1])
        if answer["failed"]:
            raise LabError(f"{self.kind}: {answer['failed']} connections failed: {answer['first_failure']}")
        return answer

    def bulk(self, seconds: float, *words: str) -> float:
        """Return the goodput of parallel transfers, Mbit/s."""
        time_words = ["--time", str(max(1, round(seconds))), "--parallel", str(STREAMS), "--json"]
        argv = ["iperf3", "--client", self.net.server(), *time_words, *words]
        report = json.loads(self.net.host.run(argv).stdout)
        bits: float = report["end"]["sum_received"]["bits_per_second"]
        return bits / 1e6


@contextlib.contextmanager
def _host(kind: Kind) -> Iterator[Host]:
    with contextlib.ExitStack() as stack:
        with on_datapath(kind if kind != "plain_ovs" else "ebpf"):
            net = stack.enter_context(network(UPLINKS))
            scratch = net.scratch / f"openflow-speed-{kind}"
            scratch.mkdir(parents=True)
            processes = stack.enter_context(_datapath(kind, net, scratch))
        serve = [str(binary("braid-load")), "serve", "--ports", PORTS]
        server = Process(serve, log=scratch / "serve", namespace=net.internet.name)
        stack.enter_context(server).wait_output('"ready":true')
        bulk = Process(["iperf3", "--server", "--forceflush"], log=scratch / "iperf3", namespace=net.internet.name)
        stack.enter_context(bulk).wait_output("Server listening")
        yield Host(kind, net, processes)


@contextlib.contextmanager
def _datapath(kind: Kind, net: Topology, scratch: Path) -> Iterator[dict[str, int]]:
    """Run a host's datapath; yield the processes that carry or open flows."""
    if kind == "plain_ovs":
        with plain_nat(net, scratch / "ovs") as switch:
            yield {"ovs": switch.pid}
        return
    config = scratch / "braid.toml"
    config.write_text('policy = "rr"\n')
    with braid(net.host, scratch / "run", "--config", config) as daemon:
        if kind == "ebpf":
            yield {}
            return
        (socket,) = (scratch / "run-ovs").glob("ovs-vswitchd.*.ctl")
        controller = int((daemon.run_dir / "openflow.lock").read_text())
        yield {"controller": controller, "ovs": int(socket.name.split(".")[1])}


@experiment(
    "openflow/speed",
    "Packet-in, a group, eBPF and a plain switch with NAT: set-ups, connection times, bulk throughput",
    paper="host-flow-balancing §3",
)
def speed(run: Run) -> None:
    """Measure the hosts in turn, forwards and backwards."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    samples: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        with run.step(f"build hosts: {', '.join(KINDS)}"):
            hosts = [stack.enter_context(_host(kind)) for kind in KINDS]
        for number in range(plan.rounds):
            with run.step(f"round {number + 1} of {plan.rounds}"):
                for host in hosts if number % 2 == 0 else hosts[::-1]:
                    samples.append(_sample(host, plan.seconds))
    run.series("speed", [{key: value for key, value in each.items() if key != "busy"} for each in samples])
    _record(run, samples)


def _sample(host: Host, seconds: float) -> dict[str, Any]:
    before = {name: processor_seconds(pid) for name, pid in host.processes.items()}
    opened = host.load(seconds=seconds)
    busy = {name: (processor_seconds(pid) - before[name]) / seconds for name, pid in host.processes.items()}
    paced = host.load("--workers", "1", "--rate", str(PACED_CONNECTIONS), seconds=seconds)["connect_us"]
    return {
        "kind": host.kind,
        "setups": opened["rate"],
        "connect_p50": paced["p50"],
        "connect_p99": paced["p99"],
        "bulk_down": host.bulk(seconds, "--reverse"),
        "bulk_up": host.bulk(seconds),
        "busy": busy,
    }


#: Unit and direction of each measurement.
MEASURED: dict[str, tuple[str, Better]] = {
    "setups": ("connections/s", "higher"),
    "connect_p50": ("µs", "lower"),
    "connect_p99": ("µs", "lower"),
    "bulk_down": ("Mbit/s", "higher"),
    "bulk_up": ("Mbit/s", "higher"),
}


def _record(run: Run, samples: list[dict[str, Any]]) -> None:
    of = {kind: [each for each in samples if each["kind"] == kind] for kind in KINDS}
    run.table.append(["measurement", *(kind.replace("_", " ") for kind in KINDS), "unit"])

    def ratios(name: str, one: Kind, other: Kind) -> list[float]:
        return [mine[name] / theirs[name] for mine, theirs in zip(of[one], of[other], strict=True)]

    for name, (unit, better) in MEASURED.items():
        row = []
        for kind, taken in of.items():
            value = run.measure(f"{name}_{NAMES[kind]}", [each[name] for each in taken], unit=unit, better=better)
            row.append(f"{value:,.0f}")
        run.table.append([name.replace("_", " "), *row, unit])
        # Packet-in to eBPF, and the group to what a switch does without us.
        run.measure(f"{name}_ratio", ratios(name, "packet-in", "ebpf"), better=better)
        suffix = "" if name == "setups" else f"_{name}"
        run.measure(f"group_vs_plain_ovs{suffix}", ratios(name, "group", "plain_ovs"), better=better)
    for kind in KINDS:
        for process in of[kind][0]["busy"]:
            shares = [each["busy"][process] for each in of[kind]]
            share = run.measure(f"{process}_busy_{NAMES[kind]}", shares)
            row = [f"{share:.2f}" if kind == each else "" for each in KINDS]
            run.table.append([f"{process}'s share of a processor during set-ups", *row, ""])
