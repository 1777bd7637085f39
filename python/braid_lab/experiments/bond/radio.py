"""`bond/radio`: a flow over two radio links, or one each way, beside kernel MPTCP and each link alone.

Rates are random walks with the statistics of recorded links, or recordings: `--traces DIR` takes all pairs of a
directory's `NAME-down.csv`. Upstream uses `NAME-up.csv`, else that of the other link, else 12 Mbit/s. Every
measurement restarts the traces, so all see the same rates at the same time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond.figures import (
    WARM_UP_SECONDS,
    GoodputTrace,
    RoundTrips,
    goodput_table,
    loaded_round_trips,
)
from braid_lab.experiments.bond.site import Site, emulators_kept_up, site
from braid_lab.experiments.race.figures import percentile
from braid_lab.fixtures import echo_train
from braid_lab.net.links import LinkSpec
from braid_lab.net.namespace import use_congestion_control
from braid_lab.net.rate_traces import FROM_SECONDS, RateTrace, fixed, lte, satellite
from braid_lab.process import CommandError, LabError, Process

DELAY_MS = 20.0

#: Upstream rate of a recording without upstream data, Mbit/s.
UP_MBIT = 12.0

WALK_SECONDS = 150.0

#: Length of the worst time span, s.
WORST_SPAN_SECONDS = 2.0

PROBE_INTERVAL_SECONDS, PROBE_BYTES, PROBE_SERVER = 0.02, 64, 2

#: Verb of `braid_lab.clients.tcp_stream` for each direction.
VERBS = {"down": "take", "up": "give"}


@dataclass(frozen=True)
class Radio:
    """One link: its rates in both directions, and its queue."""

    down: RateTrace
    up: RateTrace
    queue_ms: float = 300.0

    def line(self, seed: int) -> LinkSpec:
        """Return the emulated link, still without traces."""
        mean = f"{self.down.mean(0, self.down.seconds):.3f}Mbit/s"
        return LinkSpec(rate=mean, delay=f"{DELAY_MS:g}ms", queue=f"{self.queue_ms:g}ms", seed=seed)


@dataclass(frozen=True)
class Case:
    """Two links, and the flows over them."""

    name: str
    links: Mapping[str, Radio]
    congestion_control: str = "cubic"
    #: Keys of `VERBS`; a flow in each of them at once.
    directions: tuple[str, ...] = ("down",)

    def offered(self, direction: str, seconds: float) -> float:
        """Return the mean rate of all links in one direction after the warm-up, Mbit/s."""
        both = [radio.up if direction == "up" else radio.down for radio in self.links.values()]
        return sum(rates.mean(FROM_SECONDS + WARM_UP_SECONDS, seconds - WARM_UP_SECONDS) for rates in both)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return what the flows are measured over: the bond, MPTCP, and each link alone."""
        return ("bond", "mptcp", *self.links)


def _lte(seed: int, down: float, up: float) -> Radio:
    return Radio(lte(down, WALK_SECONDS, seed), lte(up, WALK_SECONDS, seed + 500))


def _satellite(mean: float, seed: int) -> Radio:
    return Radio(satellite(mean, WALK_SECONDS, seed), fixed(UP_MBIT))


Pair = tuple[Radio, Radio]

#: Pairs of links by their Mbit/s; the first of each two is the better one. They are drawn from a run's seed.
WALKS: Mapping[str, Callable[[int], Pair]] = {
    "lte12_lte6": lambda seed: (_lte(1000 * seed + 1, 12, 5), _lte(1000 * seed + 2, 6, 2.5)),
    "lte15_lte3": lambda seed: (_lte(1000 * seed + 3, 15, 6), _lte(1000 * seed + 4, 3, 1.5)),
    "dsl20_lte6": lambda seed: (Radio(fixed(20), fixed(5)), _lte(1000 * seed + 5, 6, 2.5)),
    "satellite190_lte90": lambda seed: (_satellite(190, seed + 6), _satellite(90, seed + 7)),
}


def recorded(folder: Path) -> Mapping[str, Callable[[int], Pair]]:
    """Return all pairs of recordings in a directory; LabError if there are none."""
    names = sorted(file.name.removesuffix("-down.csv") for file in folder.glob("*-down.csv"))
    if len(names) < 2:
        raise LabError(f"{folder}: recordings NAME-down.csv of two links at least are wanted, {len(names)} found")
    pairs = itertools.combinations(names, 2)
    return {"+".join(pair): functools.partial(_read, folder, *pair) for pair in pairs}


def _read(folder: Path, one: str, other: str, _: int) -> Pair:
    """Read two recordings; the seed is not used."""
    ups = [folder / f"{name}-up.csv" for name in (one, other)]
    known = [RateTrace.read(up) if up.exists() else None for up in ups]
    down = [RateTrace.read(folder / f"{name}-down.csv") for name in (one, other)]
    first, second = (known[at] or known[1 - at] or fixed(UP_MBIT) for at in (0, 1))
    return Radio(down[0], first), Radio(down[1], second)


