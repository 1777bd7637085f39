"""Finds the rule of a table that a frame matches.

By tuple space search (Srinivasan et al., SIGCOMM 1999), as Open vSwitch does: rules that look at the same bits of the
same fields are in one hash table.
"""

from __future__ import annotations

import ipaddress
import struct
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from braid_sdn.fabric.monitor.probe import mac_bytes
from braid_sdn.openflow.messages import TAGGED, UNTAGGED, Match, Rule, RuleKey

#: Set in each field that a frame has, so that one that is absent equals no value.
PRESENT = 1 << 128
ALL_BITS = PRESENT - 1
#: The bit of OpenFlow's VLAN_VID that says that there is a tag.
_VID_PRESENT = 0x1000

_FIELDS = (
    *("in_port", "metadata", "eth_dst", "eth_src", "vlan", "vlan_pcp", "eth_type", "ip_proto", "icmpv6_type"),
    *("ipv4_src", "ipv4_dst", "ipv6_src", "ipv6_dst", "tcp_src", "tcp_dst", "udp_src", "udp_dst"),
)
_INDEX = {name: index for index, name in enumerate(_FIELDS)}
METADATA = _INDEX["metadata"]
#: The other fields of a match: a mask of one of these, and those that no rule of a fabric has.
_UNKNOWN = {each.name for each in fields(Match) if each.compare} - set(_FIELDS) - {"eth_dst_mask"}


def header_fields(in_port: int, metadata: int, frame: bytes) -> list[int]:
    """Return the fields of a frame, in the order of their indices."""
    found = [0] * len(_FIELDS)
    found[:4] = (
        in_port | PRESENT,
        metadata | PRESENT,
        int.from_bytes(frame[:6], "big") | PRESENT,
        int.from_bytes(frame[6:12], "big") | PRESENT,
    )
    vlan, at = PRESENT, 12
    while frame[at : at + 2] in (b"\x81\x00", b"\x88\xa8"):
        if vlan == PRESENT:
            tag = int.from_bytes(frame[at + 2 : at + 4], "big")
            vlan |= _VID_PRESENT | tag & 0xFFF
            found[5] = tag >> 13 | PRESENT
        at += 4
    kind = int.from_bytes(frame[at : at + 2], "big")
    found[4], found[6] = vlan, kind | PRESENT
    if kind in (0x0800, 0x86DD):
        _read_ip(found, kind, frame[at + 2 :])
    return found


def _read_ip(found: list[int], kind: int, packet: bytes) -> None:
    if kind == 0x86DD and len(packet) > 40:
        proto, ends, size, rest = packet[6], _INDEX["ipv6_src"], 16, packet[40:]
        addresses = packet[8:40]
        if proto == 58:
            found[8] = packet[40] | PRESENT
    elif kind == 0x0800 and len(packet) >= 20 and packet[0] >> 4 == 4:
        proto, ends, size, addresses = packet[9], _INDEX["ipv4_src"], 4, packet[12:20]
        is_later_fragment = int.from_bytes(packet[6:8], "big") & 0x1FFF
        rest = bytes(4) if is_later_fragment else packet[4 * (packet[0] & 15) :]
    else:
        return
    found[7] = proto | PRESENT
    found[ends] = int.from_bytes(addresses[:size], "big") | PRESENT
    found[ends + 1] = int.from_bytes(addresses[size:], "big") | PRESENT
    if proto in (6, 17) and len(rest) >= 4:
        at = _INDEX["tcp_src" if proto == 6 else "udp_src"]
        found[at : at + 2] = (port | PRESENT for port in struct.unpack_from("!HH", rest))


#: A field's index and the bits of it that are looked at.
Mask = tuple[int, int]


def _wanted(match: Match) -> Iterator[tuple[Mask, int]]:
    """Yield what a match looks at, and the value that it wants there."""
    for name in _UNKNOWN:
        if getattr(match, name) is not None:
            raise ValueError(f"the fake switch cannot match {name}: teach it in braid_lab.fabric.classifier")
    for name, index in _INDEX.items():
        value = getattr(match, name)
        if value is None:
            continue
        mask = ALL_BITS
        if name in ("eth_src", "eth_dst"):
            if name == "eth_dst" and match.eth_dst_mask is not None:
                mask = int.from_bytes(mac_bytes(match.eth_dst_mask), "big")
            value = int.from_bytes(mac_bytes(value), "big")
        elif name == "vlan":
            value, mask = {UNTAGGED: (0, ALL_BITS), TAGGED: (_VID_PRESENT, _VID_PRESENT)}.get(
                value, (_VID_PRESENT | value, ALL_BITS)
            )
        elif isinstance(value, str):
            base, slash, bits = value.partition("/")
            value, mask = int(ipaddress.ip_address(base)), int(ipaddress.ip_address(bits)) if slash else ALL_BITS
        elif isinstance(value, tuple):
            value, mask = value
        mask |= PRESENT
        yield (index, mask), (value | PRESENT) & mask


def _key(match: Match) -> tuple[tuple[Mask, ...], int, tuple[int, ...]]:
    """Return what a match looks at, the value that it wants first, and the others.

    The narrowest field is the first one: of a hundred tuples most are ruled out by it alone.
    """
    wanted = [*_wanted(match)][::-1] or [((0, 0), 0)]
    return tuple(mask for mask, _ in wanted), wanted[0][1], tuple(value for _, value in wanted[1:])


@dataclass
class _Tuple:
    """Rules that look at the same bits of the same fields."""

    first: Mask
    others: tuple[Mask, ...]
    #: By the value that they want first and by the others, those of a high priority first.
    rules: dict[int, dict[tuple[int, ...], list[Rule]]] = field(default_factory=dict)
    #: No rule here has a higher priority.
    max_priority: int = -1


@dataclass
class Classifier:
    """The rules of one table."""

    _tuples: dict[tuple[Mask, ...], _Tuple] = field(default_factory=dict)
    #: Tuples by falling priority; empty if they changed.
    _ordered: list[_Tuple] = field(default_factory=list)

    def add(self, rule: Rule) -> None:
        """Add a rule, in place of one with the same key."""
        masks, first, others = _key(rule.match)
        group = self._tuples.get(masks)
        if group is None:
            group = self._tuples[masks] = _Tuple(masks[0], masks[1:])
        same = group.rules.setdefault(first, {}).setdefault(others, [])
        same[:] = [each for each in same if each.key != rule.key]
        insort(same, rule, key=lambda each: -each.priority)
        if group.max_priority < rule.priority:
            group.max_priority = rule.priority
            self._ordered.clear()

    def remove(self, key: RuleKey) -> None:
        """Remove the rule with this key."""
        masks, first, others = _key(key[2])
        group = self._tuples[masks]
        same = group.rules[first][others]
        same[:] = [each for each in same if each.key != key]
        if same:
            return
        del group.rules[first][others]
        if not group.rules[first]:
            del group.rules[first]
        if not group.rules:
            del self._tuples[masks]
            self._ordered.clear()

    def find(self, header: Sequence[int]) -> Rule | None:
        """Return the rule of the highest priority that a frame with these fields matches."""
        if not self._ordered:
            self._ordered = sorted(self._tuples.values(), key=lambda each: -each.max_priority)
        best: Rule | None = None
        priority = -1
        for group in self._ordered:
            if group.max_priority <= priority:
                break
            index, mask = group.first
            rest = group.rules.get(header[index] & mask)
            if rest is None:
                continue
            same = rest.get(tuple([header[index] & mask for index, mask in group.others]))
            if same and same[0].priority > priority:
                best = same[0]
                priority = best.priority
        return best
