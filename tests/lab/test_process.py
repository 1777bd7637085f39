"""Facts about child processes."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from braid_lab.net.scratch import start_time
from braid_lab.process import LabError, processor_seconds, state_of
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
