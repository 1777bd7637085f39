"""The figure of `fabric/mdi` that the paper gives a number for."""

from __future__ import annotations

from braid_lab.experiments.fabric.mdi import SINGLE, single_kept_to


def test_an_imbalance_counts_only_while_all_smaller_ones_keep_a_single_path() -> None:
    more, less = SINGLE + 1, SINGLE - 1
    assert single_kept_to({0.0: more, 0.4: SINGLE, 0.45: less}) == 0.4
    assert single_kept_to({0.3: less, 0.0: more, 0.4: more}) == 0.0
    assert single_kept_to({0.0: less, 0.3: more}) is None
