"""`bond/failure`: the effect on a flow through the bond when links fail, change address or degrade.

Echo trains of every class run through the bond beside a download that fills it, while a fault is injected. An outage
is the longest pause between two replies from then on, less the usual interval. Probes without a reply are lost, in
either direction. The hub, which has no rules, orders the replies.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond import faults
from braid_lab.experiments.bond.cases import Link
from braid_lab.experiments.bond.figures import EchoProbe, GoodputTrace, outage_ms
from braid_lab.experiments.bond.site import Site, site
from braid_lab.fixtures import echo_train
from braid_lab.process import LabError, Process, wait_until

LINKS = {"one": Link(30, 15), "two": Link(30, 15)}

#: Classes that rules can assign, each with a server of its own.
CLASSES = {"ordered": 2, "unordered": 3, "redundant": 4}

#: Interval of probes, s.
PROBE_INTERVAL_SECONDS = 0.01

#: UDP payload of a probe.
PROBE_BYTES = 64

#: The download runs for this long before the fault, and is recorded for this long after.
LEAD_SECONDS = 1.5

#: Loss on a link that the bond must stop using.
EXCESSIVE_LOSS = "30 %"

#: Share of the data on a link that is not used, and least share on one of two equal links that is used.
UNUSED_SHARE, USED_SHARE = 0.02, 0.2

Fault = Callable[[Site, str], AbstractContextManager[float]]


@dataclass(frozen=True)
class Case:
    """A fault of a link."""

    name: str
    fault: Fault
    link: str
    loaded: bool = True
    #: Duration of the fault, s.
    lasts_s: float = 2.0
    #: Time during which nothing of the host runs before the fault begins, s.
    asleep_s: float = 0.0
    #: True if flows bypass the hub while it is out of reach. Otherwise the session's own recovery is measured.
    falls_back: bool = True


CASES = (
    Case("black_hole_one", faults.link_black_hole, "one"),
    Case("black_hole_two", faults.link_black_hole, "two"),
    Case("black_hole_idle", faults.link_black_hole, "one", loaded=False),
    Case("carrier", faults.without_carrier, "one"),
    Case("renumbered", faults.renumbered, "one"),
    Case("rebound", faults.rebound, "one"),
    Case("suspended", faults.suspended, "one", asleep_s=faults.SUSPENDED_SECONDS),
    Case("hub_restarted", faults.hub_restarted, "one", lasts_s=4.0),
    Case("suspended_blocked", faults.suspended, "one", asleep_s=faults.SUSPENDED_SECONDS, falls_back=False),
    Case("hub_restarted_blocked", faults.hub_restarted, "one", lasts_s=4.0, falls_back=False),
)

#: A fault of a link, of a NAT, and of the hub, with both configurations.
SMOKE_CASES = ("black_hole_one", "rebound", "hub_restarted_blocked")

#: Without a fallback, flows wait while the hub is out of reach.
BLOCK = '[bond]\nfallback = "block"\n'


@dataclass
class FaultTrial:
    """Echo probes of one trial, by class, and the download beside them."""

    began: float
    ended: float
    #: Usual time between two replies, and before the first reply if the first probe was sent when the fault began, s.
    usual_s: float
    probes: dict[str, list[EchoProbe]]
    #: True if the host was asleep until the fault began.
    asleep: bool
    #: Longest silence of the download, and its error if it broke.
    silence_s: float | None = None
    broken: str | None = None

    def outages(self) -> dict[str, float]:
        """Return the outage of every class, ms."""
        # A host that slept before has had no replies for long; that time does not count.
        awake = [self.began] if self.asleep else []
        return {
            name: outage_ms(
                sorted([*awake, *(probe.answered for probe in probes if probe.answered is not None)]),
                self.began,
                self.usual_s,
            )
            for name, probes in self.probes.items()
        }

    def through(self, hub: str) -> float:
        """Return the share of answered probes that went through the hub since the fault began."""
        some = [
            probe for probes in self.probes.values() for probe in probes if probe.via and probe.sent >= self.began
        ]
        return sum(probe.via == hub for probe in some) / max(1, len(some))

    def lost(self) -> dict[str, int]:
        """Return how many probes of every class, sent during the fault, have no reply."""
        return {
            name: sum(probe.answered is None for probe in probes if self.began - 0.1 <= probe.sent <= self.ended)
            for name, probes in self.probes.items()
        }


@experiment("bond/failure", "Effects of faults on a flow through the bond", paper="layer3-bonding")
def failure(run: Run) -> None:
    """Inject every fault in turn."""
    turns = run.of_form(full=5, quick=1, smoke=1)
    every = tuple(case.name for case in CASES)
    names = run.of_form(full=every, quick=every, smoke=SMOKE_CASES)
    run.display.expect(3 + turns * len(names))
    rules = "".join(
        f'[[rule]]\ndestination = "198.51.100.{number}"\nuse = "bond"\nclass = "{name}"\n'
        for name, number in CLASSES.items()
    )
    run.table.append(
        [
            "fault",
            *(f"{name}: out ms" for name in CLASSES),
            *(f"{name}: lost" for name in CLASSES),
            "through the hub",
        ]
    )
    rows: list[dict[str, object]] = []
    for falls_back, configuration in ((True, rules), (False, BLOCK + rules)):
        kind = "with a fallback" if falls_back else "without a fallback"
        with run.part(kind), contextlib.ExitStack() as stack:
            with run.step("build two links, and join the hub"):
                place = stack.enter_context(site(LINKS, seed=run.seed, configuration=configuration))
                internet = place.net.internet.name
                place.background(internet, "braid_lab.clients.tcp_stream", "serve", place.server)
                place.background(internet, "braid_lab.servers.echo", *map(place.net.server, CLASSES.values()))
            for case in (each for each in CASES if each.name in names and each.falls_back == falls_back):
                trial = []
                for turn in range(turns):
                    name = f"{case.name.replace('_', ' ')}, turn {turn + 1} of {turns}"
                    with run.part(name), run.step(name):
                        trial.append(_run_case(place, case))
                        rows += _rows(case, trial[-1])
                if trial:
                    _record(run, case, trial, place.hub.far.address4)
            if falls_back and run.form != "smoke":
                name = "a link loses 30 %, and heals"
                with run.part(name), run.step(name):
                    _lose_and_heal(run, place)
    run.series("beats", rows)


def _run_case(place: Site, case: Case) -> FaultTrial:
    """Inject the fault once, and wait until the bond has recovered."""
    with contextlib.ExitStack() as stack:
        seconds = LEAD_SECONDS + case.asleep_s + case.lasts_s + 1.0
        load = stack.enter_context(_download(place, seconds)) if case.loaded else None
        train = (
            stack.enter_context(echo_train(place.net, PROBE_INTERVAL_SECONDS, PROBE_BYTES, CLASSES.values()))
            if case.loaded
            else None
        )
        if case.loaded:
            time.sleep(LEAD_SECONDS)
        with case.fault(place, case.link) as began:
            if train is None:
                # Only the bond's own packets pass while the link dies; then traffic begins.
                time.sleep(case.lasts_s / 2)
                train = stack.enter_context(
                    echo_train(place.net, PROBE_INTERVAL_SECONDS, PROBE_BYTES, CLASSES.values())
                )
            time.sleep(max(0.0, began + case.lasts_s - time.monotonic()))
            ended = time.monotonic()
        found = json.loads(train.stop().stdout.splitlines()[-1])
        probes = {name: [EchoProbe(*probe) for probe in each] for name, each in zip(CLASSES, found, strict=True)}
        trial = FaultTrial(began, ended, PROBE_INTERVAL_SECONDS, probes, asleep=case.asleep_s > 0)
        if not case.loaded:
            # Counted from the first probe, whose reply takes a round trip.
            trial.began = min(each[0].sent for each in probes.values()) - 1e-6
            trial.usual_s = min(
                probe.answered - probe.sent for probe in probes["ordered"] if probe.answered is not None
            )
        if load is not None:
            report = json.loads(load.wait(timeout=30).stdout)
            trial.broken = report["broken"]
            trial.silence_s = GoodputTrace.of(report).longest_silence(began - report["began"])
    place.wait_carrying(timeout=60)
    return trial


@contextlib.contextmanager
def _download(place: Site, seconds: float) -> Iterator[Process]:
    """Fill the bond for `seconds`."""
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", "take", place.server, f"{seconds:g}"]
    with Process(argv, log=place.net.scratch / "take", namespace=place.net.host.name) as load:
        yield load


def _record(run: Run, case: Case, trial: Sequence[FaultTrial], hub: str) -> None:
    """Record the figures of a case."""
    outages, lost = [each.outages() for each in trial], [each.lost() for each in trial]
    cells = []
    for name in CLASSES:
        some = [each[name] for each in outages]
        cells.append(f"{run.measure(f'outage_ms_{case.name}_{name}', some, unit='ms', better='lower'):.0f}")
    run.measure(f"outage_ms_{case.name}", [max(each.values()) for each in outages], unit="ms", better="lower")
    for name in CLASSES:
        gone = [each[name] for each in lost]
        cells.append(f"{run.measure(f'lost_packets_{case.name}_{name}', gone, better='lower'):.0f}")
    run.measure(f"lost_packets_{case.name}", [sum(each.values()) for each in lost], better="lower")
    through = [each.through(hub) for each in trial]
    run.measure(f"through_hub_{case.name}", through)
    silences = [1000 * each.silence_s for each in trial if each.silence_s is not None]
    if silences:
        run.measure(f"downloads_broken_{case.name}", [each.broken is not None for each in trial], better="lower")
        run.measure(f"download_silent_ms_{case.name}", silences, unit="ms", better="lower")
    run.table.append([case.name.replace("_", " "), *cells, f"{through[0]:.2f}"])


def _rows(case: Case, trial: FaultTrial) -> list[dict[str, object]]:
    """Return every probe as a row, with times relative to the fault."""
    return [
        {
            "case": case.name,
            "class": name,
            "sent_s": round(probe.sent - trial.began, 4),
            "rtt_ms": None if probe.answered is None else round(1000 * (probe.answered - probe.sent), 2),
            "seen_as": probe.via,
        }
        for name, probes in trial.probes.items()
        for probe in probes
    ]


def _lose_and_heal(run: Run, place: Site) -> None:
    """Make a needed link lose too much: the bond must stop using it, and use it again once it has recovered."""
    number = next(link["id"] for link in place.bond()["links"] if link["uplink"] == "two")

    def share() -> float:
        """Return the link's share of what the hub sends, which includes the download."""
        (client,) = place.hub.json("clients")["clients"]
        return next(float(link["share"]) for link in client["links"] if link["id"] == number)

    with _download(place, 60):
        wait_until(lambda: share() > USED_SHARE, what="the download to take both links", timeout=15, poll=0.05)
        place.emulator("two").request({"set": {"loss": EXCESSIVE_LOSS}})
        began = time.monotonic()
        left = _reached(lambda: share() < UNUSED_SHARE, "the lossy link to be left alone", 15)
        run.passes("lossy_link_left", left)
        if left:
            run.figure("lossy_link_left_s", time.monotonic() - began, unit="s", better="lower")
        place.emulator("two").request({"set": {"loss": "0 %"}})
        healed = time.monotonic()
        back = _reached(lambda: share() > USED_SHARE, "the healed link to come back", 30)
        run.passes("healed_link_returns", back)
        if back:
            run.figure("healed_link_returns_s", time.monotonic() - healed, unit="s", better="lower")


def _reached(condition: Callable[[], bool], what: str, timeout: float) -> bool:
    """Return whether the condition became true in time."""
    try:
        wait_until(condition, what=what, timeout=timeout, poll=0.05)
    except LabError:
        return False
    return True
