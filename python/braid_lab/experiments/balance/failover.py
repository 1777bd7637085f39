"""`balance/failover`: what applications notice when an uplink fails, and false failures of working uplinks.

Two uplinks, a DSL and an LTE line; the application runs on the host itself or behind it as a gateway, over IPv4 or
IPv6. An uplink becomes a black hole without a sign at its device, or loses its carrier. Lossy and flapping lines are
watched meanwhile, in networks of their own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from braid_lab.clients.http3_download import Downloaded
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.balance import lossy_links, uplink_failure
from braid_lab.experiments.balance.uplink_failure import Location, LocationName
from braid_lab.fixtures import serve
from braid_lab.net.topology import UplinkSpec, network

T = TypeVar("T")

LOCATIONS: tuple[LocationName, ...] = ("host", "gateway")
FAMILIES = (4, 6)

#: Time after which mwan3 with its defaults takes out a silent line: five pings of 10 s, the best case of 50 to 70 s.
MWAN3_MS = 50_000.0


@dataclass(frozen=True)
class Plan:
    """Amount of measurement: trials of each kind and case, and the least time for which lossy lines are watched.

    Beyond `fewest` trials, more are made while another round fits into the watch time.
    """

    fewest: int
    most: int
    watch_seconds: float
    families: tuple[int, ...] = FAMILIES


FULL = Plan(fewest=9, most=12, watch_seconds=300.0)
#: Four lossy lines for 75 s are five minutes of line.
QUICK = Plan(fewest=2, most=4, watch_seconds=75.0)
SMOKE = Plan(fewest=1, most=1, watch_seconds=0.0, families=(4,))


@dataclass
class Case:
    """Results of one location and IP version, trial by trial."""

    silent: list[uplink_failure.Silent] = field(default_factory=list)
    carrier: list[float] = field(default_factory=list)
    downloads: list[Downloaded] = field(default_factory=list)


Cases = dict[str, Case]


@experiment("balance/failover", "Failure of an uplink under new connections, open ones and a QUIC download")
def failover(run: Run) -> None:
    """Fail uplinks in turn while lossy ones are watched."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    cases: Cases = {f"{location}_ipv{family}": Case() for location in LOCATIONS for family in plan.families}
    with contextlib.ExitStack() as stack:
        reports: dict[LocationName, lossy_links.LossyLinkReport] = {}
        with contextlib.ExitStack() as watching:
            with run.step("build a host and a gateway with lossy and flapping lines"):
                for name in LOCATIONS:
                    location = _place(stack, name, lossy_links.UPLINKS, "http1")
                    reports[name] = watching.enter_context(lossy_links.watched(location))
            end = time.monotonic() + plan.watch_seconds
            with run.step("build a host and a gateway whose uplinks will fail"):
                dying_at = [_place(stack, name, uplink_failure.UPLINKS, "http1", "http3") for name in LOCATIONS]
            with ThreadPoolExecutor(max_workers=len(LOCATIONS)) as pool:
                _trials(run, pool, dying_at, cases, plan, end)
            _record_deaths(run, cases)
            with run.step("watch the lossy and the flapping lines"):
                lossy_links.watch_for(reports.values(), plan.watch_seconds)
    _record_lossy_links(run, reports)
    run.notes += [
        "For comparison: mwan3 with its defaults takes 50 to 70 s.",
        f"A silent black hole by the emulator, a lost carrier at the host's device. New connections every "
        f"{uplink_failure.LIGHT_INTERVAL_MS:g} ms ({uplink_failure.DENSE_INTERVAL_MS:g} ms for the carrier), "
        "beside all other traffic.",
    ]


def _place(stack: contextlib.ExitStack, name: LocationName, uplinks: Sequence[UplinkSpec], *servers: str) -> Location:
    net = stack.enter_context(network(uplinks, lan_clients=1 if name == "gateway" else 0))
    serve(net, *servers)
    return Location(name, net)


def _trials(
    run: Run, pool: ThreadPoolExecutor, locations: Sequence[Location], cases: Cases, plan: Plan, end: float
) -> None:
    """Run all trials, host and gateway (which share nothing) in parallel, until the watch ends at `end`."""
    run.display.expect(plan.most * len(plan.families) * 3 + 3)
    for turn in range(plan.most):
        began = time.monotonic()
        for family in plan.families:
            everywhere = partial(_everywhere, run, pool, locations, family, turn)
            for case, silent in everywhere("an uplink goes silent", uplink_failure.silent):
                cases[case].silent.append(silent)
            for case, seconds in everywhere("an uplink loses its carrier", uplink_failure.carrier):
                cases[case].carrier.append(seconds)
            for case, downloaded in everywhere(
                "an uplink goes silent under a QUIC download", uplink_failure.download
            ):
                cases[case].downloads.append(downloaded)
        lasted = time.monotonic() - began
        if turn + 1 >= plan.fewest and time.monotonic() + lasted > end:
            return


