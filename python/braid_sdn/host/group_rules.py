"""Rules that give new connections their uplinks without the controller: connection tracking and `select` groups.

All are in table 0, above those that lead to the tables of single flows. What they do not take goes on there: UDP
other than QUIC, whose mappings serve every remote (RFC 4787 REQ-1), and echoes, which no rule can translate; also new
connections of classes that do not take turns, that are blocked or that have no uplink, and segments of no connection.

    new         a first packet from inside takes a bucket of its class's group: it commits the connection, translated
                to the bucket's uplink and marked with it, and sends the packet back to table 0. A SYN is one by its
                flags; the tracker tells which packets of QUIC are
    untracked   TCP and QUIC of both sides pass the connection tracker, which translates what it knows, and come back
    marked      a connection's mark names its uplink: link-layer addresses, and out

The mark also holds the class. A connection keeps its mark, so other shares move none. Only a SYN that is sent again
after a change of shares may get another one, with the source that it had: it leaves as a packet of that source does,
and the controller ends the connection when it reads it, before the next SYN.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from braid_sdn.host.desired import SENDER_MAC, USERS, ClassRule, Desired, Uplink
from braid_sdn.host.flow_rules import (
    COOKIE,
    COOKIE_MASK,
    ETHERTYPES,
    EVERY,
    INGRESS,
    KIND_MASK,
    OUTBOUND,
    OwnAddress,
    icmp_match,
)
from braid_sdn.host.flow_table import QUIC_PORT
from braid_sdn.host.names import Names
from braid_sdn.host.packets import ACK, ERRORS, SYN, TCP, UDP
from braid_sdn.openflow.flows import ALL_BITS
from braid_sdn.openflow.messages import (
    CT_INVALID,
    CT_NEW,
    CT_REPLY,
    CT_TRACKED,
    Action,
    Bucket,
    Commit,
    Mac,
    Match,
    Output,
    Rule,
    SetField,
    ToGroup,
    Track,
)

#: Zone of our connections in the tracker, which all userspace bridges of a machine share.
ZONE = 45520

#: Buckets of a group, all alike: an uplink's share is the number of its buckets. Open vSwitch hashes to 64 values at
#: most, and takes other weights less exactly.
BUCKETS = 64

#: Priorities in table 0. Rules of the configuration follow one another below the first of theirs.
OWN, LIMITED, BY_RULE, OTHERS, UNTRACKED, MARKED = 40000, 35000, 30000, 20000, 10000, 1000

#: Ways in cookies of rules for all connections of an uplink; the uplink is in the bits above.
_WAY_OUT, _WAY_IN = 1, 0

#: Numbers of groups, by class and IP version.
_FIRST_GROUP = 0xB1D000


def mark_of(class_number: int, uplink: int) -> int:
    """Return the mark of connections of a class on an uplink; never 0, that of no connection."""
    return class_number << 8 | uplink + 1


def class_and_uplink(mark: int) -> tuple[int, int]:
    """Return what a mark says."""
    return mark >> 8, (mark & 0xFF) - 1


def uplink_of(cookie: int) -> tuple[int, bool] | None:
    """Return the uplink of a marked rule, and True if it is for packets outward; None for other rules."""
    if cookie & COOKIE_MASK != COOKIE or cookie & KIND_MASK != EVERY:
        return None
    return cookie >> 4 & 0xFF, bool(cookie >> 3 & 1)


def _cookie(uplink: int, way: int) -> int:
    return COOKIE | uplink << 4 | way << 3 | EVERY


@dataclass(frozen=True, slots=True)
class Place:
    """Place of an uplink in the bridge: its port, its own MAC, and its gateways' by IP version."""

    port: int
    mac: Mac
    gateways: Mapping[int, Mac]


@dataclass(frozen=True, slots=True)
class Inside:
    """The port towards the host, and the host's MAC behind it."""

    port: int
    mac: Mac


def group_number(class_number: int, family: int) -> int:
    """Return the number of a class's group."""
    return _FIRST_GROUP + class_number * 2 + (family == 6)


def groups(
    desired: Desired, places: Mapping[int, Place], takes: Mapping[int, set[int]]
) -> dict[int, tuple[Bucket, ...]]:
    """Return the groups of classes that take turns, by number.

    `takes` are the uplinks that take new flows, by IP version; a class without one of them has no group.
    """
    found = {}
    for table in desired.classes.values():
        if table.method != "round_robin" or table.sticky:
            continue
        for family, slots in table.slots.items():
            usable = [number for number in slots if number in takes[family]]
            buckets = {
                number: _bucket(table.number, desired.uplinks[number], places[number], family) for number in usable
            }
            if buckets:
                found[group_number(table.number, family)] = tuple(buckets[number] for number in spread(usable))
    return found


