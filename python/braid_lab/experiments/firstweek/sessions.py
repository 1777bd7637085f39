"""Runs sessions of programs on one side, and records arrivals and failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from braid_lab.experiments.firstweek.figures import BrokenSession
from braid_lab.process import LabError, wait_until
from braid_lab.programs.session import Program, ProgramEnv, Session

#: Interval of polling programs, and so the resolution of gaps.
POLL_SECONDS = 0.02

#: Longest start of programs on a busy machine.
START_SECONDS = 60.0

#: A session without any arrival for this long is given up, as a person would.
SESSION_TIMEOUT_SECONDS = 10.0

#: Pause between a broken session and the next one.
RESTART_SECONDS = 1.0


@dataclass
class SessionLog:
    """The sessions of a program on one side."""

    program: Program
    env: ProgramEnv
    sessions: int = 0
    moments: list[float] = field(default_factory=list)
    broken: list[BrokenSession] = field(default_factory=list)
    _session: Session | None = None
    _begin_at: float = 0.0

    def look(self) -> None:
        """Poll the session, and start another one if it has ended."""
        now = time.monotonic()
        if self._session is None:
            if now >= self._begin_at:
                self._session = self.program.begin(self.env)
                self.sessions += 1
            return
        self._listen(self._session)
        new_moments = max(self._session.began, self.moments[-1] if self.moments else 0.0)
        if not self._session.process.running:
            # The session may have written more since the last poll.
            self._listen(self._session)
            self._over(self._session.broken(self._session.process.wait()))
        elif now - new_moments > (patience := SESSION_TIMEOUT_SECONDS if self.moments else START_SECONDS):
            self._session.stop()
            self._over(f"nothing arrived for {patience:g} s")

    def _listen(self, session: Session) -> None:
        self.moments += session.arrived()
        self.broken += [BrokenSession(time.monotonic(), each) for each in session.complaints]
        session.complaints.clear()

    def _over(self, reason: str | None) -> None:
        self._session = None
        if reason is not None:
            self.broken.append(BrokenSession(time.monotonic(), reason))
            self._begin_at = time.monotonic() + RESTART_SECONDS

    def stop(self) -> None:
        """End the current session; it does not count as broken."""
        if self._session is not None:
            self._listen(self._session)
            self._session.stop()


@contextmanager
def sessions_running(logs: Sequence[SessionLog], *, bad_starts: int = 0) -> Iterator[None]:
    """Run sessions for the length of a block, which begins once something has arrived for every program.

    LabError for a program that breaks before that, unless up to `bad_starts` broken starts are part of the
    measurement; a program with more of them is measured all the same.
    """
    over = threading.Event()

    def look() -> None:
        while not over.wait(POLL_SECONDS):
            for log in logs:
                log.look()

    def flows(log: SessionLog) -> bool:
        if watching.done():
            watching.result()
        if log.broken and not bad_starts:
            raise LabError(f"{log.program.name} does not even begin: {log.broken[0].reason}")
        return bool(log.moments) or len(log.broken) > bad_starts

    with ThreadPoolExecutor(max_workers=1) as pool:
        watching = pool.submit(look)
        try:
            for log in logs:
                what = f"something to arrive by {log.program.name}"
                wait_until(partial(flows, log), what=what, timeout=START_SECONDS)
            yield
        finally:
            over.set()
            try:
                watching.result()
            finally:
                for log in logs:
                    log.stop()
