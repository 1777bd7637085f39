"""`balance/firstweek`: programs of a host with two uplinks, beside those of a host with one and without Braid."""

from __future__ import annotations

import contextlib

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.firstweek.faults import DAEMON_FAULTS, LINK_FAULTS, Side
from braid_lab.experiments.firstweek.week import FULL, QUICK, SMOKE, Step, installed, run_week
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import UplinkSpec, network
from braid_lab.product import braid

UPLINKS = (
    UplinkSpec("dsl", LinkSpec(rate="20Mbit/s", delay="15ms", queue="250ms")),
    UplinkSpec("lte", LinkSpec(rate="30Mbit/s", delay="20ms", queue="250ms")),
)


@experiment("balance/firstweek", "Real programs while lines flap and roam and the daemon is restarted and upgraded")
def firstweek(run: Run) -> None:
    """Inject every fault that programs should not notice."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    steps = [
        *(Step(fault, line) for fault in LINK_FAULTS for line in range(len(UPLINKS))),
        *(Step(fault) for fault in DAEMON_FAULTS),
    ]
    with contextlib.ExitStack() as stack:
        with run.step("build a host with Braid and two lines, and one without and with one line"):
            net = stack.enter_context(network(UPLINKS))
            plain = stack.enter_context(network(UPLINKS[:1]))
            run_dir = net.scratch / f"{net.host.name}-braid"
            daemon = stack.enter_context(braid(net.host, run_dir, program=installed()))
        run_week(run, plan, [Side("braid", net, daemon), Side("plain", plain)], steps * plan.rounds)
