"""`bond/firstweek`: the same through a bond, where lines also die, addresses change, and the hub restarts."""

from __future__ import annotations

import contextlib

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond.cases import Link
from braid_lab.experiments.bond.site import site
from braid_lab.experiments.firstweek.faults import (
    BOND_FAULTS,
    DAEMON_FAULTS,
    LINK_FAULTS,
    RENUMBERED,
    Side,
    restart_hub,
)
from braid_lab.experiments.firstweek.week import FULL, QUICK, SMOKE, Step, installed, run_week
from braid_lab.net.topology import UplinkSpec, network

LINKS = {"dsl": Link(20, 15, queue_ms=250), "lte": Link(30, 20, queue_ms=250)}


@experiment(
    "bond/firstweek", "Real programs through a bond: lines die, addresses change, the hub is restarted and killed"
)
def firstweek(run: Run) -> None:
    """Inject every fault that programs should not notice."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    steps = [
        *(Step(fault, number) for number, fault in enumerate(LINK_FAULTS)),
        *(Step(fault) for fault in DAEMON_FAULTS),
    ]
    # The shortest is enough for the smoke form.
    outlived = BOND_FAULTS if run.form != "smoke" else [each for each in BOND_FAULTS if each.act is restart_hub]
    tunnelled = [Step(fault, 1) for fault in outlived]
    with contextlib.ExitStack() as stack:
        with run.step("build a host that has joined a hub by two lines, and one without and with one line"):
            place = stack.enter_context(site(LINKS, seed=run.seed, program=installed()))
            spec = UplinkSpec("dsl", LINKS["dsl"].line(run.seed), families=frozenset({4}))
            plain = stack.enter_context(network([spec]))
        options = ("--config", str(place.daemon.run_dir.with_name("braid.toml")))
        bonded = Side("braid", place.net, place.daemon, place.hub, options)
        run_week(
            run,
            plan,
            [bonded, Side("plain", plain)],
            [*steps * plan.rounds, Step(RENUMBERED), *tunnelled * plan.rounds],
        )
