"""Compiles a plan into the OpenFlow rules of every switch.

A packet crosses the network under a tag, the VID of an 802.1Q header that only this controller assigns: one rule per
tag and switch, so the core's rules grow with paths, never with flows. The tables:

    0 ingress       our own frames to the controller; tagged packets of links and edges to 4; hosts' packets to 1
    1 sources       known hosts go to 2; unknown ones too, and a copy to the controller
    2 destinations  local hosts: their port; remote hosts: the datapath id of their switch as metadata, then 3; in a
                    large network only those that hosts here send to, and a copy to the controller for all others
    3 trees         by metadata, the tag of the tree to that switch, then 4; broadcasts and unknown hosts: the flood's
    4 paths         output by tag; at the path's end the tag is removed, then 5, or the edge gets the packet tagged
    5 delivery      local hosts, for packets from other switches

A switch has a fast failover group for each pair of ports of which one is to do the other's work, and rules of
trees lead to these: while the tree's port is down, packets leave by the other one, marked in their header's
priority. Marked packets follow the tree's detour alone, a tree of its own, to the end. So there is one way for a
packet under a tag until a port is down, and one from there on.

So a path that changes concerns no host's rule, and a remote host's rule is the same at all switches.

With tenants, the port at which a packet enters gives its tenant as the upper bits of metadata (table 1), and the
rules of tables 2, 3 and 5 match these. Where a tag ends, the tenant that the configuration gives the tag is written
there again. So a packet is checked at both ends: a wrong rule at one switch has the other end refuse it. Tagged
packets of edges come to table 1 as well, which passes on those with a tag of the edge's own tenant. A port without
rules of its own in table 1 reaches nobody, since metadata of no tenant matches nothing. The rules of table 4, and
those that lead there from links, have the digest of the tenants' configuration in their cookies.

Rules have no timeouts, so the network forwards without its controller. The exception is a lease: rules that send ARP
and neighbour discovery to the controller expire when it is gone, and these packets are then flooded as broadcasts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import EXPERIMENTAL, LLDP, PROBE_MAC, mac_text
from braid_sdn.fabric.plan.plan import MAX_DETOUR_PORT, Host, PinnedPath, Plan, TaggedPath, Tree
from braid_sdn.fabric.tenants import DPID_BITS, METADATA_MASK, NOBODY, Tenants, metadata_of
from braid_sdn.openflow.messages import (
    TAGGED,
    UNTAGGED,
    Action,
    AddRule,
    Bucket,
    DeleteRule,
    FlowStats,
    Match,
    Output,
    PopTag,
    PushTag,
    Reserved,
    Rule,
    RuleKey,
    SetField,
    ToGroup,
)

INGRESS, SOURCES, DESTINATIONS, TREES, PATHS, DELIVERY = range(6)

#: Upper half of all our cookies ("BRD" and the version of this layout): rules with others are removed.
COOKIE = 0x42524402_00000000
#: The same of version 1, which had no table of trees: paths were table 3, delivery 4.
OLD_COOKIE = 0x42524401_00000000
_OLD_PATHS, _OLD_DELIVERY = 3, 4

#: Bits of a tag in a cookie, below the digest.
DIGEST_SHIFT = 12

#: Seconds after which ARP is flooded unless the controller renews the lease.
ARP_LEASE = 15
#: Seconds for which a port that floods the controller is muted.
MUTE_LEASE = 10

ARP = 0x0806
IPV4 = 0x0800
IPV6 = 0x86DD
#: UDP ports of DHCP servers and clients, and of DHCPv6 servers, which are asked by multicast.
DHCP_SERVER, DHCP_CLIENT, DHCPV6_SERVER = 67, 68, 547
BROADCAST = "ff:ff:ff:ff:ff:ff"
GROUP_BIT = "01:00:00:00:00:00"

#: Priority (802.1p) of packets on a detour; all others of ours have 0.
DETOUR_PCP = 2
#: Priority of the rules of floods, of edges' paths and of pinned hosts', which have no detour: above that of the rule
#: which drops marked packets, since other equipment may mark theirs.
SINGLE_WAY = 35
#: Priority of the rules that drop frames which claim to be our own: above all others of the table.
FORGED = 62_000
#: Priority of the rule that drops discovery frames with a VLAN header at a trunk: above that which takes them.
TRUNK_LLDP = 101
#: Priority of rules for packets to hosts that a switch has no rule for, and of that for all ports where some have one
#: of their own.
UNANSWERED, UNANSWERED_BY_PORT = 5, 4
#: First byte of the numbers of our groups, and of those that send packets back. Two ports' numbers follow.
_GROUP, _TURNING_GROUP = 0xB2, 0xB3
_PORT_BITS = MAX_DETOUR_PORT.bit_length()

Rules = dict[RuleKey, Rule]

NO_TENANTS = Tenants()


def _rule(
    table: int,
    priority: int,
    match: Match,
    *actions: Action,
    goto: int | None = None,
    tag: int = 0,
    lease: int = 0,
    metadata: int | None = None,
) -> Rule:
    return Rule(table, priority, match, tuple(actions), goto, COOKIE | tag, lease, metadata=metadata)


TO_CONTROLLER = Output(Reserved.CONTROLLER)


@functools.cache
def base() -> tuple[Rule, ...]:
    """Return the rules of every switch that do not depend on the network; discovery first."""
    return (
        _rule(INGRESS, 100, Match(eth_type=LLDP), TO_CONTROLLER),
        _rule(INGRESS, 100, Match(eth_type=EXPERIMENTAL, eth_dst=PROBE_MAC, vlan=UNTAGGED), TO_CONTROLLER),
        _rule(INGRESS, 90, Match(in_port=Reserved.CONTROLLER, vlan=TAGGED), goto=PATHS),
        _rule(INGRESS, 90, Match(in_port=Reserved.CONTROLLER, vlan=UNTAGGED), goto=DESTINATIONS),
        _rule(INGRESS, 10, Match(vlan=UNTAGGED), goto=SOURCES),
        _rule(SOURCES, 0, Match(), TO_CONTROLLER, goto=DESTINATIONS),
        _rule(DESTINATIONS, 0, Match(), goto=TREES),
        # Hosts' answers to our own requests: the controller has a copy.
        _rule(DESTINATIONS, 60, Match(eth_dst=PROBE_MAC)),
    )


@functools.cache
def unanswered(*, is_by_port: bool = False) -> Rule:
    """Return the rule by which the controller learns to whom hosts here send, where not every host has a rule.

    `is_by_port` if ports have rules of their own above that.
    """
    priority = UNANSWERED_BY_PORT if is_by_port else UNANSWERED
    return _rule(DESTINATIONS, priority, unicast(Match()), TO_CONTROLLER, goto=TREES)


def unicast(whole: Match) -> Match:
    """Return the match for those of packets that are for one host."""
    return replace(whole, eth_dst="00:00:00:00:00:00", eth_dst_mask=GROUP_BIT)


def _grouped(whole: Match) -> Match:
    return replace(whole, eth_dst=GROUP_BIT, eth_dst_mask=GROUP_BIT)


def requests(whole: Match) -> tuple[Match, Match]:
    """Return matches for those of packets by which hosts ask everybody for a host's MAC address."""
    solicitations = replace(_grouped(whole), eth_type=IPV6, ip_proto=58, icmpv6_type=135)
    return replace(whole, eth_type=ARP, eth_dst=BROADCAST), solicitations


