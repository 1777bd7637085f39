"""`openflow/parity`: scenarios of `demo`, `balance/nat`, `balance/failover` and `race/faults` on Open vSwitch.

A case passes, or it is in the list of deviations with a reason. Page loads are compared with those by eBPF, pair by
pair. Races are the controller's in both modes, so they run once.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass

from braid_lab.datapath import Datapath
from braid_lab.experiment import Run, experiment
from braid_lab.experiments import demo
from braid_lab.experiments.balance import uplink_failure
from braid_lab.experiments.balance.nat.cases import Role, run_cases
from braid_lab.experiments.balance.nat.testbed import bench
from braid_lab.experiments.balance.uplink_failure import MAX_OUTAGE_SECONDS, Location, LocationName
from braid_lab.experiments.openflow.deviations import reason
from braid_lab.experiments.race import faults
from braid_lab.experiments.race.site import site
from braid_lab.fixtures import DEMO_UPLINKS, serve
from braid_lab.net.open_vswitch import on_datapath
from braid_lab.net.topology import network
from braid_lab.process import LabError

MODES: tuple[Datapath, ...] = ("packet-in", "group")

#: Largest difference of the page load ratio from that by eBPF.
PAGE_TOLERANCE = 0.05
#: Longest outage of new connections, and time until open ones are told, seconds; the daemon's verdict takes half.
OUTAGE_BOUND = 2.0

ALONE, BOTH = "lte", "wrr"


@dataclass(frozen=True)
class Plan:
    """Amount of measurement: pages of each datapath, trials of failures, connections by races, and places."""

    pages: int
    trials: int
    #: Connections by a race for each fault.
    races: int
    roles: tuple[Role, ...]
    modes: tuple[Datapath, ...] = MODES
    failures: tuple[str, ...] = ("silent", "carrier", "download")
    #: Faults under which races are run; none for all.
    faults: int | None = None


FULL = Plan(pages=12, trials=3, races=100, roles=("host", "gateway"))
QUICK = Plan(pages=5, trials=1, races=30, roles=("host", "gateway"))
SMOKE = Plan(pages=1, trials=1, races=2, roles=("host",), modes=("packet-in",), failures=("silent",), faults=2)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case in one mode; `missed` is empty if it passed."""

    name: str
    mode: Datapath
    missed: str
    deviation: str


