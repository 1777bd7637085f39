"""Ports that go down and up again and again: a bad cable, or a host that disturbs on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId, Problem

#: A port whose state changes more often than this within FLAPPING_WINDOW seconds flaps.
MAX_CHANGES = 5
FLAPPING_WINDOW = 10.0

#: Seconds for which a port that flapped is named after its last change.
RETENTION = 60.0


@dataclass
class FlappingPorts:
    """Recent changes of ports' states. Times are seconds."""

    _up: dict[PortId, bool] = field(default_factory=dict)
    _changes: dict[PortId, list[float]] = field(default_factory=dict)
    _flapped: dict[PortId, float] = field(default_factory=dict)

    def handle_port(self, now: float, port: PortId, *, up: bool) -> None:
        """Take in a port's state, which may be the one that is known."""
        if self._up.get(port, up) != up:
            recent = [at for at in self._changes.get(port, ()) if now - at < FLAPPING_WINDOW] + [now]
            self._changes[port] = recent[-MAX_CHANGES - 1 :]
            if len(recent) > MAX_CHANGES:
                self._flapped[port] = now
        self._up[port] = up

    def forget(self, switch: int) -> None:
        """Forget the states of a switch that left: it may come back with others."""
        for kept in (self._up, self._changes):
            for port in [port for port in kept if port.switch == switch]:
                del kept[port]

    def problems(self, now: float, port_name: Callable[[PortId], str]) -> list[Problem]:
        """Return the ports that flap, or did a moment ago."""
        self._flapped = {port: at for port, at in self._flapped.items() if now - at < RETENTION}
        often = f"changed its state more than {MAX_CHANGES} times within {FLAPPING_WINDOW:g} s"
        text = f"{often}: see its cable, and the host behind it"
        return [Problem("port-flapping", port_name(port), text) for port in sorted(self._flapped)]