def configuration(whole: Match) -> tuple[Match, ...]:
    """Return matches for those of packets by which hosts ask for addresses, and servers and routers answer all."""
    group = _grouped(whole)
    return (
        *(
            replace(group, eth_type=kind, ip_proto=17, udp_dst=port)
            for kind, port in ((IPV4, DHCP_SERVER), (IPV4, DHCP_CLIENT), (IPV6, DHCPV6_SERVER))
        ),
        # Solicitations and advertisements of routers.
        *(replace(group, eth_type=IPV6, ip_proto=58, icmpv6_type=kind) for kind in (133, 134)),
    )


@functools.lru_cache(maxsize=4)
def marker(nonce: int) -> Rule:
    """Return the rule, which matches nothing, by which a controller shows others that it controls a switch."""
    source = mac_text(b"\x06" + (nonce & 0xFF_FFFF_FFFF).to_bytes(5, "big"))
    return _rule(INGRESS, 1, Match(eth_type=EXPERIMENTAL, eth_src=source, eth_dst=PROBE_MAC), lease=ARP_LEASE)


def markers_in(rules: Iterable[FlowStats]) -> list[FlowStats]:
    """Return the markers among a switch's rules."""
    shape = marker(0).match
    leased = [each for each in rules if is_ours(each.rule) and each.rule.lease]
    return [each for each in leased if replace(each.rule.match, eth_src=shape.eth_src) == shape]


