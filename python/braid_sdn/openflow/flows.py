"""Converts rules between our types and os-ken's OpenFlow 1.3 messages."""

from __future__ import annotations

from collections.abc import Iterable, Set
from ipaddress import IPv6Address
from typing import Any

from os_ken.ofproto import nicira_ext  # type: ignore[import-untyped]
from os_ken.ofproto import ofproto_v1_3 as of
from os_ken.ofproto import ofproto_v1_3_parser as parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc  # type: ignore[import-untyped]

from braid_sdn.openflow.messages import (
    CVLAN,
    TAGGED,
    UNTAGGED,
    Action,
    Bucket,
    Commit,
    FinTimeout,
    Match,
    Output,
    PopTag,
    PushTag,
    Rule,
    SetField,
    ToGroup,
    Track,
)

#: The protocol version of os-ken's messages: OpenFlow 1.3.
DIALECT = ProtocolDesc(version=of.OFP_VERSION)

_PRESENT = of.OFPVID_PRESENT
#: Flag of Open vSwitch's action for a translation of sources (NX_NAT_F_SRC).
_NAT_SOURCE = 1

#: Match fields with the same values in both types: those of an application that forwards by links, and those of one
#: that knows flows. Another field makes a rule somebody else's.
_SHARED_FIELDS = frozenset({"in_port", "eth_type", "eth_src", "ip_proto", "icmpv6_type"})
LINK_FIELDS = _SHARED_FIELDS | {"metadata", "vlan_pcp"}
#: Those by which an application filters the packets that it forwards by links.
FILTER_FIELDS = frozenset(
    {"ipv4_src", "ipv4_dst", "ipv6_src", "ipv6_dst", "tcp_src", "tcp_dst", "udp_src", "udp_dst"}
)
FLOW_FIELDS = _SHARED_FIELDS | {
    "icmpv4_type",
    "arp_op",
    "ipv4_src",
    "ipv4_dst",
    "ipv6_src",
    "ipv6_dst",
    "tcp_src",
    "tcp_dst",
    "udp_src",
    "udp_dst",
    "ip_dscp",
    "tcp_flags",
    "ct_state",
    "ct_mark",
}
#: Fields with a value and a mask, always or where one is given.
_MASKED = {"tcp_flags", "ct_state", "ct_mark"}
_IPV6 = {"ipv6_src", "ipv6_dst"}
_NETWORKS = {"ipv4_src", "ipv4_dst"} | _IPV6
_PORTS = {"tcp_src", "tcp_dst", "udp_src", "udp_dst"}
_PLAIN = (LINK_FIELDS | FLOW_FIELDS) - {"tcp_flags"}
#: os-ken's name of Open vSwitch's match of TCP flags.
_TCP_FLAGS = "tcp_flags_nxm"
#: Its names of the fields that this one needs.
_NEEDED_BY_FLAGS = {"eth_type": "eth_type_nxm", "ip_proto": "ip_proto_nxm"}
_NXM_NAMES = {_TCP_FLAGS: "tcp_flags", **{theirs: ours for ours, theirs in _NEEDED_BY_FLAGS.items()}}


#: The mask of a whole field of 32 bits, and of the metadata that tables pass on.
ALL_BITS = 0xFFFFFFFF
ALL_METADATA_BITS = 0xFFFFFFFF_FFFFFFFF


class UnknownRuleError(Exception):
    """A rule uses a feature that Braid never does."""


def match_out(match: Match) -> Any:
    """Convert a match to os-ken's type."""
    fields: dict[str, Any] = {name: getattr(match, name) for name in _PLAIN if getattr(match, name) is not None}
    if match.eth_dst is not None:
        fields["eth_dst"] = match.eth_dst if match.eth_dst_mask is None else (match.eth_dst, match.eth_dst_mask)
    for name in _NETWORKS & fields.keys():
        address, slash, mask = fields[name].partition("/")
        fields[name] = (address, mask) if slash else address
    if match.tcp_flags is not None:
        # os-ken sorts fields by class, and a field must follow those that it needs (§A.2.3.6).
        for ours, theirs in _NEEDED_BY_FLAGS.items():
            fields[theirs] = fields.pop(ours)
        fields[_TCP_FLAGS] = match.tcp_flags
    if match.vlan == UNTAGGED:
        fields["vlan_vid"] = of.OFPVID_NONE
    elif match.vlan == TAGGED:
        fields["vlan_vid"] = (_PRESENT, _PRESENT)
    elif isinstance(match.vlan, tuple):
        fields["vlan_vid"] = (_PRESENT | match.vlan[0], _PRESENT | match.vlan[1])
    elif match.vlan is not None:
        fields["vlan_vid"] = _PRESENT | match.vlan
    return parser.OFPMatch(**fields)


