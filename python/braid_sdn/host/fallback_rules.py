"""Rules for new flows while no controller serves them: `fail_mode = "standalone"`.

Rules that lead first packets to the controller get a lease, which the controller renews. Once it is gone, or hangs,
they end, and standing rules below them give new flows the best uplink, translated by the switch's connection tracker.
Connections begun like that stay in the tracker, which is asked before the controller is, so they outlive its return.

    1 outbound  first packets are looked up in the tracker, then go to 20
    20 new      packets of tracked connections go to 21; the others to the controller, or, without its leases, are
                committed with the best uplink's address
    21 send     the address says by which uplink
    2 inbound   packets to the ports kept for this are looked up, then go to 22
    22 back     packets of tracked connections go inside
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from braid_sdn.host.flow_rules import COOKIE, ETHERTYPES, INBOUND, OUTBOUND, OwnAddress
from braid_sdn.host.packets import ETHERTYPE_IPV4, ICMP, ICMPV6, SYN, TCP, UDP
from braid_sdn.openflow.messages import (
    CT_ESTABLISHED,
    CT_NEW,
    CT_RELATED,
    CT_TRACKED,
    Action,
    Commit,
    Mac,
    Match,
    Output,
    Reserved,
    Rule,
    SetField,
    Track,
)

#: Seconds of a lease.
LEASE = 6
#: Ports of an uplink that are kept for these flows: a block whose first port is a multiple of it.
BLOCK = 1024

NEW, SEND, BACK = 20, 21, 22
#: Zone of the connection tracker.
ZONE = 0xB1D1


def kept_ports(ports: tuple[int, int]) -> tuple[int, int] | None:
    """Return the part of an uplink's ports that is kept for these flows; None if the range is too small to share."""
    first = (ports[1] + 1) // BLOCK * BLOCK - BLOCK
    return (first, first + BLOCK - 1) if first > ports[0] else None


@dataclass(frozen=True, slots=True)
class Fallback:
    """The best uplink's address by IP version, and the inside's link-layer address."""

    best: Mapping[int, OwnAddress]
    #: Ports that are kept, by the address of the uplink.
    ports: Mapping[str, tuple[int, int]]
    inside_mac: Mac


def with_fallback(rules: Iterable[Rule], inside: int, own: Iterable[OwnAddress], fallback: Fallback) -> list[Rule]:
    """Return the static rules with leases, and the standing rules below them."""
    made: list[Rule] = []
    for rule in rules:
        if rule.actions != (Output(Reserved.CONTROLLER),) or rule.match.arp_op is not None:
            made.append(rule)
        elif rule.table == OUTBOUND:
            made.append(_rule(OUTBOUND, rule.priority, rule.match, Track(ZONE, NEW)))
            made.append(replace(rule, table=NEW, lease=LEASE))
        elif rule.priority == 20:
            # Echo replies and errors.
            made.append(_rule(INBOUND, 10, rule.match, Track(ZONE, BACK)))
            made.append(replace(rule, lease=LEASE))
        else:
            made.append(rule)
    for family, kind in ETHERTYPES.items():
        known = Match(eth_type=kind, ct_state=(CT_TRACKED | CT_ESTABLISHED, CT_TRACKED | CT_ESTABLISHED))
        made.append(Rule(NEW, 200, known, (), SEND, COOKIE))
        best = fallback.best.get(family)
        if best is not None:
            made += _new_flows(kind, best, fallback.ports[best.address])
    for each in own:
        made += _tracked(each, inside, fallback)
    return made


def inside_mac(rules: Iterable[Rule]) -> Mac | None:
    """Return the inside's link-layer address by the rules that an earlier controller has left."""
    inward = (rule for rule in rules if rule.table == BACK and rule.cookie == COOKIE)
    fields = (each for rule in inward for each in rule.actions if isinstance(each, SetField))
    return next((str(each.value) for each in fields if each.name == "eth_dst"), None)


def _rule(table: int, priority: int, match: Match, *actions: Action) -> Rule:
    return Rule(table, priority, match, actions, None, COOKIE)


def _new_flows(kind: int, best: OwnAddress, ports: tuple[int, int]) -> list[Rule]:
    commit = Commit(ZONE, SEND, best.address, ports, 0)
    new = Match(eth_type=kind, ct_state=(CT_TRACKED | CT_NEW, CT_TRACKED | CT_NEW))
    icmp = ICMP if kind == ETHERTYPE_IPV4 else ICMPV6
    return [
        _rule(NEW, 1, replace(new, ip_proto=TCP, tcp_flags=(SYN, SYN)), commit),
        _rule(NEW, 1, replace(new, ip_proto=UDP), commit),
        _rule(NEW, 1, replace(new, ip_proto=icmp), commit),
    ]


def _tracked(own: OwnAddress, inside: int, fallback: Fallback) -> list[Rule]:
    """Return the rules of one uplink's tracked connections, both ways."""
    kind = ETHERTYPES[own.family]
    out = (SetField("eth_src", own.mac), SetField("eth_dst", own.gateway_mac), Output(own.port))
    made = [_rule(SEND, 10, own.match, *out)]
    if own.address in fallback.ports:
        block = (fallback.ports[own.address][0], 0x10000 - BLOCK)
        for protocol, port in ((TCP, "tcp_dst"), (UDP, "udp_dst")):
            fields = {f"ipv{own.family}_dst": own.address, port: block}
            match = Match(in_port=own.port, eth_type=kind, ip_proto=protocol, **fields)  # type: ignore[arg-type]
            made.append(_rule(INBOUND, 10, match, Track(ZONE, BACK)))
    inward = (SetField("eth_src", own.mac), SetField("eth_dst", fallback.inside_mac), Output(inside))
    for verdict in (CT_ESTABLISHED, CT_RELATED):
        state = (CT_TRACKED | verdict, CT_TRACKED | verdict)
        made.append(_rule(BACK, 10, Match(in_port=own.port, eth_type=kind, ct_state=state), *inward))
    return made
