"""`tools/end-to-end`: what fails runs once more by itself, and what fails again fails the run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from braid_lab.product import repository

CASES = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({cases}))
def test_each(number):
    runs = Path(__file__).with_name(str(number))
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) > {failures}.get(number, 0)
"""


def run_text(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of this file."""
    file = folder / "test_cases.py"
    file.write_text(text)
    argv = [str(repository() / "tools/end-to-end"), "-q", str(file)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def run(folder: Path, cases: int, failures: dict[int, int]) -> subprocess.CompletedProcess[str]:
    """Run so many tests, of which some fail the first times that they run."""
    return run_text(folder, CASES.format(cases=cases, failures=failures))


def times(folder: Path, number: int) -> int:
    return len((folder / str(number)).read_text())


def test_where_nothing_fails_everything_runs_once(tmp_path: Path) -> None:
    done = run(tmp_path, 2, {})
    assert (done.returncode, times(tmp_path, 0), times(tmp_path, 1)) == (0, 1, 1)
    assert "a bug to be mended" not in done.stdout


def test_what_passes_by_itself_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, 3, {1: 1})
    assert done.returncode == 0, done.stdout
    assert [times(tmp_path, number) for number in range(3)] == [1, 2, 1]
    (named,) = [line for line in done.stdout.splitlines() if "a bug to be mended" in line]
    assert named.endswith("test_cases.py::test_each[1]")


@pytest.mark.parametrize("failures", [{0: 2}, {0: 1, 2: 2}, dict.fromkeys(range(4), 1)])
def test_a_test_that_fails_again_or_a_fourth_one_fails_the_run(tmp_path: Path, failures: dict[int, int]) -> None:
    assert run(tmp_path, 5, failures).returncode == 1


def test_an_error_that_no_test_has_is_not_tried_again(tmp_path: Path) -> None:
    done = run_text(tmp_path, "1 / 0")
    assert done.returncode == 2
    assert "once more" not in done.stdout
