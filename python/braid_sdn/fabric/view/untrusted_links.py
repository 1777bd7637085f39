"""Discovery frames between ports that make no link, where tenants are kept apart.

Whoever gets such a frame can hand it to a host at another port. A link between these two would let both send packets
under any tag. So with tenants the configuration says where links are, and a port of a tenant never is one. A port
that hears a frame of another one all the same gets no broadcasts: a cable may lead back from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId, Problem

#: Pairs of ports that are remembered.
MAX_UNTRUSTED = 1024
#: Seconds for which they are named after the last frame.
RETENTION = 60.0


@dataclass
class UntrustedLinks:
    """Pairs of ports, with the last time and the tenants that list an end of them."""

    _seen: dict[tuple[PortId, PortId], tuple[float, frozenset[PortId]]] = field(default_factory=dict)

    def handle(self, now: float, source: PortId, arrived: PortId, listed: frozenset[PortId]) -> bool:
        """Take in a frame from one port that arrived at another; return true if the latter heard none lately."""
        is_new = arrived not in self.ports(now)
        self._seen.pop((source, arrived), None)
        self._seen[source, arrived] = now, listed
        if len(self._seen) > MAX_UNTRUSTED:
            del self._seen[next(iter(self._seen))]
        return is_new

    def ports(self, now: float) -> set[PortId]:
        """Return the ports that heard another one lately."""
        return {arrived for (_, arrived), (at, _) in self._seen.items() if now - at < RETENTION}

    def problems(self, now: float, port_name: Callable[[PortId], str]) -> list[Problem]:
        """Return what is plugged where no link may be."""
        found = []
        for (source, arrived), (at, listed) in sorted(self._seen.items()):
            if now - at >= RETENTION:
                continue
            both = f"{port_name(source)} → {port_name(arrived)}"
            if listed:
                names = " and ".join(port_name(each) for each in sorted(listed))
                text = f"a discovery frame came this way, and {names} is listed in a tenant: never a link, and "
                text += "without broadcasts meanwhile; unplug the cable, or see which host hands frames on"
                found.append(Problem("tenant-link", both, text))
            else:
                text = (
                    "is used as no link, since no [[link]] lists both ports; if it is a cable between the switches, "
                )
                text += f'write [[link]] between = ["{port_name(source)}", "{port_name(arrived)}"]'
                found.append(Problem("link-not-listed", both, text))
        return found
