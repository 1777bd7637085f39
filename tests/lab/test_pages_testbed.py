"""Loads of pages that can be compared with one another."""

from __future__ import annotations

from braid_lab.experiments.pages.testbed import complete, reductions


def loads(turn: int, site: str, *, single: float | None, wrr: float | None) -> list[dict[str, object]]:
    """Return the rows of a site in a turn; a page without a time has failed."""
    ways = {"single": single, "wrr": wrr}
    rows: list[dict[str, object]] = []
    for way, seconds in ways.items():
        times = {"error": "it did not arrive"} if seconds is None else {"seconds": seconds}
        rows.append({"turn": turn, "site": site, "way": way, **times})
    return rows


def test_a_page_that_fails_by_one_way_is_left_out_by_all_in_that_turn() -> None:
    rows = [
        *loads(0, "one", single=10.0, wrr=5.0),
        *loads(1, "one", single=None, wrr=1.0),
        *loads(0, "two", single=20.0, wrr=15.0),
        *loads(1, "two", single=20.0, wrr=5.0),
        *loads(0, "three", single=90.0, wrr=None),
    ]
    left = complete(rows)
    assert left == [row for row in rows if (row["turn"], row["site"]) in {(0, "one"), (0, "two"), (1, "two")}]
    assert reductions(left, "wrr") == (0.5, [0.5, 0.5])
