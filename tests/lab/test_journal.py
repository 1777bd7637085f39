"""A long run goes on where it was interrupted."""

from __future__ import annotations

from pathlib import Path

from braid_lab.journal import Journal

SETTINGS = {"commit": "abc", "ways": ("single", "wrr")}


def test_an_interrupted_run_keeps_whole_rows_and_a_finished_one_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    first = Journal(file, SETTINGS)
    first.add({"site": "one", "seconds": 1.5})
    first.add({"site": "two", "seconds": 2.5})
    # Killed while it wrote a third row.
    with file.open("a") as out:
        out.write('{"site": "thr')
    again = Journal(file, SETTINGS)
    assert again.rows == [{"site": "one", "seconds": 1.5}, {"site": "two", "seconds": 2.5}]
    again.add({"site": "three", "seconds": 3.5})
    third = Journal(file, SETTINGS)
    assert [row["site"] for row in third.rows] == ["one", "two", "three"]
    third.finish()
    assert Journal(file, SETTINGS).rows == []


def test_rows_of_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    Journal(file, SETTINGS).add({"site": "one"})
    assert Journal(file, SETTINGS | {"commit": "def"}).rows == []
