"""Never worse than one path: pairs that fall behind try their paths alone, and capacities are learned."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.floor import HOLD, PAUSE, Floor, PathPeriod
from braid_sdn.fabric.plan.planner import Hops
from braid_sdn.fabric.view.path_capacity import MEMORY, PathCapacity, PathLoad

P: Hops = ((PortId(1, 1), PortId(3, 1)),)
Q: Hops = ((PortId(1, 2), PortId(4, 1)),)
KEY = ("ha", "hb")
PERIOD = 2.0

Outcome = Callable[[Hops | None], float]


def story(outcome: Outcome, seconds: float, *, capacity: float = 10e6) -> list[tuple[float, Hops | None]]:
    """Run a pair whose rate depends on the paths that it uses; return the path in use in each period."""
    floor, now, course = Floor(), 0.0, []
    while now < seconds:
        alone = floor.alone().get(KEY)
        rate = outcome(alone)
        used = [alone] if alone is not None else [P, Q]
        floor.handle_period(now, KEY, [PathPeriod(hops, rate / len(used), capacity) for hops in used])
        course.append((now, alone))
        now += PERIOD
    return course


def test_a_pair_that_a_lossy_path_holds_back_uses_the_other_alone() -> None:
    for good, bad in ((P, Q), (Q, P)):
        rates = {None: 5.7e6, good: 9.5e6, bad: 4.1e6}
        course = story(rates.__getitem__, 60)
        found = next(at for at, used in course if used == good)
        assert found <= 10
        held = [used for at, used in course if found <= at < found + HOLD]
        assert set(held) == {good}


def test_a_pair_that_is_worse_split_returns_ever_more_rarely() -> None:
    rates = {None: 5.7e6, P: 9.5e6, Q: 4.1e6}
    course = story(rates.__getitem__, 600)
    split = sum(1 for _, used in course if used is None)
    assert split <= 0.1 * len(course)
    # The path that won is tried first: the other one never again.
    assert sum(1 for at, used in course if used == Q and at > 20) == 0


def test_a_split_that_carries_more_than_one_path_is_left_alone() -> None:
    assert {used for _, used in story(lambda used: 9.5e6 if used else 18.9e6, 300)} == {None}


def test_a_window_that_opens_slowly_is_no_sign_of_trouble() -> None:
    """Over paths of 10 and 75 ms a flow took 6 s until it brought more than one path does."""
    course = iter([2.7e6, 4.5e6, 6.2e6, 8.0e6, 11.3e6, *[18.9e6] * 100])
    assert {used for _, used in story(lambda _: next(course), 60)} == {None}


def test_a_flow_with_little_to_send_is_not_tried() -> None:
    assert {used for _, used in story(lambda _: 1e6, 300)} == {None}


def test_a_flow_that_its_sender_limits_is_tried_rarely_and_stays_split() -> None:
    course = story(lambda _: 6e6, 1200)
    assert sum(1 for _, used in course if used is not None) <= 0.1 * len(course)
    assert course[-1][1] is None


def test_the_split_is_used_again_once_the_trouble_is_over() -> None:
    ends = 60.0
    clock = iter(range(10_000))

    def outcome(used: Hops | None) -> float:
        trouble = PERIOD * next(clock) < ends
        return {None: 5e6 if trouble else 18.9e6, P: 9.5e6, Q: 3e6 if trouble else 9.5e6}[used]

    course = story(outcome, 300)
    assert any(used == P for at, used in course if at < ends)
    assert {used for at, used in course if at > ends + 2 * HOLD + 10} == {None}


def test_trials_in_vain_are_followed_by_a_pause() -> None:
    course = story(lambda used: 4e6 if used else 6e6, 100)
    tried = [at for at, used in course if used is not None]
    gaps = [b - a for a, b in itertools.pairwise(tried) if b - a > PERIOD]
    assert gaps
    assert gaps[0] >= PAUSE


def test_a_capacity_is_learned_while_a_queue_stands() -> None:
    learned = PathCapacity()
    assert not learned.handle_period(0, [PathLoad(P, 9.6e6, 0.001), PathLoad(Q, 9.6e6, 0.001)])
    # The machine delays all probes a little; the queue in front of P is another matter.
    assert learned.handle_period(2, [PathLoad(P, 9.6e6, 0.090), PathLoad(Q, 9.6e6, 0.007)])
    assert learned.limits == {P: 9.6e6}
    # Q brings the rest now.
    assert learned.handle_period(4, [PathLoad(P, 8.0e6, 0.0), PathLoad(Q, 47e6, 0.080)])
    assert learned.limits == {P: 2 * 9.6e6, Q: 47e6}
    assert learned.handle_period(6, [PathLoad(P, 9.5e6, 0.070), PathLoad(Q, 47e6, 0.080)])
    assert learned.limits == {P: 9.5e6, Q: 47e6}
    # A sender with less to send proves nothing, nor does a path without probes.
    assert not learned.handle_period(8, [PathLoad(P, 2e6, 0.0), PathLoad(Q, 10e6, 0.001)])
    assert not learned.handle_period(10, [PathLoad(P, 2e6, None), PathLoad(Q, 10e6, None)])
    assert learned.handle_period(12, [PathLoad(P, 20e6, 0.004), PathLoad(Q, 10e6, None)])
    assert learned.limits[P] == 20e6
    learned.expire(12 + MEMORY + 1)
    assert not learned.limits
