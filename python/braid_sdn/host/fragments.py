"""Fragments (RFC 4787 REQ-14): later ones have no ports, so they follow the first one of their packet.

Open vSwitch shows fragments with ports of 0 and cannot rewrite ports by that, so the controller translates them
itself, each in its own size. Later ones that come before the first are held for a moment, few of each source.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from braid_sdn.host.desired import Address
from braid_sdn.host.packets import Fragment

#: Packets whose first fragment has passed; the oldest is forgotten.
MAX_PACKETS = 4096
#: Seconds after the first fragment during which others follow it: a reassembly takes no longer (RFC 1122 §3.3.2).
PACKET_LIFE = 60.0
#: Fragments that wait for their first one, of all sources and of each, and seconds for which they wait.
MAX_HELD, MAX_HELD_PER_SOURCE = 256, 64
HOLD_TIME = 2.0

#: Port of the switch, ends, identification and protocol: what all fragments of a packet have alike.
PacketKey = tuple[int, Address, Address, int, int]


@dataclass(slots=True)
class _Passed:
    """A packet whose first fragment was translated."""

    flow: int
    since: float


class Fragments:
    """Flows of fragmented packets, and fragments that wait for one."""

    def __init__(self) -> None:
        """Create it empty."""
        self._passed: OrderedDict[PacketKey, _Passed] = OrderedDict()
        self._held: list[tuple[float, PacketKey, Fragment]] = []

    def note_first(self, now: float, port: int, first: Fragment, flow: int) -> list[Fragment]:
        """Note the flow of a packet by its first fragment; return those that have waited for it."""
        key = _key(port, first)
        self._passed.pop(key, None)
        if len(self._passed) >= MAX_PACKETS:
            self._passed.popitem(last=False)
        self._passed[key] = _Passed(flow, now)
        self._expire(now)
        waited = [fragment for _, held, fragment in self._held if held == key]
        self._held = [each for each in self._held if each[1] != key]
        return waited

    def find(self, now: float, port: int, later: Fragment) -> int | None:
        """Return the flow of a later fragment; None if the first one has not come."""
        passed = self._passed.get(_key(port, later))
        return passed.flow if passed is not None and now - passed.since < PACKET_LIFE else None

    def hold(self, now: float, port: int, later: Fragment) -> bool:
        """Hold a later fragment; False if there is no room for it."""
        self._expire(now)
        of_source = sum(fragment.source == later.source for _, _, fragment in self._held)
        if len(self._held) >= MAX_HELD or of_source >= MAX_HELD_PER_SOURCE:
            return False
        self._held.append((now, _key(port, later), later))
        return True

    def _expire(self, now: float) -> None:
        self._held = [each for each in self._held if now - each[0] < HOLD_TIME]


def _key(port: int, fragment: Fragment) -> PacketKey:
    # Of IPv6 each fragment may name another protocol (RFC 8200 §4.5), and the first one's counts.
    protocol = fragment.protocol if fragment.source.version == 4 else 0
    return port, fragment.source, fragment.target, fragment.identification, protocol
