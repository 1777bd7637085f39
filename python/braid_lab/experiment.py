"""Experiments: their registration, the run that each is given, and result.json.

    @experiment("demo", "one page over two uplinks", paper="host-flow-balancing §5")
    def demo(run: Run) -> None:
        with run.step("load the page"):
            seconds = …
        run.measure("page_load_s", seconds, unit="s", better="lower")

`braid lab list` finds any module below `braid_lab.experiments` that does this.

A failed part (`Run.part`) of an experiment is recorded as failed, and the other parts go on. result.json is written
however the experiment ends.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import json
import pkgutil
import random
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from braid_lab.machine import CpuTicks, describe
from braid_lab.process import LabError
from braid_lab.product import commit
from braid_lab.progress import Display

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

T = TypeVar("T")

Better = Literal["higher", "lower", "none"]

#: Length of a run. The smoke form produces no meaningful figures: it shows that an experiment runs to its end.
Form = Literal["full", "quick", "smoke"]


@dataclass(frozen=True)
class Figure:
    """One measured number of result.json.

    Ratios, shares and losses are fractions. `paper` is the paper's value if it gives one; `spread` is the smallest
    and the largest of `runs` measurements.
    """

    name: str
    value: float
    unit: str
    paper: float | None
    better: Better
    runs: int
    spread: tuple[float, float]


@dataclass(frozen=True)
class Failure:
    """A failed part of an experiment; an empty name means the experiment itself."""

    part: str
    reason: str

    def __str__(self) -> str:
        """Return it as one line."""
        reason = " ".join(self.reason.split())
        return f"{self.part}: {reason}" if self.part else reason


@dataclass
class Run:
    """One execution of an experiment: its settings, its display and its results so far."""

    name: str
    form: Form
    seed: int
    folder: Path
    display: Display
    figures: list[Figure] = field(default_factory=list)
    #: Cases chosen by the user; empty for those of the form.
    asked: tuple[str, ...] = ()
    #: Directory with recordings of links, if given.
    traces: Path | None = None
    #: The loader of web pages, if one was chosen, and a corpus of sites in place of the generated one.
    loader: str | None = None
    corpus: Path | None = None
    #: Notes for the reader: settings that matter, deviations from the paper.
    notes: list[str] = field(default_factory=list)
    #: Table that is printed at the end and shown in the report: a header, then rows of texts.
    table: list[list[str]] = field(default_factory=list)
    #: Names of the plots in the order in which they were made.
    plots: list[str] = field(default_factory=list)
    #: Failed parts; the figures that they would have recorded are missing.
    failures: list[Failure] = field(default_factory=list)

    @property
    def random(self) -> random.Random:
        """A new generator with the run's seed."""
        return random.Random(self.seed)

    def of_form(self, *, full: T, quick: T, smoke: T) -> T:
        """Return the value for this run's form."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.form]

    def cases(self, of_form: Sequence[str]) -> tuple[str, ...]:
        """Return the cases to measure: those that the user chose, else those of the form."""
        return self.asked or tuple(of_form)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a part that nothing else depends on: an error ends only this block, and is recorded."""
        try:
            yield
        except Exception as error:
            self.fail(name, error)

    def fail(self, part: str, error: BaseException) -> None:
        """Record and print that a part failed."""
        expected = isinstance(error, LabError)
        failure = Failure(part, str(error) if expected else f"{type(error).__name__}: {error}")
        self.failures.append(failure)
        self.display.note(f"{self.name} failed: {failure}")
        if not expected:
            # An unexpected error, such as unparsable output or a rate of zero: the traceback helps.
            self.display.note("".join(traceback.format_exception(error)).rstrip())

    def too_slow(self, what: str) -> None:
        """Report that the machine was too slow for this measurement: raise LabError unless in the smoke form."""
        if self.form != "smoke":
            raise LabError(f"{what}: the machine was too slow; measure again")
        self.notes.append(f"{what}: the machine was too slow.")

    def step(self, text: str) -> contextlib.AbstractContextManager[None]:
        """Show the current step."""
        return self.display.step(text)

    def figure(
        self,
        name: str,
        value: float,
        *,
        unit: str = "",
        better: Better = "none",
        paper: float | None = None,
        runs: int = 1,
        spread: tuple[float, float] | None = None,
    ) -> None:
        """Record a figure that was computed elsewhere."""
        if any(each.name == name for each in self.figures):
            raise LabError(f"figure {name} recorded twice")
        known = Figure(name, float(value), unit, paper, better, runs, spread or (float(value), float(value)))
        self.figures.append(known)

    def measure(
        self,
        name: str,
        samples: Sequence[float],
        *,
        unit: str = "",
        better: Better = "none",
        paper: float | None = None,
    ) -> float:
        """Record the median of repeated measurements with their spread, and return it."""
        if not samples:
            raise LabError(f"figure {name}: nothing was measured")
        value = statistics.median(samples)
        spread = (min(samples), max(samples))
        self.figure(name, value, unit=unit, better=better, paper=paper, runs=len(samples), spread=spread)
        return value

    def passes(self, case: str, good: bool) -> None:
        """Record whether a behaviour is present."""
        self.figure(f"pass_{case}", 1.0 if good else 0.0, better="higher")

    def series(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write raw measurements as NAME.csv; every row has the same keys."""
        if not rows:
            return
        with (self.folder / f"{name}.csv").open("w", newline="") as out:
            writer = csv.DictWriter(out, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    @contextlib.contextmanager
    def plot(self, name: str, *, width: float = 7.0, height: float = 4.0) -> Iterator[Plot]:
        """Provide an empty plot and save it as NAME.svg and NAME.png."""
        from braid_lab.plots import new

        plot = new(width, height)
        yield plot
        for kind in ("svg", "png"):
            plot.savefig(self.folder / f"{name}.{kind}")
        self.plots.append(name)


@dataclass(frozen=True)
class Experiment:
    """A registered experiment."""

    name: str
    title: str
    paper: str
    body: Callable[[Run], None]
    #: Values of `--case`.
    cases: tuple[str, ...] = ()
    #: True if the experiment takes recordings of links, which have cases of their own.
    recordings: bool = False
    #: True if the experiment loads web sites: it takes a loader and a corpus.
    sites: bool = False


_registered: dict[str, Experiment] = {}


def experiment(
    name: str,
    title: str,
    *,
    paper: str = "",
    cases: Sequence[str] = (),
    recordings: bool = False,
    sites: bool = False,
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Register a function as the experiment `name` (`group/name`).

    `paper` names what it reproduces; `cases` are the parts that can be chosen with `--case`; `recordings` is true if
    it takes recorded links instead; `sites` if it loads web sites.
    """

    def register(body: Callable[[Run], None]) -> Callable[[Run], None]:
        if name in _registered:
            raise LabError(f"two experiments are called {name}")
        _registered[name] = Experiment(name, title, paper, body, tuple(cases), recordings, sites)
        return body

    return register


def all_experiments() -> dict[str, Experiment]:
    """Import everything below `braid_lab.experiments` and return the registered experiments, by name."""
    package = importlib.import_module("braid_lab.experiments")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    return dict(sorted(_registered.items()))


def execute(
    chosen: Experiment,
    *,
    form: Form,
    seed: int,
    out: Path,
    cases: Sequence[str] = (),
    traces: Path | None = None,
    loader: str | None = None,
    corpus: Path | None = None,
) -> Run:
    """Run an experiment and write out/NAME/result.json; judging the figures is left to the reader.

    Failed parts are in the run's `failures`. `cases` are the user's choice; raises LabError for an unknown one.
    """
    if traces and not chosen.recordings:
        raise LabError(f"{chosen.name} takes no recordings: leave --traces out")
    if (loader or corpus) and not chosen.sites:
        raise LabError(f"{chosen.name} loads no web sites: leave --loader and --corpus out")
    # With recordings, the experiment determines the cases itself.
    for case in () if traces else cases:
        if case not in chosen.cases:
            raise LabError(f"{chosen.name} has no case {case}: there are {', '.join(chosen.cases) or 'none'}")
    folder = out / chosen.name
    folder.mkdir(parents=True, exist_ok=True)
    for stale in [
        *folder.glob("*.svg"),
        *folder.glob("*.png"),
        *folder.glob("*.csv"),
        *folder.glob("*.json"),
    ]:
        stale.unlink()
    began = RunStart.now()
    with Display(chosen.name) as display:
        run = Run(
            chosen.name, form, seed, folder, display, asked=tuple(cases), traces=traces, loader=loader, corpus=corpus
        )
        try:
            chosen.body(run)
        except Exception as error:
            run.fail("", error)
        except BaseException as error:
            run.fail("", error)
            raise
        finally:
            _write(chosen, run, began)
    return run


@dataclass(frozen=True)
class RunStart:
    """The clock, the machine's counters and the repository's state at the start of a run."""

    at: datetime
    ticks: CpuTicks
    commit: str
    dirty: bool

    @staticmethod
    def now() -> RunStart:
        """Read them."""
        return RunStart(datetime.now(UTC), CpuTicks.now(), *commit())


def _write(chosen: Experiment, run: Run, began: RunStart) -> None:
    """Write result.json."""
    result = {
        "experiment": chosen.name,
        "title": chosen.title,
        "source": chosen.paper,
        "commit": began.commit,
        "dirty": began.dirty,
        "seed": run.seed,
        "form": run.form,
        "cases": list(run.asked),
        "traces": str(run.traces) if run.traces else None,
        "loader": run.loader,
        "corpus": str(run.corpus) if run.corpus else None,
        "started": began.at.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - began.at).total_seconds(), 1),
        "machine": describe(began.ticks),
        "failed": [vars(each) for each in run.failures],
        "figures": [vars(each) for each in run.figures],
        "table": run.table,
        "plots": run.plots,
        "notes": run.notes,
    }
    (run.folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
