"""Messages between controller and switch as plain data: the part of OpenFlow 1.3 that Braid uses."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from operator import attrgetter

#: A MAC address as text, such as `02:00:00:00:00:01`.
Mac = str

#: The highest port number; above it are Reserved ones and the switch's own device.
LAST_PORT = 0xFFFFFF00

#: EtherType of a frame with a tag.
CVLAN = 0x8100

#: VLAN criteria of a match beside a VID.
UNTAGGED = -1
TAGGED = -2


class Reserved(IntEnum):
    """Reserved port numbers: OpenFlow 1.3 §A.2.1."""

    #: The port at which the packet arrived.
    IN_PORT = 0xFFFFFFF8
    #: Through the switch's own tables; packet-out only.
    TABLE = 0xFFFFFFF9
    #: To the controller.
    CONTROLLER = 0xFFFFFFFD


@dataclass(frozen=True, slots=True)
class Match:
    """The packets that a rule matches; None is any."""

    in_port: int | None = None
    eth_type: int | None = None
    eth_src: Mac | None = None
    eth_dst: Mac | None = None
    #: Mask of `eth_dst`; None is all bits.
    eth_dst_mask: Mac | None = None
    #: A VID, UNTAGGED, TAGGED (any VID), a VID and its mask, or None.
    vlan: int | tuple[int, int] | None = None
    #: Priority in the 802.1Q header, for packets that have one.
    vlan_pcp: int | None = None
    ip_proto: int | None = None
    icmpv6_type: int | None = None
    icmpv4_type: int | None = None
    arp_op: int | None = None
    #: An address, or with a mask the network `address/mask`.
    ipv4_src: str | None = None
    ipv4_dst: str | None = None
    ipv6_src: str | None = None
    ipv6_dst: str | None = None
    #: A port, or value and mask.
    tcp_src: int | tuple[int, int] | None = None
    tcp_dst: int | tuple[int, int] | None = None
    udp_src: int | tuple[int, int] | None = None
    udp_dst: int | tuple[int, int] | None = None
    #: Value and mask of TCP's flags; an extension of Open vSwitch (OpenFlow has them from 1.5 on).
    tcp_flags: tuple[int, int] | None = None
    ip_dscp: int | None = None
    #: Value and mask of the connection tracker's verdict, and of the connection's mark; extensions of Open vSwitch.
    ct_state: tuple[int, int] | None = None
    ct_mark: tuple[int, int] | None = None
    #: A number that an earlier table has written, or one and its mask.
    metadata: int | tuple[int, int] | None = None
    _hash: int | None = field(default=None, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        """Return the hash, which is computed once: a match is a key in many tables."""
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(_MATCH_FIELDS(self)))
        assert self._hash is not None  # noqa: S101
        return self._hash


_MATCH_FIELDS = attrgetter(*(each.name for each in fields(Match) if each.compare))


@dataclass(frozen=True, slots=True)
class Output:
    """Send the packet in its present form out of a port; never out of the port at which it arrived."""

    port: int


@dataclass(frozen=True, slots=True)
class PushTag:
    """Put an 802.1Q header with this VID in front."""

    vlan: int


@dataclass(frozen=True, slots=True)
class PopTag:
    """Remove the outer 802.1Q header."""


@dataclass(frozen=True, slots=True)
class SetField:
    """Write a header field, by its name in a match, such as `ipv4_src`; checksums follow."""

    name: str
    value: int | str


@dataclass(frozen=True, slots=True)
class FinTimeout:
    """Shorten the rule's idle timeout to this many seconds after a FIN or RST; an extension of Open vSwitch."""

    idle: int


#: Verdicts of the connection tracker, bits of a match's `ct_state`.
CT_NEW, CT_ESTABLISHED, CT_RELATED, CT_REPLY, CT_INVALID, CT_TRACKED = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20


@dataclass(frozen=True, slots=True)
class Track:
    """Have the connection tracker translate the packet as its connection is, then go on in `table`."""

    zone: int
    table: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Add the packet's connection to the tracker, translated and marked, then go on in `table`."""

    zone: int
    table: int
    #: Source address and ports of the connection from now on.
    source: str
    ports: tuple[int, int]
    mark: int


@dataclass(frozen=True, slots=True)
class ToGroup:
    """Continue with one of a group's buckets."""

    group: int


Action = Output | PushTag | PopTag | SetField | FinTimeout | Track | Commit | ToGroup