def _everywhere(
    run: Run,
    pool: ThreadPoolExecutor,
    locations: Sequence[Location],
    family: int,
    turn: int,
    title: str,
    trial: Callable[[Location, int, int], T],
) -> Iterator[tuple[str, T]]:
    """Run one trial at all locations at once; yield each case with its result, unless the trial failed."""
    title = f"IPv{family}, trial {turn + 1}: {title}"
    with run.step(title):
        results = [pool.submit(trial, location, family, turn) for location in locations]
        for location, result in zip(locations, results, strict=True):
            with run.part(f"{location.name}, {title}"):
                yield f"{location.name}_ipv{family}", result.result()


def _record_deaths(run: Run, cases: Cases) -> None:
    """Turn trials into figures, raw series, a table and a plot."""
    milliseconds: dict[str, dict[str, list[float]]] = {
        "new_flow_outage": {name: [each.new_flow_outage for each in case.silent] for name, case in cases.items()},
        "tcp_told": {name: [each.tcp_told for each in case.silent] for name, case in cases.items()},
        "carrier_outage": {name: case.carrier for name, case in cases.items()},
        "quic_stall": {name: [each.pause for each in case.downloads] for name, case in cases.items()},
    }
    run.table = [["median ms", *(name.replace("_", ", ") for name in cases), "worst"]]
    for what, by_case in milliseconds.items():
        reference = MWAN3_MS if what == "new_flow_outage" else None
        samples = {name: [1000 * each for each in seconds] for name, seconds in by_case.items()}
        medians = {
            name: run.measure(f"{what}_ms_{name}", each, unit="ms", better="lower", paper=reference)
            for name, each in samples.items()
            if each
        }
        # All of its trials have failed.
        if not medians:
            continue
        worst = max(medians, key=lambda name: medians[name])
        run.measure(f"{what}_ms", samples[worst], unit="ms", better="lower", paper=reference)
        cells = [f"{medians[name]:.0f}" if name in medians else "" for name in samples]
        run.table.append([what.replace("_", " "), *cells, f"{medians[worst]:.0f}"])
    trials = [each for case in cases.values() for each in case.downloads]
    run.figure("quic_errors", sum(each.error is not None for each in trials), better="lower", runs=len(trials))
    silent = [each for case in cases.values() for each in case.silent]
    run.figure("tcp_wronged", sum(each.wronged for each in silent), better="lower", runs=len(silent))
    rows = [
        {"case": name, "what": what, "trial": trial, "ms": round(1000 * seconds, 1)}
        for what, by_case in milliseconds.items()
        for name, samples_s in by_case.items()
        for trial, seconds in enumerate(samples_s)
    ]
    run.series("trials", rows)
    _draw(run, milliseconds)


def _draw(run: Run, milliseconds: dict[str, dict[str, list[float]]]) -> None:
    with run.plot("outages") as plot:
        axes = plot.subplots()
        for location, by_case in enumerate(milliseconds.values()):
            for shift, values in enumerate(by_case.values()):
                where = location + 0.15 * (shift - 1.5)
                axes.plot([where] * len(values), [1000 * each for each in values], "o", color=f"C{shift}", alpha=0.7)
        axes.set_xticks(range(len(milliseconds)), [what.replace("_", " ") for what in milliseconds])
        axes.set_ylabel("ms")
        axes.set_ylim(bottom=0)
        axes.legend([name.replace("_", ", ") for name in next(iter(milliseconds.values()))])


def _record_lossy_links(run: Run, reports: dict[LocationName, lossy_links.LossyLinkReport]) -> None:
    """Record the results of the lossy and the flapping lines."""
    cases = [(location, family, f"{location}_ipv{family}") for location in reports for family in FAMILIES]
    false_deaths = {name: reports[location].false_deaths[family] for location, family, name in cases}
    admitted = {name: reports[location].admitted[family] for location, family, name in cases}
    watched = sum(one.watched_seconds for one in reports.values()) * len(FAMILIES)
    run.figure("false_deaths", sum(false_deaths.values()), unit=f"in {watched / 60:.1f} min", better="lower")
    run.figure("flaps_admitted", max(admitted.values()), better="lower")
    flaps = max(one.flaps for one in reports.values())
    run.figure("flaps_made", flaps)
    run.figure("false_deaths_watched_s", watched, unit="s")
    for location, _, name in cases:
        unit = f"in {reports[location].watched_seconds / 60:.1f} min"
        run.figure(f"false_deaths_{name}", false_deaths[name], unit=unit, better="lower")
        run.figure(f"flaps_admitted_{name}", admitted[name], better="lower")
    run.table.append(["false deaths (count)", *map(str, false_deaths.values()), str(sum(false_deaths.values()))])
    run.table.append([f"flaps admitted, of {flaps}", *map(str, admitted.values()), str(max(admitted.values()))])
    each_s = min(one.watched_seconds for one in reports.values())
    run.notes.append(
        f"{len(cases)} lossy lines (10 % loss, 300 ms of jitter, both ways), each watched for {each_s:.0f} s, "
        f"{watched / 60:.1f} min in all. As many flapping ones, {flaps} times silent for "
        f"{lossy_links.SILENT_SECONDS:g} s and then at work for {lossy_links.WORKING_SECONDS:g} s."
    )
