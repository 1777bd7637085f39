"""Compiles an access control list into rules of the switches at which packets enter the network.

All of its rules are in the table of ingress, above the rules there that send hosts' packets on to the table of
sources and edges' packets to that of paths, so a refused packet comes no further. A permitted one goes on as it would
without a list. Two sorts of rules, by priority:

    60,000 and above  discovery, the controller's own packets, and links: what the list is not about
    1,000 to 59,999   blocks of priorities, of which one has the list, and another one the list before, if it goes

A block decides every packet: its lowest rules are the list's default. So of two blocks the lower one does nothing
once the higher one is whole. Within a block, neighbour packets (ARP and neighbour discovery) have rules of
their own above all others. A range of ports is a number of masked matches, at most 30.

Packets with a tag come from edges' ports alone, and OpenFlow matches the fields behind the tag (§7.2.3.8: the
EtherType of a match is that of the payload). It cannot look behind a second tag or an edge's numbers, so these are
refused where the list has to read IP headers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from braid_sdn.fabric.acl import MAX_ENTRIES, Acl, AclEntry, Action, Network, Ports, Protocol
from braid_sdn.fabric.monitor.probe import PROBE_MAC
from braid_sdn.fabric.switches.rules import ARP, COOKIE, INGRESS, IPV4, IPV6, PATHS, SOURCES, base, is_ours
from braid_sdn.openflow.messages import CVLAN, TAGGED, UNTAGGED, Match, Rule

#: Priorities of the blocks, and of each of them.
FIRST_PRIORITY, LAST_PRIORITY = 1_000, 59_999
BLOCK_SIZE = 2048
BLOCKS = (LAST_PRIORITY + 1 - FIRST_PRIORITY) // BLOCK_SIZE
assert 2 * MAX_ENTRIES + 3 <= BLOCK_SIZE  # noqa: S101
#: Priority of rules for what the list is not about, added to that which the same packets have without a list.
ABOVE = 60_000
#: Priority of the rules that refuse what a list cannot read.
HIDDEN = ABOVE + 70

#: Rules of a list at one switch at most.
MAX_RULES = 4096

#: EtherTypes behind a tag that hide a packet: an edge's numbers, and a second tag of either kind.
HIDING = (0x88B6, CVLAN, 0x88A8)
_VERSIONS = {4: IPV4, 6: IPV6}
_NUMBERS = {(Protocol.TCP, 4): 6, (Protocol.TCP, 6): 6, (Protocol.UDP, 4): 17, (Protocol.UDP, 6): 17}
_NUMBERS |= {(Protocol.ICMP, 4): 1, (Protocol.ICMP, 6): 58}
#: Packets by which hosts find one another.
_NEIGHBOURS: tuple[dict[str, Any], ...] = (
    {"eth_type": ARP},
    {"eth_type": IPV6, "ip_proto": 58, "icmpv6_type": 135},
    {"eth_type": IPV6, "ip_proto": 58, "icmpv6_type": 136},
)
#: In the lower half of a cookie: the rule is of a list, and the rest of that half is the entry's number.
_OF_LIST = 0x8000_0000
#: In place of that number: the packets are neighbour packets that no entry decides.
NEIGHBOURS = 0x7FFF_FFFF

Fields = dict[str, Any]


@dataclass(frozen=True)
class LocalEntry:
    """An entry at one switch: its places are ports here, and MAC addresses anywhere."""

    number: int
    entry: AclEntry
    #: The port at which its packets arrive; None is any.
    port: int | None = None
    #: The hosts that its packets are for; None is any. Without one it has a place in the list, and no rules.
    targets: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LocalAcl:
    """A list at one switch, and the ports there."""

    acl: Acl
    entries: tuple[LocalEntry, ...]
    links: frozenset[int] = frozenset()
    edges: tuple[int, ...] = ()
    #: The table to which packets of edges with a tag go: with tenants one that looks at the tag.
    edge_table: int = PATHS

    def differs_by_hosts(self, other: LocalAcl) -> bool:
        """Return true if the two have the same rules at the same priorities but for hosts of places."""
        mine, others = ([(each.number, each.port) for each in one.entries] for one in (self, other))
        return self.acl is other.acl and self.edges == other.edges and mine == others


def masks(ports: Ports) -> list[int | tuple[int, int]]:
    """Return the matches, a port or a value and a mask, that have a range of ports among them."""
    made: list[int | tuple[int, int]] = []
    low, last = ports
    while low <= last:
        size = low & -low or 0x10000
        while low + size - 1 > last:
            size //= 2
        made.append(low if size == 1 else (low, 0x10000 - size))
        low += size
    return made


def is_of_list(rule: Rule) -> bool:
    """Return true for a rule in a block."""
    in_block = rule.table == INGRESS and FIRST_PRIORITY <= rule.priority <= LAST_PRIORITY
    return in_block and is_ours(rule) and bool(rule.cookie & _OF_LIST)


def decides(rule: Rule) -> bool:
    """Return true for a rule by which a list decides packets: it stays until those of another list are in place."""
    return is_of_list(rule) or (rule.table == INGRESS and rule.priority == HIDDEN and is_ours(rule))


def is_default(rule: Rule) -> bool:
    """Return true for a rule by which a list decides what none of its entries does."""
    return is_of_list(rule) and not entry_of(rule)


def block_of(rule: Rule) -> int:
    """Return the block of a list's rule."""
    return (rule.priority - FIRST_PRIORITY) // BLOCK_SIZE


