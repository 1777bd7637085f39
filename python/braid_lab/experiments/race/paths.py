"""`race/paths`: the paper's §4 rebuilt, then paths on which a short round trip is not enough.

Three uplinks to three destinations, every pair with a path of its own. A round is as in [ofrp] §4.1: each policy
chooses an uplink for one new connection to each destination, then a file is fetched over every uplink to find the
best one. Then two networks with one destination each: one whose nearest uplink loses packets, one whose nearest
uplink is full.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braid_lab.clients.fetch import Fetched
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.race import address_plan, charts, trial, uneven_paths
from braid_lab.experiments.race.address_plan import Policy, chosen_address
from braid_lab.experiments.race.dynamics import lateness_ms, path_dynamics
from braid_lab.experiments.race.figures import Choice, by_destination, hit_ratio, law_mbit, of_best, over_destinations
from braid_lab.experiments.race.rounds import COV, UPLINKS, USUAL_RTT_MS, Round, draw
from braid_lab.experiments.race.trial import Amount
from braid_lab.fixtures import served_everywhere
from braid_lab.net.links import LinkSpec
from braid_lab.net.paths import PathKey, Paths, paths
from braid_lab.process import LabError
from braid_lab.product import braid

PLACES = {name: number for number, name in enumerate(USUAL_RTT_MS, start=1)}

#: The host's receive buffer, and the window in flight that it allows: the kernel counts a packet's overhead. With it
#: a path carries window ÷ round trip.
WINDOW_SYSCTL = "4096 196608 196608"
WINDOW_SEGMENTS = 90

#: The destination with the shortest paths, which carry the most.
BUSIEST = "jp"


@dataclass(frozen=True)
class Paper:
    """Values that [ofrp] §4.3 and §4.4 give in words, by destination; "" is the mean.

    Values that only its charts show are not guessed.
    """

    hit: Mapping[str, float]
    of_best: Mapping[str, float]


PAPER: Mapping[Policy, Paper] = {
    "race": Paper({"": 0.79, "de": 0.8978, "us": 0.7132, "jp": 0.7664}, {"": 0.94, "de": 0.98}),
    "rr": Paper({"": 0.35}, {"": 0.69, "de": 0.72}),
    # Not in the paper: its §5 asks for something similar.
    "fastest": Paper({}, {}),
}

#: Suffix of a policy's figures.
SUFFIX: Mapping[Policy, str] = {"race": "", "fastest": "_fastest", "rr": "_rr"}


@dataclass(frozen=True)
class Plan:
    """Amount of measurement."""

    rounds: int
    #: Fetched over each uplink.
    fetched: Amount
    #: Rounds of the two uneven networks.
    uneven_paths: int


FULL = Plan(rounds=100, fetched=Amount(8_000_000, 60.0), uneven_paths=40)
QUICK = Plan(rounds=8, fetched=Amount(500_000, 3.0), uneven_paths=4)
SMOKE = Plan(rounds=2, fetched=Amount(50_000, 1.0), uneven_paths=1)


@dataclass(frozen=True)
class Measured:
    """A round's results: the choices, and every fetch with the rate that the law predicts for its path."""

    choices: list[Choice]
    fetches: list[dict[str, Any]]


@experiment(
    "race/paths", "Three uplinks, three destinations: is the best uplink chosen?", paper="on-the-fly-rtt-probing §4"
)
def race_paths(run: Run) -> None:
    """Measure the paper's rounds, then the uneven paths."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(extent.rounds + 3)
    with run.part("rounds"):
        _measure(run, extent)
    with run.part("uneven lines"):
        uneven_paths.measure(run, extent.uneven_paths)
    run.notes += [
        f"{extent.rounds} rounds of {len(PLACES)} destinations, {extent.fetched.bytes / 1e6:g} MB over each uplink, "
        f"all nine fetches at once, each at most {extent.fetched.limit:g} s. Every round's destinations are new to "
        "Braid: nothing is remembered.",
        f"New Reno with at most {WINDOW_SEGMENTS} segments on their way, no rate limit on any path.",
    ]


def _measure(run: Run, extent: Plan) -> None:
    """Measure the paper's rounds."""
    measured = _rounds(run, extent)
    choices = [each for one in measured for each in one.choices]
    fetches = [row for one in measured for row in one.fetches]
    run.series("choices", [_row(each) for each in choices])
    run.series("fetches", fetches)
    _record(run, choices, fetches)
    charts.rounds(run, choices)
    charts.hits(run, choices, PAPER["race"].hit)
    charts.rates(run, choices)


