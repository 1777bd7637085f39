"""Figures computed from choices and from the rate of every uplink; pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from braid_lab.experiments.race.address_plan import Policy
from braid_lab.experiments.race.rounds import apart_ms

#: Round trips that differ by more than this are clearly distinct, so a choice by them can be judged.
APART_MS = 10.0


@dataclass(frozen=True)
class Choice:
    """One connection: the uplink that a policy chose, and the rate of a fetch over each uplink right after."""

    policy: Policy
    destination: str
    number: int
    #: None if the connection failed.
    chosen: str | None
    mbit: Mapping[str, float]
    #: Mean round trip of each uplink's path during the fetch, ms.
    rtt_ms: Mapping[str, float]

    @property
    def best(self) -> str:
        """The fastest uplink."""
        return max(self.mbit, key=lambda name: self.mbit[name])

    @property
    def hit(self) -> bool:
        """True if the policy chose it."""
        return self.chosen == self.best

    @property
    def got(self) -> float:
        """Rate of the chosen uplink, Mbit/s."""
        return 0.0 if self.chosen is None else self.mbit[self.chosen]

    @property
    def apart(self) -> bool:
        """True if the shortest round trip was shorter than the next by more than `APART_MS`."""
        return apart_ms(list(self.rtt_ms.values())) > APART_MS


def hit_ratio(choices: Sequence[Choice]) -> float:
    """Return the share of rounds in which the best uplink was chosen ([ofrp] §4.3)."""
    return sum(each.hit for each in choices) / len(choices)


def of_best(choices: Sequence[Choice]) -> float:
    """Return the mean rate of the chosen uplinks over that of the best ones ([ofrp] §4.4, Fig. 6)."""
    return statistics.fmean(each.got for each in choices) / statistics.fmean(each.mbit[each.best] for each in choices)


def by_destination(choices: Sequence[Choice]) -> dict[str, list[Choice]]:
    """Group choices by destination, in the order of first appearance."""
    sorted_out: dict[str, list[Choice]] = {}
    for each in choices:
        sorted_out.setdefault(each.destination, []).append(each)
    return sorted_out


def over_destinations(
    choices: Sequence[Choice], figure: Callable[[Sequence[Choice]], float]
) -> tuple[float, tuple[float, float]]:
    """Return a figure's mean over destinations, each with equal weight as in the paper, and its extremes."""
    values = [figure(each) for each in by_destination(choices).values()]
    return statistics.fmean(values), (min(values), max(values))


#: Payload of a full segment with timestamps, bytes.
SEGMENT_BYTES = 1448


def law_mbit(rtt_ms: float, loss: float, *, segments: int) -> float:
    """Return a connection's long-term rate on a path without a rate limit, Mbit/s.

    It is the largest window, `segments`, per round trip, or the window that losses allow: sqrt(3/2p) (Mathis, Semke,
    Mahdavi, Ott 1997, for a receiver that acknowledges every segment). `loss` is one-way, of the data.
    """
    window = segments if loss == 0 else min(segments, math.sqrt(1.5 / loss))
    return 8e-6 * SEGMENT_BYTES * window / (rtt_ms / 1000)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
