"""When a new plan is made: at once for what broke, once it is quiet for what is better, and never in a rush."""

from __future__ import annotations

import pytest

from braid_sdn.fabric.plan.throttle import (
    CHANGE_DELAY,
    FAILURE_DELAY,
    IDLE_FACTOR,
    MAX_QUIET_WAIT,
    QUIET_PERIOD,
    Throttle,
)


def test_what_breaks_is_gathered_for_a_moment_that_more_of_it_does_not_prolong() -> None:
    throttle = Throttle()
    assert throttle.poll_timeout() is None
    assert not throttle.due(1e9)
    throttle.failure(10.0)
    throttle.failure(10.0 + 0.8 * FAILURE_DELAY)
    assert throttle.urgent
    assert throttle.poll_timeout() == 10.0 + FAILURE_DELAY
    assert not throttle.due(10.0 + 0.9 * FAILURE_DELAY)
    assert throttle.due(10.0 + FAILURE_DELAY)


def test_what_breaks_is_not_held_up_by_what_can_wait() -> None:
    throttle = Throttle()
    throttle.improvement(9.9)
    throttle.change(10.0)
    assert throttle.poll_timeout() == 10.0 + CHANGE_DELAY
    throttle.failure(10.001)
    assert throttle.poll_timeout() == 10.001 + FAILURE_DELAY


def test_what_is_better_waits_until_it_is_quiet_and_not_for_ever() -> None:
    throttle = Throttle()
    throttle.improvement(10.0)
    assert not throttle.urgent
    assert throttle.poll_timeout() == 10.0 + QUIET_PERIOD
    throttle.improvement(10.5)
    assert throttle.poll_timeout() == 10.5 + QUIET_PERIOD
    # A network in which something gets better all the time.
    now = 10.5
    while not throttle.due(now) and now < 100:
        throttle.improvement(now)
        now += QUIET_PERIOD / 2
    assert now == pytest.approx(10.0 + MAX_QUIET_WAIT)


def test_a_plan_is_followed_by_a_pause_as_long_as_a_few_of_its_like_take() -> None:
    throttle = Throttle()
    throttle.improvement(10.0)
    throttle.failure(10.0)
    throttle.plan_begun()
    throttle.plan_made(10.1, took=0.5)
    assert throttle.poll_timeout() is None
    throttle.failure(10.2)
    assert throttle.poll_timeout() == 10.1 + IDLE_FACTOR * 0.5
    # The plan forgets everything that was waited for before it.
    throttle.plan_begun()
    throttle.plan_made(20.0, took=0.001)
    throttle.improvement(30.0)
    assert throttle.poll_timeout() == 30.0 + QUIET_PERIOD


def test_what_a_plan_leaves_follows_soon_and_is_not_urgent() -> None:
    throttle = Throttle()
    throttle.plan_made(10.0, took=0.001)
    throttle.rest(10.0)
    assert not throttle.urgent
    assert not throttle.calm
    assert throttle.poll_timeout() == 10.0 + CHANGE_DELAY
    throttle.plan_begun()
    throttle.plan_made(10.1, took=0.001)
    assert throttle.poll_timeout() is None


def test_what_comes_while_a_plan_is_made_is_for_the_next_one() -> None:
    throttle = Throttle()
    throttle.failure(10.0)
    throttle.plan_begun()
    throttle.failure(10.1)
    throttle.plan_made(10.2, took=0.001)
    assert throttle.urgent
    assert throttle.poll_timeout() == pytest.approx(10.201)


def test_while_switches_are_told_of_a_plan_failures_alone_are_followed() -> None:
    throttle = Throttle()
    throttle.change(10.0)
    throttle.rest(10.0)
    throttle.improvement(10.0)
    assert throttle.poll_timeout(busy=True) is None
    assert not throttle.due(1e9, busy=True)
    assert throttle.due(10.0 + CHANGE_DELAY)
    throttle.failure(11.0)
    assert throttle.poll_timeout(busy=True) == 11.0 + FAILURE_DELAY