def match_in(match: Any, known: Set[str] = LINK_FIELDS) -> Match:
    """Convert a switch's match to our type; raises UnknownRuleError for fields that are not `known`, and masks."""
    fields: dict[str, Any] = {}
    for told, value in match.items():
        name = _NXM_NAMES.get(told, told)
        if name in _IPV6 & known:
            # os-ken writes some in another way: ::1.2.3.4 for ::102:304.
            parts = value if isinstance(value, tuple) else (value,)
            fields[name] = "/".join(str(IPv6Address(part)) for part in parts)
            continue
        if name in _MASKED & known and isinstance(value, int):
            # A mask of all bits is not sent.
            fields[name] = (value, ALL_BITS)
        elif name in _PLAIN & known and not isinstance(value, tuple):
            fields[name] = value
        elif name == "eth_dst":
            fields["eth_dst"], fields["eth_dst_mask"] = value if isinstance(value, tuple) else (value, None)
        elif name in (_MASKED | _PORTS) & known and isinstance(value, tuple):
            fields[name] = value
        elif name in _NETWORKS & known:
            fields[name] = "/".join(value)
        elif name == "vlan_vid" and value == (_PRESENT, _PRESENT):
            fields["vlan"] = TAGGED
        elif name == "vlan_vid" and isinstance(value, tuple) and value[0] & value[1] & _PRESENT:
            fields["vlan"] = (value[0] & ~_PRESENT, value[1] & ~_PRESENT)
        elif name == "metadata" and name in known and isinstance(value, tuple):
            fields["metadata"] = value
        elif name == "vlan_vid" and isinstance(value, int):
            fields["vlan"] = value & ~_PRESENT if value & _PRESENT else UNTAGGED
        else:
            raise UnknownRuleError(f"matches {told} = {value}")
    return Match(**fields)


def actions_out(actions: Iterable[Action]) -> list[Any]:
    """Convert actions to os-ken's types."""
    made: list[Any] = []
    for action in actions:
        match action:
            case Output(port):
                made.append(parser.OFPActionOutput(port, of.OFPCML_NO_BUFFER))
            case PushTag(vlan):
                made.append(parser.OFPActionPushVlan(CVLAN))
                made.append(parser.OFPActionSetField(vlan_vid=_PRESENT | vlan))
            case PopTag():
                made.append(parser.OFPActionPopVlan())
            case SetField(name, value):
                made.append(parser.OFPActionSetField(**{name: value}))
            case FinTimeout(idle):
                made.append(parser.NXActionFinTimeout(idle, 0))
            case Track(zone, table):
                made.append(parser.NXActionCT(0, "", zone, table, 0, [parser.NXActionNAT(0)]))
            case Commit():
                made.append(_commit(action))
            case ToGroup(group):
                made.append(parser.OFPActionGroup(group))
    return made


class _Nat(parser.NXActionNAT):  # type: ignore[misc]
    """A translation with the padding that its length says; os-ken leaves that out within another action."""

    def serialize(self, buf: bytearray, offset: int) -> None:
        super().serialize(buf, offset)
        buf += bytes(offset + self.len - len(buf))


def _commit(action: Commit) -> Any:
    first, last = action.ports
    family = 4 if "." in action.source else 6
    addresses = {f"range_ipv{family}_min": action.source, f"range_ipv{family}_max": action.source}
    nat = _Nat(_NAT_SOURCE, range_proto_min=first, range_proto_max=last, **addresses)
    mark = parser.OFPActionSetField(ct_mark=action.mark)
    return parser.NXActionCT(nicira_ext.NX_CT_F_COMMIT, "", action.zone, action.table, 0, [nat, mark])


