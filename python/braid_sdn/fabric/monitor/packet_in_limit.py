"""Limits the packets that a host's port sends to the controller: a token bucket for each port."""

from __future__ import annotations

from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId

#: Packets a second from one port, for as long as one likes, and at once: a full edge whose hosts all start.
PACKET_IN_RATE = 100.0
PACKET_IN_BURST = 500.0

#: Packets a second of a muted port's unknown hosts that a switch with meters lets pass, and at once.
MUTED_RATE = 200
MUTED_BURST = 100


@dataclass
class PacketInLimit:
    """Ports and what each may still send. Times are seconds."""

    _tokens: dict[PortId, tuple[float, float]] = field(default_factory=dict)
    _muted: dict[PortId, float] = field(default_factory=dict)

    def handle_packet(self, now: float, port: PortId) -> bool:
        """Count a packet; return false if it is one too many."""
        left, at = self._tokens.get(port, (PACKET_IN_BURST, now))
        left = min(PACKET_IN_BURST, left + PACKET_IN_RATE * (now - at))
        self._tokens[port] = max(0.0, left - 1), now
        return left >= 1

    def mute(self, now: float, port: PortId, until: float) -> bool:
        """Record that a port is muted until then; return false if it is so already."""
        if self._muted.get(port, 0.0) > now:
            return False
        self._muted[port] = until
        return True

    def forget(self, switch: int) -> None:
        """Forget a switch that left or restarted: its rules, and those that mute its ports, may be gone."""
        for kept in (self._tokens, self._muted):
            for port in [port for port in kept if port.switch == switch]:
                del kept[port]
