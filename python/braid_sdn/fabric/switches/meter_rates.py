"""Rates of meters that switches were told of: which they have for sure, and which they refused.

A switch answers a change of a meter with nothing, or an error. So it counts as having the rate of before until it has
answered a barrier sent after the change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from braid_sdn.openflow.messages import SetMeter


@dataclass(frozen=True, slots=True)
class RefusedRate:
    """A rate that a switch refused to give a meter."""

    wanted: SetMeter
    reason: str


@dataclass
class MeterRates:
    """Changes of meters' rates, by switch and number."""

    #: The rates that a meter may have, the oldest first, of which the last one was told last; None for one that is
    #: not known, as that of a meter which another controller has made.
    _told: dict[int, dict[int, list[SetMeter | None]]] = field(default_factory=dict)
    #: Those that a switch refused, until it has another one that is wanted.
    refused: dict[int, dict[int, RefusedRate]] = field(default_factory=dict)

    def tell(self, switch: int, number: int, before: SetMeter | None, meter: SetMeter) -> None:
        """Take in that a meter is given another rate."""
        self._told.setdefault(switch, {}).setdefault(number, [before]).append(meter)

    def handle_refused(self, switch: int, meter: SetMeter, reason: str) -> bool:
        """Take in that a switch refused a rate; return true if it is one that it was told."""
        told = self._told.get(switch, {}).get(meter.number, [])
        of_these = [index for index, each in enumerate(told) if index and each == meter]
        if not of_these:
            return False
        del told[of_these[-1]]
        self.refused.setdefault(switch, {})[meter.number] = RefusedRate(meter, reason)
        return True

    def last(self, switch: int, number: int) -> SetMeter | None:
        """Return the rate that was told last and not refused."""
        return self._told[switch][number][-1]

    def get(self, switch: int, number: int, told: SetMeter | None) -> SetMeter | None:
        """Return the rate that a switch has, if it was told this one last; None if nobody knows."""
        return self._told.get(switch, {}).get(number, (told,))[0]

    def handle_confirmed(self, switch: int) -> None:
        """Take in that a switch has answered for all that it was told."""
        told = self._told.pop(switch, {})
        refused = self.refused.get(switch)
        if refused is None:
            return
        for number, rates in told.items():
            if len(rates) > 1:
                refused.pop(number, None)
        if not refused:
            del self.refused[switch]

    def keep(self, switch: int, wanted: Mapping[int, SetMeter], numbers: Collection[int]) -> None:
        """Forget all but these meters of a switch, of those that are wanted."""
        for known in (self._told, self.refused):
            of_switch = known.get(switch, {})
            for number in [each for each in of_switch if each not in numbers or each not in wanted]:
                del of_switch[number]
            if not of_switch:
                known.pop(switch, None)