def _deep(case: Case) -> Case:
    return replace(case, links={name: replace(link, queue_ms=1000.0) for name, link in case.links.items()})


#: Variants of the flow over a pair, by the suffix of their names.
VARIANTS: Mapping[str, Callable[[Case], Case]] = {
    "": lambda case: case,
    "_queue1000": _deep,
    "_bbr": lambda case: replace(case, congestion_control="bbr"),
    "_up": lambda case: replace(case, directions=("up",)),
    "_up_bbr": lambda case: replace(case, directions=("up",), congestion_control="bbr"),
    "_both": lambda case: replace(case, directions=("down", "up")),
}

#: Variants of the first pair in the shorter forms.
QUICK_VARIANTS, SMOKE_VARIANTS = ("", "_both"), ("_both",)


def _names(pairs: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the cases of some pairs: names, each with its pair and its variant."""
    return {pair + variant: (pair, variant) for pair in pairs for variant in VARIANTS}


@experiment(
    "bond/radio",
    "One flow over two radio links",
    paper="layer3-bonding §5",
    cases=tuple(_names(WALKS)),
    recordings=True,
)
def radio(run: Run) -> None:
    """Measure every case."""
    pairs = recorded(run.traces) if run.traces else WALKS
    known, first = _names(pairs), next(iter(pairs))
    quick, smoke = (tuple(first + variant for variant in some) for some in (QUICK_VARIANTS, SMOKE_VARIANTS))
    names = run.cases(run.of_form(full=tuple(known), quick=quick, smoke=smoke))
    if unknown := [name for name in names if name not in known]:
        raise LabError(f"there is no case {', '.join(unknown)}: there are {', '.join(known)}")
    cases = []
    for name in names:
        pair, variant = known[name]
        links = dict(zip(("one", "two"), pairs[pair](run.seed), strict=True))
        cases.append(VARIANTS[variant](Case(name, links)))
    seconds = run.of_form(full=42.0, quick=14.0, smoke=3.0)
    run.display.expect(sum(1 + len(case.kinds) for case in cases))
    head = ["links", "offered", "bond", "MPTCP", "alone", "of the best", "worst 2 s", "ping ms", "beside MPTCP"]
    run.table.append(head)
    late: list[float] = []
    ratios: list[float] = []
    for case in cases:
        with run.part(case.name), contextlib.ExitStack() as stack:
            with run.step(f"{case.name}: build, and join the hub"):
                place = stack.enter_context(site(case.links, seed=run.seed))
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="braid-radio-")))
                for end in (place.net.host, place.net.internet):
                    use_congestion_control(end, case.congestion_control)
                internet = place.net.internet.name
                place.background(internet, "braid_lab.clients.tcp_stream", "serve", place.server)
                place.background(internet, "braid_lab.servers.echo", place.net.server(PROBE_SERVER))
            ratios += _measure(run, place, case, folder, seconds)
            late.append(emulators_kept_up(run, place))
    if ratios:
        run.figure(
            "worst_vs_best_single", min(ratios), better="higher", runs=len(ratios), spread=(min(ratios), max(ratios))
        )
        run.figure("emulators_late_p99_ms", max(late), unit="ms", better="lower")
    run.notes.append(
        f"Mbit/s of payload after the first {WARM_UP_SECONDS:g} s. Offered is the rate of the links then, "
        f"headers included. The worst 2 s are compared with the better link alone then. Pings are small "
        f"datagrams through the full bond: their round trips above {2 * DELAY_MS:g} ms, median and 99th percentile; "
        f"beside MPTCP those over each link."
    )


def _measure(run: Run, place: Site, case: Case, folder: Path, seconds: float) -> list[float]:
    """Measure one case and record it; return the bond's goodput over the best single link's in each direction."""
    traces: dict[str, dict[str, GoodputTrace]] = {direction: {} for direction in case.directions}
    pings: dict[str, RoundTrips] = {}
    for kind in case.kinds:
        with run.step(f"{case.name}: {kind}"), contextlib.ExitStack() as stack:
            probes = stack.enter_context(_probes(place, kind)) if kind in ("bond", "mptcp") else None
            restart_traces(place, case.links, folder, FROM_SECONDS, seconds)
            for direction, trace in _flows(place, case, kind, seconds).items():
                traces[direction][kind] = trace
            if probes:
                names = ["bond"] if kind == "bond" else [f"mptcp_{link}" for link in case.links]
                said = json.loads(probes.stop().stdout.splitlines()[-1])
                pings |= {name: loaded_round_trips(each, seconds) for name, each in zip(names, said, strict=True)}
    cells = _record_pings(run, case, pings)
    return [
        _record_goodput(run, case, direction, some, case.offered(direction, seconds), cells)
        for direction, some in traces.items()
    ]


def _probes(place: Site, kind: str) -> contextlib.AbstractContextManager[Process]:
    """Return an echo train through the bond, or beside MPTCP one over each link."""
    sources = [] if kind == "bond" else [uplink.address4 for uplink in place.net.uplinks.values()]
    return echo_train(place.net, PROBE_INTERVAL_SECONDS, PROBE_BYTES, [PROBE_SERVER], sources=sources)


def _record_pings(run: Run, case: Case, pings: dict[str, RoundTrips]) -> list[str]:
    """Record what pings met in the bond, and beside MPTCP over each link; return these cells of the table."""
    delays: dict[str, list[float]] = {}
    for kind, found in pings.items():
        suffix = case.name if kind == "bond" else f"{kind}_{case.name}"
        delays[kind] = [percentile(found.ms, share) - 2 * DELAY_MS for share in (0.5, 0.99)]
        for word, delay in zip(("p50", "p99"), delays[kind], strict=True):
            run.figure(f"rtt_added_{word}_ms_{suffix}", delay, unit="ms", better="lower", runs=len(found.ms))
        run.figure(f"pings_lost_{suffix}", found.lost, better="lower")
    bond = delays.pop("bond")
    ratio = bond[1] / min(each[1] for each in delays.values())
    run.figure(f"rtt_added_p99_vs_mptcp_{case.name}", ratio, better="lower")
    beside = "; ".join(f"{p50:.0f}, {p99:.0f}" for p50, p99 in delays.values())
    return [f"{bond[0]:.0f}, {bond[1]:.0f}", beside]


def _record_goodput(
    run: Run, case: Case, direction: str, traces: dict[str, GoodputTrace], offered: float, ending: list[str]
) -> float:
    """Record the flows of one direction; return the bond's goodput over the best single link's."""
    name = case.name if len(case.directions) == 1 else f"{case.name}_{direction}"
    got = {kind: trace.steady_mbit for kind, trace in traces.items()}
    best = max(case.links, key=lambda link: got[link])
    worst = _worst_span(traces["bond"], traces[best])
    ratio = got["bond"] / got[best]
    run.figure(f"vs_best_single_{name}", ratio, better="higher")
    run.figure(f"worst_stretch_{name}", worst, better="higher")
    run.figure(f"share_of_offered_{name}", got["bond"] / offered, better="higher")
    run.figure(f"vs_mptcp_{name}", got["bond"] / got["mptcp"], better="higher")
    for kind, mbit in got.items():
        run.figure(f"mbit_{kind}_{name}", mbit, unit="Mbit/s", better="higher" if kind == "bond" else "none")
    alone = ", ".join(f"{got[link]:.1f}" for link in case.links)
    cells = [f"{offered:.1f}", f"{got['bond']:.1f}", f"{got['mptcp']:.1f}", alone, f"{ratio:.2f}", f"{worst:.2f}"]
    run.table.append([name.replace("_", " "), *cells, *ending])
    run.series(f"course_{name}", goodput_table(traces, bins=5))
    return ratio


def restart_traces(place: Site, links: Mapping[str, Radio], folder: Path, start: float, seconds: float) -> None:
    """Restart the traces of all links from their second `start` on; `folder` keeps the files."""
    for link, radio in links.items():
        for direction, rates in (("down", radio.down), ("up", radio.up)):
            file = folder / f"{link}-{direction}.csv"
            # The links run on after the flow, so that its remaining packets drain.
            rates.write(file, start, seconds + 30)
            place.emulator(link).request({"set": {"direction": direction, "trace": str(file)}})


def _flows(place: Site, case: Case, kind: str, seconds: float) -> dict[str, GoodputTrace]:
    """Run a flow in each of the case's directions at once."""
    words = [place.server, f"{seconds:g}"]
    if kind != "bond":
        link = next(iter(case.links)) if kind == "mptcp" else kind
        words += ["--from", place.net.uplinks[link].address4]
    words += ["--mptcp"] if kind == "mptcp" else []
    with contextlib.ExitStack() as stack:
        flows: dict[str, Process] = {}
        for direction in case.directions:
            argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", VERBS[direction], *words]
            log = place.net.scratch / VERBS[direction]
            flows[direction] = stack.enter_context(Process(argv, log=log, namespace=place.net.host.name))
        traces = {}
        for direction, flow in flows.items():
            done = flow.wait(timeout=seconds + 60)
            if done.status:
                raise CommandError(flow.argv, done.status, done.text)
            traces[direction] = GoodputTrace.unbroken(json.loads(done.stdout), f"{case.name}, {kind}, {direction}:")
    return traces


def _worst_span(bond: GoodputTrace, best: GoodputTrace) -> float:
    """Return the bond's goodput in its worst two seconds over that of the best link alone in the same two."""
    bins = round(WORST_SPAN_SECONDS / bond.bin_s)
    sums = [list(itertools.accumulate(trace.bytes, initial=0)) for trace in (bond, best)]
    first = round(WARM_UP_SECONDS / bond.bin_s)
    spans = ([each[at + bins] - each[at] for each in sums] for at in range(first, len(bond.bytes) - bins, 5))
    usual = statistics.fmean(best.bytes) * bins
    # Spans in which the link alone has next to nothing do not count.
    return min((ours / its for ours, its in spans if its > 0.05 * usual), default=1.0)
