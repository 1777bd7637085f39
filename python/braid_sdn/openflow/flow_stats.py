"""Decodes lists of rules: os-ken parses a rule once, and its bytes are recognised from then on.

A switch lists all its rules at each audit, and switches have most rules in common.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Set
from typing import Any

from os_ken.ofproto import ofproto_v1_3_parser as parser  # type: ignore[import-untyped]

from braid_sdn.openflow.flows import UnknownRuleError, foreign_text, rule_in
from braid_sdn.openflow.messages import FlowStats, Rule

#: Bytes before the entries of a reply, and of the shortest entry of a flow (OpenFlow 1.3 §A.3.5.2).
FLOWS_AT = 16
FLOW_MIN = 56
#: Of an entry the length, age in seconds and nanoseconds, packets and bytes.
_COUNTERS = struct.Struct("!H2xII20xQQ")
#: Of an entry the table and the priority.
_PLACE = struct.Struct("!2xB9xH")
#: Parts of an entry that do not change while the rule stays: before its age, before its counters, and after them.
_BEFORE = slice(2, 4)
_BETWEEN = slice(12, 32)
_AFTER = 48
#: Rules that are remembered; more than that, and they are all parsed anew.
MAX_KNOWN_RULES = 1 << 16
#: Bytes of an entry that is remembered; those of our rules are shorter, and a switch may list some of 64 KiB.
MAX_KNOWN_SIZE = 512


class DecodedRules:
    """Rules by their bytes."""

    def __init__(
        self, fields: Set[str], own: Set[str] = frozenset(), is_own: Callable[[int], bool] = lambda _: False
    ) -> None:
        """Create it empty; a rule that matches other fields than these is somebody else's.

        One whose cookie `is_own` may match those of `own` as well.
        """
        self._fields = fields
        self._own = frozenset(fields) | own
        self._is_own = is_own
        self._known: dict[bytes, Rule | str] = {}

    def entries(self, data: bytes) -> Iterator[FlowStats | str]:
        """Yield the rules of a reply whose lengths fit.

        A text stands for somebody else's, which are left alone: those that match other fields than ours, and those
        that cannot be read.
        """
        at = FLOWS_AT
        while at < len(data):
            length, seconds, nanoseconds, packets, octets = _COUNTERS.unpack_from(data, at)
            entry = data[at : at + length]
            key = entry[_BEFORE] + entry[_BETWEEN] + entry[_AFTER:]
            rule = self._known.get(key)
            if rule is None:
                rule = self._decode(data, at)
                if len(self._known) >= MAX_KNOWN_RULES:
                    self._known.clear()
                if length <= MAX_KNOWN_SIZE:
                    self._known[key] = rule
            yield rule if isinstance(rule, str) else FlowStats(rule, packets, octets, seconds + nanoseconds / 1e9)
            at += length

    def _decode(self, data: bytes, at: int) -> Rule | str:
        try:
            told: Any = parser.OFPFlowStats.parser(data, at)
            try:
                return rule_in(told, self._own if self._is_own(told.cookie) else self._fields)
            except UnknownRuleError:
                return foreign_text(told)
        except Exception:
            # os-ken's parsers raise all sorts of exceptions. The other entries are read all the same.
            table, priority = _PLACE.unpack_from(data, at)
            return f"table={table},priority={priority} (its match or its actions cannot be read)"
