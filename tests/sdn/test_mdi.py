"""Selection of paths: [mpsdn] equation 1, its two thresholds, and the absolute skew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid_sdn.fabric.model import Arc, Path, PortId
from braid_sdn.fabric.plan.mdi import DeliveryOrder, Thresholds, buffer_for, imbalance, select


def path(number: int, latency_ms: float, mbit: float = 10.0) -> Path:
    return Path((Arc(PortId(1, number), PortId(2, number), 1e9, 0.0, latency_ms / 1000),), 1e6 * mbit)


def test_equation_1_has_the_papers_range() -> None:
    """ "Its range is [0, 0.5], where 0 represents completely balanced paths and 0.5 is the limit of imbalance." """
    assert imbalance(0.025, 0.025) == 0
    assert imbalance(0.0, 0.025) == 0.5
    assert imbalance(0.0, 0.0) == 0


@pytest.mark.parametrize(("slow", "mdi"), [(50, 0.17), (100, 0.3)])
def test_equation_1_gives_the_papers_figures(slow: float, mdi: float) -> None:
    """ "25ms and 50ms corresponding to an MDI of 0.17; 25ms and 100ms corresponding to an MDI of 0.3" (§IV-A5)."""
    assert imbalance(0.025, slow / 1000) == pytest.approx(mdi, abs=0.005)


@pytest.mark.parametrize(
    ("latencies", "count", "order", "word"),
    [
        ((25, 25), 2, DeliveryOrder.PLAIN, "tolerable"),
        ((25, 30), 2, DeliveryOrder.PLAIN, "within both"),
        ((25, 50), 2, DeliveryOrder.RESEQUENCE, "(mdi)"),
        ((25, 100), 2, DeliveryOrder.RESEQUENCE, "(mdi)"),
        ((25, 400), 1, DeliveryOrder.SINGLE, "one path"),
        # §V-1: "using a purely relative measurement for the imbalance does not allow the MDI to work equally well for
        # all latencies": a millisecond more is nothing, 30 ms more of 200 is much, 250 ms more of 400 is too much.
        ((0.2, 1.1), 2, DeliveryOrder.PLAIN, "tolerable"),
        ((200, 230), 2, DeliveryOrder.RESEQUENCE, "(skew)"),
        ((400, 650), 1, DeliveryOrder.SINGLE, "one path"),
    ],
)
def test_thresholds(latencies: tuple[float, ...], count: int, order: DeliveryOrder, word: str) -> None:
    chosen = select([path(number, each) for number, each in enumerate(latencies, 1)], Thresholds())
    assert chosen is not None
    assert (len(chosen.paths), chosen.order) == (count, order)
    assert word in chosen.reason
    assert len(chosen.left_out) == len(latencies) - count


def test_what_is_left_out_says_why() -> None:
    chosen = select([path(1, 10), path(2, 400), path(3, 12)], Thresholds(leave_out_skew=0.1))
    assert chosen is not None
    assert [each.reason for each in chosen.left_out] == ["delay imbalance 0.48 is above 0.4 (mdi)"]
    chosen = select([path(1, 300), path(2, 420)], Thresholds(leave_out_skew=0.1))
    assert chosen is not None
    assert [each.reason for each in chosen.left_out] == ["120.0 ms slower than the quickest, above 100 ms (skew)"]


def test_a_wide_slow_path_is_not_given_up_for_a_narrow_quick_one() -> None:
    chosen = select([path(1, 10, 1), path(2, 400, 20)], Thresholds())
    assert chosen is not None
    assert [each.latency for each in chosen.paths] == [0.4]
    assert "carries more" in chosen.left_out[0].reason


paths = st.lists(st.tuples(st.floats(0, 600), st.floats(0.1, 50)), min_size=1, max_size=5)


@given(paths)
def test_no_choice_is_worse_than_its_best_path_and_each_member_fits(found: list[tuple[float, float]]) -> None:
    made = [path(number, latency, mbit) for number, (latency, mbit) in enumerate(found, 1)]
    limits = Thresholds()
    chosen = select(made, limits)
    assert chosen is not None
    assert 1.05 * chosen.capacity >= max(each.capacity for each in made)
    assert len(chosen.paths) + len(chosen.left_out) == len(made)
    quickest = chosen.paths[0].latency
    for each in chosen.paths:
        skew = each.latency - quickest
        mdi = imbalance(quickest, each.latency)
        assert skew <= limits.tolerable_skew or (mdi <= limits.leave_out_mdi and skew <= limits.leave_out_skew)


def test_nothing_to_choose_from() -> None:
    assert select([], Thresholds()) is None


def test_the_buffer_holds_what_waits_for_the_slowest() -> None:
    chosen = select([path(1, 25, 10), path(2, 75, 10)], Thresholds())
    assert chosen is not None
    buffer = buffer_for(chosen)
    # 50 ms of 10 Mbit/s are 62,500 bytes, 41.2 frames; a quarter more, rounded up, and 16.
    assert (buffer.threshold, buffer.size) == (68, 136)


def test_a_path_in_use_does_not_go_for_what_another_look_measures() -> None:
    limits = Thresholds()
    milder = limits.for_those_in_use()
    assert milder.leave_out_mdi == pytest.approx(0.44)
    assert milder.leave_out_skew == pytest.approx(0.22)
    assert Thresholds(leave_out_mdi=0.5).for_those_in_use().leave_out_mdi == 0.5
    assert (milder.resequence_mdi, milder.resequence_skew) == (limits.resequence_mdi, limits.resequence_skew)
