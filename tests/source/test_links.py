"""Documents name files, folders and sections that exist."""

import re
import subprocess
from fnmatch import fnmatch
from functools import cache
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.-]+(?:/[\w.*{},-]+)+/?")
FILE = re.compile(r"[\w-]+\.(?:rs|h|c|py)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@cache
def tree() -> frozenset[str]:
    """Return every file that git does not ignore, and the folders above them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = [line for line in listed.stdout.splitlines() if (ROOT / line).exists()]
    return frozenset(files) | {str(parent) for file in files for parent in Path(file).parents}


def documents() -> list[str]:
    return sorted(name for name in tree() if name.endswith(".md"))


def prose(document: str) -> str:
    return CODE_BLOCK.sub("", (ROOT / document).read_text())


def anchors(document: str) -> set[str]:
    """Return the names by which a page's headings can be linked to."""
    found: set[str] = set()
    for heading in HEADING.findall(prose(document)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        base = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        name, number = base, 0
        while name in found:
            number += 1
            name = f"{base}-{number}"
        found.add(name)
    return found


def expand(pattern: str) -> list[str]:
    """Return the alternatives of a path with braces."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    choices = [part.split(",") if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(choice) for choice in product(*choices)]


def exists(path: str) -> bool:
    """Return true if a path exists below the root, or below a folder such as a crate's."""
    path = path.rstrip("/")
    return any(fnmatch(name, path) or fnmatch(name, f"*/{path}") for name in tree())


@pytest.mark.parametrize("document", documents())
def test_links_lead_somewhere(document: str) -> None:
    broken = []
    for target in LINK.findall(prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        page = str((ROOT / document).parent.joinpath(file).resolve().relative_to(ROOT)) if file else document
        if page not in tree() or (anchor and page.endswith(".md") and anchor not in anchors(page)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("document", documents())
def test_paths_in_documents_exist(document: str) -> None:
    top = {name.split("/")[0] for name in tree() if "/" in name}
    folder = "" if "/" not in document else f"{Path(document).parent}/"
    missing = []
    for code in CODE.findall(prose(document)):
        first = code.split("/")[0]
        if not PATH.fullmatch(code):
            continue
        if folder and f"{folder}{first}" in tree():
            found = [any(fnmatch(name, f"{folder}{path.rstrip('/')}") for name in tree()) for path in expand(code)]
        elif first in top:
            found = [exists(path) for path in expand(code)]
        else:
            continue
        if not all(found):
            missing.append(code)
    assert not missing


@pytest.mark.parametrize("document", documents())
def test_source_files_in_documents_exist(document: str) -> None:
    names = {Path(name).name for name in tree()}
    named = [code for code in CODE.findall(prose(document)) if FILE.fullmatch(code)]
    assert not [name for name in named if name not in names]
