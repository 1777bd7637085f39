"""Keeps sessions of programs going on one side, and notes when something arrived and what broke."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from braid_lab.experiments.firstweek.figures import Broken
from braid_lab.process import LabError, wait_until
from braid_lab.programs.session import Place, Program, Session

#: Interval of looks at programs. No gap is measured more exactly.
LOOK_SECONDS = 0.02

#: Longest time that programs may take to start on a busy machine.
START_SECONDS = 60.0

#: A session in which nothing has arrived for so long is given up, as a person would.
PATIENCE_SECONDS = 10.0

#: Pause between a session that broke and the next one.
AGAIN_SECONDS = 1.0


@dataclass
class Course:
    """The sessions of a program on one side."""

    program: Program
    place: Place
    sessions: int = 0
    moments: list[float] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    _session: Session | None = None
    _begin_at: float = 0.0

    def look(self) -> None:
        """See how the session is, and begin another one if it has ended."""
        now = time.monotonic()
        if self._session is None:
            if now >= self._begin_at:
                self._session = self.program.begin(self.place)
                self.sessions += 1
            return
        self._listen(self._session)
        heard = max(self._session.began, self.moments[-1] if self.moments else 0.0)
        if not self._session.process.running:
            # It may have written more between the two looks.
            self._listen(self._session)
            self._over(self._session.broken(self._session.process.wait()))
        elif now - heard > (patience := PATIENCE_SECONDS if self.moments else START_SECONDS):
            self._session.stop()
            self._over(f"nothing arrived for {patience:g} s")

    def _listen(self, session: Session) -> None:
        self.moments += session.arrived()
        self.broken += [Broken(time.monotonic(), each) for each in session.complaints]
        session.complaints.clear()

    def _over(self, reason: str | None) -> None:
        self._session = None
        if reason is not None:
            self.broken.append(Broken(time.monotonic(), reason))
            self._begin_at = time.monotonic() + AGAIN_SECONDS

    def stop(self) -> None:
        """End the session that is under way; nothing is wrong with it."""
        if self._session is not None:
            self._listen(self._session)
            self._session.stop()


@contextmanager
def kept_going(courses: Sequence[Course], *, bad_starts: int = 0) -> Iterator[None]:
    """Keep sessions going for the length of a block, which begins when something has arrived of every program.

    LabError for a program that breaks before that, unless so many `bad_starts` are what is to be measured: one with
    more of them is gone on with all the same.
    """
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            for course in courses:
                course.look()

    def flows(course: Course) -> bool:
        if watching.done():
            watching.result()
        if course.broken and not bad_starts:
            raise LabError(f"{course.program.name} does not even begin: {course.broken[0].reason}")
        return bool(course.moments) or len(course.broken) > bad_starts

    with ThreadPoolExecutor(max_workers=1) as pool:
        watching = pool.submit(look)
        try:
            for course in courses:
                what = f"something to arrive by {course.program.name}"
                wait_until(partial(flows, course), what=what, timeout=START_SECONDS)
            yield
        finally:
            over.set()
            try:
                watching.result()
            finally:
                for course in courses:
                    course.stop()
