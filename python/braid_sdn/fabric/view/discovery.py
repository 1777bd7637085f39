"""Schedules discovery frames: at once when a port appears, then at intervals that grow with the number of ports.

Each interval is a bit longer or shorter than the others (as in RFC 5880 §6.8.7, for another reason). Frames that were
due in one turn of the controller's loop, as after a pause, would be due together for ever; each frame would have to
wait for all those before it, always the same ones, and no minimum of many samples shows a delay that all have.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId

#: Seconds between two frames of a port in a small network.
FRAME_INTERVAL = 1.0
#: Frames a second in a large network: each costs the controller two messages.
MAX_FRAMES_PER_SECOND = 500.0
#: Part of an interval by which it is longer or shorter.
INTERVAL_JITTER = 0.2
#: Multiples of it, less whole numbers, are spread evenly, however many there are.
GOLDEN_RATIO = (5**0.5 - 1) / 2
#: Seconds between two echoes of a switch, from which latencies are computed.
ECHO_INTERVAL = 1.0
#: A new port sends this many frames EARLY_INTERVAL seconds apart, and a new switch as many echoes: the neighbour may
#: not be ready for the first one, and the minimum of several times is a good measurement at once.
EARLY_FRAMES = 10
EARLY_INTERVAL = 0.1
#: In a network with more ports than this only the first two are early: latencies can wait there.
SMALL_NETWORK_PORTS = 200
#: Frames that are due at once: each bears its time of creation, so only a few are made at a time.
MAX_FRAMES_AT_ONCE = 32


@dataclass
class DiscoverySchedule:
    """Ports and switches that are due. Times are seconds."""

    _due: dict[PortId, float] = field(default_factory=dict)
    _queue: list[tuple[float, PortId]] = field(default_factory=list)
    _echo: dict[int, float] = field(default_factory=dict)
    _early: dict[PortId, int] = field(default_factory=dict)
    _early_echo: dict[int, int] = field(default_factory=dict)
    #: Intervals so far.
    _count: int = 0

    @property
    def interval(self) -> float:
        """Seconds between two frames of one port."""
        return max(FRAME_INTERVAL, len(self._due) / MAX_FRAMES_PER_SECOND)

    @property
    def echo_interval(self) -> float:
        """Seconds between two echoes of one switch."""
        return max(ECHO_INTERVAL, 4 * len(self._echo) / MAX_FRAMES_PER_SECOND)

    def add_switch(self, now: float, switch: int) -> None:
        """Send echoes to a switch from now on."""
        self._echo[switch] = now
        self._early_echo[switch] = EARLY_FRAMES - 1 if len(self._echo) < SMALL_NETWORK_PORTS else 0

    def remove_switch(self, switch: int) -> None:
        """Forget a switch and its ports."""
        self._echo.pop(switch, None)
        for port in [port for port in self._due if port.switch == switch]:
            del self._due[port]

    def at_once(self, now: float, port: PortId) -> None:
        """Send a frame out of a port now, and then at the usual interval; a new port begins with a shorter one."""
        if port not in self._due:
            self._early[port] = EARLY_FRAMES - 1 if len(self._due) < SMALL_NETWORK_PORTS else 1
        self._due[port] = now
        heapq.heappush(self._queue, (now, port))

    def measure(self, now: float, *ports: PortId) -> None:
        """Send frames out of known ports as if they were new: of a link that is back nothing is measured yet."""
        for port in ports:
            if port in self._due and len(self._due) < SMALL_NETWORK_PORTS:
                self._early[port] = EARLY_FRAMES - 1
                self.at_once(now, port)

    def remove_port(self, port: PortId) -> None:
        """Forget a port that went down."""
        self._due.pop(port, None)
        self._early.pop(port, None)

    def due(self, now: float) -> tuple[list[PortId], list[int]]:
        """Return the ports and the switches that are due for a frame and an echo."""
        ports: list[PortId] = []
        interval = self.interval
        while self._queue and self._queue[0][0] <= now and len(ports) < MAX_FRAMES_AT_ONCE:
            at, port = heapq.heappop(self._queue)
            if self._due.get(port) != at:
                continue
            ports.append(port)
            early = self._early.get(port, 0)
            if early:
                self._early[port] = early - 1
            self._due[port] = now + self._varied(EARLY_INTERVAL if early else interval)
            heapq.heappush(self._queue, (self._due[port], port))
        switches = [switch for switch, at in self._echo.items() if at <= now]
        for switch in switches:
            early = self._early_echo.pop(switch, 0)
            if early:
                self._early_echo[switch] = early - 1
            self._echo[switch] = now + self._varied(EARLY_INTERVAL if early else self.echo_interval)
        return ports, switches

    def _varied(self, interval: float) -> float:
        self._count += 1
        return interval * (1 + INTERVAL_JITTER * (2 * (self._count * GOLDEN_RATIO % 1) - 1))

    def poll_timeout(self) -> float | None:
        """Return when the next one is due."""
        while self._queue and self._due.get(self._queue[0][1]) != self._queue[0][0]:
            heapq.heappop(self._queue)
        first = [self._queue[0][0]] if self._queue else []
        return min([*first, *self._echo.values()], default=None)
