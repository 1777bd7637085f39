"""Interleaved comparison of Braid and nftables (A B, B A, A B, …), with and without offloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

from braid_lab.experiment import Better, Run
from braid_lab.experiments.balance import loads
from braid_lab.experiments.balance.ab_testbed import AbTestbed, Side
from braid_lab.experiments.balance.figures import LOADS, Load, Sample, both_ways, ratios, values
from braid_lab.machine import CpuTicks
from braid_lab.plots import COLOURS

#: A measurement is repeated if the hypervisor took more than this share of the machine's time.
STEAL_BOUND = 0.02
#: Limits of repetitions, per measurement and per round, so that a busy hour cannot make a run endless.
STEAL_REPEATS = 2
STEAL_REPEATS_PER_ROUND = 2

#: Pairs per round of the loads that can be short (iperf3 only takes whole seconds): measurements close in time suffer
#: less from other load on the machine.
SHORT_TURNS = 3

#: Connections per second at which connection times are measured: far below either gateway's limit.
PACED_CONNECTIONS = 1000.0

Measure = Callable[[Side], float]


def compare(run: Run, net: AbTestbed, *, rounds: int, seconds: float) -> None:
    """Measure every load on both sides and record the ratios."""
    measures = _measures(net, seconds)
    samples: list[Sample] = []
    spare = 2 * rounds * STEAL_REPEATS_PER_ROUND
    for offload in (True, False):
        word = "with" if offload else "without"
        net.offload(on=offload)
        for number in range(rounds):
            with run.step(f"braid and nftables {word} offloads, round {number + 1} of {rounds}"):
                for load, turn, side in _order(net, number):
                    blank = partial(Sample, load, offload, turn, side.name)
                    sample, repeats = _sample(blank, partial(measures[load], side), min(spare, STEAL_REPEATS))
                    samples.append(sample)
                    spare -= repeats
    net.offload(on=True)
    _record(run, samples)


def _order(net: AbTestbed, number: int) -> Iterator[tuple[Load, int, Side]]:
    """Return one round's measurements; each pair reverses the order of the one before."""
    for load in LOADS:
        turns = 1 if load.startswith("bulk") else SHORT_TURNS
        for turn in range(turns * number, turns * (number + 1)):
            for side in net.sides() if turn % 2 == 0 else net.sides()[::-1]:
                yield load, turn, side


def _measures(net: AbTestbed, seconds: float) -> dict[Load, Measure]:
    """Return a function per load that measures one side."""

    def median_connect(side: Side) -> float:
        return loads.connect_times(net, side, seconds, PACED_CONNECTIONS)["p50"]

    return {
        "bulk_down": lambda side: loads.bulk(net, side, seconds, down=True),
        "bulk_up": lambda side: loads.bulk(net, side, seconds, down=False),
        "connect_rate": lambda side: loads.connect_rate(net, side, seconds),
        "small_packet_rate": lambda side: loads.small_packets(net, side, seconds),
        "connect_p50": median_connect,
    }


def _sample(blank: Callable[[float, float], Sample], measure: Callable[[], float], spare: int) -> tuple[Sample, int]:
    """Measure, again up to `spare` times if other guests take too much; return the quietest and the repetitions."""
    taken: list[Sample] = []
    while True:
        before = CpuTicks.now()
        value = measure()
        taken.append(blank(value, CpuTicks.now().since(before).steal_share))
        if taken[-1].steal <= STEAL_BOUND or len(taken) > spare:
            return min(taken, key=lambda each: each.steal), len(taken) - 1


def _record(run: Run, samples: list[Sample]) -> None:
    """Turn samples into figures, raw series, a table and a plot."""
    run.series("comparison", [asdict(each) for each in samples])
    run.table.append(["load", "offloads", "braid", "nftables", "unit", "ratio"])
    for offload in (True, False):
        suffix = "_nft" if offload else "_nft_nooffload"
        run.measure(f"bulk_ratio{suffix}", both_ways(samples, offload=offload), better="higher")
        for load, unit in LOADS.items():
            better: Better = "lower" if load == "connect_p50" else "higher"
            ratio = run.measure(f"{load}_ratio{suffix}", ratios(samples, load, offload=offload), better=better)
            row = [load.replace("_", " "), "on" if offload else "off"]
            for side in ("braid", "nft"):
                name = f"{load}_{side}" if offload else f"{load}_{side}_nooffload"
                value = run.measure(name, values(samples, load, offload=offload, side=side), unit=unit, better=better)
                row.append(f"{value:,.0f}")
            run.table.append([*row, unit, f"{ratio:.3f}"])
    _draw(run, samples)


def _draw(run: Run, samples: list[Sample]) -> None:
    """Plot the ratios of all rounds."""
    with run.plot("comparison") as plot:
        axes = plot.add_subplot()
        axes.axhline(1.0, color=COLOURS["asked"], linewidth=1)
        for offset, offload in ((-0.12, True), (0.12, False)):
            points = [
                (place + offset, ratio)
                for place, load in enumerate(LOADS)
                for ratio in ratios(samples, load, offload=offload)
            ]
            colour = COLOURS["wrr"] if offload else COLOURS["lte"]
            label = "offloads on" if offload else "offloads off"
            axes.plot(*zip(*points, strict=True), "o", markersize=4, alpha=0.7, color=colour, label=label)
        axes.set_xticks(range(len(LOADS)), [load.replace("_", " ") for load in LOADS])
        axes.set_ylabel("braid ÷ nftables")
        axes.legend()
