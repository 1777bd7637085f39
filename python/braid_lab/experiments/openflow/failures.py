"""`openflow/failures`: parts of the datapath of Open vSwitch fail in turn, under load.

Open connections go on, or are told where the switch itself has lost them; new ones work again within a bound;
and `braid status` names each failure while it lasts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.balance.uplink_failure import Location, ended, held_by, seen
from braid_lab.fixtures import serve
from braid_lab.net.open_vswitch import OpenVswitch, open_vswitch
from braid_lab.net.topology import Topology, UplinkSpec, network
from braid_lab.process import LabError, Process, wait_until
from braid_lab.product import Braid, braid

UPLINKS = (UplinkSpec("dsl", offload=False), UplinkSpec("lte", offload=False))
BRIDGE = "braid-ovs"

#: Seconds in which new connections have to succeed again once the failure is over.
RECOVERY_SECONDS = 15.0
#: Seconds in which a failure is named.
NAMING_SECONDS = 25.0
#: Interval of new connections, and how many in a row have to succeed at once.
SPACING_MS, IN_A_ROW = 50, 10
#: A cookie that is not ours.
FOREIGN = "cookie=0x77"


@dataclass(frozen=True)
class Plan:
    """Amount of measurement: open connections of each kind, and turns."""

    connections: int
    turns: int


FULL, QUICK, SMOKE = Plan(50, 5), Plan(20, 2), Plan(2, 1)


@dataclass(frozen=True)
class Place:
    """A host with the datapath of Open vSwitch."""

    net: Topology
    ovs: OpenVswitch
    daemon: Braid

    @property
    def controller(self) -> int:
        """The controller's process id."""
        return int((self.daemon.run_dir / "openflow.lock").read_text())

    def named(self) -> set[str]:
        """Return the codes of what is wrong with the datapath."""
        return {each["code"] for each in self.daemon.json("status")["health"] if each["code"].startswith("openflow")}


@dataclass(frozen=True)
class Case:
    """A failure, its code in the health list, and the fate of open connections."""

    name: str
    fault: Callable[[Place], AbstractContextManager[object]]
    code: str
    keeps: bool = True


@contextlib.contextmanager
def _controller(place: Place) -> Iterator[None]:
    """The daemon starts another one, so the failure lasts a moment."""
    before = place.controller
    os.kill(before, signal.SIGKILL)
    yield
    wait_until(lambda: place.controller != before, what="another controller", timeout=30)


@contextlib.contextmanager
def _hung(place: Place) -> Iterator[None]:
    os.kill(place.controller, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(place.controller, signal.SIGCONT)


@contextlib.contextmanager
def _switch(place: Place) -> Iterator[None]:
    place.ovs.stop(how=signal.SIGKILL)
    yield
    place.ovs.start()


@contextlib.contextmanager
def _database(place: Place) -> Iterator[None]:
    place.ovs.kill_database()
    yield
    place.ovs.start_database()


@contextlib.contextmanager
def _second_controller(place: Place) -> Iterator[None]:
    """It deletes all that it finds, and adds rules of its own."""
    place.ovs.ofctl("del-flows", BRIDGE)
    place.ovs.ofctl("add-flow", BRIDGE, f"{FOREIGN},table=1,priority=1,actions=drop")
    yield
    place.ovs.ofctl("del-flows", BRIDGE, f"{FOREIGN}/-1")


@contextlib.contextmanager
def _full_table(place: Place) -> Iterator[None]:
    made = ("--id=@full", "create", "Flow_Table", "flow_limit=1", "overflow_policy=refuse")
    place.ovs.vsctl("--", *made, "--", "set", "bridge", BRIDGE, "flow_tables:1=@full")
    yield
    place.ovs.vsctl("clear", "bridge", BRIDGE, "flow_tables")


CASES = (
    Case("controller", _controller, "openflow-controller"),
    Case("hung_controller", _hung, "openflow-controller"),
    Case("ovsdb_server", _database, "openflow-database"),
    Case("second_controller", _second_controller, "openflow-foreign-rules"),
    Case("full_table", _full_table, "openflow-table-full"),
    # Its rules are gone with it.
    Case("ovs_vswitchd", _switch, "openflow-controller", keeps=False),
)


@contextlib.contextmanager
def _place() -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network(UPLINKS))
        serve(net, "http1")
        scratch = net.scratch / f"openflow-failures-{net.host.name}"
        scratch.mkdir(parents=True)
        ovs = stack.enter_context(open_vswitch(net.host, scratch / "ovs"))
        ovs.start()
        config = scratch / "braid.toml"
        config.write_text(f'policy = "rr"\n[datapath]\nkind = "openflow"\novs_run_dir = "{ovs.folder}"\n')
        yield Place(net, ovs, stack.enter_context(braid(net.host, scratch / "run", "--config", config)))