def _record(run: Run, choices: Sequence[Choice], fetches: Sequence[Mapping[str, Any]]) -> None:
    """Turn rounds into figures and a table."""
    by_policy = {policy: [each for each in choices if each.policy == policy] for policy in address_plan.POLICIES}
    run.table.append(["policy", "destination", "best chosen", "where apart", "of the best", "rounds"])
    for policy, made in by_policy.items():
        suffix = SUFFIX[policy]
        paper = PAPER[policy]
        count = len(made)
        hit, spread = over_destinations(made, hit_ratio)
        run.figure(f"hit_ratio{suffix}", hit, better="higher", paper=paper.hit.get(""), runs=count, spread=spread)
        rate, spread = over_destinations(made, of_best)
        run.figure(
            f"throughput_of_best{suffix}",
            rate,
            better="higher",
            paper=paper.of_best.get(""),
            runs=count,
            spread=spread,
        )
        apart = [each for each in made if each.apart]
        if apart:
            run.figure(f"hit_ratio_apart{suffix}", hit_ratio(apart), better="higher", runs=len(apart))
        run.table.append([policy, "all", f"{hit:.3f}", _hits_of(apart), f"{rate:.3f}", str(count)])
        for name, some in by_destination(made).items():
            far = [each for each in some if each.apart]
            values = hit_ratio(some), of_best(some)
            run.figure(
                f"hit_ratio{suffix}_{name}", values[0], better="higher", paper=paper.hit.get(name), runs=len(some)
            )
            run.figure(
                f"throughput_of_best{suffix}_{name}",
                values[1],
                better="higher",
                paper=paper.of_best.get(name),
                runs=len(some),
            )
            run.table.append([policy, name, f"{values[0]:.3f}", _hits_of(far), f"{values[1]:.3f}", str(len(some))])
    run.measure("rtt_cov", [each["rtt_cov"] for each in fetches], paper=COV)
    run.measure("law_ratio", [each["mbit"] / each["law_mbit"] for each in fetches])


def _hits_of(apart: Sequence[Choice]) -> str:
    return f"{hit_ratio(apart):.3f} of {len(apart)}" if apart else "none"


def _rounds(run: Run, extent: Plan) -> list[Measured]:
    networks = {name: address_plan.networks(place, len(UPLINKS)) for name, place in PLACES.items()}
    with contextlib.ExitStack() as stack:
        with run.step("build three uplinks to three destinations"):
            # New Reno as on the paper's servers. Queues stay empty: a path has no rate limit.
            line = LinkSpec(queue="10000p", seed=run.seed)
            net = stack.enter_context(paths(UPLINKS, networks, line=line, congestion_control="reno"))
            net.host.sysctl(ipv4__tcp_rmem=WINDOW_SYSCTL)
            for destination in net.destinations.values():
                stack.enter_context(served_everywhere(destination, net.scratch))
            file = net.scratch / "paths.toml"
            file.write_text(address_plan.configuration(UPLINKS))
            stack.enter_context(braid(net.host, net.scratch / "braid", "--config", file))
        measured = []
        for number in range(extent.rounds):
            with run.part(f"round {number + 1}"), run.step(f"round {number + 1} of {extent.rounds}"):
                measured.append(_round(net, draw(run.seed, number), extent))
        name = "fetch one by one, to see whether fetches at once disturb each other"
        with run.part(name), run.step(name):
            _alone(run, net, extent)
        run.figure("emulator_late_ms", lateness_ms(run, net.links), unit="ms", better="lower")
    if not measured:
        raise LabError("no round was measured")
    return measured


def _round(net: Paths, drawn: Round, extent: Plan) -> Measured:
    """Let every policy choose, and fetch over every uplink."""
    addresses = {
        (policy, name): chosen_address(policy, PLACES[name], drawn.number)
        for name in drawn.order
        for policy in address_plan.POLICIES
    }
    with path_dynamics(net.links, drawn) as began:
        chosen = trial.choose(net.host, net.uplinks, addresses)
        known = trial.fetch_over_all(net.host, net.uplinks, PLACES, drawn.number, extent.fetched)
    rtt_ms = {way: drawn.traces[way].mean(each.began - began, each.ended - began) for way, each in known.items()}
    choices = [
        Choice(
            policy,
            name,
            drawn.number,
            uplink,
            {each: known[each, name].mbit for each in UPLINKS},
            {each: rtt_ms[each, name] for each in UPLINKS},
        )
        for (policy, name), uplink in chosen.items()
    ]
    fetches = [_fetch_row(drawn, way, each, began, rtt_ms[way]) for way, each in known.items()]
    return Measured(choices, fetches)


def _fetch_row(drawn: Round, way: PathKey, fetched: Fetched, began: float, rtt_ms: float) -> dict[str, Any]:
    trace = drawn.traces[way]
    return {
        "round": drawn.number,
        "uplink": way[0],
        "destination": way[1],
        "mbit": fetched.mbit,
        "rtt_ms": rtt_ms,
        "rtt_cov": trace.cov(fetched.began - began, fetched.ended - began),
        "loss": trace.loss,
        "law_mbit": law_mbit(rtt_ms, trace.loss, segments=WINDOW_SEGMENTS),
    }


def _alone(run: Run, net: Paths, extent: Plan) -> None:
    """Compare fetches one by one with all nine at once, on constant paths, at the fastest destination."""
    still = draw(run.seed, extent.rounds)
    for way, link in net.links.items():
        link.request({"set": {"delay": f"{still.traces[way].at(0.0) / 4:.3f} ms", "loss": "0 %"}})
    together = trial.fetch_over_all(net.host, net.uplinks, PLACES, extent.rounds, extent.fetched)
    place = {BUSIEST: PLACES[BUSIEST]}
    ratios = []
    for name, uplink in net.uplinks.items():
        alone = trial.fetch_over_all(net.host, {name: uplink}, place, extent.rounds, extent.fetched)
        ratios.append(together[name, BUSIEST].mbit / alone[name, BUSIEST].mbit)
    run.measure("together_over_alone", ratios)


def _row(choice: Choice) -> dict[str, object]:
    return {
        "policy": choice.policy,
        "destination": choice.destination,
        "round": choice.number,
        "chosen": choice.chosen or "",
        "best": choice.best,
        **{f"mbit_{name}": value for name, value in choice.mbit.items()},
        **{f"rtt_ms_{name}": value for name, value in choice.rtt_ms.items()},
    }
