"""An access control list: which packets of hosts the fabric carries. The first entry that matches a packet decides.

A list is decided packet by packet, each direction by itself: it knows no connections.

Neighbour packets (ARP, and the solicitations and advertisements of IPv6) are decided by entries about frames alone:
those that name a MAC address or a place, and neither an IP address, a protocol nor a port. Otherwise an entry that
refuses a protocol, or the default, would keep hosts from finding the ones that they may talk to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_address

Network = IPv4Network | IPv6Network
#: First and last one.
Ports = tuple[int, int]

#: Entries of a list at most.
MAX_ENTRIES = 1000


class Action(StrEnum):
    """Decision on a packet."""

    PERMIT = "permit"
    DENY = "deny"


class Protocol(StrEnum):
    """Protocol within IPv4 or IPv6; ICMP is that of each."""

    ANY = "any"
    TCP = "tcp"
    UDP = "udp"
    ICMP = "icmp"


@dataclass(frozen=True, slots=True)
class Place:
    """An edge, a switch with all of its hosts, or one port of a switch, by their names in the configuration."""

    edge: str = ""
    switch: str = ""
    port: str = ""

    def __str__(self) -> str:
        return self.edge or ":".join(filter(None, (self.switch, self.port)))


@dataclass(frozen=True, slots=True)
class End:
    """Senders or receivers of packets: all of what is given holds."""

    network: Network | None = None
    mac: str | None = None
    place: Place | None = None

    def __str__(self) -> str:
        network = self.network
        if network is not None and network.prefixlen == network.max_prefixlen:
            return str(network.network_address)
        return str(network or self.mac or self.place or "any")


ANYBODY = End()


@dataclass(frozen=True, slots=True)
class AclEntry:
    """One entry of a list."""

    action: Action
    source: End = ANYBODY
    target: End = ANYBODY
    protocol: Protocol = Protocol.ANY
    #: Ports of the target, and of the source; None is any.
    ports: Ports | None = None
    source_ports: Ports | None = None
    #: Name for people, if it has one.
    name: str = ""

    @property
    def reads_ip(self) -> bool:
        """True if it matches packets of IPv4 or IPv6 alone."""
        networks = (self.source.network, self.target.network)
        return self.protocol is not Protocol.ANY or any(each is not None for each in networks)

    @property
    def decides_neighbours(self) -> bool:
        """True if it is about frames, whatever is in them, so that it decides ARP and neighbour discovery too."""
        return not self.reads_ip and (self.source, self.target) != (ANYBODY, ANYBODY)

    @property
    def families(self) -> tuple[int, ...]:
        """Versions of IP that it matches; none for an entry about frames."""
        versions = {each.version for each in (self.source.network, self.target.network) if each is not None}
        return tuple(sorted(versions)) or ((4, 6) if self.reads_ip else ())

    def concerns(self) -> str:
        """Return the protocol and ports that it is about, for people; empty if it is about all packets."""
        if self.protocol is Protocol.ANY:
            return ""
        words = [self.protocol.value]
        if self.source_ports is not None:
            words.append(f"from port {ports_text(self.source_ports)}")
        if self.ports is not None:
            words.append(f"to port {ports_text(self.ports)}")
        return " ".join(words)

    def __str__(self) -> str:
        at = f" at {self.source.place}" if self.source.place and (self.source.network or self.source.mac) else ""
        return " ".join(
            filter(None, (self.action, self.concerns(), f"from {self.source}{at} to {self.target}", ""))
        ).strip()


@dataclass(frozen=True)
class Acl:
    """A list, in its order."""

    entries: tuple[AclEntry, ...] = ()
    default: Action = Action.PERMIT

    @property
    def permits_all(self) -> bool:
        """True if it refuses nothing, so that switches need no rules for it."""
        return not self.entries and self.default is Action.PERMIT

    @property
    def reads_ip(self) -> bool:
        """True if it cannot decide a packet without its IP header."""
        return any(entry.reads_ip for entry in self.entries) or self.default is Action.DENY

    def places(self) -> set[Place]:
        """Return all places that it names."""
        both = [place for each in self.entries for place in (each.source.place, each.target.place)]
        return {place for place in both if place is not None}

    def called(self, number: int) -> str:
        """Return an entry's name for people, by its number from 1; 0 is the default."""
        if not number:
            return "the default"
        name = self.entries[number - 1].name
        return f"entry {number} ({name})" if name else f"entry {number}"


