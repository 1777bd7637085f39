"""`bond/stalls`: rates that the bond believes in after one of its processes did not run for a while.

A process that waits for a processor reads a backlog at once, which looks like a fast link, and reports late, which
looks like a slow one. The host's daemon and the hub are stopped in turn while a download fills the bond. Both links
lose packets and reorder them, as in the case in which 195 to 330 Mbit/s were once believed of a link of 25.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond.cases import Link
from braid_lab.experiments.bond.faults import stop_for
from braid_lab.experiments.bond.figures import WARM_UP_SECONDS, GoodputTrace, goodput_table
from braid_lab.experiments.bond.site import Site, emulators_kept_up, site
from braid_lab.process import LabError, Process

#: By the ids that the hub gives them.
LINKS = {
    "one": Link(40, 30, loss=0.005, jitter_ms=5, reorders=True),
    "two": Link(25, 45, loss=0.005, jitter_ms=8, reorders=True),
}

#: Undisturbed goodput is that of this long before the stall; what follows it counts for as long.
SPAN_SECONDS = 4.0

#: Interval at which the hub is asked for its links' rates, s.
POLL_SECONDS = 0.1

#: Share of the undisturbed goodput at which the download has recovered.
RECOVERED = 0.9

#: Lengths of the stalls, ms.
STALLS_MS = (10, 150, 1000, 10_000)


def _daemon(place: Site) -> int:
    return place.daemon.pid


def _hub(place: Site) -> int:
    if place.hub.process is None:
        raise LabError("the hub does not run")
    return place.hub.process.pid


VICTIMS: dict[str, Callable[[Site], int]] = {"host": _daemon, "hub": _hub}

CASES = tuple(f"{victim}_{ms}ms" for victim in VICTIMS for ms in STALLS_MS)
QUICK_CASES = tuple(f"{victim}_{ms}ms" for victim in VICTIMS for ms in STALLS_MS[1:3])


@dataclass(frozen=True)
class Stalled:
    """A download around a stall."""

    trace: GoodputTrace
    #: Begin and end of the stall, s after the download's.
    began: float
    ended: float
    #: Highest rate that the hub believed a link to have afterwards, over the link's rate.
    overestimate: float

    @property
    def before(self) -> float:
        """Goodput before the stall, Mbit/s."""
        return self.trace.mbit(self.began - SPAN_SECONDS, self.began)

    @property
    def kept(self) -> float:
        """Goodput after the stall over that before."""
        return self.trace.mbit(self.ended, self.ended + SPAN_SECONDS) / self.before

    @property
    def recovery_s(self) -> float:
        """Time from the end of the stall until half a second has most of the undisturbed goodput."""
        after = GoodputTrace(self.trace.bin_s, self.trace.bytes[round(self.ended / self.trace.bin_s) :])
        return after.reaches(RECOVERED * self.before)


@experiment("bond/stalls", "The bond's beliefs after a process did not run", cases=CASES)
def stalls(run: Run) -> None:
    """Stop each process for each length of time."""
    names = run.cases(run.of_form(full=CASES, quick=QUICK_CASES, smoke=QUICK_CASES[:1]))
    turns = run.of_form(full=5, quick=1, smoke=1)
    lead = WARM_UP_SECONDS + run.of_form(full=2 * SPAN_SECONDS, quick=SPAN_SECONDS, smoke=SPAN_SECONDS)
    run.display.expect(1 + len(names) * turns)
    run.table.append(["stall", "before Mbit/s", "after, of before", "recovered s", "believed, of the link's rate"])
    with contextlib.ExitStack() as stack:
        with run.step("build two links, and join the hub"):
            place = stack.enter_context(site(LINKS, seed=run.seed))
            place.background(place.net.internet.name, "braid_lab.clients.tcp_stream", "serve", place.server)
        worst: list[float] = []
        for name in names:
            with run.part(name):
                found = []
                for turn in range(turns):
                    with run.step(f"{name}, turn {turn + 1} of {turns}"):
                        found.append(_stall(place, name, lead))
                _record(run, name, found)
                worst += [each.overestimate for each in found]
        if worst:
            run.figure(
                "worst_overestimate", max(worst), better="lower", runs=len(worst), spread=(min(worst), max(worst))
            )
        emulators_kept_up(run, place)


def _record(run: Run, name: str, found: list[Stalled]) -> None:
    before = run.measure(f"mbit_before_{name}", [each.before for each in found], unit="Mbit/s")
    kept = run.measure(f"kept_{name}", [each.kept for each in found], better="higher")
    back = run.measure(f"recovery_s_{name}", [each.recovery_s for each in found], unit="s", better="lower")
    most = run.measure(f"overestimate_{name}", [each.overestimate for each in found], better="lower")
    run.series(
        f"course_{name}", goodput_table({f"turn_{at}": each.trace for at, each in enumerate(found, 1)}, bins=5)
    )
    run.table.append([name.replace("_", " "), f"{before:.1f}", f"{kept:.2f}", f"{back:.1f}", f"{most:.2f}"])


def _stall(place: Site, name: str, lead: float) -> Stalled:
    """Stop a process while the bond is full, and watch what the hub believes from then on."""
    victim, _, length = name.removesuffix("ms").partition("_")
    seconds = lead + int(length) / 1000 + SPAN_SECONDS + 1.0
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", "take", place.server, f"{seconds:g}"]
    with Process(argv, log=place.net.scratch / "take", namespace=place.net.host.name) as load:
        time.sleep(lead)
        began = time.monotonic()
        stop_for(VICTIMS[victim](place), int(length) / 1000)
        ended = time.monotonic()
        overestimate = 0.0
        while time.monotonic() < ended + SPAN_SECONDS:
            overestimate = max(overestimate, *_believed(place))
            time.sleep(POLL_SECONDS)
        said = json.loads(load.wait(timeout=seconds + 30).stdout)
    trace = GoodputTrace.unbroken(said, f"{name}:")
    place.wait_carrying(timeout=60)
    return Stalled(trace, began - said["began"], ended - said["began"], overestimate)


def _believed(place: Site) -> list[float]:
    """Return the rate that the hub believes each link to have, over its real one; 0 without a session."""
    (client,) = place.hub.json("clients")["clients"]
    rates = [link.mbit for link in LINKS.values()]
    return [0.0, *(each["rate_bit_s"] / 1e6 / rates[each["id"]] for each in client["links"])]
