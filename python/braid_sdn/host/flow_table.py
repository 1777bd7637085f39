"""Flows and their outer ports. Pure bookkeeping: no rules, no packets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from braid_sdn.host.desired import Address
from braid_sdn.host.packets import ETHERNET_HEADER, ICMP, ICMPV6, TCP
from braid_sdn.host.sticky import SiteKey
from braid_sdn.openflow.messages import Mac, RuleKey

#: QUIC's port, and DNS'.
QUIC_PORT, DNS_PORT = 443, 53

#: Highest number of a flow; it is part of the cookies of the flow's rules.
MAX_FLOW_NUMBER = 0xFFFFFFFF

End = tuple[Address, int]


def ip_bytes(packets: int, size: int) -> int:
    """Return the bytes of IP packets, which are what a flow counts; a switch counts those of their frames."""
    return size - ETHERNET_HEADER * packets


@dataclass(slots=True)
class Counts:
    """Packets and bytes of one direction."""

    packets: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Flow:
    """A flow, or the mapping of a UDP socket or an echo identifier for every remote. Times are seconds."""

    number: int
    protocol: int
    #: Address and port of the inside, or identifier of an echo.
    inner: End
    #: The remote end; None for a mapping that serves every remote (RFC 4787 REQ-1).
    remote: End | None
    outer: End
    uplink: int
    #: The inside's link-layer address.
    inner_mac: Mac
    class_number: int
    rule: int | None
    #: Reason for its uplink, by the daemon's names.
    choice: str
    created: float
    last_seen: float
    #: Port of its first remote.
    first_port: int
    tx: Counts = field(default_factory=Counts)
    rx: Counts = field(default_factory=Counts)
    #: Counters of its rules at the last poll, in the same order.
    rule_tx: Counts = field(default_factory=Counts)
    rule_rx: Counts = field(default_factory=Counts)
    #: The link-layer address to which its packets leave.
    gateway_mac: Mac = ""
    #: Keys of its rules, by which they are deleted even when a port is gone.
    keys: tuple[RuleKey, ...] = ()
    #: Sequence number of the SYN that opened it; None if that is not known.
    syn: int | None = None
    #: Time from which on the switch has both of its rules.
    ruled: float = 0.0
    #: Packets since it was last counted as active, and the count of forecasts then.
    moved: int = 0
    active_in: int = -1
    #: The site for which its client keeps the uplink once it is answered, and for how many seconds; None: none.
    site: tuple[SiteKey, int] | None = None
    #: True if its answers of name servers bypass the controller.
    is_unheld: bool = False

    @property
    def family(self) -> int:
        """Return its IP version."""
        return self.inner[0].version

    @property
    def is_relayed(self) -> bool:
        """Return True if the controller itself translates its packets: no rule can write an echo's identifier."""
        return self.protocol in (ICMP, ICMPV6)

    @property
    def answered(self) -> bool:
        """Return True once the remote has sent something, as of the last reading; a race's winner has."""
        return self.rx.packets > 0 or self.choice == "raced"

    def note_rule(self, now: float, *, outbound: bool, packets: int, size: int) -> None:
        """Take in the counters of one of its rules."""
        total, last = (self.tx, self.rule_tx) if outbound else (self.rx, self.rule_rx)
        # A rule that was added anew counts from zero.
        more = packets - last.packets if packets >= last.packets else packets
        if more:
            total.packets += more
            total.bytes += size - last.bytes if packets >= last.packets else size
            self.last_seen = now
        last.packets, last.bytes = packets, size


#: Protocol, inside end, and remote end or None.
InnerKey = tuple[int, End, End | None]
#: Uplink, protocol and port.
_PortKey = tuple[int, int, int, int]