def ports_text(ports: Ports) -> str:
    """Return ports as a configuration has them."""
    return str(ports[0]) if ports[0] == ports[1] else f"{ports[0]}-{ports[1]}"


# The decision on hosts, for an explanation.


@dataclass(frozen=True)
class HostEnd:
    """A host, as far as known."""

    mac: str | None = None
    addresses: frozenset[str] = frozenset()
    #: Its edge, switch and port, as they may be named.
    places: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class Finding:
    """An entry that decides packets between two hosts; the default has number 0."""

    number: int
    action: Action
    #: Packets that it decides, of those that no entry before it does; empty: all.
    concerns: str = ""


def explained(acl: Acl, source: HostEnd, target: HostEnd) -> list[Finding]:
    """Return the entries that decide packets from one host to another, in their order, as far as one decides all."""
    found = []
    for number, entry in enumerate(acl.entries, 1):
        if not (_is_end(entry.source, source) and _is_end(entry.target, target)):
            continue
        limits = [entry.concerns()]
        for end, host, word in ((entry.source, source, "from"), (entry.target, target, "to")):
            if end.network is not None and not _covers(end.network, host.addresses):
                limits.append(f"{word} {end}")
        concerns = " ".join(filter(None, limits))
        if not concerns and entry.families and len(entry.families) == 1:
            concerns = _family_limit(entry.families[0], source, target)
        found.append(Finding(number, entry.action, concerns))
        if not concerns:
            return found
    return [*found, Finding(0, acl.default)]


def _family_limit(version: int, *hosts: HostEnd) -> str:
    versions = {ip_address(address).version for host in hosts for address in host.addresses}
    return "" if versions <= {version} else f"IPv{version}"


class KnownHosts:
    """Hosts by what an entry may name, so that a long list is quickly compared with many of them."""

    def __init__(self, hosts: Iterable[HostEnd]) -> None:
        """Keep these hosts."""
        self._hosts = list(hosts)
        addresses = [ip_address(each) for host in self._hosts for each in host.addresses]
        self._addresses = {
            version: sorted(int(each) for each in addresses if each.version == version) for version in (4, 6)
        }
        self._macs = {host.mac for host in self._hosts}
        self._places = {place for host in self._hosts for place in host.places}

    def has(self, end: End) -> bool:
        """Return true if one of them is this end of packets, or anybody is."""
        if end.mac is not None and end.mac not in self._macs:
            return False
        if end.place is not None and end.place not in self._places:
            return False
        network = end.network
        if network is None:
            return end.mac is None or end.place is None or any(_is_end(end, host) for host in self._hosts)
        among = self._addresses[network.version]
        at = bisect_left(among, int(network.network_address))
        if at == len(among) or among[at] > int(network.broadcast_address):
            return False
        return end.place is None or any(_is_end(end, host) for host in self._hosts)


def _is_end(end: End, host: HostEnd) -> bool:
    if end.mac is not None and end.mac != host.mac:
        return False
    if end.place is not None and end.place not in host.places:
        return False
    return end.network is None or any(ip_address(address) in end.network for address in host.addresses)


def _covers(network: Network, addresses: frozenset[str]) -> bool:
    versions = [ip_address(each) for each in addresses]
    return all(each in network for each in versions if each.version == network.version)


@dataclass
class DecisionCounters:
    """Packets that each entry has decided; the default's have number 0."""

    acl: Acl = field(default_factory=Acl)
    packets: dict[int, int] = field(default_factory=dict)

    def add(self, number: int, packets: int) -> None:
        """Count packets of an entry."""
        self.packets[number] = self.packets.get(number, 0) + packets

    def change(self, acl: Acl) -> None:
        """Go on with another list: entries that stay keep their numbers of packets."""
        kept: dict[AclEntry, int] = {}
        for number, entry in enumerate(self.acl.entries, 1):
            kept.setdefault(entry, self.packets.get(number, 0))
        default = self.packets.get(0, 0) if acl.default is self.acl.default else 0
        self.packets = {number: kept.pop(entry, 0) for number, entry in enumerate(acl.entries, 1)}
        self.packets[0] = default
        self.acl = acl