def entry_of(rule: Rule) -> int:
    """Return the number of the entry that a list's rule is of; 0 is the default."""
    return rule.cookie & (_OF_LIST - 1)


def compiled(local: LocalAcl) -> list[Rule]:
    """Return the rules of a list in the lowest block, the highest first."""
    made: list[Rule] = []
    about_frames = [each for each in local.entries if each.entry.decides_neighbours]
    priority = FIRST_PRIORITY + len(local.entries) + 1 + len(about_frames)
    for each in about_frames:
        made += _rules(local, each, priority, _NEIGHBOURS)
        priority -= 1
    made += [
        rule for fields in _NEIGHBOURS for rule in _each_way(local, None, fields, Action.PERMIT, priority, NEIGHBOURS)
    ]
    for each in local.entries:
        priority -= 1
        made += _rules(local, each, priority, tuple(_packets(each.entry)))
    return made + list(_each_way(local, None, {}, local.acl.default, FIRST_PRIORITY, 0))


def moved(rules: Iterable[Rule], block: int) -> list[Rule]:
    """Return rules of the lowest block in another one."""
    return [replace(rule, priority=rule.priority + block * BLOCK_SIZE) for rule in rules]


def besides(local: LocalAcl) -> list[Rule]:
    """Return the rules for what a list is not about, and for what it cannot read; they come before its own."""
    ours = [rule for rule in base() if rule.table == INGRESS and rule.priority > FIRST_OF_HOSTS]
    made = [replace(rule, priority=rule.priority + ABOVE) for rule in ours]
    made += [_rule(ABOVE + 80, Match(in_port=port, vlan=UNTAGGED), None, PATHS) for port in sorted(local.links)]
    for port in local.edges:
        # Edges' probes of their paths, which no host takes in.
        made.append(_rule(ABOVE + 80, Match(in_port=port, vlan=TAGGED, eth_dst=PROBE_MAC), None, local.edge_table))
        if local.acl.reads_ip:
            made += hidden(port)
    return made


def hidden(edge: int) -> list[Rule]:
    """Return the rules that refuse what cannot be read of an edge at a port, its numbered packets first."""
    return [_rule(HIDDEN, Match(in_port=edge, vlan=TAGGED, eth_type=kind), None, None) for kind in HIDING]


def unfiltered(block: Iterable[Rule], edges: Iterable[int]) -> list[Rule]:
    """Return rules that refuse packets with a tag of those of these edges for which a block has no rules."""
    known = {rule.match.in_port for rule in block if is_default(rule)}
    return [_rule(HIDDEN, Match(in_port=port, vlan=TAGGED), None, None) for port in edges if port not in known]


#: Priority of the rule that sends hosts' packets on.
FIRST_OF_HOSTS = 10


def most_rules(acl: Acl, edges: int) -> int:
    """Return the rules of a list at a switch with a number of edges, if each place as a target has one host."""
    return (len(_NEIGHBOURS) + 1 + sum(map(_cost, acl.entries))) * (1 + edges)


def count(local: LocalAcl) -> int:
    """Return how many rules a list has at a switch."""
    return sum(fixed if hosts is None else fixed * hosts for fixed, hosts in _costs(local))