def spread(slots: Sequence[int]) -> list[int]:
    """Return the uplink of each bucket: shares of the slots, rounded to whole buckets, and as evenly mixed."""
    of = {number: slots.count(number) / len(slots) for number in sorted(set(slots))}
    given = dict.fromkeys(of, 0)
    buckets = []
    for at in range(1, BUCKETS + 1):
        # The one that is furthest behind its share.
        number = max(of, key=lambda each: of[each] * at - given[each])
        given[number] += 1
        buckets.append(number)
    return buckets


def _bucket(class_number: int, uplink: Uplink, place: Place, family: int) -> Bucket:
    mark = mark_of(class_number, uplink.number)
    # The translation would be lost with an output in the same bucket, whose actions are a set.
    commit = Commit(ZONE, INGRESS, uplink.next_hops[family].address, uplink.tracked_ports, mark)
    return Bucket(place.port, (commit,))


def rules(
    desired: Desired,
    inside: Inside,
    places: Mapping[int, Place],
    own: Iterable[OwnAddress],
    present: Iterable[int],
    names: Names,
) -> list[Rule]:
    """Return the rules. `present` are the numbers of the groups, `own` the uplinks' addresses.

    A packet that bears one of those is not translated.
    """
    # A translated packet bears one as well.
    untracked = (0, CT_TRACKED)
    made = [_rule(OWN, replace(each.match, in_port=inside.port, ct_state=untracked), goto=OUTBOUND) for each in own]
    made += _untracked(inside, places)
    made += _marked(desired, inside, places)
    made += _new(desired, inside, set(present), names)
    return made


def _untracked(inside: Inside, places: Mapping[int, Place]) -> Iterator[Rule]:
    track = Track(ZONE, INGRESS)
    for family, kind in ETHERTYPES.items():
        both = Match(eth_type=kind, ip_proto=TCP, ct_state=(0, CT_TRACKED))
        matches = [replace(both, in_port=port) for port in (inside.port, *(place.port for place in places.values()))]
        quic = Match(eth_type=kind, ip_proto=UDP, ct_state=(0, CT_TRACKED))
        matches.append(replace(quic, in_port=inside.port, udp_dst=QUIC_PORT))
        for place in places.values():
            matches.append(replace(quic, in_port=place.port, udp_src=QUIC_PORT))
            errors = (icmp_match(family, error) for error in ERRORS[family])
            matches += [replace(error, in_port=place.port, ct_state=(0, CT_TRACKED)) for error in errors]
        for match in matches:
            yield _rule(UNTRACKED, match, track)


def _marked(desired: Desired, inside: Inside, places: Mapping[int, Place]) -> Iterator[Rule]:
    # A segment outside of its connection's window was not translated.
    yield _rule(MARKED, Match(in_port=inside.port, ct_state=(CT_INVALID | CT_TRACKED, CT_INVALID | CT_TRACKED)))
    for number, place in places.items():
        mark = (mark_of(0, number), 0xFF)
        out = Match(in_port=inside.port, ct_state=(CT_TRACKED, CT_INVALID | CT_TRACKED), ct_mark=mark)
        for family, gateway in place.gateways.items():
            actions = (SetField("eth_src", place.mac), SetField("eth_dst", gateway), Output(place.port))
            source = desired.uplinks[number].next_hops[family].address
            match = _from(replace(out, eth_type=ETHERTYPES[family]), family, source)
            yield _rule(MARKED, match, *actions, cookie=_cookie(number, _WAY_OUT))
        back = Match(
            in_port=place.port, ct_state=(CT_REPLY | CT_TRACKED, CT_INVALID | CT_REPLY | CT_TRACKED), ct_mark=mark
        )
        actions = (SetField("eth_src", place.mac), SetField("eth_dst", inside.mac), Output(inside.port))
        yield _rule(MARKED, back, *actions, cookie=_cookie(number, _WAY_IN))


def _new(desired: Desired, inside: Inside, present: set[int], names: Names) -> Iterator[Rule]:
    """Give first packets to their class's group; those of classes without one go on to table 1."""
    state, untracked = (CT_NEW | CT_TRACKED, CT_NEW | CT_TRACKED), (0, CT_TRACKED)
    for family, kind in ETHERTYPES.items():
        first = (
            Match(inside.port, kind, ip_proto=TCP, tcp_flags=(SYN, SYN | ACK), ct_state=untracked),
            # Once committed it has a mark, and is still new.
            Match(inside.port, kind, ip_proto=UDP, udp_dst=QUIC_PORT, ct_state=state, ct_mark=(0, ALL_BITS)),
        )
        for source in desired.limited:
            client = ipaddress.ip_address(source)
            if client.version == family:
                network = (
                    source if family == 4 else f"{ipaddress.ip_network((client, 64), strict=False)[0]}/{_SLASH_64}"
                )
                for match in first:
                    yield _rule(LIMITED, _from(match, family, network), goto=OUTBOUND)
        for at, rule in enumerate(desired.rules):
            for match in first:
                for narrowed in _narrowed(match, rule, family, names):
                    yield _to_class(BY_RULE - at, narrowed, rule.class_number, family, present)
        for match in first:
            yield _to_class(OTHERS, match, 0, family, present)