@dataclass(frozen=True, slots=True)
class Muted:
    """Hosts at a port that is muted: all of them, or those of one tenant at a trunk."""

    #: The tag of their tenant's flood, if it has one.
    flood: int | None
    tenant: int = NOBODY
    #: That of their frames at a trunk.
    vid: int = 0
    #: The meters of what they have flooded, and of ARP and neighbour solicitations, where that is limited.
    flood_meter: int | None = None
    address_meter: int | None = None


def muted(port: int, hosts: Iterable[Muted], meter: int | None, *, edge: bool) -> list[Rule]:
    """Return leased rules that keep the packets of a port's unknown hosts, and ARP, from the controller.

    They are flooded instead, within the limit of `meter` if the switch has meters. Discovery frames from there are
    dropped, and so are probes unless an edge is at the port, which sends them back.
    """
    forged = [Match(in_port=port, eth_type=LLDP)]
    if not edge:
        forged.append(Match(in_port=port, eth_type=EXPERIMENTAL, eth_dst=PROBE_MAC))
    hosts = list(hosts)
    unanswered = _rule(DESTINATIONS, 6, unicast(Match(in_port=port)), goto=TREES, lease=MUTE_LEASE)
    any_limit = any(each.flood_meter is not None for each in hosts)
    return [
        *(rule for each in hosts for rule in _muted_sources(port, each, meter)),
        *([_limited(unanswered, each) for each in hosts] if any_limit else [unanswered]),
        *(_rule(INGRESS, FORGED, match, lease=MUTE_LEASE) for match in forged),
    ]


def _limited(rule: Rule, hosts: Muted) -> Rule:
    metadata = metadata_of(hosts.tenant) if hosts.vid else None
    whose = (metadata, METADATA_MASK) if metadata is not None else None
    return replace(rule, match=replace(rule.match, metadata=whose), meter=hosts.flood_meter)


def _muted_sources(port: int, hosts: Muted, meter: int | None) -> Iterator[Rule]:
    metadata, untag = metadata_of(hosts.tenant), (PopTag(),) if hosts.vid else ()
    whole = Match(in_port=port, vlan=hosts.vid or None)
    if hosts.flood is not None:
        for match in requests(whole):
            actions = (*untag, PushTag(hosts.flood))
            # Made-up hosts at the port leave nothing of the other meter to real ones.
            own = meter if hosts.address_meter is None else hosts.address_meter
            yield Rule(SOURCES, 50, match, actions, PATHS, COOKIE, MUTE_LEASE, own)
    unicast = (
        replace(whole, eth_type=ARP),
        *(replace(whole, eth_type=IPV6, ip_proto=58, icmpv6_type=kind) for kind in (135, 136)),
    )
    # Where a meter limits these, made-up hosts take nothing from them.
    for match in (*unicast, *(configuration(whole) if hosts.address_meter is not None else ())):
        yield _rule(SOURCES, 40, match, *untag, goto=DESTINATIONS, lease=MUTE_LEASE, metadata=metadata)
    yield Rule(SOURCES, 10, whole, untag, DESTINATIONS, COOKIE, MUTE_LEASE, meter, metadata=metadata)


@functools.cache
def leases() -> tuple[Rule, ...]:
    """Return the leased rules, which send ARP and neighbour discovery to the controller."""
    return (
        *(
            _rule(SOURCES, 30, match, TO_CONTROLLER, goto=DESTINATIONS, lease=ARP_LEASE)
            for match in (
                Match(eth_type=ARP),
                Match(eth_type=IPV6, ip_proto=58, icmpv6_type=135),
                Match(eth_type=IPV6, ip_proto=58, icmpv6_type=136),
            )
        ),
        # These are passed on by the controller alone.
        *(_rule(DESTINATIONS, 50, match, lease=ARP_LEASE) for match in requests(Match())),
    )


@functools.cache
def no_detour() -> Rule:
    """Return the rule that drops marked packets of trees whose detour does not pass a switch.

    By the tree itself they could come to another switch that sends them on by the detour, and so go round.
    """
    return _rule(PATHS, 30, Match(vlan=TAGGED, vlan_pcp=DETOUR_PCP))