@dataclass(frozen=True, slots=True)
class Bucket:
    """Actions of a group, taken while a port has a carrier."""

    watch_port: int
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A flow rule; its purpose is in its cookie. Actions are applied in order, then `goto` is followed."""

    table: int
    priority: int
    match: Match
    actions: tuple[Action, ...] = ()
    goto: int | None = None
    cookie: int = 0
    #: Hard timeout, seconds; 0 is none.
    lease: int = 0
    #: Number of the meter that drops what exceeds its rate, before all else; None is no limit.
    meter: int | None = None
    #: Idle timeout, seconds; 0 is none.
    idle: int = 0
    #: True if the switch reports its removal.
    notify: bool = False
    #: Number that is written for later tables to match; None writes nothing.
    metadata: int | None = None
    _key: RuleKey | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def key(self) -> RuleKey:
        """Identity of a rule at a switch: a second one with the same key replaces the first.

        It is made once: a rule that many switches have is in many tables.
        """
        if self._key is None:
            object.__setattr__(self, "_key", (self.table, self.priority, self.match))
        assert self._key is not None  # noqa: S101
        return self._key


RuleKey = tuple[int, int, Match]


# To a switch.


@dataclass(frozen=True, slots=True)
class AddRule:
    """Add a rule, or replace the one with its key."""

    rule: Rule


@dataclass(frozen=True, slots=True)
class DeleteRule:
    """Delete the switch's rule with this key, if it exists."""

    key: RuleKey


@dataclass(frozen=True, slots=True)
class Bundle:
    """Changes of rules that happen at once, in this order, or not at all: ONF's extension 230 of OpenFlow 1.3."""

    changes: tuple[AddRule | DeleteRule, ...]


@dataclass(frozen=True, slots=True)
class SetMeter:
    """Create a meter in place of one with its number, of which rules that use it are deleted; or change its rate."""

    number: int
    #: Packets a second; what exceeds it is dropped.
    rate: int
    #: Packets at once.
    burst: int
    #: True if rate and burst are kilobits instead of packets.
    by_bits: bool = False
    #: False if it is to be there already, and the rules that use it stay.
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class DeleteMeter:
    """Delete a meter and the rules that use it, if it exists."""

    number: int


@dataclass(frozen=True, slots=True)
class MeterCountersRequest:
    """Ask for the counters of all meters."""


@dataclass(frozen=True, slots=True)
class SetGroup:
    """Create a group, or replace its buckets. A packet takes one of them by a hash of its addresses and ports."""

    number: int
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete a group and the rules that use it, if it exists."""

    number: int


@dataclass(frozen=True, slots=True)
class SetFailoverGroup:
    """Create a group of which a packet takes the first bucket whose port is up, or replace its buckets."""

    number: int
    buckets: tuple[Bucket, ...]
    #: True if it is to be created: it is refused where it exists, and replacing one where it does not.
    is_new: bool


@dataclass(frozen=True, slots=True)
class GroupFeaturesRequest:
    """Ask for the number of fast failover groups."""


@dataclass(frozen=True, slots=True)
class GroupsRequest:
    """Ask for all groups."""


@dataclass(frozen=True, slots=True)
class MeterFeaturesRequest:
    """Ask for the number of meters."""


#: Highest token of a barrier: the other half of the transaction ids is that of all other messages.
MAX_BARRIER_TOKEN = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Barrier:
    """Answered, with its token, when all earlier messages are done."""

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


@dataclass(frozen=True, slots=True)
class RuleCountersRequest:
    """Ask for the counters of rules by their cookies alone, which is quick for many rules."""

    cookie: int
    mask: int


@dataclass(frozen=True, slots=True)
class RuleCountRequest:
    """Ask for the number of all rules."""


class Role(IntEnum):
    """Roles of one of several controllers of a switch: OpenFlow 1.3 §A.3.9."""

    #: As before: a question.
    NOCHANGE = 0
    #: May change the switch, as may all others in this role; every connection begins with it.
    EQUAL = 1
    #: May change the switch; another master becomes a slave by it.
    MASTER = 2
    #: May only read, and gets nothing but changes of ports and answers.
    SLAVE = 3


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """Take a role, unless the switch knows a later generation (§6.3.5)."""

    role: Role
    generation: int


ToSwitch = (
    AddRule
    | DeleteRule
    | Bundle
    | RuleCountRequest
    | SetMeter
    | DeleteMeter
    | MeterCountersRequest
    | SetGroup
    | DeleteGroup
    | SetFailoverGroup
    | GroupFeaturesRequest
    | GroupsRequest
    | MeterFeaturesRequest
    | Barrier
    | PacketOut
    | Echo
    | RoleRequest
    | PortStatsRequest
    | FlowStatsRequest
    | RuleCountersRequest
)


# From a switch.


@dataclass(frozen=True, slots=True)
class Port:
    """A port, by the switch's description."""

    number: int
    name: str
    mac: Mac
    #: True if it is enabled and has a carrier.
    up: bool
    #: bit/s; 0 if unknown.
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
    """A port's counters since its creation."""

    port: int
    rx_bytes: int
    tx_bytes: int
    dropped: int
    #: Seconds since the port's creation, by the switch's clock; the difference of two is the time between two
    #: replies.
    age: float


