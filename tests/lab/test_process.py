"""Facts about child processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from braid_lab.net.namespace import namespace
from braid_lab.net.scratch import start_time
from braid_lab.process import LabError, Process, processor_seconds, run, state_of, wait_until
from braid_lab.product import running


def test_the_processor_time_of_a_process_is_what_it_knows_itself() -> None:
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    # The kernel counts in ticks.
    tick = 1 / os.sysconf("SC_CLK_TCK")
    before = time.process_time()
    told = processor_seconds(os.getpid())
    assert before - 2 * tick <= told <= time.process_time() + 2 * tick


def test_a_process_that_is_gone_or_was_not_reaped_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    # It has ended, but is not yet reaped.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert state_of(child.pid) is not None
    assert not running(child.pid)
    child.wait()
    assert state_of(child.pid) is None
    assert not running(child.pid)
    assert start_time(child.pid) is None
    with pytest.raises(LabError, match="is gone"):
        processor_seconds(child.pid)
    assert running(os.getpid())


ABOUT_ITSELF = """
import json, os, signal, sys
print(json.dumps({
    "name": __name__,
    "arguments": sys.argv,
    "path": sys.path,
    "input": sys.stdin.read(),
    "files": sorted(os.listdir("/proc/self/fd")),
    "directory": os.getcwd(),
    "environment": dict(os.environ),
    "group": os.getpgrp(),
    "network": os.readlink("/proc/self/ns/net"),
    "signals": [str(signal.getsignal(each)) for each in sorted(signal.valid_signals())],
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
}))
"""


def test_a_python_program_that_is_forked_is_as_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "about.py").write_text(ABOUT_ITSELF)
    # The server runs by now, in another directory and environment.
    assert run([sys.executable, "-c", ""]).status == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRAID_SAID", "1")
    for words in (["-c", ABOUT_ITSELF, "x", "y z"], ["-m", "about", "x", "y z"]):
        # readline adds to the environment behind Python's back.
        new = subprocess.run(
            [sys.executable, *words], input="given", capture_output=True, text=True, check=True, env={**os.environ}
        )
        forked = run([sys.executable, *words], text="given")
        assert json.loads(forked.stdout) == json.loads(new.stdout)
    with namespace("there") as place:
        said = json.loads(place.run([sys.executable, "-c", ABOUT_ITSELF]).stdout)
        assert said["network"] == f"net:[{place.path.stat().st_ino}]"


@pytest.mark.parametrize(
    "code",
    [
        "",
        "raise SystemExit(3)",
        "import sys; print('out'); sys.exit('why')",
        "import os; os._exit(4)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import atexit; atexit.register(print, 'last'); print('first')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
    ],
)
def test_a_python_program_that_is_forked_ends_as_a_new_one(code: str) -> None:
    new = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    forked = run([sys.executable, "-c", code], check=False)
    assert (forked.status, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


def test_an_error_of_a_forked_program_is_told() -> None:
    done = run([sys.executable, "-c", "1 / 0"], check=False)
    assert done.status == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    done = run([sys.executable, "-m", "braid_lab.nothing"], check=False)
    assert done.status == 1
    assert "No module named braid_lab.nothing" in done.stderr
    done = run([sys.executable, "-c", ""], namespace="brl-nowhere", check=False)
    assert done.status == 1
    assert "No such file" in done.stderr
    with pytest.raises(LabError, match="still running"):
        run([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.1)


WAIT = [sys.executable, "-c", "import signal; print('ready', flush=True); signal.pause()"]


def test_signals_reach_a_forked_program(tmp_path: Path) -> None:
    with Process(WAIT, log=tmp_path / "waiting") as waiting:
        waiting.wait_output("^ready$")
        waiting.signal(signal.SIGINT)
        ended = waiting.wait()
        assert ended.status == -signal.SIGINT
        assert ended.stderr.endswith("KeyboardInterrupt\n")
        # It is gone, and nobody else gets its signals.
        waiting.signal(signal.SIGKILL)
    with Process(WAIT, log=tmp_path / "waiting") as waiting:
        waiting.wait_output("^ready$")
        assert waiting.running
        assert waiting.stop().status == -signal.SIGTERM
        assert not running(waiting.pid)


def test_a_forked_program_outlives_the_thread_that_starts_it(tmp_path: Path) -> None:
    started: list[Process] = []
    thread = threading.Thread(target=lambda: started.append(Process(WAIT, log=tmp_path / "waiting")))
    thread.start()
    thread.join()
    with started[0] as waiting:
        waiting.wait_output("^ready$")
        assert waiting.running


LAB = """
import signal, sys
from pathlib import Path
from braid_lab.process import Process
program = Process([sys.executable, "-c", "import signal; signal.pause()"], log=Path(sys.argv[1]))
print(program.pid, flush=True)
signal.pause()
"""


def test_a_forked_program_dies_with_a_lab_that_is_killed(tmp_path: Path) -> None:
    with Process([sys.executable, "-c", LAB, str(tmp_path / "program")], log=tmp_path / "lab") as lab:
        program = int(lab.wait_output(r"^(\d+)$").group(1))
        assert running(program)
        lab.signal(signal.SIGKILL)
        lab.wait()
        wait_until(lambda: not running(program), what="the program to go")
