"""Selects paths to use together: the delay imbalance of [mpsdn] §III-B with its two thresholds, and absolute skew.

[mpsdn] §V-1 criticises its own measure: being relative, it cannot "work equally well for all latencies". So each
threshold on MDI is accompanied by one on the skew itself, and below a skew that any receiver tolerates MDI is
ignored. It is also ignored below what is uncertain about both latencies: on a busy machine equal paths measure 0.1 ms
and 1.1 ms, and are as imbalanced as 25 ms and 275 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from braid_sdn.fabric.model import Path

#: A full Ethernet frame, bytes: the unit of buffers.
FRAME_BYTES = 1518


#: Factor by which a path in use may exceed a threshold.
HYSTERESIS = 1.1
#: Factor of what is uncertain about latencies by which a path in use must be slower to be left out: that varies with
#: each low sample, and one that is near to it must not come and go.
UNCERTAINTY_HYSTERESIS = 2.0
#: Seconds that may be uncertain about a difference at most; more is where latencies are not measured yet. Ways that
#: are the last choice (by drained switches, by links of lost ones) count as 10 s longer, so they are left anyway.
MAX_UNCERTAINTY = 2.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds for resequencing and for leaving out a path."""

    #: Above this MDI the far edge puts packets in order. [mpsdn] §IV-A2 found 0.15.
    resequence_mdi: float = 0.15
    #: Above this MDI a slower path is left out. [mpsdn] §IV-A2 found 0.4.
    leave_out_mdi: float = 0.4
    #: Seconds; at or below this, paths count as equal whatever MDI says: at 2 ms and 3 ms it is 0.1, and means
    #: nothing.
    tolerable_skew: float = 0.001
    #: Seconds; above this the far edge puts packets in order whatever MDI says: 200 ms and 230 ms have an MDI of
    #: 0.03, and 30 ms of packets arrive before the one that is next.
    resequence_skew: float = 0.010
    #: Seconds; above this a slower path is left out: a buffer that long is worse than one path. 25 ms and 225 ms are
    #: the paper's 0.4.
    leave_out_skew: float = 0.200

    def for_those_in_use(self) -> Thresholds:
        """Return thresholds that leave out paths later, so that one near a threshold does not flap."""
        return replace(
            self,
            leave_out_mdi=min(0.5, HYSTERESIS * self.leave_out_mdi),
            leave_out_skew=HYSTERESIS * self.leave_out_skew,
        )


class DeliveryOrder(Enum):
    """Delivery order at the far edge."""

    #: One path: order is kept.
    SINGLE = "single"
    #: Several paths of similar latency: packets are forwarded as they come.
    PLAIN = "plain"
    #: Several paths: the far edge puts packets in order.
    RESEQUENCE = "resequence"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A path that is not used, and the reason."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The paths that a pair uses, by latency, their delivery order, and its reason."""

    paths: tuple[Path, ...]
    order: DeliveryOrder
    reason: str
    mdi: float
    #: Seconds between the slowest and the quickest path.
    skew: float
    left_out: tuple[LeftOut, ...] = ()

    @property
    def capacity(self) -> float:
        """Capacity of all paths together, bit/s."""
        return sum(path.capacity for path in self.paths)


def imbalance(least: float, most: float) -> float:
    """Return MDI = d_max / (d_max + d_min) - 0.5, from 0 (equal) to 0.5 ([mpsdn] eq. 1). Two zeros are equal."""
    return 0.0 if most <= 0.0 else most / (most + least) - 0.5


def uncertain_difference(one: float, other: float) -> float:
    """Return what is uncertain about the difference of two latencies, seconds, by what is about each."""
    return min(one + other, MAX_UNCERTAINTY)