@dataclass(frozen=True, slots=True)
class PortStatsReply:
    """The counters of all ports."""

    ports: tuple[PortCounters, ...]


@dataclass(frozen=True, slots=True)
class FlowStats:
    """A rule of a switch, and its counters."""

    rule: Rule
    packets: int
    bytes: int
    #: Seconds since it was added.
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class FlowStatsReply:
    """The rules of the requested table; `table` None means all."""

    rules: tuple[FlowStats, ...]
    table: int | None = None
    #: Rules whose match is none that Braid uses, as text.
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleCounters:
    """The counters of one rule."""

    cookie: int
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RuleCountersReply:
    """The counters of the requested rules."""

    rules: tuple[RuleCounters, ...]


@dataclass(frozen=True, slots=True)
class RuleCountReply:
    """The number of all rules, whoever has added them."""

    rules: int


@dataclass(frozen=True, slots=True)
class FlowRemoved:
    """A rule with `notify` is gone, with its last counters."""

    cookie: int
    #: True if it was idle for its timeout; False if it was deleted.
    idle: bool
    packets: int
    bytes: int
    #: Seconds; the switch shortens it at the end of a connection.
    idle_timeout: int


@dataclass(frozen=True, slots=True)
class MeterFeatures:
    """The highest number of a meter that drops by packets a second; 0 if the switch has none."""

    highest: int
    #: That of one that drops by kilobits a second.
    highest_by_bits: int = 0


@dataclass(frozen=True, slots=True)
class MeterCounters:
    """The counters of one meter since it was created, or was given another rate."""

    number: int
    #: Packets that came to it, and those of them that it dropped.
    packets: int
    dropped: int
    #: Seconds since it was created, by the switch's clock.
    age: float


@dataclass(frozen=True, slots=True)
class MeterCountersReply:
    """The counters of all meters; none of a switch that does not tell them."""

    meters: tuple[MeterCounters, ...]


@dataclass(frozen=True, slots=True)
class GroupFeatures:
    """The number of fast failover groups that a switch can have; 0 if none that Braid can use."""

    most: int


@dataclass(frozen=True, slots=True)
class GroupsReply:
    """All groups by number, and the buckets of fast failover groups; None for others, and for buckets unlike ours."""

    groups: dict[int, tuple[Bucket, ...] | None]


@dataclass(frozen=True, slots=True)
class BarrierReply:
    """All messages before this barrier are done."""

    token: int


@dataclass(frozen=True, slots=True)
class RoleReply:
    """The role that this controller has now, and the latest generation that the switch knows."""

    role: int
    generation: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A switch refused a message."""

    #: `table-full`, `slave` (another controller is the master), `stale-generation`, `group-exists`, `group-unknown`
    #: (one to be changed, or that a rule leads to), `group-refused` (one, or a rule that leads there), or the
    #: switch's error.
    reason: str
    #: The rule concerned, if known.
    rule: Rule | None = None
    #: Bytes of the frame that it was to send, if it refused that, as one that is too long for its port; else 0.
    frame_bytes: int = 0
    #: The meter concerned, if known.
    meter: SetMeter | None = None
    #: The beginning of that frame, as much as the switch sends back: OpenFlow 1.3 §A.4.4 asks for 64 bytes of the
    #: message, in which a frame with one action has 24.
    frame_start: bytes = b""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A switch sent a reply that cannot be read, and is ignored as a whole."""

    #: Its kind, for people.
    what: str


FromSwitch = (
    PortStatus
    | PacketIn
    | EchoReply
    | PortStatsReply
    | FlowStatsReply
    | RuleCountersReply
    | RuleCountReply
    | FlowRemoved
    | MeterFeatures
    | MeterCountersReply
    | GroupFeatures
    | GroupsReply
    | BarrierReply
    | RoleReply
    | Refused
    | Malformed
)


@dataclass(frozen=True, slots=True)
class Hello:
    """A switch that has completed the handshake."""

    dpid: int
    ports: tuple[Port, ...]
    #: Address of its connection, for people.
    address: str = ""
