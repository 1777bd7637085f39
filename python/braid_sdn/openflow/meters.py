"""Encodes and decodes what is about meters."""

from __future__ import annotations

import struct
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as of  # type: ignore[import-untyped]

from braid_sdn.openflow.flow_stats import FLOWS_AT
from braid_sdn.openflow.messages import MeterCounters, MeterFeatures, SetMeter

#: A change of a meter, and the band that drops (OpenFlow 1.3 §A.3.4.5).
_CHANGE = struct.Struct("!HHI")
_DROP = struct.Struct("!HHII4x")

#: A request for the counters of all meters (OpenFlow 1.3 §A.3.5.11), without its header.
COUNTERS_REQUEST = struct.pack("!HH4xI4x", of.OFPMP_METER, 0, of.OFPM_ALL)
#: Of a meter's counters the number, length, packets, and age in seconds and nanoseconds; of a band's the packets.
_METER = struct.Struct("!IH10xQ8xII")
_BAND = struct.Struct("!Q8x")


def change(meter: SetMeter) -> bytes:
    """Return a message that creates a meter, or changes it, without its header."""
    flags = (of.OFPMF_KBPS if meter.by_bits else of.OFPMF_PKTPS) | of.OFPMF_BURST
    command = of.OFPMC_ADD if meter.is_new else of.OFPMC_MODIFY
    band = _DROP.pack(of.OFPMBT_DROP, _DROP.size, meter.rate, meter.burst)
    return _CHANGE.pack(command, flags, meter.number) + band


def deletion(number: int) -> bytes:
    """Return a message that deletes a meter, without its header."""
    return _CHANGE.pack(of.OFPMC_DELETE, 0, number)


def meter_counters(data: bytes) -> list[MeterCounters] | None:
    """Return the meters of a part of a reply; None if a length does not fit."""
    found = []
    at = FLOWS_AT
    while at < len(data):
        if at + _METER.size > len(data):
            return None
        number, length, packets, seconds, nanoseconds = _METER.unpack_from(data, at)
        end = at + length
        if length < _METER.size or end > len(data) or (length - _METER.size) % _BAND.size:
            return None
        dropped = sum(each for (each,) in _BAND.iter_unpack(data[at + _METER.size : end]))
        found.append(MeterCounters(number, packets, dropped, seconds + nanoseconds / 1e9))
        at = end
    return found


def meter_features(told: list[Any]) -> MeterFeatures:
    """Return the highest meters, by packets and by kilobits a second, of which a switch can say what bursts are."""

    def highest(unit: int) -> int:
        needed = unit | of.OFPMF_BURST
        known = (
            min(each.max_meter, of.OFPM_MAX)
            for each in told
            if each.band_types & 1 << of.OFPMBT_DROP and each.capabilities & needed == needed
        )
        return max(known, default=0)

    return MeterFeatures(highest(of.OFPMF_PKTPS), highest(of.OFPMF_KBPS))
