"""The figures of `balance/dynamic`: the same pages in every case, and the standard error of their ratio."""

from __future__ import annotations

import pytest

from braid_lab.experiments.balance.dynamic import SPAN_S, Loads, ratio_error


def every(seconds: list[float], *, step: float = SPAN_S) -> Loads:
    """Return pages that begin `step` seconds apart."""
    return Loads(seconds, [number * step for number in range(len(seconds))])


def test_a_ratio_that_is_the_same_in_each_span_has_no_error() -> None:
    assert ratio_error(every([2.0, 4.0, 6.0, 8.0]), every([1.0, 2.0, 3.0, 4.0])) == pytest.approx(0.0)


def test_one_page_that_a_gap_caught_makes_the_ratio_unsure() -> None:
    # Against pages of one second the ratio is their mean, and its jackknife is the mean's standard error.
    pages = [2.0, 2.0, 2.0, 18.0]
    assert ratio_error(every(pages), every([1.0] * 4)) == pytest.approx(4.0)


def test_pages_of_one_span_are_left_out_together() -> None:
    # Two spans of ten pages each: too few to compare, however many pages.
    assert ratio_error(every([1.0, 2.0] * 10, step=2.0), every([1.0] * 20, step=2.0)) is None


def test_pages_of_unknown_time_have_no_error() -> None:
    assert ratio_error(Loads([1.0, 2.0, 3.0]), every([1.0, 2.0, 3.0])) is None
