"""`bond/paper-single`: [l3b] §5.2, one UDP flow whose demand rises above the fixed line and falls again.

`overflow` with the parameters that the paper settles on (k = 0.5, T_dwd = 250 ms), and `adaptive` on the same ramp.
The whole grid of Fig. 3 is run in virtual time by `crates/braid-core/tests/overflow_grid.rs`. What fills the lines is
sent by the host that joined: of a bond it is the client's side that a configuration speaks for.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond import testbed
from braid_lab.experiments.bond.site import BOND_DEVICE, Site, emulators_kept_up, site, wandering
from braid_lab.load.paced import BIN_SECONDS
from braid_lab.process import LabError, Process

#: What the paper lost with those parameters (§5.2).
PAPER_LOSS = {"overflow": 0.0053}

#: How often the lines' counters are read.
LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Look:
    """What the lines have delivered upwards by some time, bytes of frames."""

    at: float
    bytes: dict[str, int]


@dataclass(frozen=True)
class Outcome:
    """One flow on the ramp."""

    #: After what the bond sent again, and what full lines dropped: the paper sends nothing again.
    loss: float
    line_loss: float
    in_order: float
    fixed_utilisation: float
    rows: list[dict[str, float]]


@experiment("bond/paper-single", "One UDP flow that overflows the fixed line", paper="layer3-bonding §5.2, Fig. 3")
def paper_single(run: Run) -> None:
    """Run the ramp by each scheduler."""
    scale, turns = (0.5, 1) if run.quick else (1.0, 3)
    run.display.expect(2 * (1 + turns))
    run.table.append(["scheduler", "lost", "by the lines", "in the paper", "fixed line used", "came in order"])
    courses: dict[str, Outcome] = {}
    for scheduler in ("overflow", "adaptive"):
        outcomes = []
        with contextlib.ExitStack() as stack:
            with run.step(f"{scheduler}: build, and join the hub"):
                place = stack.enter_context(
                    site(testbed.LINKS, seed=run.seed, configuration=testbed.configuration(scheduler))
                )
                stack.enter_context(wandering(place, testbed.LINKS, run.seed))
            for turn in range(turns):
                with run.step(f"{scheduler}: the ramp, turn {turn + 1} of {turns}"):
                    outcomes.append(_ramp(place, testbed.ramp(scale=scale)))
            emulators_kept_up(place)
            run.notes.append(f"{scheduler}: {_told(place)}.")
        courses[scheduler] = outcomes[0]
        _record(run, scheduler, outcomes)
    _draw(run, courses)


def _record(run: Run, scheduler: str, outcomes: Sequence[Outcome]) -> None:
    paper = PAPER_LOSS.get(scheduler)
    suffix = scheduler if paper is None else f"{scheduler}_k0.5_250ms"
    loss = run.measure(f"loss_{suffix}", [each.loss for each in outcomes], better="lower")
    of_lines = [each.line_loss for each in outcomes]
    line_loss = run.measure(f"line_loss_{suffix}", of_lines, better="lower", paper=paper)
    used = [each.fixed_utilisation for each in outcomes]
    utilisation = run.measure(f"fixed_link_utilisation_{scheduler}", used, better="higher")
    in_order = run.measure(f"in_order_{scheduler}", [each.in_order for each in outcomes], better="higher")
    told = "" if paper is None else f"{paper:.4f}"
    run.table.append([scheduler, f"{loss:.4f}", f"{line_loss:.4f}", told, f"{utilisation:.3f}", f"{in_order:.4f}"])
    run.series(f"course_{scheduler}", outcomes[0].rows)


def _ramp(place: Site, demand: Sequence[float]) -> Outcome:
    """Send the ramp once."""
    file = place.daemon.run_dir.parent / "demand"
    file.write_text("".join(f"{testbed.per_second(mbit):.3f}\n" for mbit in demand))
    module = [sys.executable, "-m", "braid_lab.load.paced"]
    words = ["send", place.server, str(testbed.PAYLOAD_BYTES), f"{testbed.STEP_SECONDS:g}", str(file)]
    log = place.net.scratch / "paced"
    with Process([*module, "receive", place.server], log=log, namespace=place.net.internet.name) as receiver:
        receiver.wait_output("^ready$")
        before = _dropped(place)
        with _watched(place) as looks:
            seconds = len(demand) * testbed.STEP_SECONDS
            sent = json.loads(place.net.host.run([*module, *words], timeout=2 * seconds + 30).stdout)
            # What is under way arrives within the longest queue.
            time.sleep(1.0)
        found = json.loads(receiver.stop().stdout.splitlines()[-1])
    if found["sources"] != [place.hub.far.address4]:
        raise LabError(f"not through the hub, but seen as {', '.join(found['sources']) or 'nobody'}")
    rows = _rows(looks, sent["began"], demand, found)
    above = [row for row in rows if row["demand_mbit"] >= testbed.FIXED_MBIT]
    used = sum(row["fixed_mbit"] for row in above) / max(1, len(above)) / testbed.FIXED_MBIT
    line_loss = (_dropped(place) - before) / sent["sent"]
    return Outcome(
        1 - found["packets"] / sent["sent"], line_loss, sum(found["in_order"]) / found["packets"], used, rows
    )


def _told(place: Site) -> str:
    """Return where packets were dropped, by the bond's and the lines' own word."""
    packets = place.bond()["packets"]
    own = f"the bond dropped {packets['dropped']} and had no room for {packets['overflowed']}"
    device = place.net.host.run(["ip", "-json", "-stats", "link", "show", BOND_DEVICE]).stdout
    unread = f"{json.loads(device)[0]['stats64']['tx']['dropped']} were never read from its device"
    return f"{own}; {unread}; full lines dropped {_dropped(place)}; {packets['repaired']} sent again"


def _dropped(place: Site) -> int:
    """Return how many packets full lines have dropped upwards."""
    stats = [place.emulator(name).ask({"stats": {}})["stats"] for name in place.net.uplinks]
    return sum(each["up"]["packets"]["queue_full"]["packets"] for each in stats)


@contextlib.contextmanager
def _watched(place: Site) -> Iterator[list[Look]]:
    """Read the lines' counters all the while; what is yielded grows."""
    looks: list[Look] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            counted = {name: place.emulator(name).ask({"stats": {}})["stats"] for name in place.net.uplinks}
            looks.append(
                Look(
                    time.monotonic(),
                    {name: stats["up"]["packets"]["delivered"]["bytes"] for name, stats in counted.items()},
                )
            )

    with ThreadPoolExecutor(max_workers=1) as pool:
        looking = pool.submit(look)
        try:
            yield looks
        finally:
            over.set()
        looking.result()


