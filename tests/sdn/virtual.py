"""A network of made-up switches in virtual time, with a controller: every message and frame takes its time."""

from __future__ import annotations

import functools
import heapq
import ipaddress
import itertools
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

from braid_lab.fabric.pipeline import FrameOut, Outcome, Pipeline
from braid_lab.fabric.shapes import Shape
from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.model import Arc, Graph, PortId
from braid_sdn.fabric.monitor.probe import PROBE_MAC, tagged
from braid_sdn.fabric.settings import EdgeSettings, LinkSettings, Settings
from braid_sdn.fabric.view.address_frames import address_request
from braid_sdn.openflow.messages import Hello, Port

KEY = b"a key of this test alone"

#: Seconds that a message between controller and switch takes, each way.
CONTROL = 0.001


def mac(number: int) -> str:
    return f"02:00:00:00:{number >> 8:02x}:{number & 0xFF:02x}"


def frame(source: str, target: str, payload: bytes = b"hello") -> bytes:
    ends = bytes.fromhex(target.replace(":", "") + source.replace(":", ""))
    return (ends + b"\x08\x00" + payload).ljust(60, b"\0")


def arp(source: str, address: str, wanted: str, *, reply_to: str | None = None) -> bytes:
    """An ARP request or reply."""
    operation = 1 if reply_to is None else 2
    target = reply_to or "ff:ff:ff:ff:ff:ff"
    ends = bytes.fromhex(target.replace(":", "") + source.replace(":", ""))
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + bytes.fromhex(source.replace(":", ""))
    body += ipaddress.IPv4Address(address).packed + bytes(6) + ipaddress.IPv4Address(wanted).packed
    return (ends + b"\x08\x06" + body).ljust(60, b"\0")


def solicitation(source: str, address: str, wanted: str, *, answer: bool = False) -> bytes:
    """A neighbour solicitation to a group, or an advertisement to all nodes; without checksum."""
    wanted_raw = ipaddress.IPv6Address(wanted).packed
    body = struct.pack("!BBHI", 136 if answer else 135, 0, 0, 0) + wanted_raw
    ip = struct.pack("!IHBB", 0x60000000, len(body), 58, 255) + ipaddress.IPv6Address(address).packed
    return bytes.fromhex("333300000001" + source.replace(":", "")) + b"\x86\xdd" + ip + wanted_raw + body


def port(number: int, name: str) -> Port:
    return Port(number, name, f"06:00:00:00:00:{number:02x}", True, 10e9)


