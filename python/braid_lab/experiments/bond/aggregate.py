"""`bond/aggregate`: what one flow gets of all links together, beside kernel MPTCP and the best link alone.

Nothing is configured: rates, delays and losses are for the bond to find out. The three are measured in turn over the
same links, and so share the machine's moods. What does not go through the bond is bound to a link's own address.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import defaultdict
from dataclasses import dataclass

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond.cases import CASES, QUICK_CASES, Case
from braid_lab.experiments.bond.figures import WARM_UP_SECONDS, Course
from braid_lab.experiments.bond.site import Site, emulators_kept_up, site, wandering
from braid_lab.process import LabError

#: In the order in which they take their turns.
KINDS = ("bond", "mptcp", "single")


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    cases: tuple[Case, ...]
    turns: int
    seconds: float


QUICK = Plan(tuple(case for case in CASES if case.name in QUICK_CASES), turns=1, seconds=7.0)
FULL = Plan(CASES, turns=3, seconds=15.0)


@dataclass(frozen=True)
class Stream:
    """One stream's outcome."""

    course: Course
    segment_bytes: int


@experiment("bond/aggregate", "One flow over several links", paper="layer3-bonding §2, §5")
def aggregate(run: Run) -> None:
    """Measure every case."""
    plan = QUICK if run.quick else FULL
    run.display.expect(sum(1 + len(KINDS) * plan.turns for _ in plan.cases))
    run.table.append(["links, Mbit/s", "bond", "of what headers leave", "t90 s", "MPTCP", "best link alone"])
    worst: list[float] = []
    late: list[float] = []
    for case in plan.cases:
        with contextlib.ExitStack() as stack:
            with run.step(f"{case.name}: build, and join the hub"):
                place = stack.enter_context(site(case.links, seed=run.seed))
                place.background(place.net.internet.name, "braid_lab.load.stream", "serve", place.server)
                stack.enter_context(wandering(place, case.links, run.seed))
            worst.append(_measure(run, place, case, plan))
            late.append(emulators_kept_up(place))
    run.figure("worst_vs_best_single", min(worst), better="higher", runs=len(worst), spread=(min(worst), max(worst)))
    run.figure("emulators_late_p99_ms", max(late), unit="ms", better="lower")
    run.notes.append(
        f"Goodput is the receiver's after the first {WARM_UP_SECONDS:g} s. A share is one of what headers leave: "
        "full frames with one inner packet each, less a lossy link's losses; MPTCP pays for no such headers."
    )


def _measure(run: Run, place: Site, case: Case, plan: Plan) -> float:
    """Measure one case and record it; returns the bond's goodput over that of the best link alone."""
    streams: dict[str, list[Stream]] = defaultdict(list)
    for turn in range(plan.turns):
        for kind in KINDS[turn % len(KINDS) :] + KINDS[: turn % len(KINDS)]:
            with run.step(f"{case.name}: {kind}, turn {turn + 1} of {plan.turns}"):
                streams[kind].append(_stream(place, case, kind, plan.seconds))
    mbit = {kind: [each.course.steady_mbit for each in some] for kind, some in streams.items()}
    ceiling = case.ceiling_mbit
    share = run.measure(f"share_{case.name}", [each / ceiling for each in mbit["bond"]], better="higher")
    t90 = run.measure(
        f"t90_s_{case.name}",
        [each.course.reaches(0.9 * ceiling) for each in streams["bond"]],
        unit="s",
        better="lower",
    )
    got = {
        kind: run.measure(
            f"mbit_{kind}_{case.name}", some, unit="Mbit/s", better="higher" if kind == "bond" else "none"
        )
        for kind, some in mbit.items()
    }
    pairs = list(zip(mbit["bond"], mbit["mptcp"], mbit["single"], strict=True))
    run.measure(f"vs_mptcp_{case.name}", [bond / mptcp for bond, mptcp, _ in pairs], better="higher")
    single = run.measure(f"vs_best_single_{case.name}", [bond / alone for bond, _, alone in pairs], better="higher")
    run.series(f"course_{case.name}", _rows(streams))
    run.table.append(
        [
            case.name.replace("_", " "),
            f"{got['bond']:.1f}",
            f"{share:.3f}",
            f"{t90:.1f}",
            f"{got['mptcp']:.1f}",
            f"{got['single']:.1f}",
        ]
    )
    run.notes.append(f"{case.name}: {_told(place)}, segments of {streams['bond'][0].segment_bytes} bytes.")
    return single


def _rows(streams: dict[str, list[Stream]]) -> list[dict[str, float]]:
    """Return all courses side by side, a bin a row."""
    courses = {f"{kind}_{turn}": each.course for kind, some in streams.items() for turn, each in enumerate(some, 1)}
    one = next(iter(courses.values()))
    return [
        {"s": round((at + 1) * one.bin_s, 3)}
        | {f"{name}_mbit": round(8e-6 * course.bytes[at] / course.bin_s, 3) for name, course in courses.items()}
        for at in range(len(one.bytes))
    ]


def _stream(place: Site, case: Case, kind: str, seconds: float) -> Stream:
    """Receive one stream for so long."""
    argv = [sys.executable, "-m", "braid_lab.load.stream", "take", place.server, f"{seconds:g}"]
    if kind != "bond":
        argv += ["--from", place.net.uplinks[case.best].address4]
    if kind == "mptcp":
        argv.append("--mptcp")
    report = json.loads(place.net.host.run(argv, timeout=seconds + 30).stdout)
    if report["broken"]:
        raise LabError(f"{case.name}, {kind}: the stream broke: {report['broken']}")
    return Stream(Course(report["bin_s"], tuple(report["bytes"])), report["segment_bytes"])


def _told(place: Site) -> str:
    """Return what the bond says of its packets."""
    packets = place.bond()["packets"]
    words = ("residence_p50_ms", "residence_p99_ms", "gaps_lost", "gaps_expired")
    return ", ".join(f"{word} {packets[word]:g}" for word in words)
