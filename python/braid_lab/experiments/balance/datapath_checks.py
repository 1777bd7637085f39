"""Invariants of Braid's datapath: shares, flows across a daemon crash, flows under a flood, many flows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from braid_lab.experiment import Run
from braid_lab.experiments.balance import loads
from braid_lab.experiments.balance.ab_testbed import WEIGHTS, AbTestbed
from braid_lab.experiments.balance.figures import share_error
from braid_lab.process import LabError
from braid_lab.product import Braid


@dataclass(frozen=True)
class Crowd:
    """Numbers of flows."""

    #: Flows in the measurement of shares.
    shared: int = 400
    #: Flows held at once.
    held: int = 100_000
    #: Flows that a flood must not evict, and the flood's SYNs.
    flooded: int = 1_000
    syns: int = 1_000_000


#: Packet train during which the daemon is killed: datagrams per second, and flows, three per uplink.
TRAIN_RATE = 2_000.0
TRAIN_FLOWS = 9

#: Rate of the download beside it: low enough that no queue on the path overflows by itself.
DOWNLOAD_MBIT = 300


def shares(run: Run, net: AbTestbed, daemon: Braid, crowd: Crowd) -> None:
    """Compare the uplinks' shares with the weights, as counted by Braid and as seen by the servers."""
    with run.step(f"share {crowd.shared} flows by weight"):
        before = _flows_opened(daemon)
        with loads.server(net, loads.COUNTED_PORTS) as server:
            opened = loads.connect_count(net, net.braid, crowd.shared, loads.COUNTED_PORTS)
            sources = loads.finished(server)["sources"]
        after = _flows_opened(daemon)
    if opened != crowd.shared:
        raise LabError(f"only {opened} of {crowd.shared} connections were opened through braid")
    counted = {name: after[name] - before[name] for name in WEIGHTS}
    seen = {uplink.name: sources.get(uplink.address, 0) for uplink in net.braid.uplinks}
    errors = [share_error(each, WEIGHTS) for each in (counted, seen)]
    run.figure("wrr_share_error", max(errors), better="lower", runs=crowd.shared, spread=(min(errors), max(errors)))
    rows = [
        {"uplink": name, "weight": weight, "counted": counted[name], "seen": seen[name]}
        for name, weight in WEIGHTS.items()
    ]
    run.series("shares", rows)


def _flows_opened(daemon: Braid) -> dict[str, int]:
    return {each["name"]: each["flows_opened"] for each in daemon.json("uplinks")["uplinks"]}


def killed_daemon(run: Run, net: AbTestbed, daemon: Braid, options: Sequence[str], *, seconds: float) -> None:
    """Kill the daemon and restart it under traffic; every datagram counts."""
    with (
        run.step("kill -9 the daemon under traffic and start it again"),
        loads.download(net, net.braid, mbit=DOWNLOAD_MBIT, seconds=seconds) as download,
        loads.ping_train(net, net.braid, rate=TRAIN_RATE, seconds=seconds, flows=TRAIN_FLOWS) as train,
    ):
        # Not a synchronisation: the first quarter of the traffic, for comparison.
        time.sleep(seconds / 4)
        daemon.kill9()
        # Time without a daemon: flows must live on the kernel's state alone.
        time.sleep(seconds / 4)
        daemon.up(*options)
        pinged = loads.result(train)
        got = loads.downloaded(download)
    run.figure("kill9_lost_packets", pinged["lost"], better="lower", runs=pinged["sent"])
    run.figure("kill9_longest_gap", pinged["longest_gap_ms"], unit="ms", better="lower")
    run.figure("kill9_tcp_retransmits", got.retransmits, better="lower")
    run.figure("kill9_download_slowest_tenth", min(got.mbit[:-1]), unit="Mbit/s", better="higher")
    run.series("kill9_download", [{"second": tenth / 10, "mbit": rate} for tenth, rate in enumerate(got.mbit)])


def flood(run: Run, net: AbTestbed, crowd: Crowd) -> None:
    """Flood the gateway with SYNs from inside; established connections must not be affected."""
    with run.step(f"{crowd.syns:,} spoofed SYNs against {crowd.flooded:,} connections"):
        with loads.hold(net, net.braid, crowd.flooded) as held:
            sent = loads.syn_flood(net, net.braid, crowd.syns, run.seed)
            alive = held.alive()
    if held.held != crowd.flooded or sent["sent"] != crowd.syns:
        raise LabError(f"the flood was not what it should be: {held.held} connections, {sent['sent']} SYNs")
    run.figure("syn_flood_evicted", crowd.flooded - alive, better="lower", runs=crowd.flooded)
    run.figure("syn_flood_rate", sent["rate"], unit="1/s")


def capacity(run: Run, net: AbTestbed, daemon: Braid, crowd: Crowd) -> None:
    """Hold many connections at once and check each; record their memory use."""
    with run.step(f"hold {crowd.held:,} connections at once"):
        before = daemon.json("status")
        with loads.hold(net, net.braid, crowd.held) as held:
            during = daemon.json("status")
            alive = held.alive()
    memory = during["memory_bytes"]
    run.figure("flows_held", alive, better="higher", runs=crowd.held)
    run.figure("flows_held_memory_bytes", memory, unit="B", better="lower")
    run.figure("flows_held_memory_bytes_per_flow", (memory - before["memory_bytes"]) / crowd.held, unit="B")
    run.figure("flows_held_established", during["flows"]["established"])
    run.figure("flows_held_open_rate", held.held / held.seconds, unit="1/s")