class Network:
    """Switches, wires and stations of a shape. `received` is what each station got."""

    def __init__(self, shape: Shape, **settings: object) -> None:
        self.shape = shape
        self.now = 100.0
        self._serial = itertools.count()
        #: When, in turn, what happens, and whether the controller has no part in it.
        self._events: list[tuple[float, int, Callable[[], None], bool]] = []
        self.switches: dict[int, Pipeline] = {}
        self.peer: dict[PortId, PortId] = {}
        self.delay: dict[PortId, float] = {}
        #: Seconds by which messages to a switch, and from it, take longer than CONTROL.
        self.control: dict[int, float] = {}
        #: Directions that swallow everything, without a sign at the ports.
        self.silent: set[PortId] = set()
        #: Directions that swallow frames of which more than so many bytes are behind Ethernet's header and a tag.
        self.carries: dict[PortId, int] = {}
        #: Directions that send so many bit/s, one frame after the other, and when the last one is sent.
        self.rate: dict[PortId, float] = {}
        #: Seconds that a frame waits in front of these at the most; it is dropped where it would wait longer.
        self.queue: dict[PortId, float] = {}
        self._sent_at: dict[PortId, float] = {}
        self.stations: dict[str, PortId] = {}
        #: Stations that send edge probes back, as braid edge does.
        self.reflect: set[str] = set()
        #: Stations that hand discovery frames of their port to another station (or themselves), which sends them.
        self.relay: dict[str, str] = {}
        #: Addresses for which a station answers requests, and its MAC.
        self.answers: dict[str, dict[str, str]] = {}
        self.received: dict[str, list[bytes]] = {}
        self.connected: set[int] = set()
        for name in shape.switches:
            dpid = shape.dpid(name)
            self.switches[dpid] = Pipeline(dpid, {})
        for wire, (one, other) in zip(shape.wires, shape.ports(), strict=True):
            a, b = self._add_port(wire.one, one), self._add_port(wire.other, other)
            self.wire(a, b, wire.delay_ms / 1000)
        for station in shape.stations:
            self.stations[station.name] = self._add_port(station.switch, station.name)
            self.received[station.name] = []
        made = Settings(
            key=KEY,
            names={shape.dpid(name): name for name in shape.switches},
            edges=tuple(EdgeSettings(s.name, s.switch, s.name, probe=False) for s in shape.stations if s.edge),
            links=tuple(LinkSettings((wire.one, wire.other), 1e6 * wire.mbit) for wire in shape.wires),
        )
        self.settings = replace(made, **settings)  # type: ignore[arg-type]
        self.controller = Controller(self.settings, stopwatch=lambda: 0.0)

    def _add_port(self, switch: str, name: str) -> PortId:
        dpid = self.shape.dpid(switch)
        number = len(self.switches[dpid].ports) + 1
        self.switches[dpid].ports[number] = port(number, name)
        return PortId(dpid, number)

    def wire(self, one: PortId, other: PortId, seconds: float = 0.0) -> None:
        self.peer[one], self.peer[other] = other, one
        self.delay[one] = self.delay[other] = seconds

    def port_of(self, one: str, other: str) -> PortId:
        """The port of one switch that leads to another."""
        here, there = self.shape.dpid(one), self.shape.dpid(other)
        return next(a for a, b in self.peer.items() if (a.switch, b.switch) == (here, there))

    # Time.

    def at(self, when: float, what: Callable[[], None], *, outside: bool = False) -> None:
        """Let something happen later; `outside` if the controller, whatever it does, has no part in it."""
        heapq.heappush(self._events, (when, next(self._serial), what, outside))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        due = self.controller.poll_timeout()
        while True:
            event = self._events[0][0] if self._events else float("inf")
            upcoming = min(event, max(self.now, due) if due is not None else float("inf"))
            if upcoming > end:
                break
            self.now = upcoming
            outside = False
            if event <= upcoming:
                *_, happens, outside = heapq.heappop(self._events)
                happens()
            else:
                self.controller.handle_timeout(self.now)
            # Most of what happens is frames on wires: to ask the controller after each took a third of the time.
            if not outside:
                self._flush()
                due = self.controller.poll_timeout()
        self.now = end

    def run_until(self, condition: Callable[[], bool], *, within: float) -> float:
        """Let time pass until something holds; how long that took."""
        began = self.now
        while not condition():
            assert self.now - began < within, f"not within {within} s of virtual time"
            self.run(0.01)
        return self.now - began

    def _flush(self) -> None:
        for dpid, message in self.controller.poll_messages():
            if dpid in self.connected:
                when = self.now + CONTROL + self.control.get(dpid, 0.0)
                self.at(when, lambda d=dpid, m=message: self._deliver(d, m), outside=True)  # type: ignore[misc]

    def _deliver(self, dpid: int, message: object) -> None:
        if dpid in self.connected:
            self._outcomes(dpid, list(self.switches[dpid].handle(self.now, message)))  # type: ignore[arg-type]

    def _outcomes(self, dpid: int, outcomes: list[Outcome]) -> None:
        for each in outcomes:
            if isinstance(each, FrameOut):
                self._leave(PortId(dpid, each.port), each.frame)
            elif dpid in self.connected:
                when = self.now + CONTROL + self.control.get(dpid, 0.0)
                self.at(when, lambda e=each: self._said(dpid, e))  # type: ignore[misc]

    def _said(self, dpid: int, message: object) -> None:
        if dpid in self.connected:
            self.controller.handle(self.now, dpid, message)  # type: ignore[arg-type]

    def _leave(self, source: PortId, data: bytes) -> None:
        for name, place in self.stations.items():
            if place == source:
                # Discovery frames are of LLDP's type.
                if data[12:14] == b"\x88\xb5":
                    if name in self.reflect:
                        self.at(self.now + 0.001, lambda n=name, d=data: self.send(n, d))  # type: ignore[misc]
                elif data[12:14] == b"\x88\xcc":
                    if name in self.relay:
                        self.at(self.now + 0.001, lambda n=self.relay[name], d=data: self.send(n, d))  # type: ignore[misc]
                elif data[6:12] == bytes.fromhex(PROBE_MAC.replace(":", "")):
                    self._answer(name, data)
                else:
                    self.received[name].append(data)
        target = self.peer.get(source)
        if len(data) - (18 if data[12:14] == b"\x81\x00" else 14) > self.carries.get(source, len(data)):
            return
        if target is not None and source not in self.silent:
            sent = self.now
            if source in self.rate:
                if self._sent_at.get(source, 0.0) - self.now > self.queue.get(source, float("inf")):
                    return
                # Preamble, checksum and gap are 24 bytes.
                sent = max(sent, self._sent_at.get(source, 0.0)) + 8 * (len(data) + 24) / self.rate[source]
                self._sent_at[source] = sent
            self.at(
                sent + self.delay[source],
                lambda: self._outcomes(
                    target.switch, list(self.switches[target.switch].receive(target.port, data, self.now))
                ),
                outside=True,
            )

    def _answer(self, name: str, data: bytes) -> None:
        """Answer the controller's request for an address of a station."""
        question = address_request(data)
        own = self.answers.get(name, {})
        if question is None or question.wanted not in own:
            return
        source = own[question.wanted]
        if data[12:14] == b"\x08\x06":
            reply = arp(source, question.wanted, question.address, reply_to=question.mac)
        else:
            reply = solicitation(source, question.wanted, question.wanted, answer=True)
            reply = bytes.fromhex(question.mac.replace(":", "")) + reply[6:]
        self.at(self.now + 0.001, lambda: self.send(name, reply))

    # Actions of tests.

    def connect(self, *switches: str) -> None:
        """Connect switches (all of them without a name) to the controller."""
        for name in switches or self.shape.switches:
            dpid = self.shape.dpid(name)
            self.connected.add(dpid)
            self.controller.handle_switch(
                self.now, Hello(dpid, tuple(self.switches[dpid].ports.values()), f"test:{name}")
            )
        self._flush()

    def disconnect(self, *switches: str) -> None:
        for name in switches or self.shape.switches:
            self.connected.discard(self.shape.dpid(name))
            self.controller.handle_gone(self.now, self.shape.dpid(name), "the test ended its connection")

    def restart_controller(self, late: Mapping[str, float] | None = None) -> None:
        """Replace the controller by one that knows what an operator has set alone, and connect the switches to it.

        Some are connected so much later, s.
        """
        self.connected.clear()
        self.controller = Controller(self.settings, stopwatch=lambda: 0.0, policies=self.controller.policies)
        for name in self.shape.switches:
            self.at(self.now + (late or {}).get(name, 0.0), functools.partial(self.connect, name))
        self.run(0)

    def send(self, station: str, data: bytes) -> None:
        """Have a station send a frame."""
        place = self.stations[station]
        self._outcomes(place.switch, list(self.switches[place.switch].receive(place.port, data, self.now)))

    def unplug(self, one: str, other: str, *, up: bool = False) -> None:
        """Take a wire out, with the sign of it at both ends; or put it in again."""
        for end in (self.port_of(one, other), self.port_of(other, one)):
            status = self.switches[end.switch].set_port(end.port, up=up)
            (self.silent.discard if up else self.silent.add)(end)
            if end.switch in self.connected:
                self.controller.handle(self.now, end.switch, status)
        self._flush()

    def silence(self, one: str, other: str, *, on: bool = True) -> None:
        """Have a wire swallow everything in both directions, without a sign of it."""
        for end in (self.port_of(one, other), self.port_of(other, one)):
            (self.silent.add if on else self.silent.discard)(end)

    def codes(self) -> set[str]:
        """The codes of all present problems."""
        from braid_sdn.fabric.api.report import problems

        return {problem.code for problem in problems(self.controller, self.now)}


