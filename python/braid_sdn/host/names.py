"""Names of remote addresses: rules by domain that they satisfy, and sites. The daemon learns them by DNS."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from braid_sdn.host.desired import Address

#: Most addresses; the daemon keeps as many. Beyond it those go whose time ends first.
MAX_NAMES = 4096


@dataclass(frozen=True, slots=True)
class Name:
    """Facts that follow from an address's names."""

    #: Marks of the rules that one of them satisfies.
    marks: int
    #: Number of the site, the same for all addresses of one; 0 is unknown.
    site: int
    #: Time from which on this is void.
    expires: float


class Names:
    """The names that are known."""

    def __init__(self) -> None:
        """Create it, without names."""
        self._known: dict[Address, Name] = {}
        #: Number of the daemon's that changes with the meaning of the marks.
        self._meaning: int | None = None

    def handle(
        self, now: float, meaning: int, told: Iterable[Mapping[str, Any]], forgotten: Iterable[str] = ()
    ) -> bool:
        """Take in the daemon's message; return True if the addresses of a rule have changed."""
        before = self._marked()
        if meaning != self._meaning:
            self._known.clear()
            self._meaning = meaning
        for address in forgotten:
            self._known.pop(ipaddress.ip_address(address), None)
        for each in told:
            name = Name(each["marks"], each["site"], now + each["life_ms"] / 1000)
            self._known[ipaddress.ip_address(each["address"])] = name
        if len(self._known) > MAX_NAMES:
            latest = sorted(self._known.items(), key=lambda item: item[1].expires)[-MAX_NAMES:]
            self._known = dict(latest)
        return before != self._marked()

    def find(self, now: float, remote: Address) -> Name | None:
        """Return what the names of an address say."""
        name = self._known.get(remote)
        return name if name is not None and now < name.expires else None

    def marks(self, now: float, remote: Address) -> int:
        """Return the marks of an address."""
        name = self.find(now, remote)
        return name.marks if name is not None else 0

    def addresses(self, mark: int, family: int) -> list[str]:
        """Return the addresses of an IP version that bear a mark, also those whose time has just ended."""
        return [str(each) for each, name in self._known.items() if name.marks & mark and each.version == family]

    def _marked(self) -> dict[Address, int]:
        return {address: name.marks for address, name in self._known.items() if name.marks}