def _rows(
    looks: Sequence[Look], began: float, demand: Sequence[float], found: dict[str, list[int]]
) -> list[dict[str, float]]:
    """Return demand, what each line delivered of the paper's packets, and what came in order, look by look."""
    scale = 8e-6 * testbed.PACKET_BYTES / testbed.FRAME_BYTES
    rows = []
    for earlier, later in itertools.pairwise(looks):
        at = (earlier.at + later.at) / 2 - began
        step = int(at / testbed.STEP_SECONDS)
        if at < 0 or step >= len(demand):
            continue
        here = min(int(at / BIN_SECONDS), len(found["in_order"]) - 1)
        span = later.at - earlier.at
        lines = {f"{name}_mbit": scale * (later.bytes[name] - earlier.bytes[name]) / span for name in later.bytes}
        in_order = 8e-6 * testbed.PACKET_BYTES * found["in_order"][here] / BIN_SECONDS
        rows.append({"s": round(at, 3), "demand_mbit": demand[step], **lines, "in_order_mbit": in_order})
    return rows


def _draw(run: Run, courses: dict[str, Outcome]) -> None:
    """Draw what Fig. 3 shows, for both."""
    with run.plot("ramp", width=8.0, height=4.0) as plot:
        for axes, (scheduler, outcome) in zip(
            plot.subplots(1, len(courses), sharey=True), courses.items(), strict=True
        ):
            at = [row["s"] for row in outcome.rows]
            for name in ("demand_mbit", "fixed_mbit", "mobile_mbit"):
                style = {"linestyle": "--", "color": "#999999"} if name == "demand_mbit" else {}
                axes.plot(at, [row[name] for row in outcome.rows], label=name.partition("_")[0], linewidth=1, **style)
            axes.set_title(f"{scheduler}: {100 * outcome.loss:.2f} % lost")
            axes.set_xlabel("s")
        plot.axes[0].set_ylabel("Mbit/s")
        plot.axes[0].legend()
