"""Figures computed from raw measurements; pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from braid_lab.experiments.balance.ab_testbed import SideName

Load = Literal["bulk_down", "bulk_up", "connect_rate", "small_packet_rate", "connect_p50"]

#: All loads, with the unit of each.
LOADS: dict[Load, str] = {
    "bulk_down": "Mbit/s",
    "bulk_up": "Mbit/s",
    "connect_rate": "1/s",
    "small_packet_rate": "1/s",
    "connect_p50": "us",
}


@dataclass(frozen=True)
class Sample:
    """One measurement of one side."""

    load: Load
    offload: bool
    #: Index of the pair of this load.
    turn: int
    side: SideName
    value: float
    #: Share of the machine's time that the hypervisor gave to others meanwhile.
    steal: float


def values(samples: Sequence[Sample], load: Load, *, offload: bool, side: SideName) -> list[float]:
    """Return one side's values in the order of the pairs."""
    chosen = [each for each in samples if (each.load, each.offload, each.side) == (load, offload, side)]
    return [each.value for each in sorted(chosen, key=lambda each: each.turn)]


def ratios(samples: Sequence[Sample], load: Load, *, offload: bool) -> list[float]:
    """Return Braid ÷ nftables of every pair: close in time, so that the machine's variation cancels out."""
    ours = values(samples, load, offload=offload, side="braid")
    theirs = values(samples, load, offload=offload, side="nft")
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def both_ways(samples: Sequence[Sample], *, offload: bool) -> list[float]:
    """Return the bulk ratio of every pair: the mean of download and upload."""
    pairs = zip(
        ratios(samples, "bulk_down", offload=offload), ratios(samples, "bulk_up", offload=offload), strict=True
    )
    return [statistics.fmean(pair) for pair in pairs]


def share_error(counts: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """Return the largest distance between an uplink's share of the flows and its configured share."""
    flows, total = sum(counts.values()), sum(weights.values())
    if flows == 0:
        return 1.0
    return max(abs(counts.get(name, 0) / flows - weight / total) for name, weight in weights.items())
