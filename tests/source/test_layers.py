"""Crates depend on lower ones alone, and pure code reads neither clocks nor sockets."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# From the bottom. A crate may use those of lower layers, never one of its own layer (ARCHITECTURE.md).
LAYERS = (
    {"braid-core", "braid-packet", "braid-device", "braid-bpf-build", "braid-verifier", "braid-load"},
    {"braid-host", "braid-multipath"},
    {"braid-alarm", "braid-balance", "braid-uplink", "braid-bond", "braid-emulate", "braid-edge"},
    {"braid-daemon", "braid-hub"},
    {"braid"},
)
PURE = (
    "crates/braid-core/src",
    "crates/braid-multipath/src",
    "crates/braid-packet/src",
    "crates/braid-bond/src/proto",
)
IMPURE = re.compile(
    r"\bcrate::io\b|\bInstant::now\b|\bSystemTime::now\b|\bstd::(?:fs|thread|process)\b|\b(?:Udp|Tcp)(?:Socket|Stream)\b"
    r"|\bthread_rng\b|\brand::rng\b"
)


def crates() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("crates/*/Cargo.toml"))


def layer(crate: str) -> int:
    return next(place for place, members in enumerate(LAYERS) if crate in members)


def test_every_crate_has_one_layer() -> None:
    assert sorted(crate for members in LAYERS for crate in members) == crates()


@pytest.mark.parametrize("crate", crates())
def test_dependencies_point_down(crate: str) -> None:
    manifest = tomllib.loads((ROOT / "crates" / crate / "Cargo.toml").read_text())
    used = set(manifest.get("dependencies", {})) | set(manifest.get("build-dependencies", {}))
    assert not [name for name in used if name.startswith("braid") and layer(name) >= layer(crate)]


@pytest.mark.parametrize("folder", PURE)
def test_pure_code_does_no_io(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.rs"))
    assert files
    lines = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if IMPURE.search(line.split("//")[0])
    ]
    assert not lines
