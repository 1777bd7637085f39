"""Schedules audits of switches' rules (after they connect, and periodically) and renewals of leases.

The rules themselves are the persistent state: a restarted controller continues from the rules that switches list, and
a restarted switch lists none and gets all. Both are the same comparison (`updater`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from braid_sdn.fabric.switches.rules import ARP_LEASE
from braid_sdn.openflow.messages import FlowStatsRequest

#: Seconds between two audits of one switch.
AUDIT_INTERVAL = 30.0
#: Seconds to wait for a reply.
REPLY_TIMEOUT = 5.0
#: Switches that are audited at a time: a list of thousands of rules keeps the controller busy for a while.
MAX_AUDITS_AT_ONCE = 2
#: Seconds between two renewals of a lease.
LEASE_RENEWAL = ARP_LEASE / 3


@dataclass
class Audit:
    """Switches that are due for an audit or a renewal. Times are seconds."""

    interval: float = AUDIT_INTERVAL
    _due: dict[int, float] = field(default_factory=dict)
    #: Number of rule updates when each switch was asked.
    _asked: dict[int, int] = field(default_factory=dict)
    #: Switches whose replies are waited for; each is due again at the end of that.
    _under_way: set[int] = field(default_factory=set)
    _renew: dict[int, float] = field(default_factory=dict)

    def ask(self, now: float, switch: int, changes: int) -> FlowStatsRequest:
        """Return the request to a switch."""
        self._asked[switch] = changes
        self._under_way.add(switch)
        self._due[switch] = now + REPLY_TIMEOUT
        return FlowStatsRequest()

    def soon(self, now: float, switch: int) -> None:
        """Audit a switch soon: it seems to have wrong rules."""
        self._due[switch] = min(now, self._due.get(switch, now))

    def answered(self, now: float, switch: int, changes: int, *, known: bool) -> bool:
        """Take in that a switch listed its rules; false if the list is stale, as rules changed meanwhile."""
        asked = self._asked.pop(switch, None)
        self._under_way.discard(switch)
        holds = not known or asked == changes
        self._due[switch] = now + (self.interval if holds else LEASE_RENEWAL)
        return holds

    def due(self, now: float, *, idle: bool) -> list[int]:
        """Return the switches to ask now; none while rules are being changed."""
        if not idle:
            return []
        # Those that did not answer stand behind all others.
        due = sorted((switch for switch, at in self._due.items() if at <= now), key=self._due.__getitem__)
        self._under_way.difference_update(due)
        return due[: max(0, MAX_AUDITS_AT_ONCE - len(self._under_way))]

    def plan(self, now: float, switches: Iterable[int]) -> None:
        """Renew leases of these switches from now on."""
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
        self._under_way.discard(switch)
        for each in (self._due, self._asked, self._renew):
            each.pop(switch, None)

    def poll_timeout(self, *, idle: bool) -> float | None:
        """Return when the next switch is due."""
        # With all places taken, the next one follows an answer, or the end of the wait for it.
        is_full = len(self._under_way) >= MAX_AUDITS_AT_ONCE
        waiting = self._under_way if is_full else self._due
        audits = [self._due[switch] for switch in waiting] if idle else ()
        return min([*audits, *self._renew.values()], default=None)
