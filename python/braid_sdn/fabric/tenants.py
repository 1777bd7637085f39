"""Tenants: groups of ports between which no packet passes, and the VIDs of each one's packets between switches.

The configuration alone says which VID is whose. So any controller of a cluster, one that starts anew, and a switch
that was away mean the same by a rule, for as long as that part of the configuration stays. Rules by which packets
cross the network have its digest. The first VID of a tenant's range is its number: in metadata, and in what the
planner makes. Ports that no tenant lists are the default tenant's, whose number is that of VID 1: nobody's tag.

Pure: names of ports in, numbers out.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

#: VIDs that may be path tags; 0 and 4095 are reserved, 1 is many switches' default VLAN.
TAGS = range(2, 4095)

#: Number where no tenants are configured, and of ports that are nobody's: nothing is delivered there.
NOBODY = 0
#: Number of the default tenant.
DEFAULT = 1

#: Bits of a datapath id and of metadata below a tenant's number.
DPID_BITS = 48
#: The fewest VIDs of a tenant: its flood, the flood that replaces that, and a tree.
MIN_TAGS = 8
#: Bits of a VID.
_VID_BITS = 12
#: Bits of a digest: with a tag they are the lower half of a rule's cookie.
DIGEST_BITS = 20

#: VIDs by which hosts at a trunk may say whose their frames are.
TRUNK_VIDS = range(1, 4095)

#: A switch as the controller names it, and a port's name or number there.
PortName = tuple[str, str]


@dataclass(frozen=True)
class Tenant:
    """A tenant of the configuration."""

    name: str
    #: First and last VID.
    first: int
    last: int
    ports: tuple[PortName, ...] = ()
    #: Ports of several tenants, with the VID of this one's frames there.
    trunks: tuple[tuple[PortName, int], ...] = ()

    @property
    def number(self) -> int:
        """The tenant's number."""
        return self.first

    @property
    def places(self) -> tuple[PortName, ...]:
        """Its ports, and the trunks that it shares."""
        return (*self.ports, *(place for place, _ in self.trunks))


