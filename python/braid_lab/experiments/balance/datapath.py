"""`balance/datapath`: Braid's datapath beside nftables, and its invariants under load and across crashes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.balance import comparison, datapath_checks, loads, nftables
from braid_lab.experiments.balance.ab_testbed import WEIGHTS, ab_testbed
from braid_lab.experiments.balance.datapath_checks import Crowd
from braid_lab.product import braid


@dataclass(frozen=True)
class Plan:
    """Amount of measurement."""

    #: Rounds of the comparison, with offloads and again without.
    rounds: int
    #: Length of one measurement (of a bulk transfer: at least one second).
    seconds: float
    #: Length of the packet train around the daemon's death.
    train_seconds: float
    crowd: Crowd


FULL = Plan(rounds=6, seconds=1.5, train_seconds=8.0, crowd=Crowd())
QUICK = Plan(rounds=2, seconds=0.3, train_seconds=3.0, crowd=Crowd())
SMOKE = Plan(rounds=1, seconds=0.1, train_seconds=2.0, crowd=Crowd(shared=90, held=500, flooded=50, syns=5_000))


@experiment(
    "balance/datapath",
    "The flow datapath beside nftables with marks, numgen and masquerade",
    paper="host-flow-balancing",
)
def datapath(run: Run) -> None:
    """Measure both gateways in turn, then Braid alone: shares, capacity, a killed daemon, a flood."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    weights = [word for name, weight in WEIGHTS.items() for word in ("--weight", f"{name}={weight}")]
    options = ["--policy", "wrr", *weights]
    with contextlib.ExitStack() as stack:
        with run.step("build two gateways between a client and the internet"):
            net = stack.enter_context(ab_testbed())
            nftables.install(net.nft)
            daemon = stack.enter_context(braid(net.braid.gateway, net.scratch / "braid", *options))
            stack.enter_context(loads.servers(net))
        with run.part("shares"):
            datapath_checks.shares(run, net, daemon, plan.crowd)
        with run.part("connections at once"):
            datapath_checks.capacity(run, net, daemon, plan.crowd)
        with run.step("restart braid: an empty flow table, as nftables has"):
            daemon.down()
            daemon.up(*options)
        with run.part("beside nftables"):
            comparison.compare(run, net, rounds=plan.rounds, seconds=plan.seconds)
        with run.part("a killed daemon"):
            datapath_checks.killed_daemon(run, net, daemon, options, seconds=plan.train_seconds)
        with run.part("a flood"):
            datapath_checks.flood(run, net, plan.crowd)
    _tabulate(run)


def _tabulate(run: Run) -> None:
    """Append Braid's invariants to the comparison's table."""
    names = (
        "wrr_share_error",
        "kill9_lost_packets",
        "syn_flood_evicted",
        "flows_held",
        "flows_held_memory_bytes",
    )
    for each in run.figures:
        if each.name in names:
            run.table.append(
                [each.name.replace("_", " "), "on", f"{each.value:,.4f}".rstrip("0").rstrip("."), "", each.unit, ""]
            )
