"""Load and capacity of links by the port counters of both ends, for each direction ([mpsdn] §III-A).

"The per-port available capacity is determined by subtracting the maximum capacity with the utilization from the last
period of observation"; with that, a multipath flow's own traffic would drive it from its path, so here the traffic of
our own paths does not count as load. The capacity of a link is, in this order: the configured one; the rate seen at
saturation (much more enters than leaves); the slower port's speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from braid_sdn.openflow.messages import PortCounters

#: Seconds between two readings of the counters.
COUNTER_PERIOD = 2.0

#: Assumed capacity of a link of unknown speed: 1 Gbit/s.
UNKNOWN_CAPACITY = 1e9

#: A link that loses more than this share twice in a row is full…
SATURATED_LOSS = 0.10
#: … if at least this much leaves it, bit/s: on an idle link a lost packet proves nothing.
SATURATED_MIN_BIT_S = 0.5e6
#: Seconds for which a saturation limit holds: capacity may return, and only trying shows it.
SATURATION_LIFETIME = 60.0


@dataclass(frozen=True, slots=True)
class PortRates:
    """Rates of a port over the last period, bit/s, by the switch's counters."""

    received: float
    sent: float
    #: Length of that period, seconds.
    seconds: float


def rates(before: PortCounters, after: PortCounters) -> PortRates | None:
    """Return a port's rates between two readings; None if its counters were reset or no time passed."""
    seconds = after.age - before.age
    received = after.rx_bytes - before.rx_bytes
    sent = after.tx_bytes - before.tx_bytes
    if seconds <= 0 or received < 0 or sent < 0:
        return None
    return PortRates(8 * received / seconds, 8 * sent / seconds, seconds)


@dataclass(frozen=True, slots=True)
class Saturation:
    """Saturation limit of one direction of a link, after a period."""

    #: bit/s that left it while it lost much; None if unknown.
    limit: float | None = None
    #: When `limit` was last seen, seconds.
    seen: float = 0.0
    #: True if the last period had much loss.
    losing: bool = False


def observe(state: Saturation, now: float, sent: float, received: float) -> Saturation:
    """Take in a period of a link: bit/s that entered at one end and left at the other."""
    limit = state.limit
    if limit is not None and (now - state.seen > SATURATION_LIFETIME or received > 1.05 * limit):
        # The limit is old, or the link has just carried more.
        limit = None
    losing = received >= SATURATED_MIN_BIT_S and received < (1 - SATURATED_LOSS) * sent
    if losing and state.losing:
        return Saturation(max(received, limit or 0.0), now, losing)
    return Saturation(limit, state.seen, losing)


def capacity(configured: float | None, limit: float | None, *speeds: float) -> float:
    """Return a link's capacity, bit/s, by the best source. A speed of 0 is unknown."""
    if configured is not None:
        return configured
    known = min((speed for speed in speeds if speed > 0), default=UNKNOWN_CAPACITY)
    return min(limit, known) if limit is not None else known
