"""What links carry and what they can: port counters of both ends, directions apart ([mpsdn] §III-A).

"The per-port available capacity is determined by subtracting the maximum capacity with the utilization from the last
period of observation"; there, a multipath flow's own traffic would drive it from its own path, so here what our own
paths carry is no use by others. What a link can carry is, in this order: what the configuration says; what saturation
shows (much more goes in than comes out); the slower port's speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from braid_sdn.openflow.messages import PortCounters

#: Seconds between two looks at the counters.
COUNTER_PERIOD = 2.0

#: Where nobody knows better: a link of 1 Gbit/s.
UNKNOWN_CAPACITY = 1e9

#: A link that lost more than this share of what was sent into it is full, if it did so twice in a row…
SATURATED_LOSS = 0.10
#: … while at least this much came out, bit/s: on an idle link a lost packet says nothing.
SATURATED_MIN_BIT_S = 0.5e6
#: Seconds for which saturation is believed: capacity may come back, and nothing but trying shows it.
SATURATION_LIFETIME = 60.0


@dataclass(frozen=True, slots=True)
class PortRates:
    """bit/s, over the last period, as the switch counted."""

    received: float
    sent: float


def rates(before: PortCounters, after: PortCounters) -> PortRates | None:
    """Return what a port carried between two looks; None if its counters began anew or no time passed."""
    seconds = after.age - before.age
    received = after.rx_bytes - before.rx_bytes
    sent = after.tx_bytes - before.tx_bytes
    if seconds <= 0 or received < 0 or sent < 0:
        return None
    return PortRates(8 * received / seconds, 8 * sent / seconds)


@dataclass(frozen=True, slots=True)
class Saturation:
    """What one direction of a link showed of its limit; a new one for every period."""

    #: bit/s that came out while it lost much; None while nothing is known.
    limit: float | None = None
    #: When `limit` was last seen, seconds.
    seen: float = 0.0
    #: Whether the period before lost much too.
    losing: bool = False


def observe(state: Saturation, now: float, sent: float, received: float) -> Saturation:
    """Take one period of a link in: bit/s that went in at one end and came out at the other."""
    limit = state.limit
    if limit is not None and (now - state.seen > SATURATION_LIFETIME or received > 1.05 * limit):
        # It was long ago, or the link has just carried more.
        limit = None
    losing = received >= SATURATED_MIN_BIT_S and received < (1 - SATURATED_LOSS) * sent
    if losing and state.losing:
        return Saturation(max(received, limit or 0.0), now, losing)
    return Saturation(limit, state.seen, losing)


def capacity(configured: float | None, limit: float | None, *speeds: float) -> float:
    """Return what a link can carry, bit/s, by whoever knows best. A speed of 0 is not known."""
    if configured is not None:
        return configured
    known = min((speed for speed in speeds if speed > 0), default=UNKNOWN_CAPACITY)
    return min(limit, known) if limit is not None else known
