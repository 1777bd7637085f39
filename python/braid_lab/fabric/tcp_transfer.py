"""One TCP stream between two stations, as its receiver sees it."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from braid_lab.fabric.ovs import Station
from braid_lab.process import LabError, Process, wait_until

T = TypeVar("T")

#: Share of a full tagged frame, 1518 bytes, that is TCP payload, with timestamps.
GOODPUT_SHARE = 1448 / 1518

#: Kernel counters of retransmission and loss recovery.
COUNTERS = (
    "TcpRetransSegs",
    "TcpExtTCPTimeouts",
    "TcpExtTCPLostRetransmit",
    "TcpExtTCPSackRecovery",
    "TcpExtTCPDSACKRecvSegs",
    "TcpExtTCPSACKReorder",
)


@dataclass
class Transfer:
    """Result of a transfer."""

    #: Goodput of the receiving application, Mbit/s, per `interval`.
    goodput: list[float]
    #: Segments that the receiving kernel queued because earlier ones were missing.
    out_of_order: int
    #: The sender's counters.
    counters: dict[str, int] = field(default_factory=dict)
    #: Seconds.
    interval: float = 1.0

    @property
    def mbit(self) -> float:
        """The mean of the whole transfer."""
        return statistics.fmean(self.goodput)

    def steady(self, after: float) -> float:
        """The mean without the first seconds, in which the window opens."""
        return statistics.fmean(self.goodput[round(after / self.interval) :])


def nstat(station: Station, *names: str) -> dict[str, int]:
    """Return kernel counters of a station."""
    said = station.place.run(["nstat", "-asz", *names]).stdout
    found = {match[1]: int(match[2]) for match in re.finditer(r"^(\S+)\s+(\d+)\s", said, re.MULTILINE)}
    return {name: found.get(name, 0) for name in names}


def run_iperf3(
    source: Station, target: Station, folder: Path, seconds: float, options: Sequence[str], *, interval: float = 1.0
) -> dict[str, Any]:
    """Run iperf3 between two stations and return its report."""
    log = folder / f"iperf3-{source.name}-{target.name}"
    with Process(["iperf3", "-s", "-1", "-J", "-i", f"{interval:g}"], log=log, namespace=target.place.name):
        wait_until(lambda: "5201" in target.place.run(["ss", "-ltn"]).stdout, what="iperf3 to listen")
        argv = ["iperf3", "-c", target.address, "-t", f"{seconds:g}", "-J", "--get-server-output", *options]
        told: dict[str, Any] = json.loads(source.place.run(argv, timeout=seconds + 60).stdout)
    if "server_output_json" not in told:
        raise LabError(f"iperf3 from {source.name} to {target.name}: {told.get('error', 'no report of the server')}")
    return told


def transfer(
    source: Station, target: Station, folder: Path, seconds: float, *options: str, interval: float = 1.0
) -> Transfer:
    """Send as fast as TCP can for `seconds`."""
    names = ["TcpExtTCPOFOQueue"]
    before, sent_before = nstat(target, *names), nstat(source, *COUNTERS)
    told = run_iperf3(source, target, folder, seconds, options, interval=interval)
    after, sent = nstat(target, *names), nstat(source, *COUNTERS)
    goodput = [1e-6 * each["sum"]["bits_per_second"] for each in told["server_output_json"]["intervals"]]
    return Transfer(
        goodput[: round(seconds / interval)],
        after[names[0]] - before[names[0]],
        {name: sent[name] - sent_before[name] for name in COUNTERS},
        interval,
    )


def flows(source: Station, target: Station, folder: Path, seconds: float, number: int) -> list[list[float]]:
    """Send over `number` connections at once; return each one's goodput, Mbit/s, second by second."""
    told = run_iperf3(source, target, folder, seconds, ["-P", str(number)])
    each_second = told["server_output_json"]["intervals"][: round(seconds)]
    return [[1e-6 * stream["bits_per_second"] for stream in second["streams"]] for second in each_second]
