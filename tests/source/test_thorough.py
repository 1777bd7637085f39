"""The list of tests that `make test` leaves out names tests that there are."""

from __future__ import annotations

import pytest

from conftest import STALE


def test_each_line_names_a_test(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.stash[STALE] == []
