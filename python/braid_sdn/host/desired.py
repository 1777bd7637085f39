"""The desired state: uplinks, slot tables and rules, as the daemon decides them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from braid_sdn.openflow.messages import Mac

#: Version of the messages between daemon and controller (`VERSION` in `messages.rs`).
VERSION = 5

#: First byte of the link-layer destination of the machine's own packets: the number of their sender's control group
#: follows, and four bytes that name the user (`SENDER_MAC` in `senders.rs`).
SENDER_MAC = "b2:"

#: Number of users.
USERS = 1 << 32

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: A client: its IPv4 address, or the number of its IPv6 /64.
ClientKey = ipaddress.IPv4Address | int


def client_of(address: Address) -> ClientKey:
    """Return the client that has an inside address."""
    return address if isinstance(address, ipaddress.IPv4Address) else int(address) >> 64


@dataclass(frozen=True, slots=True)
class NextHop:
    """Source address and gateway of one IP version on an uplink."""

    address: str
    gateway: str


@dataclass(frozen=True, slots=True)
class Uplink:
    """An uplink whose device is a port of the bridge."""

    number: int
    device: str
    #: By IP version, 4 or 6.
    next_hops: Mapping[int, NextHop]
    #: First and last source port of translated flows.
    ports: tuple[int, int]
    #: True if new flows may take it.
    accepts_new: bool
    #: True if its TCP connections are over: their next segment from inside is answered by a reset.
    resets_tcp: bool
    #: Changes with the uplink's paths: what was measured in another epoch is void.
    epoch: int = 0
    #: First and last source port of connections that the switch's connection tracker translates.
    tracked_ports: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class ClassTable:
    """Slots of one class of traffic."""

    number: int
    #: `round_robin`, `hash_source`, `hash_pair`, `race` or `fastest`.
    method: str
    #: Numbers of uplinks, by IP version.
    slots: Mapping[int, tuple[int, ...]]
    #: Numbers of uplinks on which new flows may be raced.
    candidates: tuple[int, ...] = ()
    #: Seconds for which a client keeps its uplink for a site; 0 is never.
    sticky: int = 0


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Conditions of a class; None is any. Only TCP and UDP have ports."""

    class_number: int
    source: ipaddress.IPv4Network | ipaddress.IPv6Network | None
    target: ipaddress.IPv4Network | ipaddress.IPv6Network | None
    protocol: int | None
    source_ports: tuple[int, int] | None
    target_ports: tuple[int, int] | None
    dscp: int | None
    family: int | None
    #: Link-layer address of a LAN's client, first and last number of users, and numbers of control groups: the kernel
    #: writes which one it is into a packet's link-layer destination.
    mac: Mac | None = None
    users: tuple[int, int] | None = None
    groups: tuple[int, ...] | None = None
    #: Mark that a name of the remote address has given it.
    mark: int | None = None

    def matches(self, flow: FlowFacts) -> bool:
        """Return True if a flow meets all conditions."""
        return (
            (self.family is None or self.family == flow.source.version)
            and (self.protocol is None or self.protocol == flow.protocol)
            and (self.dscp is None or self.dscp == flow.dscp)
            and (self.source is None or flow.source in self.source)
            and (self.target is None or flow.target in self.target)
            and _has_port(self.source_ports, flow.protocol, flow.source_port)
            and _has_port(self.target_ports, flow.protocol, flow.target_port)
            and (self.mac is None or self.mac == flow.sender)
            and ((self.users is None and self.groups is None) or self._has_host_sender(flow.sender))
            and (self.mark is None or bool(self.mark & flow.marks))
        )

    def _has_host_sender(self, sender: Mac) -> bool:
        if not sender.startswith(SENDER_MAC):
            return False
        group, user = divmod(int(sender[len(SENDER_MAC) :].replace(":", ""), 16), USERS)
        has_user = self.users is None or self.users[0] <= user <= self.users[1]
        return has_user and (self.groups is None or group in self.groups)


@dataclass(frozen=True, slots=True)
class FlowFacts:
    """Facts of a new flow that rules match."""

    source: Address
    target: Address
    protocol: int
    source_port: int
    target_port: int
    dscp: int
    #: The packet's link-layer destination, which names its sender if a rule asks for that one.
    sender: Mac = ""
    #: Marks of the remote address by its names.
    marks: int = 0


