"""`bond/speed`: how fast the bond is where no link holds it back, and what a gigabit costs.

Links are plain cables (veth), so what is measured is the two ends' work: one TCP stream by one link and by two, and
datagrams of a few bytes. Processor time is that of the hub's and of the daemon's process, kernel work on their behalf
included. Both ends, the stream's two ends and the internet between share one machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond.figures import Course
from braid_lab.experiments.bond.site import Site, site
from braid_lab.process import LabError, Process, run
from braid_lab.product import binary

#: Where the small datagrams go, whose IP packets have 46 bytes.
PORT = 7000

#: At the beginning windows open, s.
WARM_UP_SECONDS = 1.0


@dataclass(frozen=True)
class Sample:
    """One stream: its goodput, and the processor time that each end took for a gigabit of it."""

    mbit: float
    hub_s_per_gbit: float
    daemon_s_per_gbit: float


@experiment("bond/speed", "The bond between cables", paper="layer3-bonding")
def speed(run_: Run) -> None:
    """Measure one link and two."""
    turns, seconds = (2, 5.0) if run_.quick else (5, 15.0)
    run_.display.expect(2 * (2 + turns))
    run_.table.append(["links", "Mbit/s", "hub: s/Gbit", "daemon: s/Gbit", "packets of 46 bytes, 1/s"])
    for count, names in ((1, ("one",)), (2, ("one", "two"))):
        with contextlib.ExitStack() as stack:
            with run_.step(f"{count} cables: build, and join the hub"):
                place = stack.enter_context(site(dict.fromkeys(names), seed=run_.seed))
                place.background(place.net.internet.name, "braid_lab.load.stream", "serve", place.server)
            samples = []
            for turn in range(turns):
                with run_.step(f"{count} cables: a stream, turn {turn + 1} of {turns}"):
                    samples.append(_stream(place, seconds))
            with run_.step(f"{count} cables: small packets"):
                small = _small(place, stack, seconds)
        _record(run_, count, samples, small)


def _record(run_: Run, count: int, samples: list[Sample], small: float) -> None:
    mbit = run_.measure(f"goodput_{count}", [each.mbit for each in samples], unit="Mbit/s", better="higher")
    hub = run_.measure(
        f"cpu_per_gbit_hub_{count}", [each.hub_s_per_gbit for each in samples], unit="s", better="lower"
    )
    daemon = run_.measure(
        f"cpu_per_gbit_daemon_{count}", [each.daemon_s_per_gbit for each in samples], unit="s", better="lower"
    )
    run_.figure(f"packets_per_second_46B_{count}", small, unit="1/s", better="higher")
    run_.table.append([str(count), f"{mbit:.0f}", f"{hub:.2f}", f"{daemon:.2f}", f"{small:.0f}"])


def _stream(place: Site, seconds: float) -> Sample:
    """Receive one stream for so long."""
    pids = (_hub(place), place.daemon.pid)
    argv = [sys.executable, "-m", "braid_lab.load.stream", "take", place.server, f"{seconds:g}"]
    before = [cpu_seconds(pid) for pid in pids]
    report = json.loads(place.net.host.run(argv, timeout=seconds + 30).stdout)
    took = [cpu_seconds(pid) - earlier for pid, earlier in zip(pids, before, strict=True)]
    if report["broken"]:
        raise LabError(f"the stream broke: {report['broken']}")
    course = Course(report["bin_s"], tuple(report["bytes"]))
    gbit = 8e-9 * sum(course.bytes)
    return Sample(course.mbit(WARM_UP_SECONDS, course.seconds), took[0] / gbit, took[1] / gbit)


def _hub(place: Site) -> int:
    if place.hub.process is None:
        raise LabError("the hub does not run")
    return place.hub.process.pid


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has taken so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _small(place: Site, stack: contextlib.ExitStack, seconds: float) -> float:
    """Return how many small datagrams a second come through, of as many as can be sent."""
    serve: list[str | Path] = [binary("braid-load"), "serve", "--ports", str(PORT), "--datagrams-on", place.server]
    log = place.net.scratch / f"{place.net.host.name}-small"
    server = stack.enter_context(Process(serve, log=log, namespace=place.net.internet.name))
    server.wait_output('"ready":true')
    words = ["udp-rate", "--to", place.server, "--ports", str(PORT), "--seconds", f"{seconds:g}", "--flows", "8"]
    said = run([binary("braid-load"), *words], namespace=place.net.host.name, timeout=seconds + 60)
    rate: float = json.loads(said.stdout.splitlines()[-1])["rate"]
    return rate
