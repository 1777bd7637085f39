"""Work that is done piece by piece, so that other things can be done meanwhile: generators that return a result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def at_once(pieces: Generator[None, None, T]) -> T:
    """Do all pieces of some work; return its result."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            made: T = done.value
            return made
