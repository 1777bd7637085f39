"""`race/overhead`: the cost of a race for the connection, the following transfer, the network and the server.

Times are measured between cables, so that Braid's own cost shows: the internet drops packets on all of them but one,
as if the others led far away. Races over that one are compared with the same uplink without a race, by a rule of the
same daemon, in turn. Packets sent and connections left behind are counted where the others do reply.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.race.address_plan import chosen_address, pinned_address
from braid_lab.experiments.race.half_open import half_open, left_over
from braid_lab.experiments.race.site import Site, site
from braid_lab.net.links import LinkSpec
from braid_lab.net.tcp_counters import TcpCounts, tcp_counters
from braid_lab.process import LabError, Process, wait_until
from braid_lab.product import binary
from braid_lab.servers import catalog
from braid_lab.servers.catalog import HTTP_PORT

OTHERS = ("middle", "far")

CABLES: Mapping[str, LinkSpec | None] = {"near": None, "middle": None, "far": None}

#: The others' round trips are 10 and 16 ms: they never win.
LINES: Mapping[str, LinkSpec | None] = {"near": None, "middle": LinkSpec(delay="5ms"), "far": LinkSpec(delay="8ms")}

#: Port of the load generator's server.
PORT = 7000

#: Connections per second: below Braid's limit of races.
RATE = 40.0


@dataclass(frozen=True)
class Plan:
    """Amount of measurement."""

    #: Turns of connecting, each with `connections` of every kind.
    turns: int
    connections: int
    #: Turns of transfers both ways, and the length of each transfer, whole seconds.
    transfers: int
    seconds: int
    #: Connections that are inspected one by one.
    single: int


FULL = Plan(turns=40, connections=40, transfers=12, seconds=4, single=100)
QUICK = Plan(turns=10, connections=20, transfers=6, seconds=1, single=20)
SMOKE = Plan(turns=2, connections=4, transfers=1, seconds=1, single=2)

#: A prefix for every connection: connections to a known prefix are not raced.
_prefixes = itertools.count()


def _fresh() -> tuple[int, int]:
    """Return an unused place and round."""
    number = next(_prefixes)
    return 1 + number // 250, number % 250


@experiment("race/overhead", "Cost of a race", paper="on-the-fly-rtt-probing §3.2")
def overhead(run: Run) -> None:
    """Measure connection times, transfers, and packets sent and connections left behind."""
    extent = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    run.display.expect(2 * extent.turns + extent.transfers + 3)
    with run.part("between cables"), contextlib.ExitStack() as stack:
        with run.step("build three cables to one site"):
            place = stack.enter_context(site(CABLES, watched=False))
            stack.enter_context(_serve(place)).wait_output('"ready":true')
            _drop(place)
        with run.part("connections"):
            _connect(run, place, extent, "race")
        with run.part("transfers"):
            _transfer(run, place, extent)
        run.notes.append(f"Between cables Braid counted {_counted(place)}.")
    with run.part("beside lines"), contextlib.ExitStack() as stack:
        with run.step("build a cable and two lines to one site"):
            place = stack.enter_context(site(LINES, watched=False))
            stack.enter_context(_serve(place)).wait_output('"ready":true')
            count_tcp = stack.enter_context(tcp_counters([place.net.uplinks[name] for name in OTHERS]))
        with run.step(f"inspect {extent.single} connections one by one"):
            _one_by_one(run, place, extent.single, count_tcp)
        # The path cache needs no race.
        _connect(run, place, extent, "remembered")
        run.notes.append(f"Beside lines Braid counted {_counted(place)}.")


def _counted(place: Site) -> dict[str, int]:
    """Return Braid's counters of races."""
    reasons: dict[str, int] = place.daemon.json("status")["reasons"]
    return {name: count for name, count in reasons.items() if name.startswith(("race_", "path_")) and count}


def _drop(place: Site) -> None:
    """Make the internet drop packets on the other uplinks, as early as possible."""
    devices = ", ".join(f'"{place.net.uplinks[name].far.device}"' for name in OTHERS)
    place.net.internet.run(
        ["nft", "-f", "-"],
        text="table inet elsewhere {\n chain early {\n  type filter hook prerouting priority -300\n"
        f"  iifname {{ {devices} }} meta l4proto tcp drop\n }}\n}}\n",
    )


def _serve(place: Site) -> Process:
    argv: list[str | Path] = [binary("braid-load"), "serve", "--ports", str(PORT)]
    return Process(argv, log=place.net.scratch / "overhead-serve", namespace=place.net.internet.name)