def of_switch(
    plan: Plan,
    switch: int,
    edge_ports: Iterable[int],
    *,
    everywhere: bool = True,
    drops_marked: bool = False,
    limits_floods: bool = False,
    tenants: Tenants = NO_TENANTS,
) -> list[Rule]:
    """Return a switch's rules for its own ports, but those that limit floods (`flood_limit`).

    `everywhere` if it has a rule for each host, `drops_marked` if marked packets may come to it, `limits_floods` if
    ports have such rules.
    """
    edge_ports = list(edge_ports)
    made = [*base()] if everywhere else [*base(), unanswered(is_by_port=limits_floods)]
    if drops_marked:
        made.append(no_detour())
    made += [_of_link(port) for port in sorted(plan.internal.get(switch, ()))]
    after = SOURCES if tenants else PATHS
    made += [_rule(INGRESS, 80, Match(in_port=port, vlan=TAGGED), goto=after) for port in edge_ports]
    for port, vids in sorted(plan.trunks.get(switch, {}).items()):
        made.append(_rule(INGRESS, 80, Match(in_port=port, vlan=TAGGED), goto=SOURCES))
        made += of_trunk(port, tuple(vids.items()))
    for port, tenant in sorted(plan.port_tenants.get(switch, {}).items()):
        made += of_tenant_port(port, tenant)
        if port in edge_ports:
            made += of_tenant_edge(port, tenant, tenants)
    return made


#: Priority of rules for tagged packets of edges, above all others of the table; that which refuses them is one lower.
ADMITTED = 60


@functools.lru_cache(maxsize=4096)
def of_tenant_port(port: int, tenant: int) -> tuple[Rule, ...]:
    """Return the rules that give packets from a port their tenant. Those of hosts there do so as well.

    Copies of ARP and neighbour discovery for the controller are no leases here: what is leased is that no switch
    floods the requests.
    """
    return tuple(_of_unknown_hosts(Match(in_port=port), tenant))


def _of_unknown_hosts(match: Match, tenant: int, *untag: Action) -> Iterator[Rule]:
    metadata = metadata_of(tenant)
    copies = 32 if untag else 31
    for rule in leases():
        if rule.table == SOURCES:
            copied = replace(rule.match, in_port=match.in_port, vlan=match.vlan)
            yield _rule(SOURCES, copies, copied, TO_CONTROLLER, *untag, goto=DESTINATIONS, metadata=metadata)
    # Above that for all frames of a trunk.
    yield _rule(SOURCES, 2 if untag else 1, match, TO_CONTROLLER, *untag, goto=DESTINATIONS, metadata=metadata)


@functools.lru_cache(maxsize=1024)
def of_trunk(port: int, tenants: tuple[tuple[int, int], ...]) -> tuple[Rule, ...]:
    """Return the rules that give packets from a trunk their tenant, by their VIDs, and take the header with it off.

    The controller's copies have it still.
    """
    known = (
        each for vid, tenant in tenants for each in _of_unknown_hosts(Match(in_port=port, vlan=vid), tenant, PopTag())
    )
    # Without one of these VIDs they are nobody's, and no copies of them are wanted: the leases would send some.
    others = (replace(rule.match, in_port=port) for rule in leases() if rule.table == SOURCES)
    return (
        *known,
        *(_rule(SOURCES, 31, match) for match in others),
        _rule(SOURCES, 31, Match(in_port=port, vlan=UNTAGGED)),
        _rule(SOURCES, 1, Match(in_port=port)),
        # A discovery frame behind a header is one that was handed on.
        _rule(INGRESS, TRUNK_LLDP, Match(in_port=port, eth_type=LLDP, vlan=TAGGED)),
    )


@functools.lru_cache(maxsize=1024)
def of_tenant_edge(port: int, tenant: int, tenants: Tenants) -> tuple[Rule, ...]:
    """Return the rules that pass on an edge's packets under tags of its own tenant alone."""
    return (
        *(_rule(SOURCES, ADMITTED, Match(in_port=port, vlan=each), goto=PATHS) for each in tenants.masks(tenant)),
        _rule(SOURCES, ADMITTED - 1, Match(in_port=port, vlan=TAGGED)),
    )


