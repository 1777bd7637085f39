"""Figs. 4 to 6 of the paper, with our rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from braid_lab.experiment import Run
from braid_lab.experiments.race.address_plan import POLICIES, Policy
from braid_lab.experiments.race.figures import Choice, by_destination, hit_ratio
from braid_lab.experiments.race.rounds import UPLINKS, USUAL_RTT_MS
from braid_lab.plots import COLOURS

UPLINK_COLOURS = dict(zip(UPLINKS, (COLOURS["dsl"], COLOURS["lte"], COLOURS["wrr"]), strict=True))


def _of(choices: Sequence[Choice], policy: Policy) -> dict[str, list[Choice]]:
    return by_destination(sorted((each for each in choices if each.policy == policy), key=lambda each: each.number))


def rounds(run: Run, choices: Sequence[Choice]) -> None:
    """Draw Fig. 4: each uplink's rate in every round, and the race's choice."""
    with run.plot("rounds", height=7.0) as plot:
        every = plot.subplots(len(USUAL_RTT_MS), 1, sharex=True)
        raced = _of(choices, "race")
        for axes, name in zip(every, USUAL_RTT_MS, strict=True):
            numbers = [each.number for each in raced[name]]
            for uplink in UPLINKS:
                values = [each.mbit[uplink] for each in raced[name]]
                axes.plot(numbers, values, label=uplink, color=UPLINK_COLOURS[uplink], linewidth=1)
            axes.plot(
                numbers, [each.got for each in raced[name]], "o", color="black", markersize=3, label="race chose"
            )
            axes.set_ylabel(f"{name}, Mbit/s")
            axes.set_ylim(bottom=0)
        every[0].set_title("Throughput of a fetch over each uplink (the paper's Fig. 4)", loc="left")
        every[0].legend(ncols=4)
        every[-1].set_xlabel("round")


def hits(run: Run, choices: Sequence[Choice], paper: Mapping[str, float]) -> None:
    """Draw Fig. 5: how often the best uplink was chosen."""
    with run.plot("hit_ratio") as plot:
        axes = plot.subplots()
        ratios = {
            policy: {name: hit_ratio(some) for name, some in _of(choices, policy).items()} for policy in POLICIES
        }
        for place, (kind, values) in enumerate([*ratios.items(), ("paper", paper)]):
            heights = [values[name] for name in USUAL_RTT_MS]
            places = [number + 0.2 * (place - 1.5) for number in range(len(heights))]
            label = "paper, race" if kind == "paper" else kind
            axes.bar(places, heights, width=0.18, color=COLOURS[kind], label=label)
        axes.set_xticks(range(len(USUAL_RTT_MS)), list(USUAL_RTT_MS))
        axes.set_ylabel("hit ratio")
        axes.set_title("How often the best uplink was chosen (the paper's Fig. 5)", loc="left")
        axes.legend(ncols=4)


def rates(run: Run, choices: Sequence[Choice]) -> None:
    """Draw Fig. 6: mean rates of the best, the chosen and the worst uplink."""
    with run.plot("rates") as plot:
        every = plot.subplots(1, len(USUAL_RTT_MS))
        raced, fastest, turns = (_of(choices, policy) for policy in ("race", "fastest", "rr"))
        for axes, name in zip(every, USUAL_RTT_MS, strict=True):
            bars = {
                "maximum": [each.mbit[each.best] for each in raced[name]],
                "race": [each.got for each in raced[name]],
                "fastest": [each.got for each in fastest[name]],
                "rr": [each.got for each in turns[name]],
                "minimum": [min(each.mbit.values()) for each in raced[name]],
            }
            axes.bar(list(bars), [statistics.fmean(values) for values in bars.values()], color=COLOURS["wrr"])
            axes.tick_params(axis="x", rotation=60)
            axes.set_title(name, loc="left")
        every[0].set_ylabel("mean throughput, Mbit/s")
