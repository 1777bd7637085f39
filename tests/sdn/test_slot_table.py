"""Slot tables of edges: the same promises as `crates/braid-core/src/slots.rs` makes, and the same tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid_sdn.fabric.plan.slot_table import SLOTS, counts, spread

weights = st.dictionaries(st.integers(2, 4094), st.integers(1, 10_000_000), min_size=1, max_size=8)


@given(weights)
def test_every_path_has_its_quota_rounded(given_weights: dict[int, int]) -> None:
    made = counts(given_weights)
    total = sum(given_weights.values())
    assert sum(made.values()) == SLOTS
    poor = sum(1 for weight in given_weights.values() if SLOTS * weight < total)
    for path, weight in given_weights.items():
        assert made[path] >= 1
        assert abs(made[path] - SLOTS * weight / total) < 1 + poor


@given(weights)
def test_slots_of_a_path_lie_apart(given_weights: dict[int, int]) -> None:
    table = spread(given_weights)
    bound = sum(1 / k for k in range(1, len(given_weights) + 1)) - 1 / len(given_weights)
    for path, count in counts(given_weights).items():
        at = [number for number, each in enumerate(table) if each == path]
        assert len(at) == count
        gaps = [b - a for a, b in zip(at, [*at[1:], at[0] + SLOTS], strict=True)]
        assert max(gaps) <= 1 + bound * SLOTS / count


def test_equal_paths_take_turns() -> None:
    assert spread({7: 10e6, 9: 10e6}) == [7, 9] * 512


def digest(*given_weights: int) -> int:
    """FNV-1a of a table, one byte a slot."""
    value = 0xCBF29CE484222325
    for path in spread(dict(enumerate(given_weights))):
        value = (value ^ path) * 0x100000001B3 % 2**64
    return value


@pytest.mark.parametrize(
    ("given_weights", "known"),
    [((1, 1), 0x4D9C3EA89A593B25), ((5, 3, 1), 0x62D5D5B9A4AE8FF4), ((20_000, 1, 9_999, 333), 0xE910137B90141921)],
)
def test_tables_are_those_of_braid_core(given_weights: tuple[int, ...], known: int) -> None:
    """`tables_that_fabric_edges_know_too` of crates/braid-core has the same digests."""
    assert digest(*given_weights) == known


def test_weights_must_be_there_and_above_zero() -> None:
    with pytest.raises(ValueError, match="no path"):
        counts({})
    with pytest.raises(ValueError, match="leave it out"):
        counts({3: 0})
