"""The figures of `balance/policies`: each turn is compared with itself, and `fastest` with the best other policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from braid_lab.experiment import Experiment, Run, execute
from braid_lab.experiments.balance.policies import BY_NAME, Measured, record
from braid_lab.experiments.balance.policy_scenes import POLICIES

#: Three turns, the second with a page that is twice as large.
PAGES = [1.0, 2.0, 1.0]


def times(**factors: float) -> dict[str, list[float]]:
    """Return the seconds of each case, which are those of `PAGES` times a factor."""
    return {case.replace("_", "-"): [factor * each for each in PAGES] for case, factor in factors.items()}


MEASURED = [
    Measured(BY_NAME["pages"], times(dsl=3.0, lte=2.0, rr=1.2, wrr=1.3, race=3.0, least_loaded=1.4, fastest=1.26)),
    Measured(BY_NAME["full"], times(lte=2.0, rr=4.0, wrr=3.0, race=1.8, least_loaded=2.2, fastest=1.62)),
]


def body(run: Run) -> None:
    record(run, MEASURED, POLICIES)


def test_fastest_is_compared_with_the_best_other_policy_of_each_row(tmp_path: Path) -> None:
    done = execute(Experiment("some/thing", "", "", body), form="quick", seed=1, out=tmp_path)
    assert done.failures == []
    figures = {each.name: each for each in done.figures}
    assert figures["ratio_fastest_pages"].value == pytest.approx(1.05)
    assert figures["ratio_fastest_full"].value == pytest.approx(0.9)
    assert figures["ratio_fastest"].value == pytest.approx(1.05)
    # The second page takes twice as long by each of both, so the ratio has no spread.
    assert figures["of_better_line_least_loaded_pages"].value == pytest.approx(0.7)
    assert figures["of_better_line_least_loaded_pages"].spread == pytest.approx((0.7, 0.7))
    assert figures["seconds_dsl_pages"].spread == pytest.approx((3.0, 6.0))
    assert [row[0] for row in done.table] == ["", "pages", "full"]
