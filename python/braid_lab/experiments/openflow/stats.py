"""`openflow/stats`: the throughput of one long flow by polling its rules' counters, against its uplink's device.

[host] §3 has the controller learn throughput from polled flow statistics, and its Fig. 13 is drawn from them. Here a
single download fills an emulated line; `braid flows` is asked for its bytes, and the kernel's counters of the line's
device are the truth. eBPF, whose counters need no polling by a controller, is measured the same way.
"""

from __future__ import annotations

import itertools
import sys
import time
from bisect import bisect_left
from dataclasses import dataclass, field

from braid_lab.datapath import Datapath
from braid_lab.experiment import Run, experiment
from braid_lab.fixtures import DEMO_UPLINKS, serve
from braid_lab.net.open_vswitch import on_datapath
from braid_lab.net.topology import Topology, network
from braid_lab.process import LabError, Process
from braid_lab.product import Braid, braid
from braid_sdn.host.flow_table import ip_bytes

#: The group's connections have no counters of their own: docs/openflow.md.
KINDS: tuple[Datapath, ...] = ("packet-in", "ebpf")

#: Seconds until the window is open and the line's queue full.
WARM_UP_SECONDS = 2.0
#: Seconds between two questions to the daemon, and between two readings of the device.
ASK_INTERVAL, READ_INTERVAL = 0.25, 0.02


@dataclass
class Counter:
    """Bytes of IP packets by time."""

    times: list[float] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)

    def add(self, at: float, count: float) -> None:
        """Add a reading."""
        self.times.append(at)
        self.bytes.append(count)

    def at(self, when: float) -> float:
        """Return the bytes at a time, in proportion between two readings."""
        place = min(max(bisect_left(self.times, when), 1), len(self.times) - 1)
        (one, other), (low, high) = self.times[place - 1 : place + 1], self.bytes[place - 1 : place + 1]
        return low + (high - low) * (when - one) / (other - one)


@experiment(
    "openflow/stats",
    "A long flow's throughput by polled counters against its line's device",
    paper="host-flow-balancing §5.2.2 Fig. 13",
)
def stats(run: Run) -> None:
    """Measure the datapaths one after another."""
    seconds = run.of_form(full=60.0, quick=20.0, smoke=2.0)
    run.table.append(
        ["datapath", "polled Mbit/s", "device Mbit/s", "error", "error of single polls, 90th percentile"]
    )
    for kind in KINDS:
        with run.part(kind), run.step(f"a download of {seconds:g} s, {kind}"):
            _measure(run, kind, seconds)


def _measure(run: Run, kind: Datapath, seconds: float) -> None:
    with on_datapath(kind), network(DEMO_UPLINKS) as net:
        serve(net, "http1")
        config = net.scratch / f"stats-{kind}.toml"
        config.write_text('policy = "rr"\n')
        with braid(net.host, net.scratch / "braid", "--config", config) as daemon:
            polled, truth = _watch(net, daemon, seconds)
    rows = [
        {"s": round(at - polled.times[0], 3), "polled": _mbit(polled, then, at), "device": _mbit(truth, then, at)}
        for then, at in itertools.pairwise(polled.times)
    ]
    run.series(f"rates-{kind}", rows)
    first, last = polled.times[0], polled.times[-1]
    told, real = _mbit(polled, first, last), _mbit(truth, first, last)
    errors = sorted(abs(row["polled"] / row["device"] - 1) for row in rows)
    suffix = "" if kind == "packet-in" else f"_{kind}"
    error = run.measure(f"error{suffix}", [abs(told / real - 1)], better="lower")
    single = run.measure(f"single_error{suffix}", [errors[int(0.9 * (len(errors) - 1))]], better="lower")
    run.measure(f"throughput{suffix}", [told], unit="Mbit/s")
    run.table.append([kind, f"{told:.2f}", f"{real:.2f}", f"{error:.4f}", f"{single:.3f}"])


def _mbit(counter: Counter, since: float, until: float) -> float:
    return 8e-6 * (counter.at(until) - counter.at(since)) / (until - since)


def _watch(net: Topology, daemon: Braid, seconds: float) -> tuple[Counter, Counter]:
    """Download, and return the flow's bytes as the daemon tells them, and those of its device."""
    words = ["1", "0", str(WARM_UP_SECONDS + seconds + 1), net.server()]
    argv = [sys.executable, "-m", "braid_lab.clients.bulk", *words]
    polled, truth = Counter(), {name: Counter() for name in net.uplinks}
    uplink = ""
    with Process(argv, log=net.scratch / "download", namespace=net.host.name) as client:
        began = time.monotonic()
        due = began + WARM_UP_SECONDS
        while (now := time.monotonic()) < began + WARM_UP_SECONDS + seconds:
            for name, counter in truth.items():
                counted = net.host.counters(name)["rx"]
                # The middle of the reading.
                at = (now + time.monotonic()) / 2
                counter.add(at, ip_bytes(counted["packets"], counted["bytes"]))
            if now >= due:
                due = now + ASK_INTERVAL
                uplink = _ask(daemon, net.server(), polled) or uplink
            time.sleep(READ_INTERVAL)
        client.wait()
    if len(polled.times) < 2:
        raise LabError("the flow was not told twice")
    return polled, truth[uplink]


def _ask(daemon: Braid, server: str, polled: Counter) -> str | None:
    """Add the flow's bytes, with the time of their reading; return its uplink."""
    before = time.monotonic()
    flows = [each for each in daemon.json("flows")["flows"] if (each["remote"] or "").startswith(f"{server}:")]
    if not flows:
        return None
    flow = max(flows, key=lambda each: each["rx_bytes"])
    # A flow was last seen when its counters were last found higher.
    at = (before + time.monotonic()) / 2 - flow["idle_ms"] / 1000
    if not polled.bytes or flow["rx_bytes"] > polled.bytes[-1]:
        polled.add(at, flow["rx_bytes"])
    uplink: str = flow["uplink"]
    return uplink
