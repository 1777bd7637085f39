"""A pulled cable on the single path of two hosts: frames lost with fast failover groups, and without.

With the controller at work, and while it stands still. Real Open vSwitch (userspace datapath) on the same processors.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from braid_lab.experiment import Run, experiment
from braid_lab.fabric.controller import Fabric, configuration, controller
from braid_lab.fabric.ovs import OvsNetwork, ovs_network
from braid_lab.fabric.pulled_cable import lost_frames, way
from braid_lab.fabric.shapes import two_paths
from braid_lab.process import wait_until

#: Frames of a stream, 1 ms apart.
FRAMES = 2000


@experiment("fabric/failover", "A pulled cable: frames lost with fast failover groups and without")
def failover(run: Run) -> None:
    """Pull the first cable of a way, and the second, where packets have to turn round."""
    pulls = run.of_form(full=9, quick=5, smoke=1)
    run.display.expect(8)
    shape = two_paths(mbit=1000, delay_ms=0)
    shape = replace(shape, stations=tuple(replace(each, edge=False) for each in shape.stations))
    for has_groups in (True, False):
        word = "groups" if has_groups else "no_groups"
        config = f"failover = {str(has_groups).lower()}\n{configuration(shape)}"
        with (
            run.part(word),
            ovs_network(shape) as net,
            controller(net.place, net.folder, config) as fabric,
        ):
            ha, hb = net.stations["ha"], net.stations["hb"]
            wait_until(lambda: ha.reaches(hb), what="a ping", timeout=60)  # noqa: B023
            for state in ("controlled", "uncontrolled"):
                for hop, place in enumerate(("near", "far")):
                    with run.step(f"{word}, {state}, the {place} cable"):
                        # All frames that follow are lost: one says it.
                        once = not has_groups and state == "uncontrolled"
                        lost = [_pulled(net, fabric, state, hop, has_groups) for _ in range(1 if once else pulls)]
                    run.measure(f"lost_{word}_{state}_{place}", lost, unit="frames", better="lower")
    run.notes.append(
        "Frames are 1 ms apart, so that as many are lost as the gap has milliseconds. Uncontrolled: the controller "
        f"is stopped (SIGSTOP) before the cable is pulled, until the last of {FRAMES} frames was sent."
    )


def _pulled(net: OvsNetwork, fabric: Fabric, state: str, hop: int, has_groups: bool) -> int:
    """Pull a cable while frames pass it, and put it in again; return the number of frames lost."""
    wait_until(lambda: _is_settled(net, fabric, has_groups=has_groups), what="the controller to be done", timeout=60)
    ha, hb = net.stations["ha"], net.stations["hb"]
    one, other = way(fabric, ha, hb)[hop : hop + 2]
    assert fabric.process is not None  # noqa: S101
    if state == "uncontrolled":
        fabric.process.signal(signal.SIGSTOP)
    try:
        return len(lost_frames(net, ha, hb, f"{one}-{other}", count=FRAMES))
    finally:
        fabric.process.signal(signal.SIGCONT)
        net.place.ip(f"link set {one}-{other} up")


def _is_settled(net: OvsNetwork, fabric: Fabric, *, has_groups: bool) -> bool:
    status = fabric.api_get("status")
    if len(status["links"]) != 8 or len(status["hosts"]) != 2 or status["changing"]:
        return False
    return not has_groups or all("type=ff" in net.ofctl("dump-groups", switch) for switch in ("A", "B"))
