"""`openflow/speed`: flows opened by packet-in beside eBPF: set-ups per second, connection times, bulk throughput.

Two hosts of one shape, each with two plain uplinks and an internet of its own. Offloads are off at both, since a
userspace bridge needs whole packets: the bulk ratio compares datapaths, and not segmentation offload.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from braid_lab.experiment import Better, Run, experiment
from braid_lab.net.open_vswitch import open_vswitch
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.process import LabError, Process, processor_seconds
from braid_lab.product import binary, braid

UPLINKS = (UplinkSpec("dsl", offload=False), UplinkSpec("lte", offload=False))

#: Ports of the load's server.
PORTS = "7000-7015"

#: Connections a second at which connection times are measured: below what either datapath opens.
PACED_CONNECTIONS = 200

#: Parallel connections of a bulk transfer: two per uplink.
STREAMS = 4


@dataclass(frozen=True)
class Plan:
    """Amount of measurement."""

    rounds: int
    seconds: float


FULL, QUICK, SMOKE = Plan(6, 4.0), Plan(3, 2.0), Plan(1, 0.5)


@dataclass(frozen=True)
class Host:
    """A host and the processes of its datapath, whose time is measured."""

    kind: str
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
def _host(kind: str) -> Iterator[Host]:
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network(UPLINKS))
        scratch = net.scratch / f"openflow-speed-{kind}"
        scratch.mkdir(parents=True)
        config = scratch / "braid.toml"
        text = 'policy = "rr"\n[datapath]\n'
        if kind == "openflow":
            ovs = stack.enter_context(open_vswitch(net.host, scratch / "ovs"))
            ovs.start()
            text += f'kind = "openflow"\novs_run_dir = "{ovs.folder}"\n'
        config.write_text(text)
        daemon = stack.enter_context(braid(net.host, scratch / "run", "--config", config))
        processes = {}
        if kind == "openflow":
            processes = {"controller": int((daemon.run_dir / "openflow.lock").read_text()), "ovs": ovs.pid}
        serve = [str(binary("braid-load")), "serve", "--ports", PORTS]
        server = Process(serve, log=scratch / "serve", namespace=net.internet.name)
        stack.enter_context(server).wait_output('"ready":true')
        bulk = Process(["iperf3", "--server", "--forceflush"], log=scratch / "iperf3", namespace=net.internet.name)
        stack.enter_context(bulk).wait_output("Server listening")
        yield Host(kind, net, processes)


@experiment(
    "openflow/speed",
    "Flows opened by packet-in beside eBPF: set-ups, connection times, bulk throughput",
    paper="host-flow-balancing §3",
)
def speed(run: Run) -> None:
    """Measure both hosts in turn."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    samples: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        with run.step("build a host with eBPF and one with Open vSwitch"):
            hosts = [stack.enter_context(_host(kind)) for kind in ("ebpf", "openflow")]
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
    run.table.append(["measurement", "openflow", "ebpf", "unit", "ratio"])
    of = {kind: [each for each in samples if each["kind"] == kind] for kind in ("openflow", "ebpf")}
    for name, (unit, better) in MEASURED.items():
        row = []
        for kind, taken in of.items():
            value = run.measure(f"{name}_{kind}", [each[name] for each in taken], unit=unit, better=better)
            row.append(f"{value:,.0f}")
        ratios = [one[name] / other[name] for one, other in zip(of["openflow"], of["ebpf"], strict=True)]
        ratio = run.measure(f"{name}_ratio", ratios, better=better)
        run.table.append([name.replace("_", " "), *row, unit, f"{ratio:.3f}"])
    for process in of["openflow"][0]["busy"]:
        shares = [each["busy"][process] for each in of["openflow"]]
        share = run.measure(f"{process}_busy", shares)
        run.table.append([f"{process}'s share of a processor during set-ups", f"{share:.2f}", "", "", ""])
