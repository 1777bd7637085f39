"""When to ask a switch which rules it has: when it connects, and from time to time; and when to renew its leases.

The rules themselves are the memory: a controller that starts anew goes on from what switches list, and a switch that
started anew lists nothing and is given all of it. Either is the same comparison (`change`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from braid_sdn.fabric.switches.rules import ARP_LEASE
from braid_sdn.openflow.messages import FlowStatsRequest

#: Seconds between two audits of one switch.
AUDIT_INTERVAL = 30.0
#: Seconds after which an answer is not waited for any more.
REPLY_TIMEOUT = 5.0
#: Seconds between two renewals of a lease.
LEASE_RENEWAL = ARP_LEASE / 3


@dataclass
class Audit:
    """Who is due. Times are seconds."""

    _due: dict[int, float] = field(default_factory=dict)
    #: How many changes there had been when each switch was asked.
    _asked: dict[int, int] = field(default_factory=dict)
    _renew: dict[int, float] = field(default_factory=dict)

    def ask(self, now: float, switch: int, changes: int) -> FlowStatsRequest:
        """Return the question for a switch."""
        self._asked[switch] = changes
        self._due[switch] = now + REPLY_TIMEOUT
        return FlowStatsRequest()

    def soon(self, now: float, switch: int) -> None:
        """A switch seems to have other rules than it should."""
        self._due[switch] = min(now, self._due.get(switch, now))

    def answered(self, now: float, switch: int, changes: int, *, known: bool) -> bool:
        """A switch listed its rules; whether the list holds: not if we changed rules while it was on its way."""
        asked = self._asked.pop(switch, None)
        holds = not known or asked == changes
        self._due[switch] = now + (AUDIT_INTERVAL if holds else LEASE_RENEWAL)
        return holds

    def due(self, now: float, *, idle: bool) -> list[int]:
        """Return the switches to ask now; none while rules are being changed."""
        return [switch for switch, at in self._due.items() if at <= now] if idle else []

    def plan(self, now: float, switches: Iterable[int]) -> None:
        """There is a plan: these switches get leases from now on."""
        for switch in switches:
            self._renew.setdefault(switch, now)

    def renewals(self, now: float) -> list[int]:
        """Return the switches whose leases are to be renewed now."""
        due = [switch for switch, at in self._renew.items() if at <= now]
        for switch in due:
            self._renew[switch] = now + LEASE_RENEWAL
        return due

    def forget(self, switch: int) -> None:
        """A switch's connection ended."""
        for each in (self._due, self._asked, self._renew):
            each.pop(switch, None)

    def poll_timeout(self, *, idle: bool) -> float | None:
        """Return when somebody is due."""
        audits = self._due.values() if idle else ()
        return min([*audits, *self._renew.values()], default=None)