@dataclass
class FlowTable:
    """All flows, by number and by both ends."""

    flows: dict[int, Flow] = field(default_factory=dict)
    _by_inner: dict[InnerKey, Flow] = field(default_factory=dict)
    #: Flows by outer port and remote; the remote None is a mapping, which has its port alone. Without a flow the port
    #: is reserved.
    _by_port: dict[_PortKey, dict[End | None, Flow | None]] = field(default_factory=dict)
    _next_number: int = 0
    #: The port after the last one given, by uplink and protocol.
    _next_port: dict[tuple[int, int, int], int] = field(default_factory=dict)
    #: Pools in which the last search for a mapping's port was in vain: none is free before one is given back.
    _full: set[tuple[int, int, int]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.flows)

    def find(self, protocol: int, inner: End, remote: End | None) -> Flow | None:
        """Return the flow of an inside end."""
        return self._by_inner.get((protocol, inner, remote))

    def find_outer(self, uplink: int, family: int, protocol: int, port: int, remote: End | None) -> Flow | None:
        """Return the flow or the mapping with an outer port."""
        there = self._by_port.get((uplink, family, protocol, port))
        if there is None:
            return None
        return there.get(remote) or there.get(None)

    def free_port(
        self, uplink: int, family: int, protocol: int, ports: tuple[int, int], remote: End | None, preferred: int
    ) -> int | None:
        """Return an outer port that the remote, or with None every remote, may use; None if all are taken.

        The inside's own port is kept if it is in the range (RFC 4787 REQ-3); else ports follow one another, so that
        a port rests as long as possible before it is used again.
        """
        first, last = ports
        if first <= preferred <= last and self._is_free((uplink, family, protocol, preferred), remote):
            return preferred
        pool = (uplink, family, protocol)
        if remote is None and pool in self._full:
            return None
        size = last - first + 1
        start = self._next_port.get(pool, first)
        for step in range(size):
            port = first + (start - first + step) % size
            if self._is_free((uplink, family, protocol, port), remote):
                self._next_port[pool] = port + 1
                return port
        if remote is None:
            self._full.add(pool)
        return None

    def _is_free(self, key: _PortKey, remote: End | None) -> bool:
        there = self._by_port.get(key)
        return not there or (remote is not None and remote not in there and None not in there)

    def reserve(self, uplink: int, family: int, protocol: int, port: int, remote: End) -> None:
        """Keep a free port for a flow that may be added."""
        self._by_port.setdefault((uplink, family, protocol, port), {})[remote] = None

    def release(self, uplink: int, family: int, protocol: int, port: int, remote: End) -> None:
        """Give back a reserved port, unless its flow was added."""
        key = (uplink, family, protocol, port)
        there = self._by_port.get(key, {})
        if remote in there and there[remote] is None:
            self._drop_port(key, remote)

    def next_number(self) -> int:
        """Return a number that no flow has."""
        while True:
            self._next_number = self._next_number % MAX_FLOW_NUMBER + 1
            if self._next_number not in self.flows:
                return self._next_number

    def add(self, flow: Flow) -> None:
        """Add a flow whose ends and number are free."""
        self.flows[flow.number] = flow
        self._by_inner[flow.protocol, flow.inner, flow.remote] = flow
        key = (flow.uplink, flow.family, flow.protocol, flow.outer[1])
        self._by_port.setdefault(key, {})[flow.remote] = flow

    def remove(self, flow: Flow) -> None:
        """Remove a flow."""
        del self.flows[flow.number]
        del self._by_inner[flow.protocol, flow.inner, flow.remote]
        self._drop_port((flow.uplink, flow.family, flow.protocol, flow.outer[1]), flow.remote)

    def _drop_port(self, key: _PortKey, remote: End | None) -> None:
        there = self._by_port[key]
        del there[remote]
        if not there:
            del self._by_port[key]
            self._full.discard(key[:3])

    def on_uplink(self, uplink: int) -> list[Flow]:
        """Return the flows of an uplink."""
        return [flow for flow in self.flows.values() if flow.uplink == uplink]

    def expired(self, now: float) -> Iterable[Flow]:
        """Return flows that were idle longer than their state allows, as far as no rule's own timeout says so."""
        return [flow for flow in self.flows.values() if now - flow.last_seen >= idle_limit(flow)]


#: Idle times of states, seconds, as the daemon's other datapath has them: RFC 5382 REQ-5, RFC 4787 REQ-5, RFC 5508
#: REQ-2; a SYN without an answer is given up after the longest pause between its repetitions.
TCP_ESTABLISHED_IDLE, TCP_TRANSITORY_IDLE, TCP_EMBRYO_IDLE = 7440, 240, 75
UDP_IDLE, UDP_EMBRYO_IDLE, DNS_IDLE = 300, 120, 20
ICMP_IDLE = 60


def idle_limit(flow: Flow) -> int:
    """Return the seconds that a flow may be idle in its state."""
    if flow.protocol == TCP:
        return TCP_ESTABLISHED_IDLE if flow.answered else TCP_EMBRYO_IDLE
    if flow.is_relayed:
        return ICMP_IDLE
    if not flow.answered:
        return UDP_EMBRYO_IDLE
    return DNS_IDLE if flow.first_port == DNS_PORT else UDP_IDLE


def rule_idle(flow: Flow) -> int:
    """Return the idle timeout of a flow's rules: that of its longest state, for when nobody polls them."""
    return TCP_ESTABLISHED_IDLE if flow.protocol == TCP else UDP_IDLE
