"""The topology: switches, their ports, and links between ports, each with its age.

A link exists while discovery frames cross it in both directions. Signs of its failure, the quickest first: a port
goes down, a path probe is missed (each link of that path is checked at once), and the age of the last discovery
frame. A full queue drops discovery frames, or delays them for a second: so a link whose far end counts ever more
bytes is alive without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeVar

from braid_sdn.fabric.model import PortId, Problem
from braid_sdn.fabric.monitor.probe import Probe
from braid_sdn.fabric.view.latency import Estimate, LowestSamples, link_latency, link_uncertainty
from braid_sdn.fabric.view.load import Saturation
from braid_sdn.openflow.messages import Port, PortCounters

Key = TypeVar("Key")

#: A link is removed when this many discovery frames in a row are missing.
MAX_MISSED_FRAMES = 3.5

#: Seconds for which a link or a switch that was lost is remembered, and the most of them.
LOSS_RETENTION = 3600.0
MAX_LOSSES = 1000

#: If a check is late by more than this, seconds, the controller was busy and frames may not be read yet.
BUSY_DELAY = 0.3

#: Seconds for which a switch is reported that forwarded by itself: it does so until its controller is back.
FAILED_OPEN_RETENTION = 60.0

#: Seconds after which a port that is up counts as established: a host's port then becomes no link by discovery alone.
PORT_SETTLE_TIME = 5.0

#: Seconds within which a checked link must deliver its discovery frame, beside its latency.
LINK_CHECK_TIMEOUT = 0.15
#: Seconds between two readings of the far end's counters of a checked link.
COUNTER_POLL_INTERVAL = 0.05
#: Factor of the timeout of a link that still delivers bytes. Not unlimited: they may be another neighbour's.
BUSY_LINK_FACTOR = 4


@dataclass
class LinkDirection:
    """One direction of a link, as its far end receives it."""

    source: PortId
    target: PortId
    first: float
    last: float
    #: Frames sent since the last one arrived: a controller that is too busy to send receives none either.
    unanswered: int = 0
    #: When its far end was last seen to have counted more bytes than before.
    brought: float = float("-inf")
    whole: LowestSamples = field(default_factory=LowestSamples)
    saturation: Saturation = field(default_factory=Saturation)
    #: True if discovery is impossible because an end's switch has lost the controller: the link may work or not, and
    #: is used only if there is no other path.
    stale: bool = False


@dataclass
class Switch:
    """A connected switch."""

    dpid: int
    address: str
    since: float
    ports: dict[int, Port]
    #: Number of changes of which ports there are, and of their names.
    revision: int = 0
    echo: LowestSamples = field(default_factory=LowestSamples)

    def up(self) -> Iterator[int]:
        """Return the numbers of ports that are up."""
        return (number for number, port in sorted(self.ports.items()) if port.up)


@dataclass(frozen=True, slots=True)
class Loss:
    """When something was lost, and why."""

    at: float
    why: str


@dataclass
class LinkCheck:
    """A check of a link that is suspect."""

    #: The deadline.
    due: float
    #: Next reading of the far end's counters.
    look: float
    #: Bytes of the far end's first reading.
    received: int | None = None


@dataclass
class Topology:
    """The whole topology; time is passed in, seconds."""

    #: Seconds between two discovery frames of a port; links age by it.
    interval: float = 1.0
    names: dict[int, str] = field(default_factory=dict)
    switches: dict[int, Switch] = field(default_factory=dict)
    heard: dict[tuple[PortId, PortId], LinkDirection] = field(default_factory=dict)
    #: Time of the last change.
    changed: float = 0.0
    #: Time at which a link became stale last.
    became_stale: float = float("-inf")
    #: Number of changes of which switches are connected, which ports there are, and of their names.
    revision: int = 0
    #: Since when each port is up.
    up_since: dict[PortId, float] = field(default_factory=dict)
    #: Links and switches that are lost and were not found again, the oldest first.
    lost_links: dict[tuple[PortId, PortId], Loss] = field(default_factory=dict)
    lost_switches: dict[int, Loss] = field(default_factory=dict)
    #: The ports that each of these switches had.
    lost_ports: dict[int, dict[int, Port]] = field(default_factory=dict)
    _checks: dict[tuple[PortId, PortId], LinkCheck] = field(default_factory=dict)
    _look_at: float = 0.0
    _from: dict[PortId, dict[PortId, LinkDirection]] = field(default_factory=dict)
    _to: dict[PortId, dict[PortId, LinkDirection]] = field(default_factory=dict)
    #: Ports that have been an end of a link since they came up.
    _linked: set[PortId] = field(default_factory=set)
    #: When a port last received its own discovery frame.
    _echoed: dict[PortId, float] = field(default_factory=dict)
    #: When a switch without a controller last passed our frames from one neighbour to another.
    _failed_open: dict[int, float] = field(default_factory=dict)
    #: Bytes that ports have received, by the last reading.
    _received: dict[PortId, int] = field(default_factory=dict)
    #: Answers of `neighbours` and `links` until a direction comes or goes.
    _around: dict[PortId, set[PortId]] | None = None
    _links: list[LinkDirection] | None = None

    def name(self, switch: int) -> str:
        """Return a switch's name for people."""
        return self.names.get(switch, f"{switch:016x}")

    def port_name(self, port: PortId) -> str:
        """Return a port's name for people: the switch's and the device's name."""
        known = self.switches.get(port.switch)
        device = known.ports.get(port.port) if known else None
        return f"{self.name(port.switch)}:{device.name if device else port.port}"

    def _both(self, source: PortId, target: PortId) -> str:
        return f"{self.port_name(source)} → {self.port_name(target)}"

    # Events.

    def handle_switch(self, now: float, dpid: int, ports: Iterable[Port], address: str) -> bool:
        """Take in a switch that has connected; return true if links were lost meanwhile."""
        self.lost_switches.pop(dpid, None)
        self.lost_ports.pop(dpid, None)
        self.switches[dpid] = Switch(dpid, address, now, {port.number: port for port in ports})
        self.revision += 1
        for number in self.switches[dpid].up():
            self.up_since[PortId(dpid, number)] = now
        for hearing in self.heard.values():
            if dpid in (hearing.source.switch, hearing.target.switch):
                hearing.last = now
        self.changed = now
        # Nobody told of ports that went down, or were removed, while it was away.
        known = {end.port for key in self.heard for end in key if end.switch == dpid}
        known |= {port.port for port in (*self.up_since, *self._linked, *self._echoed) if port.switch == dpid}
        lost: dict[tuple[PortId, PortId], str] = {}
        for number in known.difference(self.switches[dpid].up()):
            port = PortId(dpid, number)
            how = "was removed" if number not in self.switches[dpid].ports else "is down"
            lost |= self._lose(port, f"port {self.port_name(port)} {how}")
        return self._forget(now, lost)

    def _lose(self, port: PortId, why: str) -> dict[tuple[PortId, PortId], str]:
        """Forget since when a port is up; return the directions of its links, each with why it is lost."""
        self.up_since.pop(port, None)
        self._linked.discard(port)
        self._echoed.pop(port, None)
        begin, end = self._from.get(port, {}), self._to.get(port, {})
        return dict.fromkeys((*((port, target) for target in begin), *((source, port) for source in end)), why)

    def handle_gone(self, now: float, dpid: int, why: str) -> None:
        """Take in that a switch's connection ended. It may still forward, so its links stay, stale."""
        gone = self.switches.pop(dpid, None)
        if gone is not None:
            self.revision += 1
            _remember(self.lost_switches, dpid, Loss(now, why))
            self.lost_ports[dpid] = gone.ports
            self.lost_ports = {each: ports for each, ports in self.lost_ports.items() if each in self.lost_switches}
        self.changed = now

    def handle_port(self, now: float, dpid: int, port: Port, *, gone: bool) -> bool:
        """Take in a port's change; return true if links were lost by it."""
        switch = self.switches.get(dpid)
        if switch is None:
            return False
        before = switch.ports.get(port.number)
        here = PortId(dpid, port.number)
        why = f"port {self.port_name(here)} {'was removed' if gone else 'is down'}"
        if gone:
            switch.ports.pop(port.number, None)
        else:
            switch.ports[port.number] = port
        if gone or before is None or before.name != port.name:
            switch.revision += 1
            self.revision += 1
        if port.up and not gone:
            if before is None or not before.up:
                self.up_since[here] = now
                self.changed = now
            return False
        return self._forget(now, self._lose(here, why))

    def lose_port(self, now: float, port: PortId) -> None:
        """Forget a port whose number is another's now, and its links."""
        self._received.pop(port, None)
        self._forget(now, self._lose(port, "its port has another number"))

    def is_relayed(
        self, now: float, source: PortId, arrived: PortId, inhabited: Callable[[], Container[PortId]]
    ) -> bool:
        """Return whether a discovery frame came over a host and not over a cable.

        Frames are sealed, but whoever gets one can hand it to somebody at another port. So a port at which hosts or
        an edge are (`inhabited`) begins no link once it is established. It can after it, or the other port, went down
        and up, and if it was an end of a link before.
        """
        ends = (source, arrived)
        newest = max(self.up_since.get(end, now) for end in ends)
        if source == arrived or (source, arrived) in self.heard or now - newest < PORT_SETTLE_TIME:
            return False
        taken = inhabited()
        return any(end in taken and end not in self._linked for end in ends)

    def handle_probe(self, now: float, probe: Probe, arrived: PortId, seconds: float) -> bool:
        """A discovery frame arrived `seconds` after it was sent; whether that is a link not known before."""
        if probe.source == arrived:
            # A host echoes it, or there is a loop behind the port. A link it is not.
            self._echoed[arrived] = now
            return False
        self._linked |= {probe.source, arrived}
        for other in self._to.get(arrived, {}):
            if other != probe.source and other.switch not in self.switches:
                self._failed_open[other.switch] = now
        key = (probe.source, arrived)
        known = self.heard.get(key)
        if known is None:
            known = self.heard[key] = LinkDirection(probe.source, arrived, now, now)
            self.lost_links.pop(key, None)
            self._from.setdefault(probe.source, {})[arrived] = known
            self._to.setdefault(arrived, {})[probe.source] = known
            self._around = self._links = None
            self.changed = now
        fresh = known.first == known.last == now or known.stale
        known.last = now
        known.unanswered = 0
        self._checks.pop(key, None)
        known.stale = False
        known.whole.add(now, seconds)
        return fresh

    def sent(self, source: PortId) -> None:
        """Record that a discovery frame left this port."""
        for hearing in self._from.get(source, {}).values():
            hearing.unanswered += 1

    def check_link(self, now: float, source: PortId) -> None:
        """Check the links of a port that is sending a discovery frame: they must deliver it, or other bytes, soon."""
        for target, hearing in self._from.get(source, {}).items():
            due = now + LINK_CHECK_TIMEOUT + (hearing.whole.get(now) or 0.0)
            self._checks.setdefault((source, target), LinkCheck(due, now))

    def due_counter_polls(self, now: float) -> list[int]:
        """Return the switches whose counters are due, for checks of links."""
        due = [(target.switch, asked) for (_, target), asked in self._checks.items() if asked.look <= now]
        for _, asked in due:
            asked.look = now + COUNTER_POLL_INTERVAL
        return sorted({switch for switch, _ in due} & self.switches.keys())

    def handle_counters(self, now: float, dpid: int, counters: Iterable[PortCounters]) -> None:
        """Take in port counters: a link whose far end counts more bytes than before is alive."""
        for each in counters:
            port = PortId(dpid, each.port)
            more = each.rx_bytes > self._received.get(port, each.rx_bytes)
            self._received[port] = each.rx_bytes
            for source, hearing in self._to.get(port, {}).items():
                if more:
                    hearing.brought = now
                asked = self._checks.get((source, port))
                if asked is None:
                    continue
                # Bytes from before the check prove nothing.
                if asked.received is None:
                    asked.received = each.rx_bytes
                elif each.rx_bytes > asked.received:
                    del self._checks[source, port]

    def expire(self, now: float) -> bool:
        """Remove links that were not heard for too long; return true if there were any."""
        dues = [asked.due for asked in self._checks.values()]
        if now < self._look_at and now < min(dues, default=now + 1):
            return False
        busy = self._look_at and now > min([self._look_at, *dues]) + BUSY_DELAY
        self._look_at = now + self.interval / 8
        if busy:
            for asked in self._checks.values():
                asked.due = max(asked.due, now + LINK_CHECK_TIMEOUT)
            return False
        late = [key for key, asked in self._checks.items() if now >= asked.due]
        lost = {
            key: f"no discovery frame has come for {now - hearing.last:.1f} s"
            for key, hearing in self.heard.items()
            if self._is_old(now, hearing)
        }
        for key in late:
            del self._checks[key]
            if key in self.heard:
                lost[key] = "a path over it fell silent, and it brought nothing when it was checked"
        silent = {key for key in lost if not self._is_connected(*key)}
        for key in silent:
            # A switch that has lost the controller sends no frames, so nothing is missed the other way.
            for direction in (key, key[::-1]):
                if direction in self.heard:
                    self.heard[direction].stale = True
            self.changed = self.became_stale = now
            del lost[key]
        return self._forget(now, lost) or bool(silent)

    def _is_connected(self, *ends: PortId) -> bool:
        return all(end.switch in self.switches for end in ends)

    def _is_old(self, now: float, hearing: LinkDirection) -> bool:
        missed = MAX_MISSED_FRAMES
        if hearing.brought > hearing.last and now - hearing.brought < MAX_MISSED_FRAMES * self.interval:
            missed *= BUSY_LINK_FACTOR
        late = now - hearing.last >= missed * self.interval and hearing.unanswered >= missed
        return late and (not hearing.stale or self._is_connected(hearing.source, hearing.target))

    def _forget(self, now: float, lost: Mapping[tuple[PortId, PortId], str]) -> bool:
        """Forget links, each for a reason; return true if there are any."""
        for key, why in lost.items():
            _remember(self.lost_links, key, Loss(now, why))
            del self.heard[key]
            del self._from[key[0]][key[1]]
            del self._to[key[1]][key[0]]
            self._checks.pop(key, None)
        if lost:
            self._around, self._links = self._without(lost)
            self.changed = now
        return bool(lost)

    def _without(
        self, lost: Collection[tuple[PortId, PortId]]
    ) -> tuple[dict[PortId, set[PortId]] | None, list[LinkDirection] | None]:
        """Return the answers of `neighbours` and `links` without links that are lost as a whole.

        None where the ports have others, or one direction is left: then they are to be made anew.
        """
        around, links = self._around, self._links
        if around is None or links is None:
            return None, None
        gone: dict[PortId, set[PortId]] = {}
        for source, target in lost:
            gone.setdefault(source, set()).add(target)
            gone.setdefault(target, set()).add(source)
        is_left = any((target, source) in self.heard for source, target in lost)
        if is_left or any(around[port] != others for port, others in gone.items()):
            return None, None
        around = {port: others for port, others in around.items() if port not in gone}
        return around, [each for each in links if each.source not in gone]

    def poll_timeout(self) -> float | None:
        """Return when to look for expired links: coarsely, since there are very many."""
        asked = [min(each.due, each.look) for each in self._checks.values()]
        return min([*asked, self._look_at]) if self.heard else None

    # Queries.

    def unreachable(self, ports: Iterable[PortId]) -> tuple[set[PortId], set[PortId]]:
        """Return which of these ports are down, and which are unobserved: their switch lost the controller.

        A switch without links has no neighbour that would send anything to it, so its ports count as down.
        """
        linked = {end.switch for key in self.heard for end in key}
        down, unobserved = set[PortId](), set[PortId]()
        for port in ports:
            switch = self.switches.get(port.switch)
            if switch is None:
                (unobserved if port.switch in linked else down).add(port)
            elif not self.is_up(port):
                down.add(port)
        return down, unobserved

    def is_up(self, port: PortId) -> bool:
        """Return true if a port is up, and its switch connected."""
        switch = self.switches.get(port.switch)
        return switch is not None and port.port in switch.ports and switch.ports[port.port].up

    def known_ports(self, dpid: int) -> Mapping[int, Port]:
        """Return a switch's ports, or those that it had when it lost the controller; none if it is not known."""
        switch = self.switches.get(dpid)
        return self.lost_ports.get(dpid, {}) if switch is None else switch.ports

    def silent_ports(self) -> list[PortId]:
        """Return the ports that are up and were an end of a link since they came up, and hear nothing any more."""
        return sorted(port for port in self._linked if self.is_up(port) and not self.is_heard(port))

    def failed_open(self, now: float) -> list[int]:
        """Return the switches that lately passed frames on by themselves, without their controller."""
        return sorted(dpid for dpid, at in self._failed_open.items() if now - at < FAILED_OPEN_RETENTION)

    def is_heard(self, port: PortId) -> bool:
        """Return true if this port hears another one, or another one hears it."""
        return bool(self._from.get(port) or self._to.get(port))

    def neighbours(self) -> Mapping[PortId, Set[PortId]]:
        """Return for each port the ports that it hears or that hear it."""
        if self._around is None:
            around: dict[PortId, set[PortId]] = {}
            for source, target in self.heard:
                around.setdefault(target, set()).add(source)
                around.setdefault(source, set()).add(target)
            self._around = around
        return self._around

    def echoed(self, now: float) -> set[PortId]:
        """Return the ports that hear their own discovery frames."""
        return {port for port, at in self._echoed.items() if now - at < MAX_MISSED_FRAMES * self.interval}

    def missing(self, now: float) -> tuple[dict[tuple[PortId, PortId], Loss], dict[int, Loss]]:
        """Return the links and the switches that were lost lately and are not back."""
        return _lately(now, self.lost_links), _lately(now, self.lost_switches)

    def links(self) -> Sequence[LinkDirection]:
        """Return both directions of all working links: each is heard, and neither end has another neighbour."""
        if self._links is None:
            around = self.neighbours()
            self._links = [
                hearing
                for (source, target), hearing in sorted(self.heard.items())
                if (target, source) in self.heard
                and source.switch != target.switch
                and len(around[source]) == len(around[target]) == 1
            ]
        return self._links

    def echoes(self, now: float) -> dict[int, Estimate | None]:
        """Return the round trip of each switch's echoes; None where it is not measured."""
        return {dpid: switch.echo.estimate(now) for dpid, switch in self.switches.items()}

    def latency(
        self, now: float, hearing: LinkDirection, echoes: Mapping[int, Estimate | None]
    ) -> tuple[float, float]:
        """Return a direction's latency ([mpsdn] §III-A) and its uncertainty, seconds.

        While echoes of an end are not measured, these are 0 and infinite.
        """
        whole = hearing.whole.estimate(now)
        source, target = echoes.get(hearing.source.switch), echoes.get(hearing.target.switch)
        if whole is None or source is None or target is None:
            return 0.0, math.inf
        return link_latency(whole.least, source.least, target.least), link_uncertainty(whole, source, target)

    def problems(self, now: float, edge_ports: dict[PortId, str]) -> list[Problem]:
        """Return what is wrong with the wiring, by name."""
        found = []
        around = self.neighbours()
        for (source, target), hearing in sorted(self.heard.items()):
            if source.switch == target.switch:
                text = "both ends are on one switch: the ports are not used; unplug the cable"
                found.append(Problem("loop", self._both(source, target), text))
            elif (target, source) not in self.heard and now - hearing.first > MAX_MISSED_FRAMES * self.interval:
                text = "frames cross it in this direction alone: it is not used; check cable, optics and filters"
                found.append(Problem("one-way-link", self._both(source, target), text))
        for port in sorted(self.echoed(now)):
            if port in edge_ports:
                text = "a host behind this edge sends our discovery frames back: they are ignored"
                found.append(Problem("echoed-probe", edge_ports[port], text))
            else:
                text = "its own frames come back: no broadcasts go out of it; look for a loop behind it"
                found.append(Problem("loop", self.port_name(port), text))
        opened = self.failed_open(now)
        for dpid in opened:
            text = "forwards by itself without its controller, and may loop broadcasts: set fail_mode=secure there"
            found.append(Problem("fail-open", self.name(dpid), text))
        for port in self.silent_ports():
            text = "is up, and its neighbour is not heard any more: see cable and optics"
            stp = "and whether spanning tree blocks it (ovs-vsctl set bridge … stp_enable=false rstp_enable=false)"
            found.append(Problem("silent-link", self.port_name(port), f"{text}, {stp}"))
        for port, others in sorted(around.items()):
            if len(others) > 1 and not any(other.switch in opened for other in (port, *others)):
                names = ", ".join(self.port_name(other) for other in sorted(others))
                text = f"hears several ports ({names}): a shared segment is not used; give each link its own port"
                found.append(Problem("shared-segment", self.port_name(port), text))
            if port in edge_ports:
                names = ", ".join(self.port_name(other) for other in sorted(others))
                text = f"a switch ({names}) is plugged in where this edge should be: the edge is left out"
                found.append(Problem("miscabled-edge", edge_ports[port], text))
        return found


def _remember(lost: dict[Key, Loss], key: Key, loss: Loss) -> None:
    """Record a loss; beyond MAX_LOSSES the oldest one is forgotten."""
    lost.pop(key, None)
    lost[key] = loss
    if len(lost) > MAX_LOSSES:
        del lost[next(iter(lost))]


def _lately(now: float, lost: dict[Key, Loss]) -> dict[Key, Loss]:
    return {key: loss for key, loss in lost.items() if now - loss.at < LOSS_RETENTION}
