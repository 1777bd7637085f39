"""The pages' files: small, from nowhere else, and all text goes in as text."""

from __future__ import annotations

import pytest

from braid_lab.product import repository

SHARED = "braid-host"
#: Bytes of all files of a page, not even compressed.
MOST_BYTES = 150_000
#: Ways in which a text could become part of the page's code.
UNSAFE = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc")


@pytest.mark.parametrize("owner", ["braid-daemon", "braid-hub"])
def test_a_page_is_small_and_asks_nobody_else(owner: str) -> None:
    files = [file for crate in (owner, SHARED) for file in (repository() / "crates" / crate / "web").iterdir()]
    assert {"index.html", "main.js", "page.css"} <= {file.name for file in files}
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    for file in files:
        text = file.read_text()
        foreign = [line for line in text.splitlines() if "://" in line and "http://www.w3.org/2000/svg" not in line]
        assert foreign == [], file.name
        assert [way for way in UNSAFE if way in text] == [], file.name


@pytest.mark.parametrize("owner", ["braid-daemon", "braid-hub"])
def test_every_text_that_a_page_names_exists(owner: str) -> None:
    folder = repository() / "crates" / owner / "web"
    texts = (folder / "texts.js").read_text()
    page = (folder / "index.html").read_text()
    named = [part.partition('"')[0] for key in ("data-text", "data-label") for part in page.split(f'{key}="')[1:]]
    assert named
    assert [name for name in named if f"\n  {name}: " not in texts] == []
