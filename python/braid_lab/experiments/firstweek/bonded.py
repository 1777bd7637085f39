"""`bond/firstweek`: the same through a bond, where lines also die, addresses change, and the hub goes and comes."""

from __future__ import annotations

import contextlib

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond.cases import Link
from braid_lab.experiments.bond.site import site
from braid_lab.experiments.firstweek.trouble import (
    BOND_TROUBLES,
    DAEMON_TROUBLES,
    LINE_TROUBLES,
    RENUMBERED,
    Side,
    restart_hub,
)
from braid_lab.experiments.firstweek.week import FULL, QUICK, SMOKE, Step, installed, live
from braid_lab.net.topology import UplinkSpec, network

LINKS = {"dsl": Link(20, 15, queue_ms=250), "lte": Link(30, 20, queue_ms=250)}


@experiment("bond/firstweek", "The same through a bond: lines die, addresses change, the hub is restarted and killed")
def firstweek(run: Run) -> None:
    """Let everything happen that programs should not notice."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    steps = [
        *(Step(trouble, number) for number, trouble in enumerate(LINE_TROUBLES)),
        *(Step(trouble) for trouble in DAEMON_TROUBLES),
    ]
    # To see that it runs, the shortest is enough.
    outlived = BOND_TROUBLES if run.form != "smoke" else [each for each in BOND_TROUBLES if each.act is restart_hub]
    tunnelled = [Step(trouble, 1) for trouble in outlived]
    with contextlib.ExitStack() as stack:
        with run.step("build a host that has joined a hub by two lines, and one without and with one line"):
            place = stack.enter_context(site(LINKS, seed=run.seed, program=installed()))
            spec = UplinkSpec("dsl", LINKS["dsl"].line(run.seed), families=frozenset({4}))
            plain = stack.enter_context(network([spec]))
        options = ("--config", str(place.daemon.run_dir.with_name("braid.toml")))
        bonded = Side("braid", place.net, place.daemon, place.hub, options)
        live(
            run,
            plan,
            [bonded, Side("plain", plain)],
            [*steps * plan.rounds, Step(RENUMBERED), *tunnelled * plan.rounds],
        )
