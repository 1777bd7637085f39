"""Forecast of a transfer's time over an uplink, by which the policy `fastest` chooses: docs/race.md.

The arithmetic of `braid_core::forecast`, in whole numbers and to the last digit: `braid explain` computes it there.
Times are microseconds, rates kilobytes (1000 bytes) a second, losses millionths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: Round trips of a transfer before it goes at its rate.
STARTUP_ROUNDS = 6
#: Sizes of the long transfer and of the short one, bytes / 1000.
LONG_KB, SHORT_KB = 1000, 100
#: Least loss assumed.
MIN_LOSS = 10
#: An uplink is full if flows move data and less than its capacity divided by this is spare.
FULL_DIVISOR = 4
#: Scores that exceed the best one by less than this part of it are equal to it.
EQUAL_DIVISOR = 16
#: Capacity of an uplink for which none is known.
DEFAULT_CAPACITY = 1000
#: Bounds of round trips, and the one at which uplinks are compared.
MIN_RTT, MAX_RTT, REFERENCE_RTT = 100, 2_000_000, 50_000
#: An uplink that takes this much longer than the best one takes no part in a race.
MAX_RACE_RATIO = 2
#: (MSS · √1.5)² for an MSS of 1460 bytes, in the units here.
_MATHIS = 3_200_000_000_000_000_000
_MILLION = 1_000_000


@dataclass(slots=True)
class Forecast:
    """Load of an uplink as the daemon knows it, and what has begun since."""

    capacity: int = 0
    spare: int = 0
    #: Flows that move much data.
    busy: int = 0
    loss: int = 0
    #: Flows opened since; older ones count half.
    opened: int = 0
    #: Flows that have moved much data since.
    active: int = 0
    #: Order in which uplinks were last given a flow: the last one has the highest.
    last_opened: int = 0

    @property
    def headroom(self) -> int:
        """Return the rate that one more flow finds: the spare rate or a fair share, whichever is more."""
        capacity, spare = (self.capacity, self.spare) if self.capacity else (DEFAULT_CAPACITY, DEFAULT_CAPACITY)
        return max(spare // (self.opened + 1), capacity // (self.busy + self.opened + 1), 1)

    def score(self, rtt: int) -> int:
        """Return the product of a short and a long transfer's times; the smallest is best."""
        rtt = self._loaded(rtt)
        return _product(rtt, self._time(rtt, max(self.loss, MIN_LOSS)))

    def lossless_score(self, rtt: int) -> int:
        """Return the score at this round trip without loss."""
        rtt = _clamped(self._loaded(rtt))
        return _product(rtt, STARTUP_ROUNDS * rtt + LONG_KB * _MILLION // self.headroom)

    def reference_time(self) -> int:
        """Return the time of a long transfer to a destination without a known path."""
        return self._time(self._loaded(REFERENCE_RTT), max(self.loss, MIN_LOSS))

    def _loaded(self, rtt: int) -> int:
        rtt = _clamped(rtt)
        full = self.busy and self.spare < self.capacity // FULL_DIVISOR
        return 2 * rtt if full else rtt

    def _time(self, rtt: int, loss: int) -> int:
        rtt = _clamped(rtt)
        mathis = math.isqrt(_MATHIS // (rtt * rtt * loss))
        rate = max(1, min(mathis, self.headroom))
        return STARTUP_ROUNDS * rtt + LONG_KB * _MILLION // rate


def in_turn(scores: Mapping[int, int], last_opened: Callable[[int], int]) -> int | None:
    """Return the uplink whose score is the smallest or nearly so and that has waited longest for a new flow."""
    if not scores:
        return None
    bound = min(scores.values()) * (EQUAL_DIVISOR + 1) // EQUAL_DIVISOR
    equals = [number for number, score in scores.items() if score <= bound]
    return min(equals, key=lambda number: (last_opened(number), number))


def _clamped(rtt: int) -> int:
    return min(max(rtt, MIN_RTT), MAX_RTT)


def _product(rtt: int, time: int) -> int:
    rounds = STARTUP_ROUNDS * _clamped(rtt)
    return (rounds + (time - rounds) * SHORT_KB // LONG_KB) * time