@dataclass(frozen=True, slots=True)
class RaceSettings:
    """Settings of races and of the path cache."""

    #: Seconds for which a round trip counts.
    cache_ttl: float = 120.0
    #: One flow in this many is raced although every path is known; 0 is none.
    explore_one_in: int = 16
    #: Most races a second to one network, and to all.
    per_prefix: int = 8
    total: int = 200


@dataclass(frozen=True, slots=True)
class Desired:
    """All of it. The daemon numbers its states; a report names the number that it follows."""

    revision: int
    uplinks: Mapping[int, Uplink]
    classes: Mapping[int, ClassTable]
    rules: tuple[ClassRule, ...]
    #: Inside addresses whose new flows are refused.
    limited: frozenset[str]
    #: Most flows at once.
    max_flows: int
    race: RaceSettings = RaceSettings()
    #: True if new flows take the best uplink while no controller serves them.
    is_standalone: bool = False
    #: The host's MAC behind the inside's port, if new connections take groups; None has all come up.
    group_inside: Mac | None = None
    #: True if the daemon judges answers of name servers before they go inside.
    holds_answers: bool = False

    def class_of(self, flow: FlowFacts) -> tuple[int, int | None]:
        """Return the class of a new flow, and the position of the rule that set it."""
        for at, rule in enumerate(self.rules):
            if rule.matches(flow):
                return rule.class_number, at
        return 0, None

    def is_limited(self, source: Address) -> bool:
        """Return True if an inside address opens no more flows; IPv6 clients are limited by their /64."""
        if not self.limited:
            return False
        if str(source) in self.limited:
            return True
        return source.version == 6 and str(ipaddress.ip_network((source, 64), strict=False)[0]) in self.limited


def parse(told: Mapping[str, Any]) -> Desired:
    """Parse the daemon's message; raises KeyError, TypeError or ValueError if it is none."""
    if told["version"] != VERSION:
        raise ValueError(f"the daemon speaks version {told['version']}, this controller {VERSION}")
    inside = told.get("group_inside")
    uplinks = (_uplink(each, is_tracked=inside is not None) for each in told["uplinks"])
    classes = (
        ClassTable(
            each["id"],
            each["method"],
            {4: tuple(each["v4"]), 6: tuple(each["v6"])},
            tuple(each["candidates"]),
            each["sticky_s"],
        )
        for each in told["classes"]
    )
    race = told["race"]
    return Desired(
        told["revision"],
        {uplink.number: uplink for uplink in uplinks},
        {table.number: table for table in classes},
        tuple(_rule(each) for each in told["rules"]),
        frozenset(told["limited"]),
        told["max_flows"],
        RaceSettings(race["cache_ttl_s"], race["explore_one_in"], race["per_prefix"], race["total"]),
        told["fail_mode"] == "standalone",
        inside,
        told["hold_answers"],
    )


def _uplink(told: Mapping[str, Any], *, is_tracked: bool) -> Uplink:
    hops = {
        family: NextHop(hop["address"], hop["gateway"])
        for family, hop in ((4, told["v4"]), (6, told["v6"]))
        if hop is not None
    }
    first, last = told["ports"]
    # The upper half is the tracker's, so that no two flows ever have the same outer port.
    middle = (first + last) // 2 if is_tracked else last
    ports, tracked = (first, middle), (middle + 1, last)
    return Uplink(
        told["id"], told["device"], hops, ports, told["accepts_new"], told["resets_tcp"], told["epoch"], tracked
    )


def _rule(told: Mapping[str, Any]) -> ClassRule:
    def network(name: str) -> Any:
        return ipaddress.ip_network(told[name], strict=False) if told[name] is not None else None

    def ports(name: str) -> tuple[int, int] | None:
        return (told[name][0], told[name][1]) if told[name] is not None else None

    return ClassRule(
        told["class"],
        network("source"),
        network("dest"),
        told["protocol"],
        ports("source_ports"),
        ports("dest_ports"),
        told["dscp"],
        told["family"],
        told["mac"],
        (told["uid"][0], told["uid"][1]) if told["uid"] is not None else None,
        tuple(told["groups"]) if told["groups"] is not None else None,
        told["name"],
    )


def _has_port(wanted: tuple[int, int] | None, protocol: int, port: int) -> bool:
    return wanted is None or (protocol in (6, 17) and wanted[0] <= port <= wanted[1])
