"""Slot tables for edges, by the same arithmetic as `crates/braid-core/src/slots.rs`.

A table is an array of SLOTS path numbers; an edge only walks it. Weights are w_j = c_j / Σ c_i ([mpsdn] §III-C).
`tests/sdn/test_slot_table.py` holds both implementations against the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Slots of a table, as in braid-core.
SLOTS = 1024


def counts(weights: Mapping[int, float]) -> dict[int, int]:
    """Return the number of slots of each path: largest remainder, at least one.

    Raises ValueError without any weight, or with one that is not above 0.
    """
    if not weights:
        raise ValueError("no path has a weight: at least one is needed")
    for path, weight in weights.items():
        if not weight > 0:
            raise ValueError(f"path {path} has weight {weight}: leave it out instead")
    order = sorted(weights)
    total = sum(weights.values())
    quota = [SLOTS * weights[path] / total for path in order]
    made = [int(each) for each in quota]
    by_remainder = sorted(range(len(order)), key=lambda i: made[i] - quota[i])
    for i in by_remainder[: SLOTS - sum(made)]:
        made[i] += 1
    while 0 in made:
        donors = [i for i in range(len(made)) if made[i] > 1]
        donor = max(donors, key=lambda i: (made[i] - quota[i], i))
        made[donor] -= 1
        made[made.index(0)] += 1
    return dict(zip(order, made, strict=True))


def spread(weights: Mapping[int, float]) -> list[int]:
    """Make a table by smooth weighted round robin: a path's slots lie apart."""
    return _interleave(list(counts(weights).items()), SLOTS)


def _interleave(wanted: Sequence[tuple[int, int]], length: int) -> list[int]:
    """Smooth weighted round robin: `length` choices of which each path has its count."""
    credit = [0] * len(wanted)
    made = []
    for _ in range(length):
        for i, (_, count) in enumerate(wanted):
            credit[i] += count
        best = max(range(len(wanted)), key=lambda i: (credit[i], -i))
        credit[best] -= length
        made.append(wanted[best][0])
    return made
