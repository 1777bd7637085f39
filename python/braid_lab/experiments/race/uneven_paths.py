"""Paths on which the shortest round trip is not the best: one that loses packets, and one that is full.

[ofrp] §3.3 assumes that "the Internet paths are equal in the loss ratio although it may be not true in the real
world", and relies on one sample of the round trip. Here neither holds: the policy `fastest` is made for such paths.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

from braid_lab.experiment import Run
from braid_lab.experiments.race import address_plan, trial
from braid_lab.experiments.race.address_plan import Policy, chosen_address, pinned_address
from braid_lab.experiments.race.figures import Choice, hit_ratio, of_best
from braid_lab.experiments.race.site import site
from braid_lab.experiments.race.trial import Amount
from braid_lab.fixtures import filled
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology

#: A site that this machine has used before, so that its paths are in Braid's path cache, and one that is new every
#: time.
KNOWN, NEW = "known", "new"
PLACES = {KNOWN: 1, NEW: 2}

#: Suffixes of their figures.
SUFFIX = {KNOWN: "", NEW: "_new"}

#: The known site's /24 among those of its place, which has one for every round.
KNOWN_NUMBER = address_plan.ROUNDS - 1


@dataclass(frozen=True)
class Scene:
    """Three lines by name, nearest first, and the load of others on the nearest."""

    name: str
    lines: Mapping[str, LinkSpec]
    #: Endless downloads over the nearest line.
    others: int
    amount: Amount


#: By Mathis's law a loss of 3 % leaves the nearest less than 3 Mbit/s; the middle one carries up to 20. Queues hold a
#: whole fetch, so that the lines' own losses are the only ones: a queue that overflows in slow start loses packets,
#: too.
LOSS = Scene(
    "loss",
    {
        "near": LinkSpec(rate="20Mbit/s", delay="15ms", loss="3%", queue="400ms"),
        "middle": LinkSpec(rate="20Mbit/s", delay="25ms", queue="400ms"),
        "far": LinkSpec(rate="20Mbit/s", delay="45ms", loss="0.2%", queue="400ms"),
    },
    others=0,
    amount=Amount(1_000_000, 3.0),
)

#: The nearest replies first however full it is: its queue is 30 ms long, so its round trip never exceeds 50 ms.
LOAD = Scene(
    "load",
    {
        "near": LinkSpec(rate="10Mbit/s", delay="10ms", queue="30ms"),
        "middle": LinkSpec(rate="10Mbit/s", delay="30ms", queue="100ms"),
        "far": LinkSpec(rate="10Mbit/s", delay="45ms", queue="100ms"),
    },
    others=8,
    amount=Amount(1_000_000, 2.0),
)

#: Change of round trips from one round to the next (of the logarithm); the order of the lines stays.
DRIFT = 0.08

#: Fetches over every line before anything counts: the state of a machine that has been up for a while.
WARM_ROUNDS = 2


def measure(run: Run, rounds: int) -> None:
    """Measure both scenes and record `<figure>_<policy>_<scene>`, with `_new` appended for a site that is new."""
    # The scenes share nothing, and neither needs much of the machine.
    scenes = (LOSS, LOAD)
    with run.step(f"{rounds} rounds on unequal lines"), ThreadPoolExecutor(max_workers=len(scenes)) as pool:
        measured = pool.map(lambda scene: _scene(scene, rounds, run.seed), scenes)
        choices = dict(zip((scene.name for scene in scenes), measured, strict=True))
    rows = [{"scene": name, **_row(each)} for name, some in choices.items() for each in some]
    run.series("uneven", rows)
    for name, some in choices.items():
        for policy, site_kind in itertools.product(address_plan.POLICIES, PLACES):
            made = [each for each in some if (each.policy, each.destination) == (policy, site_kind)]
            hit, rate, count, case = hit_ratio(made), of_best(made), len(made), f"{policy}_{name}{SUFFIX[site_kind]}"
            run.figure(f"hit_ratio_{case}", hit, better="higher", runs=count)
            run.figure(f"throughput_of_best_{case}", rate, better="higher", runs=count)
            where = f"unequal {name}, {site_kind} site"
            run.table.append([policy, where, f"{hit:.3f}", "", f"{rate:.3f}", str(count)])


def _row(choice: Choice) -> dict[str, object]:
    row = asdict(choice)
    rates, trips = row.pop("mbit"), row.pop("rtt_ms")
    return {
        **row,
        **{f"mbit_{name}": value for name, value in rates.items()},
        **{f"rtt_ms_{name}": value for name, value in trips.items()},
    }


def _scene(scene: Scene, rounds: int, seed: int) -> list[Choice]:
    generator = random.Random(f"uneven {scene.name} {seed}")
    choices: list[Choice] = []
    with contextlib.ExitStack() as stack:
        lines = {
            name: replace(line, seed=seed * len(scene.lines) + number)
            for number, (name, line) in enumerate(scene.lines.items())
        }
        net = stack.enter_context(site(lines, capacity=next(iter(scene.lines.values())).rate)).net
        if scene.others:
            near = next(iter(net.uplinks.values()))
            address = pinned_address(near.index, PLACES[NEW], 0)
            stack.enter_context(filled(net.host, near, scene.others, address, net.scratch))
        for number in range(rounds, rounds + WARM_ROUNDS):
            trial.choose(net.host, net.uplinks, _addresses(number))
            trial.fetch_over_all(net.host, net.uplinks, {NEW: PLACES[NEW]}, number, scene.amount)
        for number in range(rounds):
            trips = _drift(net, scene, generator)
            chosen = trial.choose(net.host, net.uplinks, _addresses(number))
            known = trial.fetch_over_all(net.host, net.uplinks, {NEW: PLACES[NEW]}, number, scene.amount)
            rates = {name: known[name, NEW].mbit for name in scene.lines}
            choices += [
                Choice(policy, where, number, uplink, rates, trips) for (policy, where), uplink in chosen.items()
            ]
    return choices


def _addresses(number: int) -> dict[tuple[Policy, str], str]:
    """Return each policy's destination address in a round."""
    numbers = {KNOWN: KNOWN_NUMBER, NEW: number}
    return {
        (policy, where): chosen_address(policy, place, numbers[where])
        for policy in address_plan.POLICIES
        for where, place in PLACES.items()
    }


def _drift(net: Topology, scene: Scene, generator: random.Random) -> dict[str, float]:
    """Set every line's delay for this round; return the round trips without queues, ms."""
    trips = {}
    for name, line in scene.lines.items():
        emulator = net.uplinks[name].emulator
        assert emulator is not None and line.delay is not None  # noqa: S101
        delay = float(line.delay.removesuffix("ms")) * generator.lognormvariate(0, DRIFT)
        emulator.request({"set": {"delay": f"{delay:.3f} ms"}})
        trips[name] = 2 * delay
    return trips
