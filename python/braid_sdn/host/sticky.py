"""Sticky clients: a client keeps its uplink for a site, as with the daemon's other datapath (`bpf/select/sticky.h`).

The time counts from the client's last new flow there. Sites that have answered the client are apart from those that
have not: the latter keep the connections together that a browser opens at once, and limit what a flood evicts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from braid_sdn.host.desired import Address

#: Most entries of both kinds; the one that was unused longest gives way.
MAX_STICKY, MAX_EMBRYOS = 16384, 4096
#: Bits of a network that counts as one site, by IP version, where no name is known.
SITE_BITS = {4: 24, 6: 56}
#: Ports of FTP's control connection. For so many seconds a client keeps its uplink for its connections to the site's
#: ports from the last one on, which may be data of FTP in passive mode.
FTP_PORTS, FTP_SECONDS, FTP_DATA_PORT = (21, 990), 3600, 1024

#: Client, site (a number, or the first address of a network) and class.
SiteKey = tuple[Address, int | Address, int]


@dataclass(slots=True)
class Entry:
    """A client's uplink for a site, and the time of its last new flow there."""

    uplink: int
    used: float


def site_key(client: Address, remote: Address, named: int, class_number: int) -> SiteKey:
    """Return the key of a client's choice for a remote; `named` is the number of the site, 0 if it has no name."""
    if named:
        return client, named, class_number
    network = ipaddress.ip_network((remote, SITE_BITS[remote.version]), strict=False)
    return client, network.network_address, class_number


class StickyClients:
    """The choices that clients keep."""

    def __init__(self) -> None:
        """Create it, without any."""
        self._answered: dict[SiteKey, Entry] = {}
        self._embryos: dict[SiteKey, Entry] = {}
        #: Choices that the daemon has not been told.
        self._changed: set[SiteKey] = set()

    def find(self, now: float, key: SiteKey, seconds: int, takes: Callable[[int], bool]) -> int | None:
        """Return the uplink that a client keeps, if that takes the flow."""
        for table in (self._answered, self._embryos):
            entry = table.get(key)
            if entry is not None and now - entry.used < seconds and takes(entry.uplink):
                return entry.uplink
        return None

    def note(self, now: float, key: SiteKey, uplink: int) -> None:
        """Note the uplink of a new flow."""
        known = self._answered.get(key)
        if known is not None and known.uplink == uplink:
            self._put(self._answered, MAX_STICKY, key, Entry(uplink, now))
        else:
            self._put(self._embryos, MAX_EMBRYOS, key, Entry(uplink, now))

    def keep(self, now: float, key: SiteKey, uplink: int, seconds: int, takes: Callable[[int], bool]) -> None:
        """Keep the uplink of a flow that has been answered; an answered flow's earlier choice of another stays."""
        entry = self._answered.get(key)
        if entry is None or entry.uplink == uplink or now - entry.used >= seconds or not takes(entry.uplink):
            self._put(self._answered, MAX_STICKY, key, Entry(uplink, now))
        self._embryos.pop(key, None)

    def forget_embryo(self, key: SiteKey) -> None:
        """Forget a choice that was not answered."""
        if self._embryos.pop(key, None) is not None:
            self._changed.add(key)

    def _put(self, table: dict[SiteKey, Entry], bound: int, key: SiteKey, entry: Entry) -> None:
        table.pop(key, None)
        if len(table) >= bound:
            oldest = next(iter(table))
            del table[oldest]
            self._changed.add(oldest)
        table[key] = entry
        self._changed.add(key)

    # The daemon.

    def changes(self, now: float, *, all_of_it: bool) -> list[dict[str, Any]]:
        """Return the entries that have changed; those without an uplink are forgotten ones."""
        changed = {*self._answered, *self._embryos} if all_of_it else self._changed
        self._changed = set()
        told = []
        for key in changed:
            entry = self._answered.get(key) or self._embryos.get(key)
            used = {"uplink": None, "age_ms": 0}
            if entry is not None:
                used = {"uplink": entry.uplink, "age_ms": round(1000 * (now - entry.used))}
            told.append({**_key_report(key), **used})
        return told

    def restore(self, now: float, told: Iterable[Mapping[str, Any]]) -> None:
        """Take in what an earlier instance has told, where no choice was made meanwhile."""
        for each in sorted(told, key=lambda entry: -entry["age_ms"]):
            key = _key_in(each)
            if key not in self._answered and key not in self._embryos and each["uplink"] is not None:
                self._put(self._answered, MAX_STICKY, key, Entry(each["uplink"], now - each["age_ms"] / 1000))

    def forget(self, told: Iterable[Mapping[str, Any]]) -> None:
        """Forget entries."""
        for each in told:
            key = _key_in(each)
            self._answered.pop(key, None)
            self._embryos.pop(key, None)


def _key_report(key: SiteKey) -> dict[str, Any]:
    client, site, number = key
    return {"client": str(client), "site": site if isinstance(site, int) else str(site), "class": number}


def _key_in(told: Mapping[str, Any]) -> SiteKey:
    site = told["site"]
    return (
        ipaddress.ip_address(told["client"]),
        site if isinstance(site, int) else ipaddress.ip_address(site),
        told["class"],
    )
