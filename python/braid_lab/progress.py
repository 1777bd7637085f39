"""Progress of an experiment: a live display on a terminal, a line per step elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table


class Display:
    """Progress on stderr; the result, a table at the end, on stdout."""

    def __init__(self, title: str, steps: int | None = None) -> None:
        """Prepare a display for `steps` steps, or an unknown number."""
        self.console = Console(file=sys.stderr, highlight=False)
        self._title = title
        self._started = time.monotonic()
        self._done = 0
        self._steps = steps
        self._live: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            columns = (
                SpinnerColumn(),
                TextColumn("[bold]{task.fields[title]}[/]"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed:.0f}/{task.total:.0f}" if self._steps else ""),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self._live = Progress(*columns, console=self.console, transient=True)
            self._task = self._live.add_task("", total=self._steps, title=self._title)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def expect(self, steps: int) -> None:
        """Set the number of steps, once it is known."""
        self._steps = steps
        if self._live is not None:
            self._live.update(self._task, total=steps)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show a step, and, when its block ends, that it is done."""
        if self._live is not None:
            self._live.update(self._task, description=text)
        else:
            elapsed = time.monotonic() - self._started
            of = f"/{self._steps}" if self._steps else ""
            left = self._left(elapsed)
            self.console.print(f"{self._title} {self._done + 1}{of} [{elapsed:5.1f} s{left}] {text}", markup=False)
        yield
        self._done += 1
        if self._live is not None:
            self._live.update(self._task, completed=self._done)

    def _left(self, elapsed: float) -> str:
        """Return the time left, as far as the steps that are done foretell it."""
        if not self._steps or not 0 < self._done <= self._steps:
            return ""
        seconds = elapsed / self._done * (self._steps - self._done)
        return f", {seconds:.0f} s left" if seconds < 120 else f", {seconds / 60:.0f} min left"

    def note(self, text: str) -> None:
        """Print a permanent line."""
        self.console.print(text, markup=False, soft_wrap=True)


def table(title: str, header: list[str], rows: list[list[str]], *, texts: int = 1) -> None:
    """Print a table on stdout; the first `texts` columns are text, all others right-aligned figures."""
    made = Table(title=title, title_justify="left", title_style="bold")
    for number, name in enumerate(header):
        made.add_column(name, justify="left" if number < texts else "right")
    for row in rows:
        made.add_row(*row)
    Console(highlight=False).print(made)
