"""Experiments run to their end, and keep their measurements if a part fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from braid_lab import cli, experiment, report
from braid_lab.experiment import Experiment, Failure, Run, all_experiments, execute
from braid_lab.paper_figures import FIGURES
from braid_lab.process import LabError


def halting(run: Run) -> None:
    """Measure, fail, and measure again."""
    run.measure("before", [1.0])
    with run.part("middle"), run.step("what fails"), run.plot("plot"):
        raise LabError("the line\nis gone")
    with run.part("ratio"):
        run.measure("ratio", [1 / len(run.table)])
    run.measure("after", [2.0])


def ending(run: Run) -> None:
    run.measure("before", [1.0])
    raise LabError("nothing to measure on")


def mistaken(run: Run) -> None:
    run.measure("before", [1.0])
    raise KeyError("uplink")


def stopped(run: Run) -> None:
    run.measure("before", [1.0])
    raise SystemExit(143)


def whole(run: Run) -> None:
    run.measure("figure", [3.0])


def written(out: Path, name: str = "some/thing") -> tuple[list[str], list[tuple[str, str]]]:
    """Return the figures and the failures of a result.json."""
    result = json.loads((out / name / "result.json").read_text())
    return [each["name"] for each in result["figures"]], [(each["part"], each["reason"]) for each in result["failed"]]


def test_a_part_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    done = execute(Experiment("some/thing", "", "", halting), form="quick", seed=1, out=tmp_path)
    failed = [("middle", "the line\nis gone"), ("ratio", "ZeroDivisionError: division by zero")]
    assert done.failures == [Failure(*each) for each in failed]
    assert str(done.failures[0]) == "middle: the line is gone"
    assert written(tmp_path) == (["before", "after"], failed)
    assert report.write(tmp_path)
    assert "failed: middle: the line" in (tmp_path / "report.html").read_text()


def test_an_experiment_that_ends_early_keeps_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    execute(Experiment("some/thing", "", "", ending), form="full", seed=1, out=tmp_path)
    assert written(tmp_path) == (["before"], [("", "nothing to measure on")])
    execute(Experiment("some/thing", "", "", mistaken), form="full", seed=1, out=tmp_path)
    assert written(tmp_path) == (["before"], [("", "KeyError: 'uplink'")])
    assert "in mistaken" in capsys.readouterr().err


def test_an_experiment_that_is_stopped_stops_and_keeps_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        execute(Experiment("some/thing", "", "", stopped), form="full", seed=1, out=tmp_path)
    assert written(tmp_path) == (["before"], [("", "SystemExit: 143")])


def test_a_slow_machine_voids_a_measurement_but_no_smoke_run(tmp_path: Path) -> None:
    def slow(run: Run) -> None:
        run.too_slow("the emulator lost packets")

    some = Experiment("some/thing", "", "", slow)
    done = execute(some, form="quick", seed=1, out=tmp_path)
    assert [str(each) for each in done.failures] == [
        "the emulator lost packets: the machine was too slow; measure again"
    ]
    done = execute(some, form="smoke", seed=1, out=tmp_path)
    assert done.failures == []
    assert done.notes == ["the emulator lost packets: the machine was too slow."]
    # Nothing was measured, so there is nothing to show.
    assert not report.write(tmp_path)


def test_all_run_to_the_end_and_those_that_failed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = {name: Experiment(name, name, "", body) for name, body in (("a", halting), ("b", mistaken), ("c", whole))}
    monkeypatch.setattr(experiment, "all_experiments", lambda: some)

    def status(*names: str) -> int | None:
        monkeypatch.setattr("sys.argv", ["braid-lab", "run", *names, "--quick", "--out", str(tmp_path)])
        try:
            cli.main()
        except SystemExit as end:
            assert isinstance(end.code, int)
            return end.code
        return None

    assert status("all") == 1
    said = capsys.readouterr()
    assert said.err.splitlines()[-4:] == [
        "braid lab: 3 of what was to be measured failed:",
        "a: middle: the line is gone",
        "a: ratio: ZeroDivisionError: division by zero",
        "b: KeyError: 'uplink'",
    ]
    assert "results: " in said.out
    assert [written(tmp_path, name)[0] for name in some] == [["before", "after"], ["before"], ["figure"]]
    assert status("c") is None


def test_a_loader_is_only_for_experiments_that_load_sites(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="some/thing loads no web sites: leave --loader and --corpus out"):
        execute(Experiment("some/thing", "", "", whole), form="quick", seed=1, out=tmp_path, loader="fast")


#: Those whose smoke forms take longest begin first: at the end they would run alone.
LONGEST = ["fabric/control", "balance/failover", "balance/hostile", "openflow/parity", "demo"]

#: Kernel experiments download kernels, and run by `make verifier` and `make kernels`. The video needs a browser, and
#: runs by `make page-test`.
SMOKED = LONGEST + [
    name
    for name in all_experiments()
    if name not in LONGEST and not name.startswith("kernels/") and name != "pages/video"
]


@pytest.mark.parametrize("name", SMOKED)
def test_its_smoke_form_runs_to_its_end(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its figures counts; but incompatible defaults or parameters make it fail."""
    # Others run beside it: once their switches left a killed controller no processor to start anew for 30 s.
    monkeypatch.setenv("BRAID_LAB_REAL_TIME", "no")
    done = execute(all_experiments()[name], form="smoke", seed=1, out=tmp_path)
    assert done.failures == []
    recorded = {figure.name for figure in done.figures}
    assert recorded
    # The short forms lack some of them, but what it never records would leave the report's index empty.
    for each in FIGURES:
        assert each.experiment != name or recorded & set(each.ours), each.name
