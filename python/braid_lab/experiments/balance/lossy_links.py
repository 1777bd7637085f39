"""Lossy lines that work, which must stay in use, and flapping lines.

They are watched beside the trials, each kind as a host's and as a gateway's uplink. Each line carries one IP version
only, so that the other version's replies cannot help.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from braid_lab.experiments.balance.uplink_failure import Location
from braid_lab.net.faults import black_hole
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import UplinkSpec
from braid_lab.observe import verdicts
from braid_lab.process import Process
from braid_lab.product import braid

#: 10 % loss and up to 300 ms of uniform jitter each way: round trips of 0 to 1.2 s.
LOSSY_LINK = LinkSpec(rate="20Mbit/s", delay="300ms", jitter="300ms", loss="10%", queue="250ms")
STEADY_LINK = LinkSpec(rate="20Mbit/s", delay="15ms", queue="250ms")

UPLINKS = (
    UplinkSpec("steady", STEADY_LINK),
    *(UplinkSpec(f"shaky{family}", LOSSY_LINK, families=frozenset({family})) for family in (4, 6)),
    *(UplinkSpec(f"flap{family}", STEADY_LINK, families=frozenset({family})) for family in (4, 6)),
)

#: Interval of new connections of each IP version: light traffic, a third of it on each uplink.
CONNECTION_INTERVAL_MS = 200.0

#: The default policy would put next to nothing on such lines.
ROUND_ROBIN = ("--policy", "rr")

#: A flapping line is silent for this long, then works for this long.
SILENT_SECONDS = 2.0
WORKING_SECONDS = 3.0


@dataclass
class LossyLinkReport:
    """Verdicts about one location's lines, by IP version."""

    #: CLOCK_MONOTONIC.
    began: float = 0.0
    watched_seconds: float = 0.0
    #: Times that a lossy line was declared dead.
    false_deaths: dict[int, int] = field(default_factory=dict)
    #: Times that a flapping line went silent, and times that it was readmitted.
    flaps: int = 0
    admitted: dict[int, int] = field(default_factory=dict)


@contextlib.contextmanager
def watched(location: Location) -> Iterator[LossyLinkReport]:
    """Watch such lines for the length of a block; the yielded report is complete at its end."""
    report, over = LossyLinkReport(), threading.Event()
    with (
        braid(location.net.host, location.net.scratch / f"braid-{location.net.host.name}", *ROUND_ROBIN) as daemon,
        _traffic(location, 4),
        _traffic(location, 6),
    ):
        report.began = time.monotonic()
        flapping = threading.Thread(target=_flap, args=(location, over, report))
        flapping.start()
        try:
            yield report
        finally:
            over.set()
            flapping.join()
        report.watched_seconds = time.monotonic() - report.began
        seen = verdicts(daemon)
    for family in (4, 6):
        report.false_deaths[family] = sum(each == (f"shaky{family}", "dead") for each in seen)
        flaps = [verdict for name, verdict in seen if name == f"flap{family}"]
        report.admitted[family] = sum(before == "dead" != after for before, after in itertools.pairwise(flaps))


def watch_for(every: Iterable[LossyLinkReport], seconds: float) -> None:
    """Wait until each has been watched for this long."""
    for report in every:
        time.sleep(max(0.0, report.began + seconds - time.monotonic()))


def _traffic(location: Location, family: int) -> Process:
    return location.start("new_connections", CONNECTION_INTERVAL_MS, *location.net.servers(family), tag=str(family))


def _flap(location: Location, over: threading.Event, report: LossyLinkReport) -> None:
    """Let both flapping lines fail and recover until told to stop; the times are the fault pattern, not waits."""
    while not over.wait(WORKING_SECONDS):
        report.flaps += 1
        with black_hole(location.net.uplinks["flap4"]), black_hole(location.net.uplinks["flap6"]):
            over.wait(SILENT_SECONDS)
