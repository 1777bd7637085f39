"""Encodes flow-mods of rules for links by hand: os-ken takes 30 times as long, and thousands are sent at once.

Rules that use more than these fields, actions and instructions are left to os-ken.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import fields
from operator import attrgetter

from os_ken.ofproto import ofproto_v1_3 as of  # type: ignore[import-untyped]

from braid_sdn.openflow.flows import FILTER_FIELDS
from braid_sdn.openflow.messages import CVLAN, TAGGED, UNTAGGED, Action, Match, Output, PopTag, PushTag, Rule, ToGroup

#: Cookie and its mask, table, command, timeouts, priority, buffer, port, group and flags (OpenFlow 1.3 §A.3.4.1).
_FLOW_MOD = struct.Struct("!QQBBHHHIIIH2x")
_MATCH = struct.Struct("!HH")
#: Headers of match fields, for their class, number, mask and length (§A.2.3.3), in the order of their numbers.
_IN_PORT = struct.Struct("!II")
_METADATA = struct.Struct("!IQ")
_METADATA_MASKED = struct.Struct("!IQQ")
_ETH = struct.Struct("!I6s")
_ETH_MASKED = struct.Struct("!I6s6s")
_SHORT = struct.Struct("!IH")
_SHORT_MASKED = struct.Struct("!IHH")
_BYTE = struct.Struct("!IB")
#: Actions (§A.2.5) and instructions (§A.2.4).
_OUTPUT = struct.Struct("!HHIH6x")
_PUSH = struct.Struct("!HHH2x")
_SET_VLAN = struct.Struct("!HHIH6x")
_POP = struct.Struct("!HH4x")
_GROUP = struct.Struct("!HHI")
_ACTIONS = struct.Struct("!HH4x")
_GOTO = struct.Struct("!HHB3x")
_WRITE_METADATA = struct.Struct("!HH4xQQ")
_METER = struct.Struct("!HHI")

_BASIC: int = of.OFPXMC_OPENFLOW_BASIC
_PRESENT = of.OFPVID_PRESENT
#: Fields of a match that are encoded here, and those that are not.
_FIELDS = {
    "in_port",
    "metadata",
    "eth_dst",
    "eth_dst_mask",
    "eth_src",
    "eth_type",
    "vlan",
    "vlan_pcp",
    "ip_proto",
    "icmpv6_type",
} | FILTER_FIELDS
_OTHER_FIELDS = attrgetter(*(each.name for each in fields(Match) if each.compare and each.name not in _FIELDS))
#: Rules that are remembered with their bytes.
MAX_CACHED_RULES = 16384


def _oxm(number: int, length: int, *, masked: bool = False) -> int:
    size = 2 * length if masked else length
    return _BASIC << 16 | number << 9 | masked << 8 | size


_OF_IN_PORT = _oxm(of.OFPXMT_OFB_IN_PORT, 4)
_OF_METADATA = _oxm(of.OFPXMT_OFB_METADATA, 8)
_OF_METADATA_MASKED = _oxm(of.OFPXMT_OFB_METADATA, 8, masked=True)
_OF_ETH_DST = _oxm(of.OFPXMT_OFB_ETH_DST, 6)
_OF_ETH_DST_MASKED = _oxm(of.OFPXMT_OFB_ETH_DST, 6, masked=True)
_OF_ETH_SRC = _oxm(of.OFPXMT_OFB_ETH_SRC, 6)
_OF_ETH_TYPE = _oxm(of.OFPXMT_OFB_ETH_TYPE, 2)
_OF_VLAN = _oxm(of.OFPXMT_OFB_VLAN_VID, 2)
_OF_VLAN_MASKED = _oxm(of.OFPXMT_OFB_VLAN_VID, 2, masked=True)
_OF_VLAN_PCP = _oxm(of.OFPXMT_OFB_VLAN_PCP, 1)
_OF_IP_PROTO = _oxm(of.OFPXMT_OFB_IP_PROTO, 1)
_OF_ICMPV6_TYPE = _oxm(of.OFPXMT_OFB_ICMPV6_TYPE, 1)
#: Fields by which packets are filtered: their numbers and bytes.
_IPV4 = (("ipv4_src", of.OFPXMT_OFB_IPV4_SRC, 4), ("ipv4_dst", of.OFPXMT_OFB_IPV4_DST, 4))
_PORTS = (
    ("tcp_src", of.OFPXMT_OFB_TCP_SRC, 2),
    ("tcp_dst", of.OFPXMT_OFB_TCP_DST, 2),
    ("udp_src", of.OFPXMT_OFB_UDP_SRC, 2),
    ("udp_dst", of.OFPXMT_OFB_UDP_DST, 2),
)
_IPV6 = (("ipv6_src", of.OFPXMT_OFB_IPV6_SRC, 16), ("ipv6_dst", of.OFPXMT_OFB_IPV6_DST, 16))
_ANY_FILTER = attrgetter(*sorted(FILTER_FIELDS))


def encode(rule: Rule, command: int) -> bytes | None:
    """Return a flow-mod without its header, or None if the rule has something that is left to os-ken."""
    match = _match(rule.match)
    actions = _actions(rule.actions)
    if match is None or actions is None:
        return None
    made = [
        _FLOW_MOD.pack(
            rule.cookie,
            0,
            rule.table,
            command,
            rule.idle,
            rule.lease,
            rule.priority,
            of.OFP_NO_BUFFER,
            of.OFPP_ANY,
            of.OFPG_ANY,
            of.OFPFF_SEND_FLOW_REM if rule.notify else 0,
        ),
        match,
    ]
    if rule.meter is not None:
        made.append(_METER.pack(of.OFPIT_METER, _METER.size, rule.meter))
    if rule.actions:
        made += [_ACTIONS.pack(of.OFPIT_APPLY_ACTIONS, _ACTIONS.size + len(actions)), actions]
    if rule.metadata is not None:
        written = (rule.metadata, 0xFFFFFFFF_FFFFFFFF)
        made.append(_WRITE_METADATA.pack(of.OFPIT_WRITE_METADATA, _WRITE_METADATA.size, *written))
    if rule.goto is not None:
        made.append(_GOTO.pack(of.OFPIT_GOTO_TABLE, _GOTO.size, rule.goto))
    return b"".join(made)


class EncodedRules:
    """Flow-mods that add rules, so that a rule which many switches get is encoded once."""

    def __init__(self) -> None:
        """Create it empty."""
        # By identity: a rule's hash costs as much as its bytes. The entry keeps the rule, and so its identity.
        self._known: dict[int, tuple[Rule, bytes]] = {}

    def encode(self, rule: Rule) -> bytes | None:
        """Return the flow-mod that adds a rule, as `encode` does."""
        known = self._known.get(id(rule))
        if known is not None:
            return known[1]
        made = encode(rule, of.OFPFC_ADD)
        if made is not None:
            if len(self._known) >= MAX_CACHED_RULES:
                self._known.clear()
            self._known[id(rule)] = rule, made
        return made


def _match(match: Match) -> bytes | None:
    if any(each is not None for each in _OTHER_FIELDS(match)):
        return None
    made = []
    if match.in_port is not None:
        made.append(_IN_PORT.pack(_OF_IN_PORT, match.in_port))
    if isinstance(match.metadata, tuple):
        made.append(_METADATA_MASKED.pack(_OF_METADATA_MASKED, *match.metadata))
    elif match.metadata is not None:
        made.append(_METADATA.pack(_OF_METADATA, match.metadata))
    if match.eth_dst is not None:
        target = bytes.fromhex(match.eth_dst.replace(":", ""))
        if match.eth_dst_mask is None:
            made.append(_ETH.pack(_OF_ETH_DST, target))
        else:
            mask = bytes.fromhex(match.eth_dst_mask.replace(":", ""))
            made.append(_ETH_MASKED.pack(_OF_ETH_DST_MASKED, target, mask))
    if match.eth_src is not None:
        made.append(_ETH.pack(_OF_ETH_SRC, bytes.fromhex(match.eth_src.replace(":", ""))))
    if match.eth_type is not None:
        made.append(_SHORT.pack(_OF_ETH_TYPE, match.eth_type))
    if match.vlan == TAGGED:
        made.append(_SHORT_MASKED.pack(_OF_VLAN_MASKED, _PRESENT, _PRESENT))
    elif isinstance(match.vlan, tuple):
        made.append(_SHORT_MASKED.pack(_OF_VLAN_MASKED, *(_PRESENT | each for each in match.vlan)))
    elif match.vlan is not None:
        made.append(_SHORT.pack(_OF_VLAN, 0 if match.vlan == UNTAGGED else _PRESENT | match.vlan))
    if match.vlan_pcp is not None:
        made.append(_BYTE.pack(_OF_VLAN_PCP, match.vlan_pcp))
    if match.ip_proto is not None:
        made.append(_BYTE.pack(_OF_IP_PROTO, match.ip_proto))
    if any(each is not None for each in _ANY_FILTER(match)):
        made += [_filter(getattr(match, name), number, size) for name, number, size in (*_IPV4, *_PORTS, *_IPV6)]
    if match.icmpv6_type is not None:
        made.append(_BYTE.pack(_OF_ICMPV6_TYPE, match.icmpv6_type))
    body = b"".join(made)
    size = _MATCH.size + len(body)
    return _MATCH.pack(of.OFPMT_OXM, size) + body + bytes(-size % 8)


def _filter(value: str | int | tuple[int, int] | None, number: int, size: int) -> bytes:
    """Encode an address, a network, a port, or a port with a mask; nothing for None."""
    if value is None:
        return b""
    if isinstance(value, str):
        words = [ipaddress.ip_address(each).packed for each in value.split("/")]
    else:
        words = [each.to_bytes(size, "big") for each in (value if isinstance(value, tuple) else (value,))]
    return _oxm(number, size, masked=len(words) == 2).to_bytes(4, "big") + b"".join(words)


def _actions(actions: tuple[Action, ...]) -> bytes | None:
    made = []
    for action in actions:
        match action:
            case Output(port):
                made.append(_OUTPUT.pack(of.OFPAT_OUTPUT, _OUTPUT.size, port, of.OFPCML_NO_BUFFER))
            case PushTag(vlan):
                made.append(_PUSH.pack(of.OFPAT_PUSH_VLAN, _PUSH.size, CVLAN))
                made.append(_SET_VLAN.pack(of.OFPAT_SET_FIELD, _SET_VLAN.size, _OF_VLAN, _PRESENT | vlan))
            case PopTag():
                made.append(_POP.pack(of.OFPAT_POP_VLAN, _POP.size))
            case ToGroup(group):
                made.append(_GROUP.pack(of.OFPAT_GROUP, _GROUP.size, group))
            case _:
                return None
    return b"".join(made)
