"""Purging the packages removes every file that their programs keep in the state directory, keys first of all."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from braid_lab.process import run
from braid_lab.product import repository

STATE_DIR = repository() / "crates/braid-host/src/state_dir.rs"


def kept_by_braid() -> set[str]:
    """Return what the daemons and a hub keep: the files of `StateDir`, a hub's store, and those of both pages."""
    named = set(re.findall(r'self\.path\.join\("([^"]+)"\)', STATE_DIR.read_text()))
    assert {"bond.json", "usage.json", "pauses.json", "history"} <= named
    pages = {f"{page}-{file}.json" for page in ("web", "hub-web") for file in ("tokens", "certificate")}
    return named | pages | {"hub.redb"}


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        ("postrm", sorted(kept_by_braid())),
        ("sdn/postrm", ["fabric-web-certificate.json", "fabric-web-tokens.json"]),
    ],
)
def test_nothing_is_left_in_the_state_directory(script: str, kept: list[str], tmp_path: Path) -> None:
    state, tools = tmp_path / "var/lib/braid", tmp_path / "tools"
    state.mkdir(parents=True)
    for name in kept:
        file = state / name
        if file.suffix:
            file.touch()
        else:
            file.mkdir()
            (file / "dsl.history").touch()
    tools.mkdir()
    for name in ("deb-systemd-helper", "systemctl"):
        (tools / name).symlink_to("/bin/true")
    text = (repository() / "packaging/debian" / script).read_text()
    moved = tmp_path / "postrm"
    moved.write_text(re.sub(r"(?<![\w.])/(var/lib|etc|run)/", rf"{tmp_path}/\1/", text))
    run(["sh", moved, "purge"], env={"PATH": f"{tools}:{os.environ['PATH']}"})
    assert [path.name for path in (tmp_path / "var/lib").iterdir()] == []
