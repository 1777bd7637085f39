"""The race: a SYN goes out by several uplinks at once, and the first SYN/ACK that returns chooses one.

docs/race.md has the rules, which are those of the eBPF datapath (`bpf/path_cache/race.h`). No flow exists before a
race is won. Each attempt has an outer port of its own, and a rule that leads its answers to the controller; the
winner's flow replaces that rule by its own, the losers' stay for late answers and end by themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from braid_sdn.host.flow_table import End, FlowTable
from braid_sdn.host.packets import ACK, RST, SYN, TCP, Packet
from braid_sdn.host.path_cache import PathCache

#: Seconds after the last SYN for which a race is remembered: the longest pause between its repetitions.
RACE_TIMEOUT = 75
#: Races at once; beyond these the slot table decides.
MAX_RACES = 8192


class Attempt(Enum):
    """State of an attempt."""

    SENT = "sent"
    ANSWERED = "answered"
    REFUSED = "refused"


class Verdict(Enum):
    """Outcome of a packet that answers an attempt."""

    #: It wins, and goes on to the inside.
    WINS = "wins"
    #: It is answered by a reset.
    RESET = "reset"
    DROP = "drop"


@dataclass(slots=True)
class Racer:
    """A race's attempt by one uplink."""

    outer: End
    state: Attempt = Attempt.SENT


@dataclass(slots=True)
class Race:
    """A connection that is being raced, or was a moment ago. Times are seconds."""

    #: The connection's last SYN.
    syn: Packet
    class_number: int
    rule: int | None
    is_fastest: bool
    created: float
    last_syn: float
    attempts: dict[int, Racer] = field(default_factory=dict)
    syns: int = 1
    #: The uplink that wins if it answers at all.
    preferred: int | None = None
    #: True if `preferred` was chosen because it has yet to answer; the flow counts as opened there.
    is_awaited: bool = False
    #: The uplink that has won, even if its flow is over.
    winner: int | None = None

    @property
    def is_won(self) -> bool:
        """Return True once it has a winner."""
        return self.winner is not None

    @property
    def inner(self) -> End:
        """Return the end inside."""
        return self.syn.source, self.syn.source_port

    @property
    def remote(self) -> End:
        """Return the remote end."""
        return self.syn.target, self.syn.target_port

    @property
    def sequence(self) -> int:
        """Return the SYN's sequence number."""
        return self.syn.sequence