def buckets_out(buckets: Iterable[Bucket]) -> list[Any]:
    """Convert a group's buckets, of equal weight, to os-ken's types."""
    return [parser.OFPBucket(1, each.watch_port, of.OFPG_ANY, actions_out(each.actions)) for each in buckets]


def failover_buckets_out(buckets: Iterable[Bucket]) -> list[Any]:
    """Convert a fast failover group's buckets, which have no weight, to os-ken's types."""
    return [parser.OFPBucket(0, each.watch_port, of.OFPG_ANY, actions_out(each.actions)) for each in buckets]


def actions_in(actions: Iterable[Any]) -> tuple[Action, ...]:
    """Convert a switch's actions to our types; raises UnknownRuleError."""
    made: list[Action] = []
    pushed = False
    for action in actions:
        if pushed != (isinstance(action, parser.OFPActionSetField) and action.key == "vlan_vid"):
            raise UnknownRuleError("has an action of somebody else's")
        if isinstance(action, parser.OFPActionOutput):
            made.append(Output(action.port))
        elif isinstance(action, parser.OFPActionPopVlan):
            made.append(PopTag())
        elif pushed:
            made.append(PushTag(action.value & ~_PRESENT))
        elif isinstance(action, parser.OFPActionSetField):
            made.append(SetField(action.key, action.value))
        elif isinstance(action, parser.OFPActionGroup):
            made.append(ToGroup(action.group_id))
        elif isinstance(action, parser.NXActionFinTimeout):
            made.append(FinTimeout(action.fin_idle_timeout))
        elif not isinstance(action, parser.OFPActionPushVlan):
            raise UnknownRuleError("has an action of somebody else's")
        pushed = isinstance(action, parser.OFPActionPushVlan)
    return tuple(made)


def instructions_out(rule: Rule) -> list[Any]:
    """Convert a rule's actions and goto to os-ken's instructions."""
    made = []
    if rule.meter is not None:
        made.append(parser.OFPInstructionMeter(rule.meter))
    if rule.actions:
        made.append(parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, actions_out(rule.actions)))
    if rule.metadata is not None:
        made.append(parser.OFPInstructionWriteMetadata(rule.metadata, ALL_METADATA_BITS))
    if rule.goto is not None:
        made.append(parser.OFPInstructionGotoTable(rule.goto))
    return made


def rule_in(told: Any, known: Set[str] = LINK_FIELDS) -> Rule:
    """Return the rule of a flow-mod or of an entry of flow statistics.

    A rule with unknown instructions is returned without the unknown actions and with cookie 0, so that it is seen to
    be wrong; raises UnknownRuleError if its match is unknown.
    """
    actions: tuple[Action, ...] = ()
    goto = None
    meter = None
    metadata = None
    cookie = told.cookie
    match = match_in(told.match, known)
    for each in told.instructions:
        try:
            if isinstance(each, parser.OFPInstructionGotoTable):
                goto = each.table_id
            elif isinstance(each, parser.OFPInstructionMeter):
                meter = each.meter_id
            elif isinstance(each, parser.OFPInstructionWriteMetadata) and each.metadata_mask == ALL_METADATA_BITS:
                metadata = each.metadata
            elif isinstance(each, parser.OFPInstructionActions) and each.type == of.OFPIT_APPLY_ACTIONS:
                actions = actions_in(each.actions)
            else:
                raise UnknownRuleError("has an instruction of somebody else's")
        except UnknownRuleError:
            cookie = 0
    notify = bool(told.flags & of.OFPFF_SEND_FLOW_REM)
    return Rule(
        told.table_id,
        told.priority,
        match,
        actions,
        goto,
        cookie,
        told.hard_timeout,
        meter,
        told.idle_timeout,
        notify,
        metadata,
    )


def foreign_text(told: Any) -> str:
    """Describe a rule whose match is unknown, in the words of ovs-ofctl where those are the same."""
    fields = ",".join(f"{name}={_value_text(value)}" for name, value in told.match.items())
    return f"table={told.table_id},priority={told.priority},{fields}"


def _value_text(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(_value_text(part) for part in value)
    return f"0x{value:x}" if isinstance(value, int) else str(value)
