"""`fabric/hostile` counts outages from the numbers of pings that were answered."""

from __future__ import annotations

import pytest

from braid_lab.experiments.fabric.hostile import longest_gap


@pytest.mark.parametrize(
    ("answered", "gap"),
    [([1, 2, 3], 0), ([1, 3, 4], 1), ([1, 5, 6, 8], 3), ([4, 5], 3), ([3, 1, 2], 0), ([1, 1, 2], 0)],
)
def test_the_longest_row_of_lost_pings(answered: list[int], gap: int) -> None:
    assert longest_gap(answered) == gap
