"""Files of a page, read once."""

from __future__ import annotations

from pathlib import Path

from braid_sdn.web.messages import HTML, Answer

#: Files that every page has: the folder of `crates/braid-host` in a checkout, its files in a package.
SHARED = Path(__file__).parent / "shared"
LOGIN = "login.html"

_KINDS = {
    ".html": HTML,
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


def login_form() -> str:
    """Return the login form."""
    return (SHARED / LOGIN).read_text()


def page_files(own: Path) -> dict[str, Answer]:
    """Return the files of a page's folder, and those that every page has, by their path."""
    found = {
        f"/{file.name}": Answer(200, file.read_bytes(), _KINDS[file.suffix])
        for folder in (SHARED, own)
        for file in sorted(folder.iterdir())
        if file.suffix in _KINDS and file.name != LOGIN
    }
    return {"/": found.pop("/index.html"), **found}