@dataclass(frozen=True)
class Tenants:
    """All tenants of the configuration; false if there are none."""

    listed: tuple[Tenant, ...] = ()
    #: Both ports of each link that the configuration lists by its ports.
    links: frozenset[frozenset[PortName]] = frozenset()
    #: True if discovery alone makes a link, whether it is listed or not.
    discovers_links: bool = False

    def __bool__(self) -> bool:
        """Return true if ports are kept apart."""
        return bool(self.listed)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of all tenants, the default one first."""
        return (DEFAULT, *(each.number for each in self.listed)) if self.listed else (NOBODY,)

    @cached_property
    def _by_tag(self) -> list[int]:
        made = [DEFAULT if self.listed and vid in TAGS else NOBODY for vid in range(1 << _VID_BITS)]
        for each in self.listed:
            made[each.first : each.last + 1] = [each.number] * (each.last + 1 - each.first)
        return made

    @cached_property
    def _by_place(self) -> dict[PortName, int]:
        return {place: each.number for each in self.listed for place in each.ports}

    @cached_property
    def _by_trunk(self) -> dict[PortName, dict[int, int]]:
        made: dict[PortName, dict[int, int]] = {}
        for each in self.listed:
            for place, vid in each.trunks:
                made.setdefault(place, {})[vid] = each.number
        return made

    @cached_property
    def _link_ports(self) -> frozenset[PortName]:
        return frozenset(end for both in self.links for end in both)

    def digest(self, switches: Mapping[int, str]) -> int:
        """Return a number by which rules of this configuration, and of these names of switches, are known.

        0 where there are no tenants. Two configurations have the same one by an accident of 1 in a million.
        """
        if not self.listed:
            return 0
        ranges = sorted((each.first, each.last, sorted(each.ports), sorted(each.trunks)) for each in self.listed)
        links = sorted(sorted(both) for both in self.links)
        told = repr((ranges, links, self.discovers_links, sorted(switches.items())))
        number = int.from_bytes(hashlib.sha256(told.encode()).digest(), "big")
        return 1 + number % ((1 << DIGEST_BITS) - 1)

    def of_tag(self, vid: int) -> int:
        """Return the tenant of a VID."""
        return self._by_tag[vid]

    def tags(self, number: int) -> Sequence[int]:
        """Return a tenant's VIDs."""
        found = next(((each.first, each.last) for each in self.listed if each.number == number), None)
        if found is not None:
            return range(found[0], found[1] + 1)
        return self._default_tags if self.listed else TAGS

    @cached_property
    def _default_tags(self) -> tuple[int, ...]:
        return tuple(vid for vid in TAGS if self._by_tag[vid] == DEFAULT)

    def masks(self, number: int) -> list[int | tuple[int, int]]:
        """Return the matches, a VID or one with a mask, that have a tenant's VIDs among them."""
        return [each for run in runs(self.tags(number)) for each in _masks(*run)]

    def name(self, number: int) -> str:
        """Return a tenant's name for people."""
        return next((each.name for each in self.listed if each.number == number), "default")

    def called(self, name: str) -> int | None:
        """Return the number of the tenant with this name."""
        if name == "default":
            return DEFAULT
        return next((each.number for each in self.listed if each.name == name), None)

    def at(self, switch: str, name: str, port: int, vid: int = 0) -> int:
        """Return the tenant of a port by its name and its number; nobody's if they say different things.

        Of a trunk that of frames under a VID: those without any are nobody's.
        """
        if not self.listed:
            return NOBODY
        words = places(switch, name, port)
        if any(word in self._link_ports for word in words):
            return NOBODY
        if vid or any(word in self._by_trunk for word in words):
            return self.trunk(switch, name, port).get(vid, NOBODY)
        found = {self._by_place[word] for word in words if word in self._by_place}
        if len(found) > 1:
            return NOBODY
        return found.pop() if found else DEFAULT

    def is_listed(self, switch: str, name: str, port: int) -> bool:
        """Return true if a tenant lists a port: that is never an end of a link."""
        words = places(switch, name, port)
        return any(word in self._by_place or word in self._by_trunk for word in words)

    def trunk(self, switch: str, name: str, port: int) -> dict[int, int]:
        """Return the tenants at a trunk by their VIDs; none if it is no trunk, or its name and number differ."""
        words = places(switch, name, port)
        found = [self._by_trunk[word] for word in dict.fromkeys(words) if word in self._by_trunk]
        if len(found) != 1 or any(word in self._by_place or word in self._link_ports for word in words):
            return {}
        return found[0]

    def is_end(self, switch: str, name: str, port: int) -> bool:
        """Return true if a port is an end of a listed link."""
        return any(word in self._link_ports for word in places(switch, name, port))

    def has_link(self, one: Iterable[PortName], other: Iterable[PortName]) -> bool:
        """Return true if there may be a link between two ports, of each of which the places are given."""
        others = list(other)
        return self.discovers_links or any(frozenset((a, b)) in self.links for a in one for b in others)


def places(switch: str, name: str, port: int) -> tuple[PortName, PortName]:
    """Return the words by which the configuration may mean a port: with its name, and with its number."""
    return (switch, name), (switch, str(port))


def metadata_of(number: int) -> int | None:
    """Return the metadata of a tenant's packets; None where there are no tenants."""
    return number << DPID_BITS if number else None


#: The bits of metadata that are a tenant's number.
METADATA_MASK = 0xFFFF << DPID_BITS


def runs(vids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of successive VIDs."""
    for _, numbered in itertools.groupby(enumerate(vids), key=lambda each: each[1] - each[0]):
        run = [vid for _, vid in numbered]
        yield run[0], run[-1]


def _masks(low: int, last: int) -> Iterator[int | tuple[int, int]]:
    whole = 1 << _VID_BITS
    while low <= last:
        size = low & -low or whole
        while low + size - 1 > last:
            size //= 2
        yield low if size == 1 else (low, whole - size)
        low += size