def of_flood(
    tag: int,
    branches: frozenset[int],
    internal: Iterable[int],
    outside: Iterable[int],
    trunks: Iterable[tuple[int, int]] = (),
) -> list[Rule]:
    """Return a switch's rules for packets under a flood's tag.

    `branches` are its ports on the flood's tree, `internal` all that are links, and `outside` those of hosts.
    `trunks` are those of hosts whose frames have a VID, with that.
    """
    # A neighbour that floods by itself sends copies over links that are not on the tree: these would go round.
    made = [_of_flood(port, tag, is_branch=port in branches) for port in sorted(internal)]
    actions: list[Action] = [Output(port) for port in sorted(branches)]
    ends: list[Action] = [Output(port) for port in sorted(outside)]
    for port, vid in trunks:
        ends += [PushTag(vid), Output(port), PopTag()]
    if ends:
        actions += [PopTag(), *ends]
    made.append(_rule(PATHS, SINGLE_WAY, Match(vlan=tag), *actions, tag=tag))
    return made


@functools.lru_cache(maxsize=4096)
def _of_link(port: int) -> Rule:
    """Return the rule for tagged packets from a link's port."""
    return _rule(INGRESS, 80, Match(in_port=port), goto=PATHS)


@functools.lru_cache(maxsize=4096)
def _of_flood(port: int, tag: int, *, is_branch: bool) -> Rule:
    """Return the rule for floods from a link's port."""
    return _rule(INGRESS, 85, Match(in_port=port, vlan=tag), goto=PATHS if is_branch else None, tag=tag)


@functools.lru_cache(maxsize=256)
def to_flood(tag: int, tenant: int = NOBODY) -> Rule:
    """Return the rule for packets that are to be flooded."""
    metadata = metadata_of(tenant)
    match = Match(metadata=(metadata, METADATA_MASK)) if metadata is not None else Match()
    return _rule(TREES, 0, match, PushTag(tag), goto=PATHS, tag=tag)


def of_tree_end(tree: Tree) -> Rule:
    """Return the rule at a tree's root."""
    metadata = metadata_of(tree.tenant)
    return _rule(PATHS, 10, Match(vlan=tree.tag), PopTag(), goto=DELIVERY, tag=tree.tag, metadata=metadata)


def detour_group(port: int, other: int, *, turning: bool) -> int | None:
    """Return the group for packets that leave by a port, and marked by another one while that is down.

    `turning` if they arrived at the other one. None if a port's number is too large.
    """
    if max(port, other) > MAX_DETOUR_PORT:
        return None
    return ((_TURNING_GROUP if turning else _GROUP) << _PORT_BITS | port) << _PORT_BITS | other


def buckets_of(group: int) -> tuple[Bucket, ...] | None:
    """Return the buckets of one of our groups, which its number tells; None if it is none of ours."""
    kind, port, other = group >> 2 * _PORT_BITS, group >> _PORT_BITS & MAX_DETOUR_PORT, group & MAX_DETOUR_PORT
    if kind not in (_GROUP, _TURNING_GROUP):
        return None
    out = Reserved.IN_PORT if kind == _TURNING_GROUP else other
    mark = SetField("vlan_pcp", DETOUR_PCP)
    return Bucket(port, (Output(port),)), Bucket(other, (mark, Output(out)))


def groups_of(rule: Rule) -> list[int]:
    """Return the groups that a rule leads to."""
    return [each.group for each in rule.actions if isinstance(each, ToGroup)]


#: Priority of rules for packets that come from where a detour leads.
TURNING = 15


def of_tree(tree: Tree, port: int, other: int | None = None, arrived: int | None = None) -> Rule:
    """Return the rule of a tree's switch whose next port this is.

    While it is down, packets leave marked by the `other` one, if there is one. With `arrived` the rule is for packets
    from that port alone.
    """
    group = detour_group(port, other, turning=other == arrived) if other is not None else None
    out = Output(port) if group is None else ToGroup(group)
    priority = 10 if arrived is None else TURNING
    return _rule(PATHS, priority, Match(vlan=tree.tag, in_port=arrived), out, tag=tree.tag)


def of_detour(tree: Tree, port: int) -> Rule:
    """Return the rule for marked packets of a tree at a switch of its detour."""
    return _rule(PATHS, 40, Match(vlan=tree.tag, vlan_pcp=DETOUR_PCP), Output(port), tag=tree.tag)


def of_detour_end(tree: Tree) -> Rule:
    """Return the rule for marked packets at a tree's root."""
    return replace(of_tree_end(tree), priority=40, match=Match(vlan=tree.tag, vlan_pcp=DETOUR_PCP))


