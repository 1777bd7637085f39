"""Gaps and their causes, computed from the moments at which something arrived."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

#: A trouble this long ago has nothing to do with a gap, s.
AFTERMATH_S = 5.0


@dataclass(frozen=True)
class FaultEvent:
    """A trouble of one side."""

    name: str
    #: The uplink that it came over, if it was an uplink's.
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
        """The moment at which something arrived again."""
        return self.began + self.seconds


@dataclass(frozen=True)
class BrokenSession:
    """A session that broke."""

    at: float
    reason: str


def gaps(moments: Sequence[float], began: float, ended: float) -> list[Gap]:
    """Return the times between two arrivals from `began` to `ended`, which bound the first and the last one."""
    inside = sorted(each for each in moments if began < each < ended)
    return [Gap(one, two - one) for one, two in itertools.pairwise([began, *inside, ended])]


def longest(found: Sequence[Gap]) -> Gap:
    """Return the longest of them."""
    return max(found, key=lambda gap: gap.seconds)


def cause(began: float, ended: float, happened: Sequence[FaultEvent]) -> FaultEvent | None:
    """Return the trouble that something from one moment to another goes back to.

    That is the first one that overlaps it, else the last one that was over when it began, if that was not long ago.
    """
    during = [each for each in happened if each.began <= ended and each.ended >= began]
    if during:
        return during[0]
    before = [each for each in happened if began - AFTERMATH_S <= each.ended < began]
    return before[-1] if before else None
