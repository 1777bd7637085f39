"""`balance/policies`: every policy that balances, in every kind of situation, in turns.

Each row is a situation: a page of many small transfers, bulk, two sites of which each is near by another line, a line
that loses packets, one that is full, and unequal lines. In each turn the better line alone and every policy do the
same, forwards and backwards in turn. `fastest` is the default, so it has to be the best of them in each row.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from braid_lab.concurrency import run_concurrently
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.balance import policy_scenes
from braid_lab.experiments.balance.policy_scenes import POLICIES, Place, Scene, built
from braid_lab.fixtures import run_client
from braid_lab.plots import COLOURS

T = TypeVar("T")

#: The policy that is the default.
DEFAULT = "fastest"

#: Parallel downloads of the bulk, as in `demo`.
DOWNLOADS = 10

#: A page that takes longer fails the row.
PAGE_TIMEOUT_S = 60.0

#: Hosts that load at the same time, each over lines of its own. A page or a bulk takes a fifth of two processors.
HOSTS_AT_ONCE = 4

#: Pages before anything counts: the state of a machine that has been up for a while. `rr` has no state.
WARM_UP_PAGE = 1_000_000
STATELESS = ("rr",)


@dataclass(frozen=True)
class Extent:
    """Amount of measurement: turns of the rows of pages and of bulk, and the length of a bulk."""

    rows: tuple[str, ...]
    policies: tuple[str, ...]
    turns: int
    bulk_turns: int
    bulk_s: float
    #: Time until the lines are full and the losses of slow start are repaired.
    bulk_warm_up_s: float


@dataclass(frozen=True)
class Row:
    """A situation, and how it is measured."""

    name: str
    scene: Scene
    #: True for parallel downloads, false for pages.
    bulk: bool = False


ROWS = (
    Row("pages", policy_scenes.HOUSEHOLD),
    Row("bulk", policy_scenes.HOUSEHOLD, bulk=True),
    Row("sites", policy_scenes.SITES),
    Row("lossy", policy_scenes.LOSSY),
    Row("full", policy_scenes.FULL),
    Row("unequal", policy_scenes.UNEQUAL),
)
BY_NAME = {row.name: row for row in ROWS}

FULL = Extent(tuple(BY_NAME), POLICIES, turns=6, bulk_turns=4, bulk_s=2.0, bulk_warm_up_s=1.0)
QUICK = Extent(tuple(BY_NAME), POLICIES, turns=3, bulk_turns=2, bulk_s=1.0, bulk_warm_up_s=0.75)
SMOKE = Extent(("bulk", "sites"), ("rr", DEFAULT), turns=1, bulk_turns=1, bulk_s=0.25, bulk_warm_up_s=0.25)


@dataclass
class Measured:
    """Results of a row: by case the seconds of each turn, for a page or a megabyte of bulk."""

    row: Row
    seconds: dict[str, list[float]] = field(default_factory=dict)
    loads: list[dict[str, object]] = field(default_factory=list)
    flows: list[dict[str, object]] = field(default_factory=list)

    def better_line(self) -> str:
        """Return the line that alone takes less time."""
        return min(self.row.scene.candidates, key=lambda line: statistics.median(self.seconds[line]))

    def ratios(self, case: str, to: str) -> list[float]:
        """Return the time of a case over that of another one, turn by turn."""
        return [one / other for one, other in zip(self.seconds[case], self.seconds[to], strict=True)]


@experiment("balance/policies", "Every policy in every situation", cases=tuple(BY_NAME))
def policies(run: Run) -> None:
    """Measure the rows, scene by scene; record each at its end, so that one that fails costs no other."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    rows = [BY_NAME[name] for name in run.cases(extent.rows)]
    run.display.expect(sum(_turns(row, extent) for row in rows))
    measured: list[Measured] = []
    for scene, some in itertools.groupby(rows, key=lambda row: row.scene):
        chosen = list(some)
        with run.part(" and ".join(row.name for row in chosen)), built(scene, extent.policies, run.seed) as places:
            _warm_up(run, places)
            for row in chosen:
                measured.append(_measure(run, row, places, extent))
    run.series("loads", [each for row in measured for each in row.loads])
    run.series("flows", [each for row in measured for each in row.flows])
    if measured:
        record(run, measured, extent.policies)
        _plot(run, measured, extent.policies)


def _turns(row: Row, extent: Extent) -> int:
    return extent.bulk_turns if row.bulk else extent.turns


def _warm_up(run: Run, places: Mapping[str, Place]) -> None:
    if run.form == "smoke":
        return
    waiting = [place for place in places.values() if place.daemon is not None and place.case not in STATELESS]
    for some in _in_groups(waiting):
        run_concurrently([functools.partial(_page, run.seed, WARM_UP_PAGE, place) for place in some])


def _in_groups(of: Sequence[T]) -> list[Sequence[T]]:
    """Return the groups that load at the same time."""
    return [of[first : first + HOSTS_AT_ONCE] for first in range(0, len(of), HOSTS_AT_ONCE)]


