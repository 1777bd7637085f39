"""What a check says of a kernel."""

from __future__ import annotations

from dataclasses import dataclass


class LeftOut(Exception):  # noqa: N818
    """What is checked cannot be had on this kernel; the text says why."""


@dataclass(frozen=True)
class Result:
    """What became of one check: `state` is "passed", "left out" or "failed"."""

    check: str
    state: str
    #: Why it was left out or failed.
    reason: str
    seconds: float
