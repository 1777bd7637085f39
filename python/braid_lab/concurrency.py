"""Functions that run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_concurrently(work: Sequence[Callable[[], T]]) -> list[T]:
    """Run several functions at the same time; return their results in order."""
    with ThreadPoolExecutor(max_workers=len(work)) as pool:
        return [each.result() for each in [pool.submit(one) for one in work]]
