"""The lab's example runs as its text says. Cargo's own tests build those of the crates."""

from __future__ import annotations

import sys

from braid_lab.process import run
from braid_lab.product import repository


def test_two_lines() -> None:
    said = run([sys.executable, repository() / "python/examples/two_lines.py"], timeout=120).stdout
    assert "ten connections by uplink: {'dsl': 5, 'lte': 5}" in said
    assert "ten more while dsl is silent: {'dsl': 0, 'lte': 10}" in said