def is_marked(key: RuleKey) -> bool:
    """Return true for a rule of a detour."""
    return key[2].vlan_pcp is not None


def _number(switch: int, tenant: int) -> int:
    """Return a switch's number as metadata, the tenant above its datapath id.

    Not 0, which is that of packets without any.
    """
    if tenant:
        return tenant << DPID_BITS | (switch or (1 << DPID_BITS) - 1)
    return switch or 0xFFFFFFFF_FFFFFFFF


def to_tree(tree: Tree) -> Rule:
    """Return the rule that sends packets for hosts at a tree's root by that tree."""
    return _rule(
        TREES, 10, Match(metadata=_number(tree.root, tree.tenant)), PushTag(tree.tag), goto=PATHS, tag=tree.tag
    )


def of_path(path: TaggedPath) -> list[tuple[int, Rule]]:
    """Return the rules of a path with their switches."""
    made = [
        (step.switch, _rule(PATHS, SINGLE_WAY, Match(vlan=path.tag), Output(step.port), tag=path.tag))
        for step in path.steps
    ]
    probe = Match(vlan=path.tag, eth_type=EXPERIMENTAL)
    return [*made, (path.last, _rule(PATHS, SINGLE_WAY + 1, probe, TO_CONTROLLER, tag=path.tag))]


def of_pinned(path: PinnedPath) -> list[tuple[int, Rule]]:
    """Return the rules of two hosts' own path with their switches. It ends as a tree does."""
    metadata = metadata_of(path.tenant)
    ends = Match(in_port=path.port, eth_src=path.source, eth_dst=path.target, metadata=metadata)
    tagged = Match(vlan=path.tag)
    return [
        (path.steps[0].switch, _rule(DESTINATIONS, 40, ends, PushTag(path.tag), goto=PATHS, tag=path.tag)),
        *((step.switch, _rule(PATHS, SINGLE_WAY, tagged, Output(step.port), tag=path.tag)) for step in path.steps),
        (path.last, _rule(PATHS, SINGLE_WAY, tagged, PopTag(), goto=DELIVERY, tag=path.tag, metadata=metadata)),
    ]


def is_pin(key: RuleKey) -> bool:
    """Return true for a rule that leads two hosts' packets another way than all others to the same host.

    Without it they take that way, so it can be deleted while the path that it leads to is still there.
    """
    table, _, match = key
    return table == DESTINATIONS and match.eth_src is not None


def of_local_host(host: Host) -> list[Rule]:
    """Return the rules of a host at its own switch."""
    port, metadata = host.port.port, metadata_of(host.tenant)
    source = Match(in_port=port, eth_src=host.mac, vlan=host.vid or None)
    target = Match(eth_dst=host.mac, metadata=metadata)
    untag, out = ((PopTag(),), (PushTag(host.vid), Output(port))) if host.vid else ((), (Output(port),))
    return [
        _rule(SOURCES, 20, source, *untag, goto=DESTINATIONS, metadata=metadata),
        *(_rule(table, 30, target, *out) for table in (DESTINATIONS, DELIVERY)),
    ]


def of_remote_host(host: Host) -> Rule:
    """Return the rule of a host at other switches."""
    target = Match(eth_dst=host.mac, metadata=metadata_of(host.tenant))
    return _rule(DESTINATIONS, 30, target, goto=TREES, metadata=_number(host.port.switch, host.tenant))


def is_ours(rule: Rule) -> bool:
    """Return true if a rule was made by a controller with this layout."""
    return is_our_cookie(rule.cookie)


def is_our_cookie(cookie: int) -> bool:
    """Return true for the cookie of such a rule."""
    return cookie & ~0xFFFFFFFF == COOKIE


def is_across(rule: Rule) -> bool:
    """Return true for a rule by which packets come from another switch, or leave for one."""
    if rule.table == PATHS:
        return True
    is_port = rule.match.in_port not in (None, Reserved.CONTROLLER)
    return (rule.table, rule.goto) == (INGRESS, PATHS) and is_port and rule.match.vlan != UNTAGGED


def with_digest(rule: Rule, digest: int) -> Rule:
    """Return a rule with the digest of the tenants' configuration, if packets cross the network by it."""
    return replace(rule, cookie=rule.cookie | digest << DIGEST_SHIFT) if digest and is_across(rule) else rule


