"""`race/faults`: one uplink misbehaves while connections are opened; no connection may suffer.

Braid runs no health checks here: they would remove a dead uplink within half a second, and the race must work until
then. Connections come a few at a time, alternating between the race and the best uplink alone, so that both see the
same conditions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from braid_lab.clients.fetch import FETCH_TIMEOUT_SECONDS, Fetched
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.race import trial
from braid_lab.experiments.race.address_plan import chosen_address, pinned_address
from braid_lab.experiments.race.figures import percentile
from braid_lab.experiments.race.half_open import left_over
from braid_lab.experiments.race.site import Site, site
from braid_lab.experiments.race.trial import Amount
from braid_lab.net.faults import black_hole
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology, Uplink

#: Round trips of 20, 36 and 60 ms.
LINES = {
    "near": LinkSpec(rate="50Mbit/s", delay="10ms"),
    "middle": LinkSpec(rate="50Mbit/s", delay="18ms"),
    "far": LinkSpec(rate="50Mbit/s", delay="30ms"),
}

#: Interval between the starts of two connections, s.
SPACING = 0.02

SYN = "tcp flags & (syn | ack) == syn"
SYN_ACK = "tcp flags & (syn | ack) == syn | ack"

#: A reply so late that its connection has been closed since.
LATE_ONE_WAY = "250 ms"


@dataclass(frozen=True)
class Plan:
    """Amount of measurement: connections by the race in each case, and as many over the best uplink."""

    connections: int


FULL = Plan(connections=1000)
QUICK = Plan(connections=110)
SMOKE = Plan(connections=4)

#: Connections to a known prefix are not raced, and a place has this many prefixes.
PREFIXES = 250

Fault = Callable[[Site], AbstractContextManager[object]]


@dataclass(frozen=True)
class Case:
    """A fault, and the best uplink that still works."""

    name: str
    fault: Fault
    best: str


@contextlib.contextmanager
def _rules(net: Topology, rules: Sequence[str]) -> Iterator[None]:
    """Apply these rules in the internet, (hook, rule) in `nft` syntax."""
    chains = "".join(
        f" chain {hook} {{\n  type filter hook {hook} priority 0\n  {rule}\n }}\n"
        for hook, rule in (each.split(": ", 1) for each in rules)
    )
    net.internet.run(["nft", "-f", "-"], text=f"table ip fault {{\n{chains}}}\n")
    try:
        yield
    finally:
        net.internet.run(["nft", "delete", "table", "ip", "fault"])


def _silent(place: Site) -> AbstractContextManager[object]:
    return black_hole(place.net.uplinks["near"])


def _refusing(place: Site, how: str) -> AbstractContextManager[object]:
    device = place.net.uplinks["near"].far.device
    return _rules(place.net, [f'input: iifname "{device}" {SYN} reject with {how}'])


def _twice(place: Site) -> AbstractContextManager[object]:
    def double(uplink: Uplink) -> str:
        return f'oifname "{uplink.far.device}" {SYN_ACK} dup to {uplink.address4} device "{uplink.far.device}"'

    return _rules(place.net, ["postrouting: " + "\n  ".join(map(double, place.net.uplinks.values()))])


@contextlib.contextmanager
def _late(place: Site) -> Iterator[None]:
    emulator = place.net.uplinks["far"].emulator
    assert emulator is not None  # noqa: S101
    emulator.request({"set": {"delay": LATE_ONE_WAY}})
    try:
        yield
    finally:
        emulator.request({"set": {"delay": LINES["far"].delay}})


def _losing(place: Site, percent: int) -> AbstractContextManager[object]:
    """Lose SYNs on all uplinks alike."""
    return _rules(place.net, [f"input: {SYN} numgen random mod 100 < {percent} drop"])


CASES = (
    Case("black_hole", _silent, "middle"),
    Case("refused", partial(_refusing, how="tcp reset"), "middle"),
    Case("unreachable", partial(_refusing, how="icmp type host-unreachable"), "middle"),
    Case("twice", _twice, "near"),
    Case("late", _late, "near"),
    *(Case(f"loss{percent}", partial(_losing, percent=percent), "near") for percent in (1, 10, 30)),
)


@experiment("race/faults", "One uplink misbehaves while connections are opened", paper="on-the-fly-rtt-probing §3")
def faults(run: Run) -> None:
    """Open connections under every fault."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(len(CASES) + 1)
    run.table.append(["fault", "failed", "p99 ms", "best uplink's own p99 ms", "half open left"])
    rows: list[dict[str, object]] = []
    failed = made = 0
    with contextlib.ExitStack() as stack:
        with run.step("build three lines to one site"):
            place = stack.enter_context(site(LINES, watched=False))
            place.net.internet.unlimit_icmp_errors()
        for number, case in enumerate(CASES, start=1):
            with run.part(case.name):
                with run.step(case.name.replace("_", " ")):
                    raced, alone, left = connect(place, case, number, extent.connections)
                failed += _record(run, case, raced, alone, left)
                made += len(raced)
                rows += [
                    {
                        "case": case.name,
                        "by": by,
                        "connect_ms": _milliseconds(each),
                        "via": each.via,
                        "error": each.error,
                    }
                    for by, some in (("race", raced), ("best", alone))
                    for each in some
                ]
    run.figure("connect_failures", failed, better="lower", runs=made)
    run.series("connections", rows)


def connect(place: Site, case: Case, number: int, count: int) -> tuple[list[Fetched], list[Fetched], int]:
    """Under the fault open connections by the race and over the best uplink in turn.

    Return both, and the number of connections that are left half open.
    """
    best = place.net.uplinks[case.best].index
    pairs = []
    for each in range(count):
        # Cases and thousands have places of their own.
        where = number + len(CASES) * (each // PREFIXES), each % PREFIXES
        pairs += [chosen_address("race", *where), pinned_address(best, *where)]
    with case.fault(place):
        fetched = trial.fetch(place.net.host, pairs, Amount(0, 1.0, SPACING))
        return fetched[::2], fetched[1::2], left_over(place.net.internet)


def _milliseconds(fetched: Fetched) -> float:
    """Return the time to connect; the user's whole timeout if it failed."""
    return 1000 * (FETCH_TIMEOUT_SECONDS if fetched.via is None else fetched.connect_s)


def _record(run: Run, case: Case, raced: Sequence[Fetched], alone: Sequence[Fetched], left: int) -> int:
    """Record a case; return how many of its connections failed."""
    failed = sum(each.via is None for each in raced)
    run.figure(f"connect_failures_{case.name}", failed, better="lower", runs=len(raced))
    times = {"connect_p99_ms": raced, "connect_p99_best_ms": alone}
    p99 = []
    for name, some in times.items():
        values = sorted(map(_milliseconds, some))
        p99.append(percentile(values, 0.99))
        run.figure(
            f"{name}_{case.name}",
            p99[-1],
            unit="ms",
            better="lower" if some is raced else "none",
            runs=len(some),
            spread=(values[0], values[-1]),
        )
    run.figure(f"half_open_left_{case.name}", left, better="lower")
    run.table.append([case.name.replace("_", " "), str(failed), *(f"{each:.1f}" for each in p99), str(left)])
    return failed
