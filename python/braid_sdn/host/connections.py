"""Connections of the switch's connection tracker, as far as it says: read once a second, and ended one by one.

The tracker counts no packets of a connection, and its dump names no number: one is given here, and lasts as long as
the connection's ends do. Sans-IO: commands for the switch's control socket out, its answers in.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from braid_sdn.host.desired import Address
from braid_sdn.host.flow_table import TCP_ESTABLISHED_IDLE, UDP_IDLE, End
from braid_sdn.host.group_rules import ZONE, class_and_uplink
from braid_sdn.host.packets import TCP, UDP

#: Most connections that are read to be listed; more are only read where some may have lost their uplink.
MAX_LISTED = 16384
#: Readings after such a change: the second one finds connections that began beside the first.
CHANGE_READINGS = 2
#: Seconds between two readings, and most connections that are read a second: the switch passes no packet while it
#: writes them, about five microseconds each.
READ_INTERVAL, READ_RATE = 1.0, 4096
#: Seconds after which a needed reading is tried again while another one is outstanding.
RETRY_INTERVAL = 0.05
#: Seconds after which an outstanding reading is given up.
READ_TIMEOUT = 30.0
#: The first number: those of the controller's own flows are below.
FIRST_NUMBER = 1 << 33

#: The switch's word for a connection that it does not have.
_GONE = "No such file or directory"
_PROTOCOLS = {"tcp": TCP, "udp": UDP}
#: The state of an inside that has no answer.
_UNANSWERED = "SYN_SENT"
_LINE = re.compile(
    r"(?P<protocol>tcp|udp),"
    r"orig=\(src=(?P<source>[^,]+),dst=(?P<target>[^,]+),sport=(?P<sport>\d+),dport=(?P<dport>\d+)\),"
    r"reply=\(src=[^,]+,dst=(?P<outer>[^,]+),sport=\d+,dport=(?P<port>\d+)\),"
    rf".*?zone={ZONE}\b(?P<rest>.*)"
)
#: Open vSwitch writes the state of each side, or one for both.
_STATE = re.compile(r"\bstate(?:_orig|_reply)?=(\w+)")
_MARK, _TIMEOUT = re.compile(r"\bmark=(\d+)"), re.compile(r"\btimeout=(\d+)")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ovs-vswitchd's control socket."""

    name: str
    words: tuple[str, ...]
    #: True if it must name the datapath. Others may only where there are several: Open vSwitch 3.1 takes the name
    #: for something else.
    is_named: bool = False


#: The datapath of all userspace bridges.
DATAPATH = "netdev@ovs-netdev"
_ZONE = f"zone={ZONE}"
READ = Command("dpctl/dump-conntrack", ("-m", "-s", DATAPATH, _ZONE), is_named=True)
COUNT = Command("dpctl/ct-get-limits", (DATAPATH, _ZONE), is_named=True)
FLUSH = Command("dpctl/flush-conntrack", (_ZONE,))


def limit(connections: int) -> Command:
    """Return the command that bounds the connections: more are refused."""
    return Command("dpctl/ct-set-limits", (DATAPATH, f"{_ZONE},limit={connections}"), is_named=True)


@dataclass(slots=True)
class Connection:
    """A connection. Times are seconds."""

    number: int
    protocol: int
    inner: End
    remote: End
    outer: End
    class_number: int
    uplink: int
    answered: bool
    created: float
    last_seen: float

    @property
    def family(self) -> int:
        """Return its IP version."""
        return self.inner[0].version

    @property
    def key(self) -> tuple[int, End, End]:
        """Return its ends."""
        return self.protocol, self.inner, self.remote


def ending(connection: Connection) -> Command:
    """Return the command that makes the tracker forget a connection."""
    (source, sport), (target, dport) = connection.inner, connection.remote
    prefix = "ct_nw" if connection.family == 4 else "ct_ipv6"
    ends = f"{prefix}_src={source},{prefix}_dst={target}"
    ports = f"ct_nw_proto={connection.protocol},ct_tp_src={sport},ct_tp_dst={dport}"
    return Command("dpctl/flush-conntrack", (_ZONE, f"{ends},{ports}"))


