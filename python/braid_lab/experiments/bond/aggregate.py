"""`bond/aggregate`: goodput over all links together, beside kernel MPTCP and the best link alone.

Nothing is configured: the bond measures rates, delays and losses itself. The three are measured in turn over the same
links, and so share the machine's variation. Traffic that bypasses the bond is bound to a link's own address.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections import defaultdict
from dataclasses import dataclass

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond.cases import BY_NAME, CASES, Case
from braid_lab.experiments.bond.figures import (
    WARM_UP_SECONDS,
    GoodputTrace,
    RoundTrips,
    goodput_table,
    loaded_round_trips,
)
from braid_lab.experiments.bond.loads import BBR, QUIC, TCP, TCP8, UDP, Load, LoadRequest
from braid_lab.experiments.bond.site import Site, delay_walks, emulators_kept_up, site
from braid_lab.experiments.race.figures import percentile
from braid_lab.fixtures import echo_train


@dataclass(frozen=True)
class Trial:
    """Links, and the load on them."""

    case: Case
    load: Load = TCP

    @property
    def name(self) -> str:
        """The links' name, and the load's if it is not one TCP stream."""
        return f"{self.case.name}{self.load.suffix}"


#: Links of which one is too slow for all but bulk flows. A ping runs beside the bond's load there.
FAR = ("far", "geo")

#: Links for QUIC and BBR: steady ones, those that lose or reorder packets, and those whose delays differ.
VARIED = ("50_50", "50_50_loss2", "far", "geo", "jitter20", "reorder20", "dual_lte", "starlink")

#: One TCP stream over all links, and other loads over some.
TRIALS = {
    trial.name: trial
    for trial in (
        *(Trial(case) for case in CASES),
        *(Trial(BY_NAME[name], load) for name in ("50_50", "80_20", "far", "geo") for load in (TCP8, UDP)),
        *(Trial(BY_NAME[name], load) for name in VARIED for load in (QUIC, BBR)),
    )
}

#: Trials of the short form, and one of each kind of load.
QUICK_TRIALS = ("50_50", "80_20", "50_50_loss2", "50_50_tcp8", "50_50_udp", "50_50_quic")
SMOKE_TRIALS = ("20_20", "50_50_udp", "far_quic")

PING_SECONDS, PING_BYTES, PING_SERVER = 0.02, 64, 2


@dataclass(frozen=True)
class Plan:
    """Amount of measurement."""

    turns: int
    seconds: float


FULL, QUICK, SMOKE = Plan(turns=3, seconds=15.0), Plan(turns=1, seconds=7.0), Plan(turns=1, seconds=3.0)


@experiment("bond/aggregate", "Flows over several links", paper="layer3-bonding §2, §5", cases=tuple(TRIALS))
def aggregate(run: Run) -> None:
    """Measure every case."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    names = run.cases(run.of_form(full=tuple(TRIALS), quick=QUICK_TRIALS, smoke=SMOKE_TRIALS))
    trials = [TRIALS[name] for name in names]
    run.display.expect(sum(1 + len(trial.load.kinds) * plan.turns for trial in trials))
    run.table.append(["links, Mbit/s", "bond", "of theoretical", "t90 s", "MPTCP", "best link alone"])
    worst: list[float] = []
    late: list[float] = []
    for trial in trials:
        with run.part(trial.name), contextlib.ExitStack() as stack:
            with run.step(f"{trial.name}: build, and join the hub"):
                place = stack.enter_context(site(trial.case.links, seed=run.seed))
                trial.load.serve(place)
                if trial.case.name in FAR:
                    internet = place.net.internet.name
                    place.background(internet, "braid_lab.servers.echo", place.net.server(PING_SERVER))
                stack.enter_context(delay_walks(place, trial.case.links, run.seed))
            worst += _measure(run, place, trial, plan)
            late.append(emulators_kept_up(run, place))
    if worst:
        run.figure(
            "worst_vs_best_single", min(worst), better="higher", runs=len(worst), spread=(min(worst), max(worst))
        )
    if late:
        run.figure("emulators_late_p99_ms", max(late), unit="ms", better="lower")
    run.notes.append(
        f"Goodput is the receiver's after the first {WARM_UP_SECONDS:g} s. A share is of the theoretical goodput: "
        "frames with one inner packet each, less a lossy link's losses; MPTCP has no such headers."
    )


def _measure(run: Run, place: Site, trial: Trial, plan: Plan) -> list[float]:
    """Measure one case and record it; return the bond's goodput over the best single link's, if there is one."""
    traces: dict[str, list[GoodputTrace]] = defaultdict(list)
    pings: list[RoundTrips] = []
    kinds, name = trial.load.kinds, trial.name
    for turn in range(plan.turns):
        for kind in kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]:
            with run.step(f"{name}: {kind}, turn {turn + 1} of {plan.turns}"), contextlib.ExitStack() as stack:
                train = echo_train(place.net, PING_SECONDS, PING_BYTES, [PING_SERVER])
                pinged = kind == "bond" and trial.case.name in FAR
                ping = stack.enter_context(train) if pinged else None
                request = LoadRequest(place, trial.case, kind, plan.seconds, trial.load.best(trial.case))
                traces[kind].append(trial.load.take(request))
                if ping:
                    (said,) = json.loads(ping.stop().stdout.splitlines()[-1])
                    pings.append(loaded_round_trips(said, plan.seconds))
    mbit = {kind: [each.steady_mbit for each in some] for kind, some in traces.items()}
    ceiling = trial.case.ceiling_mbit(trial.load.sizes)
    share = run.measure(f"share_{name}", [each / ceiling for each in mbit["bond"]], better="higher")
    t90s = [each.reaches(0.9 * ceiling) for each in traces["bond"]]
    t90 = run.measure(f"t90_s_{name}", t90s, unit="s", better="lower")
    got = {
        kind: run.measure(f"mbit_{kind}_{name}", some, unit="Mbit/s", better="higher" if kind == "bond" else "none")
        for kind, some in mbit.items()
    }
    ratios: dict[str, list[float]] = {}
    for kind, figure in (("mptcp", f"vs_mptcp_{name}"), ("single", f"vs_best_single_{name}")):
        # After its first seconds the smoke form has one more.
        if kind in mbit and all(mbit[kind]):
            ratios[kind] = [bond / other for bond, other in zip(mbit["bond"], mbit[kind], strict=True)]
            run.measure(figure, ratios[kind], better="higher")
    if pings:
        for word, at in (("p50", 0.5), ("p99", 0.99)):
            some = [percentile(each.ms, at) for each in pings]
            run.measure(f"ping_{word}_ms_{name}", some, unit="ms", better="lower")
        run.measure(f"ping_lost_{name}", [each.lost for each in pings], better="lower")
    turns = {f"{kind}_{turn}": each for kind, some in traces.items() for turn, each in enumerate(some, 1)}
    run.series(f"course_{name}", goodput_table(turns))
    beside = [f"{got[kind]:.1f}" if kind in got else "" for kind in ("mptcp", "single")]
    run.table.append([name.replace("_", " "), f"{got['bond']:.1f}", f"{share:.3f}", f"{t90:.1f}", *beside])
    run.notes.append(f"{name}: {_told(place)}.")
    return [statistics.median(ratios["single"])] if "single" in ratios else []


def _told(place: Site) -> str:
    """Return the bond's packet counters."""
    packets = place.bond()["packets"]
    words = ("reorder_delay_p50_ms", "reorder_delay_p99_ms", "gaps_lost", "gaps_expired")
    return ", ".join(f"{word} {packets[word]:g}" for word in words)
