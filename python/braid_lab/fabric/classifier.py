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
from enum import IntEnum, auto

from os_ken.ofproto import ofproto_v1_3 as of  # type: ignore[import-untyped]

from braid_sdn.fabric.monitor.probe import mac_bytes
from braid_sdn.openflow.messages import TAGGED, UNTAGGED, Match, Rule, RuleKey

#: Set in each field that a frame has, so that one that is absent equals no value.
PRESENT = 1 << 128
ALL_BITS = PRESENT - 1


class Field(IntEnum):
    """Places of a frame's fields, which have their names in a match."""

    IN_PORT = 0
    METADATA = auto()
    ETH_DST = auto()
    ETH_SRC = auto()
    VLAN = auto()
    VLAN_PCP = auto()
    ETH_TYPE = auto()
    IP_PROTO = auto()
    ICMPV6_TYPE = auto()
    IPV4_SRC = auto()
    IPV4_DST = auto()
    IPV6_SRC = auto()
    IPV6_DST = auto()
    TCP_SRC = auto()
    TCP_DST = auto()
    UDP_SRC = auto()
    UDP_DST = auto()


_INDEX = {each.name.lower(): int(each) for each in Field}
#: The other fields of a match: a mask of one of these, and those that no rule of a fabric has.
_UNKNOWN = {each.name for each in fields(Match) if each.compare} - _INDEX.keys() - {"eth_dst_mask"}


def header_fields(in_port: int, metadata: int, frame: bytes) -> list[int]:
    """Return the fields of a frame, each at its place."""
    found = [0] * len(Field)
    found[Field.IN_PORT] = in_port | PRESENT
    found[Field.METADATA] = metadata | PRESENT
    found[Field.ETH_DST] = int.from_bytes(frame[:6], "big") | PRESENT
    found[Field.ETH_SRC] = int.from_bytes(frame[6:12], "big") | PRESENT
    vlan, at = PRESENT, 12
    while frame[at : at + 2] in (b"\x81\x00", b"\x88\xa8"):
        if vlan == PRESENT:
            tag = int.from_bytes(frame[at + 2 : at + 4], "big")
            vlan |= of.OFPVID_PRESENT | tag & 0xFFF
            found[Field.VLAN_PCP] = tag >> 13 | PRESENT
        at += 4
    kind = int.from_bytes(frame[at : at + 2], "big")
    found[Field.VLAN], found[Field.ETH_TYPE] = vlan, kind | PRESENT
    if kind in (0x0800, 0x86DD):
        _read_ip(found, kind, frame[at + 2 :])
    return found


def _read_ip(found: list[int], kind: int, packet: bytes) -> None:
    if kind == 0x86DD and len(packet) > 40:
        proto, rest = packet[6], packet[40:]
        source, addresses = Field.IPV6_SRC, packet[8:40]
        if proto == 58:
            found[Field.ICMPV6_TYPE] = rest[0] | PRESENT
    elif kind == 0x0800 and len(packet) >= 20 and packet[0] >> 4 == 4:
        proto = packet[9]
        source, addresses = Field.IPV4_SRC, packet[12:20]
        is_later_fragment = int.from_bytes(packet[6:8], "big") & 0x1FFF
        rest = bytes(4) if is_later_fragment else packet[4 * (packet[0] & 15) :]
    else:
        return
    size = len(addresses) // 2
    found[Field.IP_PROTO] = proto | PRESENT
    found[source] = int.from_bytes(addresses[:size], "big") | PRESENT
    found[source + 1] = int.from_bytes(addresses[size:], "big") | PRESENT
    if proto in (6, 17) and len(rest) >= 4:
        port = Field.TCP_SRC if proto == 6 else Field.UDP_SRC
        found[port], found[port + 1] = (each | PRESENT for each in struct.unpack_from("!HH", rest))


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
            value, mask = _wanted_vlan(value)
        elif isinstance(value, str):
            base, slash, bits = value.partition("/")
            value, mask = int(ipaddress.ip_address(base)), int(ipaddress.ip_address(bits)) if slash else ALL_BITS
        elif isinstance(value, tuple):
            value, mask = value
        mask |= PRESENT
        yield (index, mask), (value | PRESENT) & mask


def _wanted_vlan(vlan: int | tuple[int, int]) -> tuple[int, int]:
    """Return the VID that a match wants and its mask, each with the bit that a tagged frame has."""
    if isinstance(vlan, tuple):
        vid, mask = vlan
        return of.OFPVID_PRESENT | vid, of.OFPVID_PRESENT | mask
    if vlan == UNTAGGED:
        return 0, ALL_BITS
    if vlan == TAGGED:
        return of.OFPVID_PRESENT, of.OFPVID_PRESENT
    return of.OFPVID_PRESENT | vlan, ALL_BITS


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
