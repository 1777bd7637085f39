"""Rules of the host's bridge.

    0 ingress   packets of the inside go to 1, those of uplinks to 2; nothing else passes
    1 outbound  a rule for each flow writes its outer source and sends it out of its uplink; first packets go to the
                controller: SYNs, datagrams, echo requests, and segments of connections that have no rule
    2 inbound   a rule for each flow writes its inner destination and sends it inside; answers of gateways, echo
                replies and ICMP errors go to the controller; the kernel's own packets end here, since the kernel gets
                every frame of an uplink by itself
    3 delivery  datagrams of mappings go inside, answers of name servers to the controller first, while names matter

A flow's rules have cookies that name it, and state all that the controller needs to know: one that starts anew reads
its flows from the switch. Meters bound what may go to the controller.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, replace

from braid_sdn.host.flow_table import DNS_PORT, QUIC_PORT, TCP_TRANSITORY_IDLE, End, Flow, rule_idle
from braid_sdn.host.packets import (
    ACK,
    ARP_REPLY,
    ECHO_REPLY,
    ECHO_REQUEST,
    ERRORS,
    ETHERTYPE_ARP,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    FRAGMENT_HEADER,
    ICMP,
    ICMPV6,
    NEIGHBOUR_ADVERTISEMENT,
    SYN,
    TCP,
    UDP,
)
from braid_sdn.openflow.messages import (
    Action,
    FinTimeout,
    Mac,
    Match,
    Output,
    Reserved,
    Rule,
    SetField,
    SetMeter,
)

INGRESS, OUTBOUND, INBOUND, DELIVERY = range(4)

#: Upper 16 bits of all our cookies. Below: class (6 bits), rule and 1 (8 bits), the flow's number (32 bits), and the
#: direction (2 bits; 0 in rules that belong to no flow).
COOKIE = 0xB1D0 << 48
COOKIE_MASK = 0xFFFF << 48
OUT, IN = 1, 2
#: Lowest three bits of rules for a race's attempt, and for all connections of an uplink (`group_rules.py`).
KIND_MASK, ATTEMPT, EVERY = 7, 3, 7

#: Priorities of flows: a connection's rule wins over the mapping of its UDP port.
CONNECTION, MAPPING = 100, 90

#: Numbers of the meters, and what each lets pass to the controller: packets a second, and at once.
NEW_FLOWS, OTHERS, NEIGHBOURS, ANSWERS = 1, 2, 3, 4
METERS = (
    SetMeter(NEW_FLOWS, rate=3000, burst=3000),
    SetMeter(OTHERS, rate=1000, burst=1000),
    SetMeter(NEIGHBOURS, rate=300, burst=300),
    SetMeter(ANSWERS, rate=1000, burst=200),
)

#: Seconds after which answers of name servers go inside by themselves, if the controller is gone or hangs.
ANSWERS_LEASE = 3

ETHERTYPES = {4: ETHERTYPE_IPV4, 6: ETHERTYPE_IPV6}
_PORTS = {TCP: "tcp", UDP: "udp"}


def cookie(flow: Flow, direction: int) -> int:
    """Return the cookie of a flow's rule."""
    rule = 0 if flow.rule is None else flow.rule + 1
    return COOKIE | flow.class_number << 42 | rule << 34 | flow.number << 2 | direction


def flow_of(told: int) -> tuple[int, int] | None:
    """Return the flow's number and the direction that a cookie names; None for rules of no flow, and of others."""
    direction = told & 3
    if told & COOKIE_MASK != COOKIE or direction not in (OUT, IN):
        return None
    return told >> 2 & 0xFFFFFFFF, direction


def is_standing(told: int) -> bool:
    """Return True for the cookie of a rule of ours that neither a flow nor a race has."""
    return told & COOKIE_MASK == COOKIE and told & KIND_MASK != ATTEMPT and flow_of(told) is None


@dataclass(frozen=True, slots=True)
class OwnAddress:
    """An uplink's own address, with its port, its MAC and its gateway's."""

    address: str
    family: int
    port: int
    mac: Mac
    gateway_mac: Mac

    @property
    def match(self) -> Match:
        """Return the match of packets that bear it as their source."""
        if self.family == 4:
            return Match(eth_type=ETHERTYPE_IPV4, ipv4_src=self.address)
        return Match(eth_type=ETHERTYPE_IPV6, ipv6_src=self.address)


