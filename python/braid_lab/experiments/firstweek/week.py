"""One week on all sides, with and without Braid: the same programs, faults at the same times, and the results."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from braid_lab.experiment import Run
from braid_lab.experiments.firstweek.faults import Fault, Side
from braid_lab.experiments.firstweek.figures import FaultEvent, Gap, cause, gaps, longest
from braid_lab.experiments.firstweek.sessions import SessionLog, sessions_running
from braid_lab.net import scratch
from braid_lab.net.topology import SERVERS, Uplink
from braid_lab.product import Braid, binary
from braid_lab.programs.registry import ALL_PROGRAMS, SMALL
from braid_lab.programs.session import Program, ProgramEnv

#: Gaps at least this long are listed one by one, s.
NOTABLE_S = 0.5

#: Broken starts allowed before a session works.
BAD_STARTS = 5


@dataclass(frozen=True)
class Plan:
    """Lengths of the parts."""

    #: Rounds of all faults.
    rounds: int
    #: From the start of one fault to that of the next, if the first is over, s.
    every_s: float
    #: From the end of the last fault to the end of the experiment, s.
    settle_s: float
    #: Length of a download, s.
    session_s: float


FULL = Plan(rounds=4, every_s=5.0, settle_s=12.0, session_s=40.0)
QUICK = Plan(rounds=1, every_s=2.5, settle_s=4.0, session_s=13.0)
SMOKE = Plan(rounds=1, every_s=0.3, settle_s=1.0, session_s=2.0)


@dataclass(frozen=True)
class Step:
    """A fault, and for a fault of lines the number of the uplink, counted from 0."""

    fault: Fault
    line: int = 0


@dataclass
class Week:
    """The faults of a side, and the sessions of its programs."""

    side: Side
    logs: list[SessionLog]
    began: float = 0.0
    ended: float = 0.0
    happened: list[FaultEvent] = field(default_factory=list)

    @property
    def suffix(self) -> str:
        """Suffix of its figures."""
        return "" if self.side.name == "braid" else f"_{self.side.name}"

    def inject(self, step: Step) -> None:
        """Inject a fault, if it applies to this side."""
        if step.fault.of != "line" and self.side.daemon is None:
            return
        uplinks: list[Uplink] = list(self.side.net.uplinks.values())
        uplink = uplinks[step.line % len(uplinks)]
        began = time.monotonic()
        step.fault.act(self.side, uplink)
        name = uplink.name if step.fault.of == "line" else ""
        self.happened.append(FaultEvent(step.fault.name, name, began, time.monotonic()))


def programs(run: Run) -> list[Program]:
    """Return the programs that can run here; the others are noted with the reason."""
    chosen = [each for each in ALL_PROGRAMS if run.form != "smoke" or each.name in SMALL]
    reasons = {each.name: each.missing() for each in chosen}
    run.notes += [f"{name} is left out: {reason}." for name, reason in reasons.items() if reason]
    return [each for each in chosen if not reasons[each.name]]


def installed() -> Path:
    """Return a copy of the built binary, which an upgrade can replace."""
    folder = scratch.directory() / scratch.name("installed")
    folder.mkdir()
    return Path(shutil.copy2(binary(), folder / "braid"))


def run_week(run: Run, plan: Plan, sides: Sequence[Side], steps: Sequence[Step]) -> None:
    """Run programs on all sides while faults are injected, and record what the programs noticed."""
    chosen = programs(run)
    with run.step(f"start the servers of {len(chosen)} programs on each side"):
        weeks = [Week(side, _serve(side, chosen, plan)) for side in sides]
    with contextlib.ExitStack() as stack:
        with run.step("begin a session of each"):
            for week in weeks:
                # Without Braid, a program that fails to start is an error of the lab.
                bad_starts = 0 if week.side.daemon is None else BAD_STARTS
                stack.enter_context(sessions_running(week.logs, bad_starts=bad_starts))
        began = time.monotonic()
        # A process, a hub for example, ends with the thread that started it: these threads live until the end.
        pool = stack.enter_context(ThreadPoolExecutor(len(weeks)))
        for step in steps:
            due = time.monotonic() + plan.every_s
            with run.part(step.fault.name), run.step(step.fault.name):
                for done in [pool.submit(week.inject, step) for week in weeks]:
                    done.result()
                # Not a synchronisation: time for programs to show what they noticed.
                time.sleep(max(0.0, due - time.monotonic()))
        with run.step("let the last of it show"):
            time.sleep(plan.settle_s)
        for week in weeks:
            week.began, week.ended = began, time.monotonic()
    record(run, weeks)
    for side in sides:
        if side.daemon is not None:
            _keep_events(run, side.daemon, began)


def _serve(side: Side, chosen: Sequence[Program], plan: Plan) -> list[SessionLog]:
    """Start the servers of all programs.

    Programs share addresses if there are too few; ports differ.
    """
    logs = []
    for number, program in enumerate(chosen):
        # A run builds several networks.
        folder = side.net.scratch / f"{side.net.host.name}-{program.name}"
        folder.mkdir()
        env = ProgramEnv(side.net, side.net.server(1 + number % SERVERS), folder, plan.session_s)
        program.serve(env)
        logs.append(SessionLog(program, env))
    return logs


def record(run: Run, weeks: Sequence[Week]) -> None:
    """Turn the records into figures, a table and raw series."""
    run.table.append(
        ["program", "broken", "longest gap s", "when", "plain: broken", "plain: longest gap s", "plain: when"]
    )
    rows: dict[str, list[dict[str, object]]] = {"gaps": [], "broken": [], "troubles": []}
    cells: dict[str, list[str]] = {}
    for week in weeks:
        for log in week.logs:
            name = log.program.name
            cells.setdefault(name, [name]).extend(_record_program(run, week, log))
            rows["gaps"] += _gap_rows(week, log)
            rows["broken"] += _broken_rows(week, log)
        broken = sum(len(log.broken) for log in week.logs)
        sessions = sum(log.sessions for log in week.logs)
        run.figure(f"broken_sessions{week.suffix}", broken, better="lower", runs=sessions)
        rows["troubles"] += _fault_rows(week)
        told = "; ".join(f"{each.began - week.began:.1f} s {each}" for each in week.happened)
        run.notes.append(f"Faults of {week.side.name}: {told}.")
    run.table += cells.values()
    for series, some in rows.items():
        run.series(series, some)


def _record_program(run: Run, week: Week, log: SessionLog) -> list[str]:
    """Record a program's figures; return its cells of the table."""
    found = gaps(log.moments, week.began, week.ended)
    worst, name = longest(found), f"{log.program.name}{week.suffix}"
    run.figure(f"broken_sessions_{name}", len(log.broken), better="lower", runs=log.sessions)
    run.figure(f"longest_gap_s_{name}", worst.seconds, unit="s", better="lower", runs=len(found))
    return [str(len(log.broken)), f"{worst.seconds:.2f}", _why(worst, week)]