def graph_of(shape: Shape) -> Graph:
    """A shape as the controller would know it, all of it free."""
    numbers: dict[str, int] = {}
    arcs = []
    for wire in shape.wires:
        ends = []
        for switch in (wire.one, wire.other):
            numbers[switch] = numbers.get(switch, 0) + 1
            ends.append(PortId(shape.dpid(switch), numbers[switch]))
        for source, target in (ends, ends[::-1]):
            arcs.append(Arc(source, target, 1e6 * wire.mbit, 0.0, wire.delay_ms / 1000))
    return Graph.of(arcs, (shape.dpid(name) for name in shape.switches))


def ready(shape: Shape, **more: object) -> Network:
    """A network whose controller has found everything, and whose stations have spoken once."""
    return settled(Network(shape, **more))


def settled(net: Network) -> Network:
    """The same of a network whose switches are not connected yet."""
    net.connect()
    net.run(3)
    for number, name in enumerate(net.stations, 1):
        net.send(name, frame(mac(number), "ff:ff:ff:ff:ff:ff", b"here I am"))
    net.run(2)
    for each in net.received.values():
        each.clear()
    return net


def everybody_reaches_everybody(net: Network) -> None:
    """Each station sends a frame to each other one; each arrives once, at its station alone."""
    names = list(net.stations)
    for each in net.received.values():
        each.clear()
    sent = {}
    for a, source in enumerate(names, 1):
        for b, target in enumerate(names, 1):
            if a != b:
                sent[target, source] = frame(mac(a), mac(b))
                net.send(source, sent[target, source])
    net.run(1)
    for name in names:
        got = [each for each in net.received[name] if each[12:14] == b"\x08\x00"]
        assert sorted(got) == sorted(data for (target, _), data in sent.items() if target == name)


def tags(net: Network, source: str, target: str) -> list[int]:
    return [path.tag for path in net.controller.tables.pairs[source, target].paths]


def stream(net: Network, seconds: float) -> tuple[list[bytes], list[bytes]]:
    """Send a frame from ha to hb every 2 ms by the plain way, and over each path by the table in force."""
    sent = []
    for number in range(round(seconds / 0.002)):
        data = frame(mac(1), mac(2), struct.pack("!I", number))
        net.send("ha", data)
        sent.append(data)
        slots = net.controller.tables.pairs["ha", "hb"].slots
        over = tagged(data, slots[number % len(slots)])
        net.send("ha", over)
        sent.append(over)
        net.run(0.002)
    net.run(1)
    return sent, net.received["hb"]