def has_digest(rule: Rule, digest: int) -> bool:
    """Return true if a rule was made for the tenants' configuration with this digest, or is the same for all."""
    return not is_across(rule) or (rule.cookie & 0xFFFFFFFF) >> DIGEST_SHIFT == digest


def is_old(rule: Rule) -> bool:
    """Return true if a rule was made by a controller with the layout before this one."""
    return rule.cookie & ~0xFFFFFFFF == OLD_COOKIE


def carry_over(known: Iterable[Rule]) -> tuple[list[Rule], list[AddRule | DeleteRule]]:
    """Return the rules by which a switch forwards packets of both layouts, and the changes that lead there.

    Switches change their layout one after another, so each gets packets with tags of either. Those of the old layout
    get rules in this layout's table of paths as well, so their tags are known and not assigned anew; those of this
    one pass the old table of paths; and the old delivery makes room for the new paths. No plan has these rules: the
    first one deletes them. There is no change for a switch without rules of the old layout.
    """
    rules = {rule.key: rule for rule in known}
    old = [rule for rule in rules.values() if is_old(rule)]
    paths = [rule for rule in old if rule.table == _OLD_PATHS and rule.goto in (None, _OLD_DELIVERY)]
    delivery = [rule for rule in old if rule.table == _OLD_DELIVERY]

    def moved(rule: Rule, table: int) -> Rule:
        goto = DELIVERY if rule.goto == _OLD_DELIVERY else rule.goto
        return replace(rule, table=table, goto=goto, cookie=COOKIE | rule.cookie & 0xFFFFFFFF)

    changes: list[AddRule | DeleteRule] = [AddRule(moved(rule, DELIVERY)) for rule in delivery]
    changes += [AddRule(replace(rule, goto=DELIVERY)) for rule in paths if rule.goto == _OLD_DELIVERY]
    changes += [DeleteRule(rule.key) for rule in delivery]
    changes += [AddRule(moved(rule, PATHS)) for rule in paths]
    if paths:
        changes.append(AddRule(_rule(TREES, 5, Match(vlan=TAGGED), goto=PATHS)))
    for change in changes:
        if isinstance(change, AddRule):
            rules[change.rule.key] = change.rule
        else:
            del rules[change.key]
    return list(rules.values()), changes


def tag_of(key: RuleKey) -> int | None:
    """Return the tag of a rule of paths: while a switch has it, it must not be assigned anew."""
    table, _, match = key
    return match.vlan if table == PATHS and isinstance(match.vlan, int) and match.vlan != TAGGED else None


def links_in(switch: int, rules: Iterable[Rule]) -> set[PortId]:
    """Return the ports of a switch that its rules treat as links."""
    return {
        PortId(switch, rule.match.in_port)
        for rule in rules
        if (is_ours(rule) or is_old(rule))
        and rule.table == INGRESS
        and rule.match.in_port is not None
        and rule.match.in_port != Reserved.CONTROLLER
        and rule.match.vlan is None
        and rule.goto is not None
    }


def vid_of(match: Match) -> int:
    """Return the one VID that a match has; 0 if it has none, or several."""
    return match.vlan if isinstance(match.vlan, int) and match.vlan not in (TAGGED, UNTAGGED) else 0


def host_counters(switch: int, rules: Iterable[FlowStats]) -> Iterator[tuple[str, PortId, int]]:
    """Yield the MAC, port, and packets of each host in a switch's rules."""
    for each in rules:
        match = each.rule.match
        if each.rule.table == SOURCES and match.eth_src is not None and match.in_port is not None:
            yield match.eth_src, PortId(switch, match.in_port), each.packets


def remote_counters(rules: Iterable[FlowStats]) -> Iterator[tuple[str, int]]:
    """Yield the MAC and packets of each host of other switches in a switch's rules."""
    for each in rules:
        rule = each.rule
        if rule.table == DESTINATIONS and rule.metadata is not None and rule.match.eth_dst is not None:
            yield rule.match.eth_dst, each.packets


def hosts_in(switch: int, rules: Iterable[Rule]) -> list[Host]:
    """Return the hosts in a switch's rules, from which a restarted controller continues."""
    return [
        Host(rule.match.eth_src, PortId(switch, rule.match.in_port), vid=vid_of(rule.match))
        for rule in rules
        if (is_ours(rule) or is_old(rule))
        and rule.table == SOURCES
        and rule.match.eth_src is not None
        and rule.match.in_port is not None
    ]