def static_rules(
    inside: int, uplinks: Iterable[int], own: Iterable[OwnAddress] = (), *, holds_answers: bool = False
) -> list[Rule]:
    """Return the rules that no flow has, for the inside's port and those of the uplinks.

    A packet of the inside whose source is an uplink's own address leaves by that uplink as it is: it answers one that
    came to a forwarded port, and connection tracking has put that address there. With `holds_answers` those of name
    servers come up.
    """

    def rule(
        table: int, priority: int, match: Match, *actions: Action, goto: int | None = None, meter: int | None = None
    ) -> Rule:
        return Rule(table, priority, match, actions, goto, COOKIE, meter=meter)

    to_controller = Output(Reserved.CONTROLLER)
    rules = [rule(INGRESS, 10, Match(in_port=inside), goto=OUTBOUND)]
    rules += [rule(INGRESS, 10, Match(in_port=port), goto=INBOUND) for port in uplinks]
    for family, kind in ETHERTYPES.items():
        tcp, udp = Match(eth_type=kind, ip_proto=TCP), Match(eth_type=kind, ip_proto=UDP)
        syn = Match(eth_type=kind, ip_proto=TCP, tcp_flags=(SYN, SYN | ACK))
        rules += [
            # Also those of known flows: a SYN that is repeated tells that an uplink is silent.
            rule(OUTBOUND, CONNECTION + 5, syn, to_controller, meter=NEW_FLOWS),
            rule(OUTBOUND, 20, udp, to_controller, meter=NEW_FLOWS),
            # A QUIC connection is a flow of its own, even where its socket has a mapping for others.
            rule(OUTBOUND, MAPPING + 5, replace(udp, udp_dst=QUIC_PORT), to_controller, meter=NEW_FLOWS),
            # Segments of no flow are answered by a reset: their connection is over.
            rule(OUTBOUND, 20, tcp, to_controller, meter=OTHERS),
            rule(OUTBOUND, 20, icmp_match(family, ECHO_REQUEST[family]), to_controller, meter=OTHERS),
            rule(INBOUND, 20, icmp_match(family, ECHO_REPLY[family]), to_controller, meter=OTHERS),
        ]
        # Above those of flows: no flow has the port 0.
        rules += [rule(OUTBOUND, CONNECTION + 6, each, to_controller, meter=OTHERS) for each in _fragments(family)]
        rules += [
            rule(INBOUND, CONNECTION + 6, each, to_controller, meter=OTHERS)
            for each in _fragments(family)
            # The rule for echo replies has those.
            if each.icmpv4_type is None
        ]
        errors = (icmp_match(family, error) for error in ERRORS[family])
        rules += [rule(INBOUND, 20, error, to_controller, meter=OTHERS) for error in errors]
    for each in own:
        actions = (SetField("eth_src", each.mac), SetField("eth_dst", each.gateway_mac), Output(each.port))
        rules.append(rule(OUTBOUND, CONNECTION + 10, each.match, *actions))
    answers = (
        Match(eth_type=ETHERTYPE_ARP, arp_op=ARP_REPLY),
        icmp_match(6, NEIGHBOUR_ADVERTISEMENT),
    )
    rules += [rule(INBOUND, 30, answer, to_controller, meter=NEIGHBOURS) for answer in answers]
    rules.append(rule(DELIVERY, 0, Match(), Output(inside)))
    if holds_answers:
        for kind in ETHERTYPES.values():
            match = Match(eth_type=kind, ip_proto=UDP, udp_src=DNS_PORT)
            held = rule(DELIVERY, 10, match, to_controller, meter=ANSWERS)
            rules.append(replace(held, lease=ANSWERS_LEASE))
    return rules


def _fragments(family: int) -> list[Match]:
    """Return the matches of fragments, whose ports and types a switch takes for 0 (OpenFlow 1.3 §7.3.2, "normal")."""
    kind = ETHERTYPES[family]
    later = [Match(eth_type=kind, ip_proto=FRAGMENT_HEADER)] if family == 6 else []
    return [
        *later,
        Match(eth_type=kind, ip_proto=UDP, udp_src=0, udp_dst=0),
        Match(eth_type=kind, ip_proto=TCP, tcp_src=0, tcp_dst=0),
        # Of IPv4 it is also an echo reply's.
        icmp_match(family, 0),
    ]


def icmp_match(family: int, kind: int) -> Match:
    """Return the match of an ICMP type."""
    if family == 4:
        return Match(eth_type=ETHERTYPE_IPV4, ip_proto=ICMP, icmpv4_type=kind)
    return Match(eth_type=ETHERTYPE_IPV6, ip_proto=ICMPV6, icmpv6_type=kind)


