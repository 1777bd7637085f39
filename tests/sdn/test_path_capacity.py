"""Capacities of paths are learned from what they carry while a queue stands in front of them."""

from __future__ import annotations

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.planner import Hops
from braid_sdn.fabric.view.path_capacity import GROWTH, GROWTH_PAUSE, MEMORY, PathCapacity, PathLoad

P: Hops = ((PortId(1, 1), PortId(3, 1)),)
Q: Hops = ((PortId(1, 2), PortId(4, 1)),)


def test_a_capacity_is_learned_while_a_queue_stands() -> None:
    learned = PathCapacity()
    assert not learned.handle_period(0, [PathLoad(P, 9.6e6, 0.001), PathLoad(Q, 9.6e6, 0.001)])
    # The machine delays all probes a little; the queue in front of P is another matter.
    full = [PathLoad(P, 9.6e6, 0.090), PathLoad(Q, 9.6e6, 0.007)]
    assert not learned.handle_period(2, full)
    assert learned.handle_period(4, full)
    assert learned.limits == {P: 9.6e6}
    # Q brings the rest now, and P its limit without a queue.
    full = [PathLoad(P, 8.0e6, 0.0), PathLoad(Q, 47e6, 0.080)]
    assert learned.handle_period(6, full)
    assert learned.limits == {P: GROWTH * 9.6e6}
    assert learned.handle_period(8, full)
    assert learned.limits == {P: GROWTH * 9.6e6, Q: 47e6}
    full = [PathLoad(P, 9.5e6, 0.070), PathLoad(Q, 47e6, 0.080)]
    learned.handle_period(10, full)
    assert learned.handle_period(12, full)
    assert learned.limits == {P: 9.5e6, Q: 47e6}
    # A sender with less to send proves nothing, nor does a path without probes.
    assert not learned.handle_period(14, [PathLoad(P, 2e6, 0.0), PathLoad(Q, 10e6, 0.001)])
    assert not learned.handle_period(16, [PathLoad(P, 2e6, None), PathLoad(Q, 10e6, None)])
    assert not learned.handle_period(18, [PathLoad(P, 20e6, 0.004), PathLoad(Q, 10e6, None)])
    assert learned.handle_period(20, [PathLoad(P, 19e6, 0.004), PathLoad(Q, 10e6, None)])
    assert learned.limits[P] == 19e6
    learned.expire(20 + MEMORY + 1)
    assert not learned.limits


def test_one_period_of_a_busy_machine_teaches_nothing() -> None:
    """Probes were late by 12 ms while the window opened, and a line of 50 Mbit/s was taken for one of 7."""
    learned = PathCapacity()
    assert not learned.handle_period(0, [PathLoad(P, 7e6, 0.012), PathLoad(Q, 7e6, 0.012)])
    assert not learned.handle_period(1, [PathLoad(P, 40e6, 0.001), PathLoad(Q, 40e6, 0.002)])
    assert not learned.handle_period(2, [PathLoad(P, 30e6, 0.012), PathLoad(Q, 30e6, 0.012)])
    assert not learned.limits


def test_a_path_that_is_used_little_is_not_taken_for_a_wide_one() -> None:
    """A flow takes the path on which it arrives first: without a queue on the other one it may have got little."""
    learned = PathCapacity()
    assert learned.handle_measured(0, P, 10e6)
    assert not learned.handle_period(1, [PathLoad(P, 2e6, 0.0), PathLoad(Q, 47e6, 0.080)])
    assert learned.limits == {P: 10e6}


def test_what_a_path_carried_counts_more_than_a_train() -> None:
    learned = PathCapacity()
    learned.handle_measured(0, P, 10e6)
    for now in (1, 2):
        learned.handle_period(now, [PathLoad(P, 18e6, 0.0)])
    assert not learned.handle_measured(2, P, 10e6)
    assert learned.limits == {P: 18e6}


def test_a_line_that_brings_what_had_piled_up_is_no_wider() -> None:
    """A machine that ran nothing for a moment: a line of 50 Mbit/s was taken for one of 65, and never filled."""
    learned = PathCapacity()
    learned.handle_measured(0, P, 50e6)
    for now, rate, queue in [(1, 48e6, 0.0), (2, 65e6, 0.0), (3, 50e6, 0.0), (4, 49e6, 0.04), (5, 66e6, 0.04)]:
        learned.handle_period(now, [PathLoad(P, rate, queue)])
    learned.handle_period(6, [PathLoad(P, 50e6, 0.04)])
    assert learned.limits == {P: 50e6}


def test_a_path_that_was_tried_with_more_in_vain_is_left_alone_for_a_while() -> None:
    """A line of 10 Mbit/s that its edge filled exactly was told to carry 20, and lost what came beyond."""
    learned = PathCapacity()
    learned.handle_measured(0, P, 10e6)
    full = [PathLoad(P, 9.6e6, 0.0), PathLoad(Q, 47e6, 0.08)]
    assert learned.handle_period(1, full)
    assert learned.limits[P] == GROWTH * 10e6
    # One period with a queue of any length suffices.
    learned.handle_period(2, [PathLoad(P, 9.9e6, 0.06), PathLoad(Q, 47e6, 0.08)])
    assert learned.limits[P] == 10e6
    for now in range(3, round(GROWTH_PAUSE)):
        learned.handle_period(now, full)
        assert learned.limits[P] == 10e6
    learned.handle_period(GROWTH_PAUSE + 2, full)
    assert learned.limits[P] == GROWTH * 10e6


def test_a_line_that_was_taken_for_a_slow_one_is_found_out() -> None:
    learned = PathCapacity()
    learned.handle_measured(0, P, 10e6)
    for now in range(1, 10):
        learned.handle_period(now, [PathLoad(P, 0.95 * learned.limits[P], 0.0), PathLoad(Q, 47e6, 0.08)])
    assert learned.limits[P] > 50e6