class Races:
    """All races. Pure bookkeeping and decisions: no rules, no frames."""

    def __init__(self, table: FlowTable, paths: PathCache) -> None:
        """Create an empty one; ports of attempts are reserved in the table."""
        self._table = table
        self._paths = paths
        #: By inside and remote end, in the order of their last SYNs.
        self._races: OrderedDict[tuple[End, End], Race] = OrderedDict()
        #: By uplink, outer end and remote end.
        self._by_outer: dict[tuple[int, End, End], Race] = {}

    def __len__(self) -> int:
        return len(self._races)

    def __iter__(self) -> Iterator[Race]:
        return iter(list(self._races.values()))

    def find(self, inner: End, remote: End) -> Race | None:
        """Return the race of a connection."""
        return self._races.get((inner, remote))

    def find_attempt(self, uplink: int, outer: End, remote: End) -> Race | None:
        """Return the race that has an attempt with these ends."""
        return self._by_outer.get((uplink, outer, remote))

    def begin(self, race: Race, outers: dict[int, tuple[End, tuple[int, int]]]) -> bool:
        """Begin a race; False if fewer than two uplinks have a port for it.

        `outers` has the address with the preferred port, and the range, by uplink.
        """
        if len(self._races) >= MAX_RACES:
            return False
        family = race.syn.family
        for number, ((address, preferred), ports) in outers.items():
            port = self._table.free_port(number, family, TCP, ports, race.remote, preferred)
            if port is not None:
                self._table.reserve(number, family, TCP, port, race.remote)
                race.attempts[number] = Racer((address, port))
        if len(race.attempts) < 2:
            for number in list(race.attempts):
                self._withdraw(race, number)
            return False
        self._races[race.inner, race.remote] = race
        for number, racer in race.attempts.items():
            self._by_outer[number, racer.outer, race.remote] = race
        return True

    def repeat(self, now: float, race: Race, syn: Packet, takes: Callable[[int], bool]) -> list[int]:
        """Handle a repeated SYN of an undecided race; return the uplinks that send it."""
        awaited = race.preferred if race.is_awaited else None
        if awaited in race.attempts and race.attempts[awaited].state is Attempt.SENT:
            self._paths.note_unanswered(now, race.remote[0], awaited)
        again = [
            number for number, racer in race.attempts.items() if racer.state is not Attempt.REFUSED and takes(number)
        ]
        for number in again:
            race.attempts[number].state = Attempt.SENT
        # Its round trips are not used: an answer may be one to the SYN before.
        race.syns += 1
        race.preferred, race.is_awaited = None, False
        race.syn, race.last_syn = syn, now
        self._races.move_to_end((race.inner, race.remote))
        return again

    def all_refused(self, race: Race) -> bool:
        """Return True if some attempt was refused; asked when none is left."""
        return any(racer.state is Attempt.REFUSED for racer in race.attempts.values())

    def end(self, race: Race) -> None:
        """Forget a race and give its ports back."""
        for number in list(race.attempts):
            self._withdraw(race, number)
        self._races.pop((race.inner, race.remote), None)

    def lose_uplink(self, race: Race, uplink: int) -> None:
        """Take an uplink out whose address or port is gone."""
        self._withdraw(race, uplink)

    def _withdraw(self, race: Race, uplink: int) -> None:
        racer = race.attempts.pop(uplink)
        self._by_outer.pop((uplink, racer.outer, race.remote), None)
        self._table.release(uplink, race.syn.family, TCP, racer.outer[1], race.remote)

    def expire(self, now: float) -> None:
        """Forget races whose last SYN is long ago."""
        while self._races:
            race = next(iter(self._races.values()))
            if now - race.last_syn < RACE_TIMEOUT:
                return
            self.end(race)

    def answer(
        self,
        now: float,
        race: Race,
        uplink: int,
        packet: tuple[int, int],
        usable: set[int],
    ) -> Verdict:
        """Handle an answer: `packet` has its TCP flags and acknowledgement number.

        `usable` are uplinks that take flows of this kind now. A measured round trip is noted.
        """
        flags, acknowledged = packet
        racer = race.attempts[uplink]
        first = racer.state is Attempt.SENT
        if flags & (SYN | ACK | RST) == SYN and not race.is_won:
            # Both ends open at once (RFC 5382 REQ-2a): the remote's SYN chooses this uplink.
            return Verdict.WINS
        if acknowledged != (race.sequence + 1) & 0xFFFFFFFF or not flags & ACK or not flags & (SYN | RST):
            # It does not answer the SYN. A segment of an earlier connection is answered by a reset.
            return Verdict.DROP if race.is_won or flags & RST else Verdict.RESET
        others = {number: other.state for number, other in race.attempts.items() if number != uplink}
        waiting = {number for number, state in others.items() if state is Attempt.SENT and number in usable}
        if flags & RST:
            racer.state = Attempt.REFUSED
            is_last = not waiting and Attempt.ANSWERED not in others.values()
            return Verdict.WINS if is_last and not race.is_won else Verdict.DROP
        racer.state = Attempt.ANSWERED
        if first and race.syns == 1:
            self._paths.note_rtt(now, race.remote[0], uplink, round(1e6 * (now - race.created)))
        if race.is_won or (race.preferred not in (None, uplink) and race.preferred in waiting):
            return Verdict.RESET
        return Verdict.WINS

    def prefer_unanswered(
        self, now: float, race: Race, uplink: int, usable: set[int], mean_rtt: Callable[[int], int]
    ) -> None:
        """Make the race wait for another uplink than the one that answers first, if that promises more.

        Connections that begin at once know nothing of each other before the first answer, and the nearest uplink
        answers all of them first.
        """
        first = self._paths.forecasts.get(uplink)
        if not race.is_fastest or race.preferred is not None or race.syns > 1 or first is None or not first.opened:
            return
        if self._paths.races_in_this_second(race.remote[0]) < 2:
            return
        waited = round(1e6 * (now - race.created))
        best, score = uplink, first.lossless_score(waited)
        for number, racer in race.attempts.items():
            forecast = self._paths.forecasts.get(number)
            if racer.state is not Attempt.SENT or number not in usable or number == uplink or forecast is None:
                continue
            rtt = self._paths.fresh_rtt(now, race.remote[0], number) or mean_rtt(number)
            other = forecast.lossless_score(max(rtt, waited))
            if other < score:
                best, score = number, other
        if best != uplink:
            race.preferred, race.is_awaited = best, True
            self._paths.count_opened(best)