def outbound_rule(flow: Flow, *, inside: int, port: int, mac: Mac, gateway: Mac) -> Rule:
    """Return the rule that sends a flow's packets out of an uplink; `mac` is the uplink's own."""
    match = _ends_match(inside, flow.protocol, flow.inner, flow.remote)
    actions: list[Action] = [
        SetField("eth_src", mac),
        SetField("eth_dst", gateway),
        SetField(f"ipv{flow.family}_src", str(flow.outer[0])),
        SetField(f"{_PORTS[flow.protocol]}_src", flow.outer[1]),
    ]
    return _rule(OUTBOUND, flow, OUT, match, [*actions, *_fin(flow), Output(port)], None)


def inbound_rule(flow: Flow, *, inside: int, port: int, mac: Mac) -> Rule:
    """Return the rule that sends a flow's answers inside; `mac` is the uplink's own."""
    match = _ends_match(port, flow.protocol, flow.remote, flow.outer)
    actions: list[Action] = [
        SetField("eth_src", mac),
        SetField("eth_dst", flow.inner_mac),
        SetField(f"ipv{flow.family}_dst", str(flow.inner[0])),
        SetField(f"{_PORTS[flow.protocol]}_dst", flow.inner[1]),
    ]
    if flow.protocol == UDP and flow.remote is None and not flow.is_unheld:
        return _rule(INBOUND, flow, IN, match, actions, DELIVERY)
    return _rule(INBOUND, flow, IN, match, [*actions, *_fin(flow), Output(inside)], None)


def attempt_rule(port: int, outer: End, remote: End, lease: int) -> Rule:
    """Return the rule that leads a race's answers by one uplink to the controller; a winner's rule replaces it."""
    return Rule(
        INBOUND,
        CONNECTION,
        _ends_match(port, TCP, remote, outer),
        (Output(Reserved.CONTROLLER),),
        cookie=COOKIE | ATTEMPT,
        lease=lease,
        meter=NEW_FLOWS,
    )


def _rule(table: int, flow: Flow, direction: int, match: Match, actions: list[Action], goto: int | None) -> Rule:
    priority = MAPPING if flow.remote is None else CONNECTION
    return Rule(
        table,
        priority,
        match,
        tuple(actions),
        goto,
        cookie=cookie(flow, direction),
        idle=rule_idle(flow),
        notify=True,
    )


def _fin(flow: Flow) -> list[Action]:
    return [FinTimeout(TCP_TRANSITORY_IDLE)] if flow.protocol == TCP else []


def _ends_match(port: int, protocol: int, source: End | None, target: End | None) -> Match:
    fields: dict[str, str | int] = {}
    family = 4
    for end, name in ((source, "src"), (target, "dst")):
        if end is not None:
            family = end[0].version
            fields[f"ipv{family}_{name}"] = str(end[0])
            fields[f"{_PORTS[protocol]}_{name}"] = end[1]
    return Match(
        in_port=port,
        eth_type=ETHERTYPES[family],
        ip_proto=protocol,
        **fields,  # type: ignore[arg-type]
    )


def flow_from(outbound: Rule, inbound: Rule, *, uplinks: dict[int, int], now: float) -> Flow | None:
    """Return the flow whose two rules these are; None if they are not. `uplinks` are numbers by port."""
    match, fields = outbound.match, {each.name: each.value for each in outbound.actions if isinstance(each, SetField)}
    back = {each.name: each.value for each in inbound.actions if isinstance(each, SetField)}
    ports = [each.port for each in outbound.actions if isinstance(each, Output)]
    family = next((version for version, kind in ETHERTYPES.items() if kind == match.eth_type), None)
    name = _PORTS.get(match.ip_proto or 0)
    named = flow_of(outbound.cookie)
    if family is None or name is None or named is None or len(ports) != 1 or ports[0] not in uplinks:
        return None

    def end(address: object, port: object) -> End | None:
        if not isinstance(address, str) or not isinstance(port, int):
            return None
        return ipaddress.ip_address(address), port

    inner = end(getattr(match, f"ipv{family}_src"), getattr(match, f"{name}_src"))
    remote = end(getattr(match, f"ipv{family}_dst"), getattr(match, f"{name}_dst"))
    outer = end(fields.get(f"ipv{family}_src"), fields.get(f"{name}_src"))
    if inner is None or outer is None or back.get("eth_dst") is None:
        return None
    rule = outbound.cookie >> 34 & 0xFF
    return Flow(
        number=named[0],
        protocol=match.ip_proto or 0,
        inner=inner,
        remote=remote,
        outer=outer,
        uplink=uplinks[ports[0]],
        inner_mac=str(back["eth_dst"]),
        class_number=outbound.cookie >> 42 & 0x3F,
        rule=rule - 1 if rule else None,
        choice="next_slot",
        created=now,
        last_seen=now,
        ruled=now,
        first_port=remote[1] if remote is not None else 0,
        gateway_mac=str(fields.get("eth_dst", "")),
    )
