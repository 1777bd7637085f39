"""Floods that switches drop above the limit of a port, by the counters of its meters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.problems import RETENTION
from braid_sdn.openflow.messages import MeterCounters

#: A meter that is younger than this, seconds, when its counters are first read, has dropped all of it since it was
#: created; one that is older has in part before this controller began.
YOUNG = 10.0

#: Readings in a row in which a meter has dropped packets before its place is named: a burst when a host starts, or a
#: single packet too many, is no storm.
MIN_READINGS = 2

#: A port, and at a trunk a tenant there.
Place = tuple[PortId, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """A meter's counters when they were read last."""

    place: Place
    dropped: int
    at: float
    #: Packets that it dropped a second, in the period that ended then.
    rate: float
    #: Periods in a row in which it dropped any.
    count: int


@dataclass
class FloodDrops:
    """Packets that meters dropped. Times are seconds."""

    #: In all, by place.
    total: dict[Place, int] = field(default_factory=dict)
    #: By switch and number of the meter.
    _read: dict[int, dict[int, Reading]] = field(default_factory=dict)
    #: The last reading of each meter that ended so many periods in a row with dropped packets, by switch and number.
    _storms: dict[int, dict[int, Reading]] = field(default_factory=dict)

    def handle_counters(self, now: float, place: Place, counters: MeterCounters) -> float:
        """Take in a meter's counters; return how many packets a second it has dropped since the last ones."""
        of_switch = self._read.setdefault(place[0].switch, {})
        before = of_switch.get(counters.number)
        if before is not None:
            dropped, at = before.dropped, before.at
        else:
            dropped, at = 0 if counters.age < YOUNG else counters.dropped, now - counters.age
        # A meter that was created anew, or got another rate, begins at 0.
        fresh = counters.dropped - dropped if counters.dropped >= dropped else counters.dropped
        if fresh:
            self.total[place] = self.total.get(place, 0) + fresh
        rate = fresh / (now - at) if now > at else 0.0
        # A meter's number may become that of another place.
        in_a_row = before.count if before is not None and before.place == place else 0
        count = in_a_row + 1 if fresh else 0
        reading = of_switch[counters.number] = Reading(place, counters.dropped, now, rate, count)
        if count >= MIN_READINGS:
            self._storms.setdefault(place[0].switch, {})[counters.number] = reading
        return rate

    def storms(self, now: float) -> dict[int, dict[int, Reading]]:
        """Return the meters that dropped repeatedly lately, by switch and number."""
        for switch, known in list(self._storms.items()):
            kept = {number: each for number, each in known.items() if now - each.at < RETENTION}
            if kept:
                self._storms[switch] = kept
            else:
                del self._storms[switch]
        return self._storms

    def rate(self, place: Place) -> float:
        """Return how many packets a second were dropped at a place in the last period."""
        return sum(each.rate for each in self._read.get(place[0].switch, {}).values() if each.place == place)

    def keep(self, switch: int, numbers: Collection[int]) -> None:
        """Forget all but these meters of a switch."""
        known = self._read.get(switch, {})
        self._read[switch] = {number: each for number, each in known.items() if number in numbers}
        if switch in self._storms:
            storms = self._storms[switch].items()
            self._storms[switch] = {number: each for number, each in storms if number in numbers}
