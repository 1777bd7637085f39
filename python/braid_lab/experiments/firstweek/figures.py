"""Gaps in arrivals, and the faults that caused them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

#: A fault that ended longer ago does not explain a gap, s.
AFTERMATH_S = 5.0


@dataclass(frozen=True)
class FaultEvent:
    """A fault of one side."""

    name: str
    #: The uplink of the fault; empty if it was not an uplink's.
    uplink: str
    began: float
    ended: float

    def __str__(self) -> str:
        return f"{self.name}, {self.uplink}" if self.uplink else self.name


@dataclass(frozen=True)
class Gap:
    """A time in which nothing arrived."""

    began: float
    seconds: float

    @property
    def ended(self) -> float:
        """Time of the next arrival."""
        return self.began + self.seconds


@dataclass(frozen=True)
class BrokenSession:
    """A session that broke."""

    at: float
    reason: str


def gaps(moments: Sequence[float], began: float, ended: float) -> list[Gap]:
    """Return the times between arrivals from `began` to `ended`, which bound the first and the last one."""
    inside = sorted(each for each in moments if began < each < ended)
    return [Gap(one, two - one) for one, two in itertools.pairwise([began, *inside, ended])]


def longest(found: Sequence[Gap]) -> Gap:
    """Return the longest gap."""
    return max(found, key=lambda gap: gap.seconds)


def cause(began: float, ended: float, happened: Sequence[FaultEvent]) -> FaultEvent | None:
    """Return the fault that explains something from `began` to `ended`.

    It is the first one that overlaps, else the last one that ended before, if not longer than `AFTERMATH_S` ago.
    """
    during = [each for each in happened if each.began <= ended and each.ended >= began]
    if during:
        return during[0]
    before = [each for each in happened if began - AFTERMATH_S <= each.ended < began]
    return before[-1] if before else None