@experiment(
    "openflow/parity",
    "Scenarios of demo, balance/nat, balance/failover and race/faults on Open vSwitch",
    paper="host-flow-balancing §3",
)
def parity(run: Run) -> None:
    """Run the scenarios on each mode."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    outcomes: list[Outcome] = []
    with run.part("pages"):
        outcomes += _pages(run, plan)
    for mode in plan.modes:
        for role in plan.roles:
            with run.part(f"nat, {role}, {mode}"), run.step(f"behaviours of a NAT: {role}, {mode}"):
                outcomes += _nat(mode, role)
            with run.part(f"failover, {role}, {mode}"), run.step(f"failing uplinks: {role}, {mode}"):
                outcomes += _failover(mode, role, plan)
    with run.part("races"), run.step("races while an uplink misbehaves"):
        outcomes += _races(plan)
    _record(run, outcomes)


def _pages(run: Run, plan: Plan) -> list[Outcome]:
    """Load pages over the better line alone and over both, datapath after datapath."""
    kinds: tuple[Datapath, ...] = ("ebpf", *plan.modes)
    measured = {(kind, case): demo.Measured() for kind in kinds for case in (ALONE, BOTH)}
    failed: dict[Datapath, int] = {}
    with contextlib.ExitStack() as stack:
        nets = {}
        for kind in kinds:
            with on_datapath(kind):
                nets[kind] = stack.enter_context(network(DEMO_UPLINKS))
            serve(nets[kind], "http1")
        for number in range(plan.pages):
            for kind, case in itertools.product(kinds if number % 2 == 0 else kinds[::-1], (ALONE, BOTH)):
                with on_datapath(kind), demo.using(nets[kind], case, measured[kind, case]):
                    demo.pages(run, nets[kind], case, range(number, number + 1), measured[kind, case])
        for kind in plan.modes:
            with on_datapath(kind):
                failed[kind] = sum(
                    demo.while_unplugged(run, nets[kind], name, 0).failed for name in nets[kind].uplinks
                )
    ratios = {}
    for kind in kinds:
        pairs = zip(measured[kind, BOTH].page_s, measured[kind, ALONE].page_s, strict=True)
        suffix = {"ebpf": "_ebpf", "packet-in": "", "group": "_group"}[kind]
        ratios[kind] = run.measure(
            f"page_load_ratio_wrr{suffix}", [both / one for both, one in pairs], better="lower"
        )
    outcomes = []
    for kind in plan.modes:
        # A group's shares are those of a hash, so a page of 42 connections may be uneven.
        apart = abs(ratios[kind] - ratios["ebpf"])
        missed = f"{ratios[kind]:.3f}, and {ratios['ebpf']:.3f} by eBPF" if apart > PAGE_TOLERANCE else ""
        outcomes.append(Outcome("demo_page", kind, missed, reason("demo_page", kind)))
        missed = f"{failed[kind]} requests failed twice" if failed[kind] else ""
        outcomes.append(Outcome("demo_unplugged", kind, missed, reason("demo_unplugged", kind)))
    return outcomes


def _nat(mode: Datapath, role: Role) -> list[Outcome]:
    with on_datapath(mode), bench(role, offload=False) as machine:
        verdicts = run_cases(role, machine, offload=False)
    # eBPF's own deviations are on purpose here too.
    return [Outcome(each.name, mode, each.missed, reason(each.name, mode) or each.deviation) for each in verdicts]


def _failover(mode: Datapath, role: LocationName, plan: Plan) -> list[Outcome]:
    outcomes = []
    with on_datapath(mode), network(uplink_failure.UPLINKS, lan_clients=1 if role == "gateway" else 0) as net:
        serve(net, "http1", "http3")
        location = Location(role, net)
        for turn, name in itertools.product(range(plan.trials), plan.failures):
            try:
                missed = TRIALS[name](location, turn)
            except LabError as error:
                missed = str(error)
            outcomes.append(Outcome(f"failover_{name}_{role}", mode, missed, reason(f"failover_{name}_{role}", mode)))
    return outcomes


def _silent(location: Location, turn: int) -> str:
    seen = uplink_failure.silent(location, 4, turn)
    if seen.new_flow_outage > OUTAGE_BOUND or seen.tcp_told > OUTAGE_BOUND or seen.wronged:
        return str(seen)
    return ""


def _carrier(location: Location, turn: int) -> str:
    outage = uplink_failure.carrier(location, 4, turn)
    return f"new connections suffered for {outage:.2f} s" if outage > OUTAGE_BOUND else ""


def _download(location: Location, turn: int) -> str:
    seen = uplink_failure.download(location, 4, turn)
    return str(seen) if seen.error is not None or seen.pause >= MAX_OUTAGE_SECONDS else ""


TRIALS: dict[str, Callable[[Location, int], str]] = {"silent": _silent, "carrier": _carrier, "download": _download}


def _races(plan: Plan) -> list[Outcome]:
    """Open connections under each fault; none may fail, or stay half open at the server."""
    outcomes = []
    with on_datapath("packet-in"), site(faults.LINES, watched=False) as place:
        place.net.internet.unlimit_icmp_errors()
        for number, case in enumerate(faults.CASES[: plan.faults], start=1):
            raced, _, left = faults.connect(place, case, number, plan.races)
            lost = sum(each.via is None for each in raced)
            missed = f"{lost} of {len(raced)} failed, {left} are half open" if lost or left else ""
            name = f"race_{case.name}"
            outcomes.append(Outcome(name, "packet-in", missed, reason(name, "packet-in")))
    return outcomes


def _record(run: Run, outcomes: list[Outcome]) -> None:
    run.table.append(["case", "mode", "missing because"])
    run.series("cases", [asdict(each) for each in outcomes])
    by_name: dict[tuple[Datapath, str], list[Outcome]] = {}
    for each in outcomes:
        by_name.setdefault((each.mode, each.name), []).append(each)
    unexplained = 0
    for (mode, name), tries in by_name.items():
        missed = next((each for each in tries if each.missed), None)
        suffix = "" if mode == "packet-in" else f"_{mode}"
        run.figure(f"pass_{name}{suffix}", float(missed is None), better="higher", runs=len(tries))
        if missed is not None:
            unexplained += not missed.deviation
            run.table.append([name, mode, missed.deviation or f"unexplained: {missed.missed[:200]}"])
    run.figure("cases", len(by_name))
    run.figure("cases_missing_unexplained", unexplained, better="lower")
