"""The report's index of the papers' figures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from braid_lab import report
from braid_lab.experiment import Experiment, Run, all_experiments, execute
from braid_lab.paper_figures import FIGURES, index


def result(name: str, figures: dict[str, float], failed: bool = False) -> dict[str, Any]:
    told = [{"name": each, "value": value, "paper": None} for each, value in figures.items()]
    return {"experiment": name, "form": "quick", "failed": ["some part"] if failed else [], "figures": told}


def test_every_measurement_of_the_papers_is_in_the_index_with_figures_of_ours_and_what_differs() -> None:
    assert len(FIGURES) == len({figure.name for figure in FIGURES}) == 28
    assert Counter(figure.paper for figure in FIGURES) == {
        "host-flow-balancing": 11,
        "layer3-bonding": 4,
        "mpsdn": 6,
        "on-the-fly-rtt-probing": 7,
    }
    known = all_experiments()
    for figure in FIGURES:
        assert figure.note, figure.name
        if figure.experiment is not None:
            assert figure.experiment in known, figure.name
            assert figure.ours, figure.name


def test_the_index_says_what_is_measured_failed_and_missing() -> None:
    results = [
        result("pages/quic", {"mean_reduction": 0.35, "mean_s_wrr": 9.0}),
        result("fabric/mdi", {}, failed=True),
    ]
    found = {entry.figure.name: entry for entry in index(results)}
    assert found["host-flow-balancing Fig. 11"].state == "measured, quick"
    assert [each["value"] for each in found["host-flow-balancing Fig. 11"].values] == [0.35]
    assert found["mpsdn Fig. 3"].state == "failed"
    assert found["host-flow-balancing Fig. 9"].state == "not measured yet"
    assert found["host-flow-balancing Fig. 14"].state == "not repeated"


def test_the_report_has_the_index(tmp_path: Path) -> None:
    def body(run: Run) -> None:
        run.measure("mean_reduction", [0.35], paper=0.3)

    execute(Experiment("pages/quic", "Sites", "", body), form="quick", seed=1, out=tmp_path)
    assert json.loads((tmp_path / "pages/quic/result.json").read_text())["figures"]
    assert report.write(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("not measured yet") == sum(figure.experiment not in (None, "pages/quic") for figure in FIGURES)
    assert "<code>mean_reduction</code> <b>0.35</b> (0.3)" in page
