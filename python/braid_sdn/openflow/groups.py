"""Decodes what a switch tells of its groups."""

from __future__ import annotations

import struct
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as of  # type: ignore[import-untyped]
from os_ken.ofproto import ofproto_v1_3_parser as parser

from braid_sdn.openflow.flow_stats import FLOWS_AT
from braid_sdn.openflow.flows import actions_in
from braid_sdn.openflow.messages import Bucket

#: Of features the types, and of each of the four types the most groups and the actions (OpenFlow 1.3 §A.3.5.11).
_FEATURES = struct.Struct("!I4x4I4I")
#: Of a group's description the length, type and number (§A.3.5.10); of a bucket the length (§A.3.4.2).
_GROUP = struct.Struct("!HBxI")
_BUCKET = struct.Struct("!H14x")
_ACTION = struct.Struct("!HH4x")
#: Actions of our buckets.
_NEEDED = 1 << of.OFPAT_OUTPUT | 1 << of.OFPAT_SET_FIELD

Groups = list[tuple[int, tuple[Bucket, ...] | None]]


def group_features(data: bytes) -> int:
    """Return the number of fast failover groups with our actions; 0 if there are none, or the reply is too short."""
    if len(data) < FLOWS_AT + _FEATURES.size:
        return 0
    types, *rest = _FEATURES.unpack_from(data, FLOWS_AT)
    most, actions = rest[of.OFPGT_FF], rest[4 + of.OFPGT_FF]
    return most if types & 1 << of.OFPGT_FF and actions & _NEEDED == _NEEDED else 0


def groups_in(data: bytes) -> Groups | None:
    """Return the groups of a part of a reply; None if a length does not fit."""
    found: Groups = []
    at = FLOWS_AT
    while at < len(data):
        if at + _GROUP.size > len(data):
            return None
        length, kind, number = _GROUP.unpack_from(data, at)
        end = at + length
        if length < _GROUP.size or end > len(data) or not _fits(data, at + _GROUP.size, end):
            return None
        found.append((number, _buckets(data, at) if kind == of.OFPGT_FF else None))
        at = end
    return found


def _fits(data: bytes, at: int, end: int) -> bool:
    """Return true if buckets have lengths that fit, and their actions: os-ken never ends at one of length zero."""
    for size, inner in _parts(data, at, end, _BUCKET):
        if size == 0 or any(length == 0 for length, _ in _parts(data, inner, inner - _BUCKET.size + size, _ACTION)):
            return False
    return True


def _parts(data: bytes, at: int, end: int, head: struct.Struct) -> list[tuple[int, int]]:
    """Return the length of each part and where its contents begin; a last one of length 0 does not fit."""
    found: list[tuple[int, int]] = []
    while at < end:
        size = head.unpack_from(data, at)[-1] if at + head.size <= end else 0
        if size < head.size or at + size > end:
            return [*found, (0, 0)]
        found.append((size, at + head.size))
        at += size
    return found


def _buckets(data: bytes, at: int) -> tuple[Bucket, ...] | None:
    try:
        told: Any = parser.OFPGroupDescStats.parser(data, at)
        return tuple(Bucket(each.watch_port, actions_in(each.actions)) for each in told.buckets)
    except Exception:
        # Of a group that is none of ours, and os-ken's parsers raise all sorts of exceptions.
        return None