def most_hosts(local: LocalAcl, most: int) -> int:
    """Return how many hosts of each place, the first ones, a list may mean with so many rules; 0 if not even one."""
    costs = list(_costs(local))
    low, high = 0, max((hosts for _, hosts in costs if hosts is not None), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(fixed if hosts is None else fixed * min(middle, hosts) for fixed, hosts in costs) <= most:
            low = middle
        else:
            high = middle - 1
    return low


def shortened(local: LocalAcl, hosts: int) -> LocalAcl:
    """Return a list that means so many hosts of each place, the first ones."""
    entries = [
        each if each.targets is None else replace(each, targets=each.targets[:hosts]) for each in local.entries
    ]
    return replace(local, entries=tuple(entries))


def _costs(local: LocalAcl) -> Iterator[tuple[int, int | None]]:
    """Yield the rules of each entry, and for how many hosts it has as many each."""
    yield (len(_NEIGHBOURS) + 1) * (1 + len(local.edges)), None
    for each in local.entries:
        ways = 1 + (len(local.edges) if each.port is None else each.port in local.edges)
        has_hosts = each.targets is not None and each.entry.target.mac is None
        yield _cost(each.entry) * ways, len(each.targets or ()) if has_hosts else None


def _cost(entry: AclEntry) -> int:
    """Return the rules of an entry for packets without a tag."""
    made = max(1, len(entry.families))
    for ports in (entry.source_ports, entry.ports):
        made *= 1 if ports is None else len(masks(ports))
    return made + (len(_NEIGHBOURS) if entry.decides_neighbours else 0)


def _rule(priority: int, match: Match, number: int | None, goto: int | None) -> Rule:
    cookie = COOKIE if number is None else COOKIE | _OF_LIST | number
    return Rule(INGRESS, priority, match, (), goto, cookie)


def _rules(local: LocalAcl, each: LocalEntry, priority: int, packets: tuple[Fields, ...]) -> Iterator[Rule]:
    entry = each.entry
    frames: Fields = {} if entry.source.mac is None else {"eth_src": entry.source.mac}
    targets = each.targets
    if entry.target.mac is not None:
        targets = (entry.target.mac,)
    for target in (None,) if targets is None else targets:
        ends = frames if target is None else {**frames, "eth_dst": target}
        for fields in packets:
            yield from _each_way(local, each.port, {**ends, **fields}, entry.action, priority, each.number)


def _each_way(
    local: LocalAcl, port: int | None, fields: Fields, action: Action, priority: int, number: int
) -> Iterator[Rule]:
    """Yield a rule for packets without a tag, and one for those with a tag of each edge here."""
    permits = action is Action.PERMIT
    yield _rule(priority, Match(in_port=port, vlan=UNTAGGED, **fields), number, SOURCES if permits else None)
    for edge in local.edges:
        if port in (None, edge):
            tagged = Match(in_port=edge, vlan=TAGGED, **fields)
            yield _rule(priority, tagged, number, local.edge_table if permits else None)


def _packets(entry: AclEntry) -> Iterator[Fields]:
    """Yield the fields of the packets of an entry, above their frames."""
    if not entry.reads_ip:
        yield {}
    for version in entry.families:
        fields: Fields = {"eth_type": _VERSIONS[version]}
        for side, end in (("src", entry.source), ("dst", entry.target)):
            if end.network is not None and end.network.prefixlen:
                fields[f"ipv{version}_{side}"] = _network(end.network)
        if entry.protocol is Protocol.ANY:
            yield fields
            continue
        fields["ip_proto"] = _NUMBERS[entry.protocol, version]
        name = entry.protocol.value
        for source in (None,) if entry.source_ports is None else masks(entry.source_ports):
            for target in (None,) if entry.ports is None else masks(entry.ports):
                ports = {f"{name}_src": source, f"{name}_dst": target}
                yield {**fields, **{key: value for key, value in ports.items() if value is not None}}


@functools.lru_cache(maxsize=4096)
def _network(network: Network) -> str:
    address = str(network.network_address)
    return address if network.prefixlen == network.max_prefixlen else f"{address}/{network.netmask}"


def local_entries(
    acl: Acl, places: Mapping[Any, tuple[int, int | None]], switch: int, behind: Mapping[Any, tuple[str, ...]]
) -> Iterator[LocalEntry]:
    """Yield the entries that may match packets which enter at a switch, also once there are hosts at their targets.

    `places` has the switch and the port, or None for all ports, of places that are connected; `behind` the hosts of
    each place.
    """
    for number, entry in enumerate(acl.entries, 1):
        port = None
        if entry.source.place is not None:
            found = places.get(entry.source.place)
            if found is None or found[0] != switch:
                continue
            port = found[1]
        targets = None
        if entry.target.place is not None:
            targets = behind.get(entry.target.place, ())
        yield LocalEntry(number, entry, port, targets)