_SLASH_64 = "ffff:ffff:ffff:ffff::"


def _from(match: Match, family: int, source: str) -> Match:
    return replace(match, ipv4_src=source) if family == 4 else replace(match, ipv6_src=source)


def _to_class(priority: int, match: Match, number: int, family: int, present: set[int]) -> Rule:
    group = group_number(number, family)
    if group in present:
        return _rule(priority, match, ToGroup(group))
    return _rule(priority, match, goto=OUTBOUND)


def _narrowed(match: Match, rule: ClassRule, family: int, names: Names) -> Iterator[Match]:
    """Return matches of first packets that meet a rule's conditions; none if no such packet can."""
    if rule.family not in (None, family) or rule.protocol not in (None, match.ip_proto):
        return
    fields: dict[str, str | int] = {}
    for name, network in (("src", rule.source), ("dst", rule.target)):
        if network is not None and network.version != family:
            return
        if network is not None:
            whole = network.prefixlen == network.max_prefixlen
            address = str(network.network_address)
            fields[f"ipv{family}_{name}"] = address if whole else f"{address}/{network.netmask}"
    if rule.dscp is not None:
        fields["ip_dscp"] = rule.dscp
    base = replace(match, **fields)  # type: ignore[arg-type]
    prefix = "tcp" if match.ip_proto == TCP else "udp"
    if match.ip_proto == UDP:
        if rule.target_ports is not None and not rule.target_ports[0] <= QUIC_PORT <= rule.target_ports[1]:
            return
        targets: list[int | tuple[int, int] | None] = [QUIC_PORT]
    else:
        targets = list(port_masks(rule.target_ports))
    for narrowed in _from_senders(_to_names(base, rule, family, names), rule):
        for source in port_masks(rule.source_ports):
            for target in targets:
                yield replace(narrowed, **{f"{prefix}_src": source, f"{prefix}_dst": target})  # type: ignore[arg-type]


def _to_names(match: Match, rule: ClassRule, family: int, names: Names) -> Iterator[Match]:
    """Return a match for each address that bears a rule's mark."""
    if rule.mark is None:
        yield match
        return
    for address in names.addresses(rule.mark, family):
        if rule.target is None or ipaddress.ip_address(address) in rule.target:
            yield replace(match, ipv4_dst=address) if family == 4 else replace(match, ipv6_dst=address)


def _from_senders(matches: Iterable[Match], rule: ClassRule) -> Iterator[Match]:
    """Return matches of a rule's client, or of its users and control groups. No packet is from both."""
    is_host = rule.users is not None or rule.groups is not None
    for match in matches:
        if not is_host:
            yield replace(match, eth_dst=rule.mac)
        elif rule.mac is None:
            for group, group_mask in [(0, 0)] if rule.groups is None else [(each, 0xFF) for each in rule.groups]:
                for user, user_mask in range_masks(*(rule.users or (0, USERS - 1)), bits=32):
                    mask = _sender_text(group_mask, user_mask)
                    address = SENDER_MAC + _sender_text(group, user)
                    yield replace(match, eth_dst=address, eth_dst_mask=None if mask == _WHOLE else "ff:" + mask)


def _sender_text(group: int, user: int) -> str:
    return (group * USERS + user).to_bytes(5, "big").hex(":")


_WHOLE = _sender_text(0xFF, USERS - 1)


def port_masks(ports: tuple[int, int] | None) -> Iterator[int | tuple[int, int] | None]:
    """Return values and masks that match a range of ports, and nothing else; None is any port."""
    if ports is None or ports == (0, 0xFFFF):
        yield None
        return
    for first, mask in range_masks(*ports, bits=16):
        yield first if mask == 0xFFFF else (first, mask)


def range_masks(first: int, last: int, *, bits: int) -> Iterator[tuple[int, int]]:
    """Return values and masks of so many bits that match a range of numbers, and nothing else."""
    while first <= last:
        size = first & -first or 1 << bits
        while first + size - 1 > last:
            size >>= 1
        yield first, (1 << bits) - size
        first += size


def _rule(priority: int, match: Match, *actions: Action, goto: int | None = None, cookie: int = COOKIE) -> Rule:
    return Rule(INGRESS, priority, match, actions, goto, cookie)
