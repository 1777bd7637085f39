"""Capacities of paths are learned from what they carry while a queue stands in front of them."""

from __future__ import annotations

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.planner import Hops
from braid_sdn.fabric.view.path_capacity import MEMORY, PathCapacity, PathLoad

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
    assert learned.limits == {P: 2 * 9.6e6}
    assert learned.handle_period(8, full)
    assert learned.limits == {P: 2 * 9.6e6, Q: 47e6}
    full = [PathLoad(P, 9.5e6, 0.070), PathLoad(Q, 47e6, 0.080)]
    learned.handle_period(10, full)
    assert learned.handle_period(12, full)
    assert learned.limits == {P: 9.5e6, Q: 47e6}
    # A sender with less to send proves nothing, nor does a path without probes.
    assert not learned.handle_period(14, [PathLoad(P, 2e6, 0.0), PathLoad(Q, 10e6, 0.001)])
    assert not learned.handle_period(16, [PathLoad(P, 2e6, None), PathLoad(Q, 10e6, None)])
    assert learned.handle_period(18, [PathLoad(P, 20e6, 0.004), PathLoad(Q, 10e6, None)])
    assert learned.limits[P] == 20e6
    learned.expire(18 + MEMORY + 1)
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
    assert learned.handle_period(1, [PathLoad(P, 18e6, 0.0)])
    assert not learned.handle_measured(2, P, 10e6)
    assert learned.limits == {P: 18e6}
