"""When a new plan is made: at once for what broke, once it is quiet for what is better, and never in a rush."""

from __future__ import annotations

import pytest

from braid_sdn.fabric.damp import BREATH, BROKEN, GATHER, LONGEST, QUIET, Damper


def test_what_breaks_is_gathered_for_a_moment_that_more_of_it_does_not_prolong() -> None:
    damper = Damper()
    assert damper.poll_timeout() is None
    assert not damper.due(1e9)
    damper.broken(10.0)
    damper.broken(10.0 + 0.8 * BROKEN)
    assert damper.urgent
    assert damper.poll_timeout() == 10.0 + BROKEN
    assert not damper.due(10.0 + 0.9 * BROKEN)
    assert damper.due(10.0 + BROKEN)


def test_what_breaks_is_not_held_up_by_what_can_wait() -> None:
    damper = Damper()
    damper.better(9.9)
    damper.soon(10.0)
    assert damper.poll_timeout() == 10.0 + GATHER
    damper.broken(10.001)
    assert damper.poll_timeout() == 10.001 + BROKEN


def test_what_is_better_waits_until_it_is_quiet_and_not_for_ever() -> None:
    damper = Damper()
    damper.better(10.0)
    assert not damper.urgent
    assert damper.poll_timeout() == 10.0 + QUIET
    damper.better(10.5)
    assert damper.poll_timeout() == 10.5 + QUIET
    # A network in which something gets better all the time.
    now = 10.5
    while not damper.due(now) and now < 100:
        damper.better(now)
        now += QUIET / 2
    assert now == pytest.approx(10.0 + LONGEST)


def test_a_plan_is_followed_by_a_pause_as_long_as_a_few_of_its_like_take() -> None:
    damper = Damper()
    damper.better(10.0)
    damper.broken(10.0)
    damper.made(10.1, took=0.5)
    assert damper.poll_timeout() is None
    damper.broken(10.2)
    assert damper.poll_timeout() == 10.1 + BREATH * 0.5
    # The plan forgets everything that was waited for before it.
    damper.made(20.0, took=0.001)
    damper.better(30.0)
    assert damper.poll_timeout() == 30.0 + QUIET
