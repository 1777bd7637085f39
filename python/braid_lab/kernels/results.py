"""Results of a check on a kernel."""

from __future__ import annotations

from dataclasses import dataclass


class LeftOut(Exception):  # noqa: N818
    """The kernel does not support what is checked; the text gives the reason."""


@dataclass(frozen=True)
class Result:
    """Result of one check: `state` is "passed", "left out" or "failed"."""

    check: str
    state: str
    #: Why it was left out or failed.
    reason: str
    seconds: float
