"""The pages' files: small, from nowhere else, and all text goes in as text."""

from __future__ import annotations

import pytest

from braid_lab.product import repository

SHARED = "crates/braid-host/web"
#: The folders of pages.
PAGES = ("crates/braid-daemon/web", "crates/braid-hub/web", "python/braid_sdn/fabric/page")
#: Bytes of all files of a page, not even compressed.
MOST_BYTES = 150_000
#: Ways in which a text could become part of the page's code.
UNSAFE = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_small_and_asks_nobody_else(page: str) -> None:
    files = [file for folder in (page, SHARED) for file in (repository() / folder).iterdir()]
    assert {"index.html", "main.js", "page.css"} <= {file.name for file in files}
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    for file in files:
        text = file.read_text()
        foreign = [line for line in text.splitlines() if "://" in line and "http://www.w3.org/2000/svg" not in line]
        assert foreign == [], file.name
        assert [way for way in UNSAFE if way in text] == [], file.name


@pytest.mark.parametrize("page", PAGES)
def test_every_text_that_a_page_names_exists(page: str) -> None:
    folder = repository() / page
    texts = (folder / "texts.js").read_text()
    document = (folder / "index.html").read_text()
    named = [part.partition('"')[0] for key in ("data-text", "data-label") for part in document.split(f'{key}="')[1:]]
    assert named
    assert [name for name in named if f"\n  {name}: " not in texts] == []


def test_the_files_that_all_pages_have_exist_once() -> None:
    link = repository() / "python/braid_sdn/web/shared"
    assert link.is_symlink()
    assert link.resolve() == repository() / SHARED
    served = (repository() / "crates/braid-host/src/web/files.rs").read_text()
    names = {file.name for file in link.iterdir()} - {"login.html"}
    assert [name for name in names if f'("/{name}",' not in served] == []