@dataclass
class Connections:
    """The connections at the last reading, and the commands that are due."""

    found: dict[tuple[int, End, End], Connection] = field(default_factory=dict)
    _commands: list[Command] = field(default_factory=list)
    _next_number: int = FIRST_NUMBER
    _due: float = 0.0
    #: Readings that are made however many connections there are.
    _needed: int = 0
    #: Time at which the outstanding reading was asked for.
    _asked: float | None = None
    #: True once a reading has shown what was there before.
    _is_known: bool = False

    # Inputs.

    def handle_switch(self, *, is_new: bool, bound: int) -> None:
        """The switch has connected; one without our rules has connections of nobody, if any."""
        self._commands = [FLUSH] if is_new else []
        self._commands.append(limit(bound))
        self._asked, self._due, self._is_known = None, 0.0, is_new
        self.found.clear()

    def handle_timeout(self, now: float) -> None:
        """Read if it is time."""
        if now < self._due:
            return
        if self._asked is not None and now - self._asked <= READ_TIMEOUT:
            self._due = now + (RETRY_INTERVAL if self._needed else READ_INTERVAL)
            return
        self._due = now + READ_INTERVAL
        self._asked = now
        self._commands.append(READ if self._needed else COUNT)
        self._needed = max(0, self._needed - 1)

    def hasten(self) -> None:
        """Read with the next timeout: connections may have lost their uplink."""
        self._due, self._needed = 0.0, CHANGE_READINGS

    def handle_answer(
        self, now: float, command: Command, text: str, is_lost: Callable[[Connection], bool]
    ) -> tuple[list[Connection], list[Connection]]:
        """Take in the answer to a command; return connections that are new, and those that have been ended."""
        if command == COUNT:
            self._asked = None
            if counted(text) <= MAX_LISTED:
                self._asked = now
                self._commands.append(READ)
            else:
                self.found.clear()
        if command != READ:
            return [], []
        self._asked = None
        before, self.found = self.found, {}
        added, lost = [], []
        self._due = max(self._due, now + text.count("\n") / READ_RATE)
        for told in parse(text, now):
            if is_lost(told):
                self._commands.append(ending(told))
                lost.append(told)
                continue
            known = before.get(told.key)
            if known is not None and (known.outer, known.uplink) == (told.outer, told.uplink):
                known.answered, known.last_seen = told.answered, told.last_seen
                told = known
            else:
                told.number = self._next_number
                self._next_number += 1
                if self._is_known:
                    added.append(told)
            if len(self.found) < MAX_LISTED:
                self.found[told.key] = told
        self._is_known = True
        return added, lost

    def handle_refusal(self, command: Command, why: str) -> bool:
        """Note that a command failed; return False if it asked to end a connection that is gone."""
        if command in (READ, COUNT):
            self._asked = None
        return _GONE not in why

    def end(self, connection: Connection) -> None:
        """Have the tracker forget a connection."""
        self._commands.append(ending(connection))
        self.found.pop(connection.key, None)

    def by_number(self, number: int) -> Connection | None:
        """Return a connection."""
        return next((each for each in self.found.values() if each.number == number), None)

    # Outputs.

    def poll_commands(self) -> list[Command]:
        """Return the commands to execute now, in this order."""
        commands, self._commands = self._commands, []
        return commands

    def poll_timeout(self) -> float:
        """Return the time of the next `handle_timeout`."""
        return self._due


def counted(text: str) -> int:
    """Return the number of connections that an answer to COUNT tells; 0 if it tells none."""
    told = re.search(rf"{_ZONE},limit=\d+,count=(\d+)", text)
    return int(told[1]) if told is not None else 0


def parse(text: str, now: float) -> Iterator[Connection]:
    """Return the connections of a dump, without numbers. Lines of other kinds are left out."""
    for line in text.splitlines():
        told = _LINE.match(line)
        mark = _MARK.search(told["rest"]) if told is not None else None
        if told is not None and mark is not None:
            yield _connection(told, int(mark[1]), now)


def _connection(told: re.Match[str], mark: int, now: float) -> Connection:
    def end(address: str, port: str) -> End:
        return _address(told[address]), int(told[port])

    protocol = _PROTOCOLS[told["protocol"]]
    state = _STATE.findall(told["rest"])
    answered = protocol == UDP or _UNANSWERED not in state
    is_open = protocol == UDP or all(each == "ESTABLISHED" for each in state)
    left = _TIMEOUT.search(told["rest"])
    idle = _idle(protocol, int(left[1])) if left is not None and is_open else 0.0
    class_number, uplink = class_and_uplink(mark)
    return Connection(
        number=0,
        protocol=protocol,
        inner=end("source", "sport"),
        remote=end("target", "dport"),
        outer=end("outer", "port"),
        class_number=class_number,
        uplink=uplink,
        answered=answered,
        created=now,
        last_seen=now - idle,
    )


def _address(text: str) -> Address:
    return ipaddress.ip_address(text)


def _idle(protocol: int, left: int) -> float:
    """Return the seconds since an open connection's last packet: the time of its state, without the rest of it."""
    return float(max(0, (TCP_ESTABLISHED_IDLE if protocol == TCP else UDP_IDLE) - left))