@experiment(
    "openflow/failures",
    "Parts of the datapath of Open vSwitch fail in turn, under load",
    paper="host-flow-balancing §3",
)
def failures(run: Run) -> None:
    """Let every part fail while connections are open and others are opened."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.table.append(["failure", "passed", "named", "open connections lost", "new ones work again after s"])
    for case in run.of_form(full=CASES, quick=CASES, smoke=CASES[:2]):
        with run.part(case.name):
            outcomes = []
            for turn in range(plan.turns):
                with run.step(f"{case.name.replace('_', ' ')}, turn {turn + 1} of {plan.turns}"), _place() as place:
                    outcomes.append(_outcome(place, case, plan.connections))
            _record(run, case, outcomes)


@dataclass(frozen=True)
class Outcome:
    """Result of one turn."""

    named: bool
    lost: int
    #: Open connections that were lost and told so.
    told: int
    open: int
    recovery_s: float | None


def _outcome(place: Place, case: Case, connections: int) -> Outcome:
    location = Location("host", place.net)
    server = place.net.server()
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(location.start("open_connections", connections, 2 * connections, server))
        held_by(held)
        # Connections are opened all the while.
        fresh = stack.enter_context(location.start("new_connections", SPACING_MS, server))
        wait_until(lambda: any(each.good for each in seen(fresh)), what="new connections")
        with case.fault(place):
            named = _is_named(place, case.code)
        over = time.monotonic()
        recovery = _recovery(fresh, over)
        wait_until(lambda: not place.named(), what="nothing to be named any more", timeout=NAMING_SECONDS)
        if not case.keeps:
            # Those that only receive have sent nothing that could be answered.
            with contextlib.suppress(LabError):
                wait_until(lambda: len(ended(held)) >= connections, what="the sending ones to be told", timeout=20)
        lost = ended(held)
    told = [each for each in lost if each.error == "ECONNRESET"]
    return Outcome(named, len(lost), len(told), 2 * connections, recovery)


def _is_named(place: Place, code: str) -> bool:
    with contextlib.suppress(LabError):
        return wait_until(lambda: code in place.named(), what=code, timeout=NAMING_SECONDS)
    return False


def _recovery(fresh: Process, over: float) -> float | None:
    """Return the seconds until new connections succeed in a row; None if they do not."""

    def run_of_good() -> list[float]:
        latest = sorted((each.number, each) for each in seen(fresh))[-IN_A_ROW:]
        begun = [each.at for _, each in latest if each.good and each.at >= over]
        return begun if len(begun) == IN_A_ROW else []

    with contextlib.suppress(LabError):
        return max(0.0, wait_until(run_of_good, what="new connections", timeout=RECOVERY_SECONDS)[0] - over)
    return None


def _record(run: Run, case: Case, outcomes: list[Outcome]) -> None:
    recoveries = [each.recovery_s for each in outcomes if each.recovery_s is not None]
    lost, told, opened = (sum(getattr(each, name) for each in outcomes) for name in ("lost", "told", "open"))
    named = all(each.named for each in outcomes)
    whole = lost == 0 if case.keeps else told == lost and 2 * told >= opened
    passed = named and whole and len(recoveries) == len(outcomes)
    run.figure(f"pass_{case.name}", int(passed), better="higher", runs=len(outcomes))
    run.figure(f"lost_{case.name}", lost, better="lower" if case.keeps else "none", runs=opened)
    worst = "–"
    if recoveries:
        seconds = run.measure(f"recovery_{case.name}", recoveries, unit="s", better="lower")
        worst = f"{seconds:.1f}"
    words = {True: "yes", False: "no"}
    run.table.append([case.name.replace("_", " "), words[passed], words[named], f"{lost} of {opened}", worst])
