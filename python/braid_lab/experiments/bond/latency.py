"""`bond/latency`: the round-trip time that a bond full in both directions adds, and a call beside it.

One endless download and one endless upload fill the bond. Echo trains run through it as `ordered` and `unordered`
packets, and a stream of 64 kbit/s as a call. Their round trips are compared with those of the same probes in an idle
bond.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond.cases import BY_NAME, Case
from braid_lab.experiments.bond.figures import WARM_UP_SECONDS, EchoProbe, RoundTrips, round_trips
from braid_lab.experiments.bond.site import Site, delay_walks, emulators_kept_up, site
from braid_lab.experiments.race.figures import percentile
from braid_lab.fixtures import echo_train
from braid_lab.process import LabError, Process

#: Class of the probes to each server; the hub orders the replies as it sees fit.
CLASSES = {"ordered": 2, "unordered": 3}
CALL = 4

PROBE_INTERVAL_SECONDS, PROBE_BYTES = 0.01, 64
#: 64 kbit/s of payload, as in telephony.
CALL_SECONDS, CALL_BYTES = 0.02, 160

RULES = "".join(
    f'[[rule]]\ndestination = "198.51.100.{number}"\nuse = "bond"\nclass = "{name}"\n'
    for name, number in CLASSES.items()
)

QUICK_CASES = ("50_50", "50_50_queue300")
SMOKE_CASES = ("20_20",)


@experiment("bond/latency", "Round trips beside a full bond", paper="layer3-bonding", cases=tuple(BY_NAME))
def latency(run: Run) -> None:
    """Measure every case."""
    names = run.cases(run.of_form(full=tuple(BY_NAME), quick=QUICK_CASES, smoke=SMOKE_CASES))
    cases = [BY_NAME[name] for name in names]
    seconds = run.of_form(full=40.0, quick=10.0, smoke=1.5)
    run.display.expect(3 * len(cases))
    run.table.append(
        ["links, Mbit/s", "idle ms", "added p50 ms", "p99 ms", "unordered p50", "p99", "call lost", "jitter"]
    )
    late: list[float] = []
    for case in cases:
        with run.part(case.name), contextlib.ExitStack() as stack:
            with run.step(f"{case.name}: build, and join the hub"):
                place = stack.enter_context(site(case.links, seed=run.seed, configuration=RULES))
                internet = place.net.internet.name
                place.background(internet, "braid_lab.clients.tcp_stream", "serve", place.server)
                numbers = [*CLASSES.values(), CALL]
                place.background(internet, "braid_lab.servers.echo", *map(place.net.server, numbers))
                stack.enter_context(delay_walks(place, case.links, run.seed))
            with run.step(f"{case.name}: idle"):
                idle = _listen(place, seconds / 3)
            with run.step(f"{case.name}: full both ways"), _full(place, seconds + WARM_UP_SECONDS):
                time.sleep(WARM_UP_SECONDS)
                full = _listen(place, seconds)
            _record(run, case, idle, full)
            late.append(emulators_kept_up(run, place))
    if late:
        run.figure("emulators_late_p99_ms", max(late), unit="ms", better="lower")


def _record(run: Run, case: Case, idle: dict[str, RoundTrips], full: dict[str, RoundTrips]) -> None:
    cells = []
    base = 0.0
    for name in CLASSES:
        base = statistics.median(idle[name].ms)
        suffix = "" if name == "ordered" else f"_{name}"
        for share, word in ((0.5, "p50"), (0.99, "p99")):
            added = percentile(full[name].ms, share) - base
            count = len(full[name].ms)
            run.figure(f"rtt_added_{word}_ms_{case.name}{suffix}", added, unit="ms", better="lower", runs=count)
            cells.append(f"{added:.1f}")
    call = full["call"]
    run.figure(f"stream_loss_{case.name}", call.lost, better="lower", runs=len(call.ms))
    run.figure(f"stream_jitter_ms_{case.name}", call.jitter(), unit="ms", better="lower", runs=len(call.ms))
    run.table.append([case.name.replace("_", " "), f"{base:.1f}", *cells, f"{call.lost:.4f}", f"{call.jitter():.1f}"])
    rows = [
        {"when": when, "kind": kind, "s": round(at, 3), "rtt_ms": round(each, 3)}
        for when, some in (("idle", idle), ("full", full))
        for kind, found in some.items()
        for at, each in zip(found.at, found.ms, strict=True)
    ]
    run.series(f"round_trips_{case.name}", rows)


def _listen(place: Site, seconds: float) -> dict[str, RoundTrips]:
    """Run the echo trains for `seconds`."""
    with contextlib.ExitStack() as stack:
        probes = stack.enter_context(echo_train(place.net, PROBE_INTERVAL_SECONDS, PROBE_BYTES, CLASSES.values()))
        call = stack.enter_context(echo_train(place.net, CALL_SECONDS, CALL_BYTES, [CALL], "call"))
        start = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        found = [each for train in (probes, call) for each in json.loads(train.stop().stdout.splitlines()[-1])]
    kinds = dict(zip([*CLASSES, "call"], ([EchoProbe(*one) for one in each] for each in found), strict=True))
    if astray := {str(probe.via) for each in kinds.values() for probe in each} - {"None", place.hub.far.address4}:
        raise LabError(f"not through the hub, but seen as {', '.join(astray)}")
    return {name: round_trips(each, start, end) for name, each in kinds.items()}


@contextlib.contextmanager
def _full(place: Site, seconds: float) -> Iterator[None]:
    """Fill the bond both ways for the length of a block, which takes at most `seconds`."""
    with contextlib.ExitStack() as stack:
        for verb in ("take", "give"):
            # Longer by the time that the echo trains need to start and end.
            argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", verb, place.server, f"{seconds + 10:g}"]
            log = place.net.scratch / verb
            stack.enter_context(Process(argv, log=log, namespace=place.net.host.name))
        yield
