"""The product's files and sockets are made with their mode: in between somebody could open them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHANGES = re.compile(r"\b(?:set_permissions|f?chmod(?:at)?|lchmod)\s*\(|\bos\.f?chmod\b")

#: Calls that are right, by file, with their reason.
ALLOWED = {
    "crates/braid-host/src/peer.rs": "the socket of a running daemon follows its configuration; who may use it is "
    "decided by credentials, which change first",
    "crates/braid-host/src/run_dir/lock.rs": "earlier versions made the lock file for all to read",
    "python/braid_sdn/host/service.py": "as above",
}


def found() -> dict[str, list[str]]:
    """Return lines of the product that change a mode, by file."""
    lines: dict[str, list[str]] = {}
    files = [*ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("python/braid_sdn/**/*.py")]
    assert len(files) > 100
    for file in files:
        name = str(file.relative_to(ROOT))
        text = file.read_text().partition("#[cfg(test)]")[0]
        for number, line in enumerate(text.splitlines(), 1):
            if not file.stem.startswith("test") and CHANGES.search(line.partition("//")[0]):
                lines.setdefault(name, []).append(f"{number}: {line.strip()}")
    return lines


def test_no_file_gets_another_mode_after_it_was_made() -> None:
    calls = found()
    assert {name: each for name, each in calls.items() if name not in ALLOWED} == {}
    assert [len(calls.get(name, ())) for name in ALLOWED] == [1] * len(ALLOWED)
