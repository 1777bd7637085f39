"""The list of tests that `make test` leaves out names tests that there are."""

from __future__ import annotations

import re

import pytest

from braid_lab.product import repository
from conftest import STALE, THOROUGH


def test_each_line_names_a_test(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.stash[STALE] == []


def test_each_rust_test_is_there() -> None:
    text = THOROUGH.read_text()
    lines = re.findall(r"^(crates/\S+) (?:\w+::)*(\w+)::(\w+)$", text, flags=re.MULTILINE)
    assert len(lines) == text.count("\ncrates/")
    for folder, module, name in lines:
        assert f"fn {name}(" in (repository() / folder / f"{module}.rs").read_text()