def _connect(run: Run, place: Site, extent: Plan, kind: Literal["race", "remembered"]) -> None:
    """Open connections by a race, or from the path cache, and without, in turn."""
    near = place.net.uplinks["near"].index
    suffix = "" if kind == "race" else f"_{kind}"
    rows: list[dict[str, float]] = []
    for turn in range(extent.turns):
        with run.step(f"connect ({kind}), turn {turn + 1} of {extent.turns}"):
            where = [_fresh() for _ in range(extent.connections)]
            ends = {
                kind: [chosen_address("race", *each) for each in where],
                "pinned": [pinned_address(near, *each) for each in where],
            }
            if kind == "remembered":
                _median_us(place, ends[kind])
            order = [kind, "pinned"] if turn % 2 == 0 else ["pinned", kind]
            rows.append({name: _median_us(place, ends[name]) for name in order})
    run.series(f"connect{suffix}_us", rows)
    run.measure(f"connect_added_us{suffix}", [row[kind] - row["pinned"] for row in rows], unit="us", better="lower")
    run.measure(f"connect_us_{kind}", [row[kind] for row in rows], unit="us", better="lower")
    run.measure(f"connect_us{suffix}_pinned", [row["pinned"] for row in rows], unit="us", better="lower")


def _median_us(place: Site, addresses: Sequence[str]) -> float:
    """Return the median time of a `connect`, one to each address."""
    targets = [word for address in addresses for word in ("--to", address)]
    paced = ["--workers", "1", "--rate", f"{RATE:g}", "--count", str(len(addresses)), "--seconds", "60"]
    done = place.net.host.run([binary("braid-load"), "connect", *targets, "--ports", str(PORT), *paced])
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if report["failed"]:
        raise LabError(f"{report['failed']} connections failed: {report['first_failure']}")
    return float(report["connect_us"]["p50"])


def _transfer(run: Run, place: Site, extent: Plan) -> None:
    """Transfer both ways over a raced connection, and over one that was not raced."""
    near = place.net.uplinks["near"].index
    rows: list[dict[str, float]] = []
    for turn in range(extent.transfers):
        with run.step(f"transfer, turn {turn + 1} of {extent.transfers}"):
            where = _fresh()
            ends = {"race": chosen_address("race", *where), "pinned": pinned_address(near, *where)}
            row: dict[str, float] = {}
            for direction in ("down", "up"):
                for kind in ("race", "pinned") if turn % 2 == 0 else ("pinned", "race"):
                    row[f"{kind}_{direction}"] = _mbit(place, ends[kind], extent.seconds, down=direction == "down")
            rows.append(row)
    run.series("transfers_mbit", rows)
    ratios = [(row["race_down"] / row["pinned_down"] + row["race_up"] / row["pinned_up"]) / 2 for row in rows]
    run.measure("bulk_ratio_norace", ratios, better="higher")


def _mbit(place: Site, address: str, seconds: int, *, down: bool) -> float:
    """Return the goodput of one transfer."""
    internet, log = place.net.internet.name, place.net.scratch / "overhead-iperf3"
    # A server that has just served is briefly busy, so each serves once.
    with Process(["iperf3", "--server", "--one-off", "--forceflush"], log=log, namespace=internet) as server:
        server.wait_output(catalog.READY)
        words = ["iperf3", "--client", address, "--time", str(seconds), "--json", *(["--reverse"] if down else [])]
        report = json.loads(place.net.host.run(words, check=False).stdout)
    if "error" in report:
        raise LabError(f"iperf3 to {address}: {report['error']}")
    bits: float = report["end"]["sum_received"]["bits_per_second"]
    return bits / 1e6


def _one_by_one(run: Run, place: Site, count: int, count_tcp: Callable[[], TcpCounts]) -> None:
    """Open connections one after the other and inspect the server after each."""
    before, left, extra_established = count_tcp(), [], 0
    for number in range(1, count + 1):
        with place.net.host.inside(), socket.socket() as client:
            client.connect((chosen_address("race", *_fresh()), HTTP_PORT))
            with contextlib.suppress(LabError):
                # The losers' SYNs are still in flight when the winner's reply arrives.
                wait_until(
                    lambda sent=number: count_tcp().syns - before.syns >= sent * len(OTHERS),  # type: ignore[misc]
                    what="the losers' SYNs",
                    timeout=0.1,
                )
                wait_until(lambda: half_open(place.net.internet) == 0, what="the losers' end", timeout=0.9)
            left.append(half_open(place.net.internet))
            extra_established += _established(place) - 1
    left_over(place.net.internet)
    after = count_tcp()
    packets = after.received + after.sent - before.received - before.sent
    run.figure("half_open_left", max(left), better="lower", runs=count, spread=(min(left), max(left)))
    run.figure("established_too_many", extra_established, better="lower", runs=count)
    run.figure("extra_packets_per_connection", packets / count, better="lower", runs=count)
    run.figure("extra_syns_per_uplink", (after.syns - before.syns) / count / len(OTHERS), better="lower", runs=count)


def _established(place: Site) -> int:
    """Return how many connections to the web server are open at the server."""
    words = ["ss", "-tnH", "state", "established", f"( sport = :{HTTP_PORT} )"]
    return len(place.net.internet.run(words).stdout.splitlines())