def _page(seed: int, number: int, place: Place) -> float:
    """Load a page and return its seconds.

    Each number begins with another server. A page has an even number of connections, so by turns its document, for
    which all else waits, takes the same line each time: with the same server, always the one that is near to it, or
    never.
    """
    first = number % len(place.servers)
    servers = [*place.servers[first:], *place.servers[:first]]
    loaded = run_client(place.host, "page", seed, number, *servers, timeout=PAGE_TIMEOUT_S)
    return float(loaded["seconds"])


def _bulk(extent: Extent, place: Place) -> float:
    """Download in parallel and return the seconds of a megabyte."""
    words = (DOWNLOADS, extent.bulk_warm_up_s, extent.bulk_s)
    return 8.0 / float(run_client(place.host, "bulk", *words, *place.servers)["mbit"])


def _measure(run: Run, row: Row, places: Mapping[str, Place], extent: Extent) -> Measured:
    """Measure a row's cases in turn, some at the same time, in each turn beside others."""
    found = Measured(row, {case: [] for case in places})
    cases = [*row.scene.candidates, *extent.policies]
    for turn in range(_turns(row, extent)):
        load = functools.partial(_bulk, extent) if row.bulk else functools.partial(_page, run.seed, turn)
        with run.step(f"{row.name}: turn {turn + 1}"):
            for group in _in_groups(cases if turn % 2 == 0 else cases[::-1]):
                run_concurrently([functools.partial(_load, found, turn, places[case], load) for case in group])
    return found


def _load(found: Measured, turn: int, place: Place, load: Callable[[Place], float]) -> None:
    """Load once, and note the uplinks that its flows took and why."""
    before, capacities, predictions = place.opened(), place.capacities(), place.predictions(place.servers[0])
    begun = time.monotonic()
    seconds = load(place)
    flows = place.flows(time.monotonic() - begun)
    opened = {name: count - before[name] for name, count in place.opened().items()}
    found.seconds[place.case].append(seconds)
    row = {"row": found.row.name, "turn": turn, "case": place.case}
    uplinks = found.row.scene.lines
    found.loads.append(
        {
            **row,
            "s": round(seconds, 4),
            **{f"opened_{name}": opened.get(name, "") for name in uplinks},
            **{f"capacity_{name}": capacities.get(name, "") for name in uplinks},
            **{f"predicted_{name}": predictions.get(name, "") for name in uplinks},
        }
    )
    found.flows += [{**row, **each} for each in flows]


def record(run: Run, measured: Sequence[Measured], ways: Sequence[str]) -> None:
    """Record the figures and the table."""
    run.table.append(["", "better line alone", *ways, f"{DEFAULT} of the best other"])
    others = [way for way in ways if way != DEFAULT]
    worst: list[float] = []
    for each in measured:
        name, line = each.row.name, each.better_line()
        unit = "s/MB" if each.row.bulk else "s"
        for case, seconds in each.seconds.items():
            run.measure(f"seconds_{_word(case)}_{name}", seconds, unit=unit, better="lower")
        of_line = {
            way: run.measure(f"of_better_line_{_word(way)}_{name}", each.ratios(way, line), better="lower")
            for way in ways
        }
        best = min(others, key=of_line.__getitem__)
        ratio = run.measure(f"ratio_{DEFAULT}_{name}", each.ratios(DEFAULT, best), better="lower")
        worst.append(ratio)
        alone = f"{line} {statistics.median(each.seconds[line]):.3g} {unit}"
        run.table.append([name, alone, *(f"{of_line[way]:.3f}" for way in ways), f"{ratio:.3f} ({best})"])
    run.figure(f"ratio_{DEFAULT}", max(worst), better="lower", runs=len(worst), spread=(min(worst), max(worst)))
    run.notes.append(
        "Times of a page of 42 connections, or of a megabyte by ten downloads, of those by the better line alone: "
        "medians of the turns, each turn compared with itself. The best other policy is the one with the lowest "
        "median, so chance favours it."
    )


def _word(case: str) -> str:
    return case.replace("-", "_")


def _plot(run: Run, measured: Sequence[Measured], ways: Sequence[str]) -> None:
    with run.plot("policies", width=9.0) as plot:
        axes = plot.subplots()
        width = 0.8 / len(ways)
        for place, way in enumerate(ways):
            for number, each in enumerate(measured):
                values = each.ratios(way, each.better_line())
                at = number + (place - (len(ways) - 1) / 2) * width
                label = way if number == 0 else None
                axes.bar(at, statistics.median(values), width=0.9 * width, color=COLOURS[way], label=label)
                axes.plot([at] * len(values), values, "o", color="black", markersize=2, alpha=0.6)
        axes.axhline(1.0, color="black", linewidth=0.7, linestyle=":")
        axes.set_xticks(range(len(measured)), [each.row.name for each in measured])
        axes.set_ylabel("time, of the better line's alone")
        axes.legend(ncols=len(ways))
