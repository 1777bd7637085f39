"""What a controller and a switch say to one another, as plain data: the part of OpenFlow 1.3 that Braid uses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

#: MAC addresses are texts such as `02:00:00:00:00:01`.
Mac = str

#: The highest number that a port may have; above it are Reserved ones and the switch's own device.
LAST_PORT = 0xFFFFFF00

#: VLAN criteria of a match beside a VID.
UNTAGGED = -1
TAGGED = -2


class Reserved(IntEnum):
    """Ports that are none: OpenFlow 1.3 §A.2.1."""

    #: Where the packet came in.
    IN_PORT = 0xFFFFFFF8
    #: Through the switch's own tables; packet-out only.
    TABLE = 0xFFFFFFF9
    #: To the controller.
    CONTROLLER = 0xFFFFFFFD


@dataclass(frozen=True, slots=True)
class Match:
    """Which packets a rule is for; None is any."""

    in_port: int | None = None
    eth_type: int | None = None
    eth_src: Mac | None = None
    eth_dst: Mac | None = None
    #: Bits of `eth_dst` that count; None is all of them.
    eth_dst_mask: Mac | None = None
    #: A VID, UNTAGGED, TAGGED (any VID), or None.
    vlan: int | None = None
    ip_proto: int | None = None
    icmpv6_type: int | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """Send the packet, as it is by now, out of a port; never back to where it came in."""

    port: int


@dataclass(frozen=True, slots=True)
class PushTag:
    """Put an 802.1Q header with this VID in front."""

    vlan: int


@dataclass(frozen=True, slots=True)
class PopTag:
    """Take the outer 802.1Q header off."""


Action = Output | PushTag | PopTag


@dataclass(frozen=True, slots=True)
class Rule:
    """A flow rule; what it is for is in its cookie. Actions are applied in order, then `goto` is followed."""

    table: int
    priority: int
    match: Match
    actions: tuple[Action, ...] = ()
    goto: int | None = None
    cookie: int = 0
    #: Seconds until the switch forgets it; 0 is never.
    lease: int = 0

    @property
    def key(self) -> RuleKey:
        """What tells rules of a switch apart: a second one with the same key replaces the first."""
        return (self.table, self.priority, self.match)


RuleKey = tuple[int, int, Match]


# To a switch.


@dataclass(frozen=True, slots=True)
class AddRule:
    """Add a rule, or replace the one with its key."""

    rule: Rule


@dataclass(frozen=True, slots=True)
class DeleteRule:
    """Delete the rule with this key, if it is there."""

    key: RuleKey


@dataclass(frozen=True, slots=True)
class Barrier:
    """Answered when all before it is done."""

    token: int


@dataclass(frozen=True, slots=True)
class PacketOut:
    """Send a packet out of ports, or through the switch's tables (TABLE) as if it had come from `in_port`."""

    ports: tuple[int, ...]
    data: bytes
    in_port: int = Reserved.CONTROLLER


@dataclass(frozen=True, slots=True)
class Echo:
    """Answered with the same data."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PortStatsRequest:
    """Ask for every port's counters."""


@dataclass(frozen=True, slots=True)
class FlowStatsRequest:
    """Ask for the rules of one table, or of all."""

    table: int | None = None


ToSwitch = AddRule | DeleteRule | Barrier | PacketOut | Echo | PortStatsRequest | FlowStatsRequest


# From a switch.


@dataclass(frozen=True, slots=True)
class Port:
    """A port as the switch describes it."""

    number: int
    name: str
    mac: Mac
    #: Whether it is enabled and has a carrier.
    up: bool
    #: bit/s; 0 where the switch does not know.
    speed: float = 0.0


@dataclass(frozen=True, slots=True)
class PortStatus:
    """A port was added, changed or deleted."""

    port: Port
    gone: bool = False


@dataclass(frozen=True, slots=True)
class PacketIn:
    """A packet that a rule sent to the controller."""

    in_port: int
    data: bytes


@dataclass(frozen=True, slots=True)
class EchoReply:
    """The answer to an Echo."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PortCounters:
    """A port's counters since it exists."""

    port: int
    rx_bytes: int
    tx_bytes: int
    dropped: int
    #: Seconds since the port exists, by the switch's clock; two of them give the time between two answers.
    age: float


@dataclass(frozen=True, slots=True)
class PortStatsReply:
    """The counters of all ports."""

    ports: tuple[PortCounters, ...]


@dataclass(frozen=True, slots=True)
class FlowStats:
    """A rule that a switch has, and what it counted."""

    rule: Rule
    packets: int
    bytes: int
    #: Seconds since it was added.
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class FlowStatsReply:
    """The rules of the table that was asked for; `table` None means all."""

    rules: tuple[FlowStats, ...]
    table: int | None = None


@dataclass(frozen=True, slots=True)
class BarrierReply:
    """All before this barrier is done."""

    token: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A switch did not do what it was told."""

    #: `table-full`, or the switch's own words.
    reason: str
    #: The rule that it was about, where the switch said so.
    rule: Rule | None = None


FromSwitch = PortStatus | PacketIn | EchoReply | PortStatsReply | FlowStatsReply | BarrierReply | Refused


@dataclass(frozen=True, slots=True)
class Hello:
    """A switch that has introduced itself."""

    dpid: int
    ports: tuple[Port, ...]
    #: Where its connection comes from, for people.
    address: str = ""
