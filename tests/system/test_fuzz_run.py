"""`fuzz/run` with fuzzers that only use processor time: its log is right however it ends, and it resumes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from braid_lab.process import processor_seconds, wait_until
from braid_lab.product import repository

#: Uses a processor until the end of -max_total_time, or until SIGTERM, and tells what libFuzzer tells.
FUZZER = """#!/usr/bin/env bash
set -eu
tell() { echo "stat::number_of_executed_units: 7" >&2; }
trap 'tell; exit 72' TERM
echo $$ >pid
for word in "$@"; do
	case $word in -max_total_time=*) end=$((SECONDS + ${word#*=})) ;; esac
done
while [ $SECONDS -lt $end ]; do :; done
tell
"""
BROKEN = "#!/usr/bin/env bash\nexit 77\n"
#: Notes how it is called, and runs the command as any other: beside other tests one under SCHED_IDLE may get no time.
CHRT = '#!/bin/sh\necho "$1 $2" >policy\nshift 2\nexec "$@"\n'


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with two targets, and a compiler that has nothing to do."""
    folder = tmp_path / "tree"
    (folder / "fuzz/corpus-sdn").mkdir(parents=True)
    (folder / "fuzz/fuzz_targets").mkdir()
    for name in ("run", "summary"):
        shutil.copy(repository() / "fuzz" / name, folder / "fuzz" / name)
    for name in ("one", "two"):
        (folder / f"fuzz/fuzz_targets/{name}.rs").touch()
        _program(folder / f"target/fuzz/triple/release/{name}", FUZZER)
    for name, said in (("rustup", "nightly"), ("rustc", "host: triple"), ("cargo", ""), ("cargo-fuzz", "")):
        _program(folder / ".tools/bin" / name, f"#!/bin/sh\necho '{said}'\n")
    _program(folder / ".tools/bin/chrt", CHRT)
    _program(folder / ".venv/bin/python", "#!/bin/sh\n")
    return folder


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tree: Path) -> Iterator[Start]:
    """Start `fuzz/run` there."""
    started: list[subprocess.Popen[str]] = []

    def make(*targets: str, **settings: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PATH": f"{tree}/.tools/bin:{os.environ['PATH']}", **settings}
        # A shell cannot trap what was ignored when it began, as SIGHUP is where nohup runs the tests.
        words = ["env", "--default-signal=HUP,INT,TERM", "fuzz/run", *targets]
        process = subprocess.Popen(
            words, cwd=tree, env=env, text=True, stderr=subprocess.PIPE, start_new_session=True
        )
        started.append(process)
        return process

    yield make
    for each in started:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
        each.wait()
        assert each.stderr is not None
        each.stderr.close()


def logged(tree: Path) -> list[tuple[str, float, int]]:
    """Return target, processor time and inputs of each run in the log."""
    rows = [line.split("\t") for line in (tree / "out/fuzz/log.tsv").read_text().splitlines()]
    return [(target, float(cpu), int(inputs)) for _, _, target, cpu, inputs in rows]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_that_is_ended_is_counted_and_leaves_nothing(tree: Path, start: Start, number: signal.Signals) -> None:
    run = start("one", "two", FUZZ_SECONDS="600")
    file = tree / "pid"
    pid = int(wait_until(lambda: file.read_text() if file.exists() else None, what="the fuzzer"))
    wait_until(lambda: processor_seconds(pid) > 0.3, what="it to use the processor", timeout=60)
    run.send_signal(number)
    assert run.wait(30) == 128 + signal.SIGTERM
    [(target, cpu, inputs)] = logged(tree)
    assert (target, inputs) == ("one", 7)
    assert cpu >= 0.3
    assert not Path(f"/proc/{pid}").exists()
    assert (tree / "policy").read_text() == "--idle 0\n"


def test_targets_take_turns_until_the_log_has_enough(tree: Path, start: Start) -> None:
    log = tree / "out/fuzz/log.tsv"
    log.parent.mkdir(parents=True)
    # An earlier run has done all of one target, and a part of the other.
    log.write_text("2026-01-01\tabc\ttwo\t7200\t5\n2026-01-01\tabc\tone\t7198.9\t5\n")
    run = start("one", "two", FUZZ_HOURS="2", FUZZ_SECONDS="1")
    assert run.wait(120) == 0, run.communicate()[1]
    since = logged(tree)[2:]
    assert {target for target, _, _ in since} == {"one"}
    assert len(since) >= 2
    assert 1.1 <= sum(cpu for _, cpu, _ in since) < 3.2
    said = subprocess.run(["fuzz/summary"], cwd=tree, text=True, capture_output=True, check=True).stdout
    assert [line.split()[:2] for line in said.splitlines()[1:]] == [["one", "2.00"], ["two", "2.00"]]
    again = start("one", "two", FUZZ_HOURS="2", FUZZ_SECONDS="1")
    assert again.wait(30) == 0
    assert len(logged(tree)) == 2 + len(since), "there is nothing to do"


def test_a_target_whose_promise_is_broken_gets_no_other_turn(tree: Path, start: Start) -> None:
    _program(tree / "target/fuzz/triple/release/two", BROKEN)
    run = start("one", "two", FUZZ_HOURS="0.0001", FUZZ_SECONDS="1")
    said = run.communicate(timeout=60)[1]
    assert run.returncode == 1
    assert "broken promises in: two" in said
    assert [target for target, _, _ in logged(tree)].count("two") == 1


def test_hours_that_are_none_are_refused(start: Start) -> None:
    run = start("one", FUZZ_HOURS="two")
    assert "FUZZ_HOURS is no number: two" in run.communicate(timeout=30)[1]
    assert run.returncode == 1


def test_a_target_of_the_controller_tells_what_it_has_tried_when_it_is_ended(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.sdn.fuzzing", "lldp", "600", str(tmp_path)]
    with subprocess.Popen(argv, cwd=repository(), text=True, stderr=subprocess.PIPE) as target:
        # It has been loaded by then, and has its handler.
        wait_until(lambda: _handles_sigterm(target.pid), what="it to begin", timeout=60)
        target.terminate()
        said = target.communicate(timeout=30)[1]
    assert target.returncode == 128 + signal.SIGTERM
    assert "stat::number_of_executed_units: " in said


def _handles_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    [caught] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
