"""Flows of captures, and the visits to sites that they belong to.

A visit begins with a connection after a time without any web traffic of that client, and is named after that
connection's server: the paper opened its sites one after another. What is kept grows with the number of flows, not of
packets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from braid_lab.capture.hello import Hello, Initials, Pieces, is_quic, of_tcp
from braid_lab.capture.packets import Address, Packet, packets

#: Ports of the web.
WEB_PORTS = frozenset({80, 443, 8080, 8443})

#: A client that is silent for so long has begun another visit with its next connection.
GAP_SECONDS = 2.0

#: Fields of a flow that are as they are in plain data.
_FLOW_VALUES = ("transport", "client", "server", "first", "last", "bytes", "packets", "began_after")


@dataclass
class Flow:
    """A connection of a client."""

    transport: str
    client: Address
    server: Address
    first: float
    last: float
    #: Bytes of its IP packets, both ways.
    bytes: int = 0
    packets: int = 0
    #: Bytes of its visit when it began.
    began_after: int = 0
    hello: Hello | None = None
    #: The client's first bytes, until they are understood.
    opening: Pieces | Initials | None = None
    _sequence: int | None = None

    @property
    def name(self) -> str:
        """The server's name if the client has told it, else its address."""
        return self.hello.server if self.hello and self.hello.server else self.server[0]

    @property
    def protocol(self) -> str:
        """The protocol as far as the client's offer shows."""
        if self.transport == "quic":
            return "HTTP/3 (QUIC)"
        offered = self.hello.alpn if self.hello else ()
        if "h2" in offered:
            return "HTTP/2 offered (TCP)"
        return "HTTP/1.1 (TCP)" if "http/1.1" in offered else "unknown (TCP)"

    def plain(self) -> dict[str, Any]:
        """Return what is known of it as plain data; `of` is the inverse."""
        values = {name: getattr(self, name) for name in _FLOW_VALUES}
        return values | {"hello": asdict(self.hello) if self.hello else None}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Flow:
        """Return a flow from what `plain` returned, also after JSON, which has no tuples."""
        hello = plain["hello"] and Hello(plain["hello"]["server"], tuple(plain["hello"]["alpn"]))
        values = {name: plain[name] for name in _FLOW_VALUES}
        ends = {name: (plain[name][0], plain[name][1]) for name in ("client", "server")}
        return Flow(**values | ends | {"hello": hello})

    def take(self, packet: Packet) -> None:
        """Count a packet, and look for the ClientHello in it."""
        self.last = max(self.last, packet.seconds)
        self.bytes += packet.length
        self.packets += 1
        if packet.source == self.client and self.opening is not None:
            self._understand(packet)

    def _understand(self, packet: Packet) -> None:
        if isinstance(self.opening, Initials):
            self.hello = self.opening.add(packet.payload)
        elif isinstance(self.opening, Pieces):
            if self._sequence is None:
                self._sequence = (packet.sequence + packet.opens) & 0xFFFFFFFF
            if packet.payload:
                self.opening.add((packet.sequence - self._sequence) & 0xFFFFFFFF, packet.payload)
                self.hello = of_tcp(self.opening.beginning())
        if self.hello is not None or self.packets > 40:
            self.opening = None


@dataclass
class Visit:
    """A visit to a site: its flows in the order in which they began."""

    flows: list[Flow] = field(default_factory=list)
    bytes: int = 0
    last: float = 0.0

    def plain(self) -> dict[str, Any]:
        """Return what is known of it as plain data; `of` is the inverse."""
        return {"flows": [flow.plain() for flow in self.flows], "bytes": self.bytes, "last": self.last}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Visit:
        """Return a visit from what `plain` returned, also after JSON."""
        return Visit([Flow.of(each) for each in plain["flows"]], plain["bytes"], plain["last"])

    @property
    def site(self) -> str:
        """The name of its first flow's server."""
        return self.flows[0].name

    @property
    def seconds(self) -> float:
        """Time from its first packet to its last with data."""
        return self.last - self.flows[0].first

    @property
    def concurrency(self) -> int:
        """Most flows between their first and last packets at a time."""
        moments = sorted([(flow.first, 1) for flow in self.flows] + [(flow.last, -1) for flow in self.flows])
        most = now = 0
        for _, change in moments:
            now += change
            most = max(most, now)
        return most


@dataclass
class Traffic:
    """The web traffic of captures."""

    gap: float = GAP_SECONDS
    visits: list[Visit] = field(default_factory=list)
    #: Packets and bytes that are no web traffic.
    other_packets: int = 0
    other_bytes: int = 0
    _flows: dict[tuple[str, Address, Address], tuple[Flow, Visit]] = field(default_factory=dict)
    _current: dict[str, Visit] = field(default_factory=dict)

    def read(self, files: Iterable[Path]) -> None:
        """Take all packets of captures; no visit goes on in another file."""
        for file in files:
            for packet in packets(file):
                self.take(packet)
            self._flows.clear()
            self._current.clear()

    def take(self, packet: Packet) -> None:
        """Take a packet."""
        transport = "quic" if packet.transport == "udp" else "tcp"
        there = self._flows.get((transport, packet.source, packet.target))
        back = self._flows.get((transport, packet.target, packet.source))
        known = there or back
        # A port that is used again is another connection.
        if known is None or (packet.opens and known[0].bytes > 0 and known[0].last - known[0].first > 0.0):
            opened = self._opened(transport, packet)
            if opened is None and known is None:
                self.other_packets += 1
                self.other_bytes += packet.length
                return
            known = opened or known
        assert known is not None  # noqa: S101
        flow, visit = known
        flow.take(packet)
        visit.bytes += packet.length
        if packet.payload_length:
            visit.last = max(visit.last, packet.seconds)

    def _opened(self, transport: str, packet: Packet) -> tuple[Flow, Visit] | None:
        """Return the flow that a packet opens, with its visit; None if it is none of the web's."""
        if packet.target[1] not in WEB_PORTS:
            return None
        if transport == "quic":
            if not is_quic(packet.payload):
                return None
        elif not packet.opens:
            # The beginning is missing, and with it the site.
            return None
        visit = self._current.get(packet.source[0])
        if visit is None or packet.seconds - visit.last > self.gap:
            visit = self._current[packet.source[0]] = Visit(last=packet.seconds)
            self.visits.append(visit)
        flow = Flow(
            transport,
            packet.source,
            packet.target,
            packet.seconds,
            packet.seconds,
            began_after=visit.bytes,
            opening=Initials() if transport == "quic" else Pieces(),
        )
        visit.flows.append(flow)
        self._flows[transport, packet.source, packet.target] = flow, visit
        return flow, visit

    def flows(self) -> list[Flow]:
        """Return all flows."""
        return [flow for visit in self.visits for flow in visit.flows]


def read(files: Sequence[Path], *, gap: float = GAP_SECONDS) -> Traffic:
    """Return the web traffic of captures."""
    traffic = Traffic(gap)
    traffic.read(files)
    return traffic
