"""Packets at a rate, from senders that need not be exact."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: Pause of a sender that is ahead of its rate.
PAUSE_SECONDS = 0.002


def paced(packets: Iterable[T], rate: float, seconds: float) -> Iterator[T]:
    """Yield packets at this many a second, for so long."""
    began = time.monotonic()
    for sent, packet in enumerate(packets):
        at = time.monotonic() - began
        if at > seconds:
            return
        if sent > at * rate:
            time.sleep(PAUSE_SECONDS)
        yield packet
