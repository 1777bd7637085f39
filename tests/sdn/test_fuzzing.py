"""The fuzz targets, on the inputs that are kept and on some that are made up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from .fuzzing import CORPUS, TARGETS, corpus, inputs


def test_every_target_has_a_corpus() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_corpus_breaks_nothing(target: str) -> None:
    known = corpus(target)
    assert known
    for data in known:
        TARGETS[target]()(data)


@pytest.mark.parametrize(
    ("target", "examples"), [("host-flows", 300), ("hosts", 20), ("lldp", 300), ("openflow", 200)]
)
def test_made_up_input_breaks_nothing(target: str, examples: int) -> None:
    check = TARGETS[target]()

    @settings(max_examples=examples)
    @given(inputs(corpus(target)))
    def trial(data: bytes) -> None:
        check(data)

    trial()