def _gap_rows(week: Week, log: SessionLog) -> list[dict[str, object]]:
    return [
        {
            "side": week.side.name,
            "program": log.program.name,
            "began_s": round(gap.began - week.began, 3),
            "seconds": round(gap.seconds, 3),
            "trouble": _why(gap, week),
        }
        for gap in gaps(log.moments, week.began, week.ended)
        if gap.seconds >= NOTABLE_S
    ]


def _broken_rows(week: Week, log: SessionLog) -> list[dict[str, object]]:
    return [
        {
            "side": week.side.name,
            "program": log.program.name,
            "at_s": round(each.at - week.began, 3),
            "reason": each.reason,
            "trouble": _why(Gap(each.at, 0), week),
        }
        for each in log.broken
    ]


def _fault_rows(week: Week) -> list[dict[str, object]]:
    return [
        {
            "side": week.side.name,
            "trouble": each.name,
            "uplink": each.uplink,
            "began_s": round(each.began - week.began, 3),
            "ended_s": round(each.ended - week.began, 3),
        }
        for each in week.happened
    ]


def _keep_events(run: Run, daemon: Braid, began: float) -> None:
    """Write the daemon's events, on the clock of the other series."""
    wall = time.time() - time.monotonic() + began
    run.series(
        "events",
        [
            {
                "at_s": round(event["unix_ms"] / 1000 - wall, 3),
                "kind": event["kind"],
                "uplink": event.get("uplink", ""),
                "text": event["text"],
                "evidence": event.get("evidence", ""),
            }
            for event in daemon.json("events")["events"]
        ],
    )


def _why(gap: Gap, week: Week) -> str:
    """Return the name of the fault that explains a gap, or ""."""
    found = cause(gap.began, gap.ended, week.happened)
    return str(found) if found else ""