def against(path: Path, quickest: Path, limits: Thresholds, uncertain: float = 1.0) -> str | None:
    """Return the reason why a path cannot be used with the quickest one, or None if it can.

    One that is slower by no more than `uncertain` times what is uncertain about both may be as quick.
    """
    skew = path.latency - quickest.latency
    mdi = imbalance(quickest.latency, path.latency)
    if skew <= max(limits.tolerable_skew, uncertain * uncertain_difference(path.uncertainty, quickest.uncertainty)):
        return None
    if mdi > limits.leave_out_mdi:
        return f"delay imbalance {mdi:.2f} is above {limits.leave_out_mdi:g} (mdi)"
    if skew > limits.leave_out_skew:
        return f"{1e3 * skew:.1f} ms slower than the quickest, above {1e3 * limits.leave_out_skew:g} ms (skew)"
    return None


def select(paths: Sequence[Path], limits: Thresholds, *, uncertain: float = 1.0) -> Selection | None:
    """Choose the paths to use together; None if there are none. `uncertain` is that of `against`.

    Each path is tried as the quickest of a set. The set with the largest capacity wins, of equal ones the quickest;
    no set is chosen that carries less than its best single path.
    """
    ordered = sorted(paths, key=lambda path: (path.latency, -path.capacity, path.hops))
    best: Selection | None = None
    for number in range(len(ordered)):
        chosen = _set_of(ordered, number, limits, uncertain)
        # A slower set must carry clearly more than the quicker one.
        if best is None or chosen.capacity > 1.05 * best.capacity:
            best = chosen
    return best


def _set_of(ordered: Sequence[Path], first: int, limits: Thresholds, uncertain: float) -> Selection:
    quickest = ordered[first]
    left_out = [LeftOut(path, "a set of slower paths carries more (capacity)") for path in ordered[:first]]
    chosen = [quickest]
    for path in ordered[first + 1 :]:
        reason = against(path, quickest, limits, uncertain)
        if reason is None:
            chosen.append(path)
        else:
            left_out.append(LeftOut(path, reason))
    least, most = quickest.latency, chosen[-1].latency
    order, reason = _order(least, most, len(chosen), limits)
    return Selection(tuple(chosen), order, reason, imbalance(least, most), most - least, tuple(left_out))


def _order(least: float, most: float, count: int, limits: Thresholds) -> tuple[DeliveryOrder, str]:
    skew, mdi = most - least, imbalance(least, most)
    if count == 1:
        return DeliveryOrder.SINGLE, "one path"
    if skew <= limits.tolerable_skew:
        return (
            DeliveryOrder.PLAIN,
            f"{1e3 * skew:.1f} ms apart, at most {1e3 * limits.tolerable_skew:g} ms (tolerable)",
        )
    if mdi > limits.resequence_mdi:
        return DeliveryOrder.RESEQUENCE, f"delay imbalance {mdi:.2f} is above {limits.resequence_mdi:g} (mdi)"
    if skew > limits.resequence_skew:
        return (
            DeliveryOrder.RESEQUENCE,
            f"{1e3 * skew:.1f} ms apart, above {1e3 * limits.resequence_skew:g} ms (skew)",
        )
    return DeliveryOrder.PLAIN, f"delay imbalance {mdi:.2f}, {1e3 * skew:.1f} ms apart: within both bounds"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A resequencing buffer in full frames: [mpsdn] Algorithm 1's T and S."""

    #: Packets that may wait before all are released, despite gaps.
    threshold: int
    #: Capacity in packets.
    size: int


#: Packets of slack on top of those that wait because of the skew: one run of a splitter.
SLACK_PACKETS = 16


def buffer_for(selection: Selection) -> Buffer:
    """Return T and S for a set of paths.

    While the slowest path's packet is in flight, path j delivers c_j · (d_max - d_j): that much waits without loss. T
    is a quarter more plus slack, so that jitter releases nothing early; S is twice T.
    """
    slowest = max(path.latency for path in selection.paths)
    waiting = sum(path.capacity * (slowest - path.latency) for path in selection.paths) / (8 * FRAME_BYTES)
    threshold = math.ceil(1.25 * waiting) + SLACK_PACKETS
    return Buffer(threshold, 2 * threshold)
