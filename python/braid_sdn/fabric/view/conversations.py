"""Hosts elsewhere that each switch's hosts send to, in a network that is too large for every switch to know all.

A conversation begins with a request for an address, or with a packet that its switch has no rule for. It ends when
the counter of its rule has stood still for a host's lifetime, as audits show. Ending it is harmless: the next packet
is flooded, comes to the controller as well, and begins it anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from braid_sdn.fabric.view.hosts import HOST_LIFETIME


@dataclass(slots=True)
class _Use:
    """Use of one rule. Times are seconds."""

    heard: float
    #: The rule's counter at the last audit.
    packets: int = 0


@dataclass
class Conversations:
    """Targets of each switch, by their MACs."""

    lifetime: float = HOST_LIFETIME
    _uses: dict[int, dict[str, _Use]] = field(default_factory=dict)

    def begin(self, now: float, switch: int, mac: str) -> bool:
        """Take in that a host of a switch sends to another one; return true if none did so far."""
        uses = self._uses.setdefault(switch, {})
        known = uses.get(mac)
        if known is not None:
            known.heard = now
            return False
        uses[mac] = _Use(now)
        return True

    def handle_counters(self, now: float, switch: int, counters: Iterable[tuple[str, int]]) -> list[str]:
        """Take in the counters of a switch's rules by their targets; return the targets that are silent, and end."""
        uses = self._uses.get(switch, {})
        for mac, packets in counters:
            use = uses.get(mac)
            if use is not None and use.packets != packets:
                use.packets, use.heard = packets, now
        silent = [mac for mac, use in uses.items() if now - use.heard >= self.lifetime]
        for mac in silent:
            del uses[mac]
        return silent

    def forget(self, switch: int) -> list[str]:
        """Forget a switch that left; return its targets."""
        return list(self._uses.pop(switch, ()))

    def clear(self) -> None:
        """Forget all: every switch knows every host again."""
        self._uses.clear()
