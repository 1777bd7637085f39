"""Functions that run at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_concurrently(work: Sequence[Callable[[], T]]) -> list[T]:
    """Run several functions at the same time; return their results in order."""
    with ThreadPoolExecutor(max_workers=len(work)) as pool:
        return [each.result() for each in [pool.submit(one) for one in work]]


@contextlib.contextmanager
def repeated(work: Callable[[], object], interval: float) -> Iterator[None]:
    """Call a function every `interval` seconds in a thread for the length of a block, which raises what it raises."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(interval):
            work()

    with ThreadPoolExecutor(max_workers=1) as pool:
        repeating = pool.submit(repeat)
        try:
            yield
        finally:
            over.set()
        repeating.result()
