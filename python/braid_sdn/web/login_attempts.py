"""Limit of wrong tokens from one network."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Wrong tokens in a row that cost no wait.
FREE_FAILURES = 5
#: Seconds after which one more is free again.
FAILURE_INTERVAL = 10.0
#: Networks whose failures are remembered.
MAX_NETWORKS = 1024
#: Length of the prefix that an IPv6 host makes up its addresses in.
HOST_PREFIX = 64


@dataclass
class LoginAttempts:
    """Wrong tokens by the network that they came from: an IPv4 address or an IPv6 /64. Times are seconds."""

    #: When all failures of a network are forgiven.
    _forgiven: dict[Address, float] = field(default_factory=dict)

    def wait(self, source: Address, now: float) -> float:
        """Return the seconds until the next token from there is looked at; 0 if that is now."""
        owed = self._forgiven.get(network(source), now) - now
        return max(0.0, owed - FAILURE_INTERVAL * (FREE_FAILURES - 1))

    def note_failure(self, source: Address, now: float) -> None:
        """Record a wrong token."""
        self._forgiven = {place: at for place, at in self._forgiven.items() if at > now}
        place = network(source)
        if len(self._forgiven) >= MAX_NETWORKS and place not in self._forgiven:
            del self._forgiven[min(self._forgiven, key=self._forgiven.__getitem__)]
        self._forgiven[place] = self._forgiven.get(place, now) + FAILURE_INTERVAL

    def forget(self, source: Address) -> None:
        """Forgive a network: the right token came from there."""
        self._forgiven.pop(network(source), None)

    def __len__(self) -> int:
        return len(self._forgiven)


def canonical(address: Address) -> Address:
    """Return an IPv4 address for one that is written as IPv6."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def network(source: Address) -> Address:
    """Return what stands for a host's network."""
    place = canonical(source)
    if isinstance(place, ipaddress.IPv4Address):
        return place
    bits = ipaddress.IPV6LENGTH - HOST_PREFIX
    return ipaddress.IPv6Address(int(place) >> bits << bits)
