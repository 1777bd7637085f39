"""`bond/short`: time of short downloads through the bond, beside each link alone.

Each download is a new connection of curl to the lab's HTTP server, from the first SYN to the last byte. The bond and
the links take turns. Over radio links all see the same rates: their traces restart before each download, at another
second in every turn.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond.cases import Link
from braid_lab.experiments.bond.radio import WALKS, Radio, restart_traces
from braid_lab.experiments.bond.site import Emulable, Site, emulators_kept_up, site
from braid_lab.fixtures import serve
from braid_lab.servers.catalog import HTTP_PORT

#: Sizes of the downloads, bytes.
SIZES = {"20kB": 20_000, "100kB": 100_000, "1MB": 1_000_000, "10MB": 10_000_000}

#: Time limit of a download, s.
TIMEOUT_SECONDS = 60.0

#: Distance of the turns' starts in the traces, s.
TURN_SECONDS = 11.0


@dataclass(frozen=True)
class Case:
    """Links on which short downloads are tried."""

    name: str
    links: Callable[[int], Mapping[str, Emulable]]


def _steady(name: str, one: Link, two: Link) -> Case:
    return Case(name, lambda _: {"one": one, "two": two})


#: Round trips of 30 ms, if the name has no others.
CASES = {
    case.name: case
    for case in (
        _steady("equal", Link(50, 15), Link(50, 15)),
        _steady("20ms_120ms", Link(50, 10), Link(50, 60)),
        _steady("100_10", Link(100, 15), Link(10, 15)),
        Case("lte_lte", lambda seed: dict(zip(("one", "two"), WALKS["lte12_lte6"](seed), strict=True))),
    )
}


@experiment("bond/short", "Short downloads through the bond", cases=tuple(CASES))
def short(run: Run) -> None:
    """Measure every case."""
    turns = run.of_form(full=15, quick=5, smoke=1)
    sizes = dict(list(SIZES.items())[: run.of_form(full=4, quick=4, smoke=2)])
    names = run.cases(run.of_form(full=tuple(CASES), quick=("equal", "20ms_120ms"), smoke=("equal",)))
    run.display.expect(len(names) * (1 + len(sizes)))
    run.table.append(["links", "size", "bond ms", "best link alone ms", "ratio"])
    for name in names:
        with run.part(name), contextlib.ExitStack() as stack:
            links = CASES[name].links(run.seed)
            with run.step(f"{name}: build, and join the hub"):
                place = stack.enter_context(site(links, seed=run.seed))
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="braid-short-")))
                serve(place.net, "http1")
            radios = {link: each for link, each in links.items() if isinstance(each, Radio)}
            _measure(run, name, place, radios, folder, sizes, turns)
            emulators_kept_up(run, place)
    run.notes.append("Times are medians of curl's time_total. The best link alone is that with the lowest median.")


def _measure(
    run: Run,
    name: str,
    place: Site,
    radios: Mapping[str, Radio],
    folder: Path,
    sizes: Mapping[str, int],
    turns: int,
) -> None:
    """Measure one case and record it."""
    rows: list[dict[str, object]] = []
    kinds = ["bond", *place.net.uplinks]
    for word, size in sizes.items():
        times: dict[str, list[float]] = defaultdict(list)
        with run.step(f"{name}: {word}, {turns} times each"):
            for turn in range(turns):
                for kind in kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]:
                    restart_traces(place, radios, folder, TURN_SECONDS * turn, TIMEOUT_SECONDS)
                    times[kind].append(1000 * _download(place, kind, size))
                    rows.append({"size": word, "turn": turn, "over": kind, "ms": round(times[kind][-1], 3)})
        best = min(place.net.uplinks, key=lambda link: statistics.median(times[link]))
        bond = run.measure(f"ms_bond_{name}_{word}", times["bond"], unit="ms", better="lower")
        alone = run.measure(f"ms_best_{name}_{word}", times[best], unit="ms")
        run.figure(f"ratio_{name}_{word}", bond / alone, better="lower", runs=turns)
        run.table.append([name.replace("_", " "), word, f"{bond:.0f}", f"{alone:.0f}", f"{bond / alone:.2f}"])
    run.series(f"downloads_{name}", rows)


def _download(place: Site, kind: str, size: int) -> float:
    """Return the time of one download through the bond, or over a link alone, s."""
    argv = ["curl", "--silent", "--show-error", "--fail", "--max-time", f"{TIMEOUT_SECONDS:g}"]
    argv += ["--output", "/dev/null", "--write-out", "%{time_total}"]
    if kind != "bond":
        argv += ["--interface", place.net.uplinks[kind].address4]
    argv += [f"http://{place.server}:{HTTP_PORT}/bytes/{size}"]
    return float(place.net.host.run(argv, timeout=TIMEOUT_SECONDS + 10).stdout)
