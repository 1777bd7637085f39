"""The largest packet that each direction of each link carries, by discovery frames that are padded to a size.

OpenFlow tells no port's MTU, and a link drops a frame that is too long without a word. A *try* is two frames: a short
one, and right behind it a long one of the size in question. The long one proves its size when it arrives. It counts
as lost if it has not come in time although the short one has, without a queue in front of it, and the link is not
busy: otherwise the try says nothing. TRIES lost ones in a row, a second apart, show that the link does not carry the
size; a size that was lost so is believed again after CONFIRMATIONS that arrive in a row.

A long frame delays all that is behind it, so probes of paths too: none is sent that would take the line longer than
MAX_LINE_TIME, by the link's known capacity and by the time that shorter ones took. So the search begins with a small
packet, and ends early on a slow link. It goes on with a full Ethernet frame, then with sizes that are common, and
ends between two sizes that differ by a byte. It is repeated every few minutes, in a large network more rarely. Times
are seconds, sizes bytes of the packet: all that is behind the Ethernet header and the path's tag.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.policies import Hop

#: The packet of a full Ethernet frame: links carry it under a tag, or packets of ordinary hosts vanish.
FULL_PACKET = 1500
#: The largest packet that is looked for: that of common jumbo frames.
MAX_PACKET = 9000
#: The packet of a try's short frame.
SHORT_PACKET = 128
#: The packet of the first long frame: whatever the line is, it takes little time.
FIRST_PACKET = 512
#: Bytes of a line's time beside the packet: header with tag, preamble, checksum and gap.
LINE_OVERHEAD = 42
#: Seconds of a line that a long frame may take: a full Ethernet frame at 1 Mbit/s. Paths count as dead after 0.1 s.
MAX_LINE_TIME = 0.0125
#: Sizes that are tried before others: jumbo frames; packet over SONET; envelope and baby giant frames; two tags and
#: one above a full frame; a device that takes the tag's bytes from a full frame; PPPoE; VXLAN without and with a tag;
#: tunnels; the least of IPv6.
COMMON_PACKETS = (MAX_PACKET, 4470, 2000, 1600, 1508, 1504, FULL_PACKET, 1496, 1492, 1450, 1446, 1400, 1280)

#: Lost frames in a row that show that a link does not carry a size.
TRIES = 5
#: Arrivals in a row that show that it carries a size that it did not carry before.
CONFIRMATIONS = 3
#: Long frames of a size whose times tell how quick the line is, if the first ones took long.
MAX_SAMPLES = 5
#: Seconds for the frames of a try to arrive, and between two tries of a direction.
TRY_TIMEOUT = 1.0
#: Delay of the short frame above the least one, seconds, from which on a queue may have dropped the long one.
MAX_QUEUE = 0.02
#: Seconds until the next try after one that says nothing; doubled with each in a row, up to REPEAT_INTERVAL.
RETRY_INTERVAL = 15.0
#: Seconds after which a new link is measured: other things come first then.
FIRST_DELAY = 2.0
#: Seconds after which a link is measured again, and one that carries less than is needed.
REPEAT_INTERVAL = 300.0
SMALL_REPEAT_INTERVAL = 60.0
#: Either is doubled with each time that a link carried more again, up to this.
MAX_REPEAT_INTERVAL = 3600.0
#: Seconds between two tries of links of one switch: paths lead over several of these.
SWITCH_INTERVAL = 0.2
#: Tries a second of all links together: each costs the controller four messages, the longest of 9 kB.
MAX_TRIES_PER_SECOND = 50.0
#: Directions that are looked at in one turn.
MAX_LOOKS_AT_ONCE = 100
#: Part of them that measuring again may take.
REPEAT_SHARE = 0.5
#: Tries that measuring a link again takes.
TRIES_PER_REPEAT = 2


@dataclass(frozen=True, slots=True)
class Try:
    """Two frames to be sent, in this order, out of a port: one of SHORT_PACKET and one of `packet_bytes`."""

    source: PortId
    number: int
    packet_bytes: int


@dataclass(frozen=True, slots=True)
class Line:
    """State of a direction by other measurements."""

    #: Bit/s that it carries at the most.
    capacity: float = math.inf
    #: True if it carries so much that it may drop frames.
    busy: bool = False


class _Step(Enum):
    """Purpose of a try."""

    #: To find the size.
    SEARCH = 1
    #: To see if the link carries more than before: one lost frame answers that.
    GROWTH = 2
    #: To see if it still carries as much.
    SAME = 3


@dataclass(slots=True)
class _Direction:
    """A direction of a link that is being measured."""

    #: Times at which the link was found, and at which the next try, or its end, is due.
    found: float
    due: float
    #: True if `due` is a time that was kept free at both switches.
    has_slot: bool = False
    #: The largest packet that has arrived, and the smallest one that the link does not carry.
    passed: int = SHORT_PACKET
    failed: int = MAX_PACKET + 1
    step: _Step = _Step.SEARCH
    #: Size and number of the try under way; 0 is none.
    tried: int = 0
    number: int = 0
    #: Delay of its short frame above the least one; None until that has come.
    queued: float | None = None
    #: Long frames that were lost in a row, those of a larger size that came, and tries that said nothing.
    lost: int = 0
    grown: int = 0
    unanswered: int = 0
    #: Times that the link carried more than before.
    flaps: int = 0
    #: Known capacity, bit/s; seconds a byte that long frames took in this measurement, the least;
    #: and their number, at the present size.
    capacity: float = math.inf
    pace: float = math.inf
    samples: int = 0

    @property
    def ceiling(self) -> int:
        """The largest packet that does not take the line too long."""
        measured = self._ceiling_at(8 / self.pace if self.pace else math.inf)
        return min(max(FIRST_PACKET, measured), self._ceiling_at(self.capacity))

    @staticmethod
    def _ceiling_at(rate: float) -> int:
        return int(min(MAX_LINE_TIME * rate / 8 - LINE_OVERHEAD, MAX_PACKET))

    @property
    def is_exact(self) -> bool:
        """True if the size is known to the byte."""
        return self.failed - self.passed <= 1

    def candidate(self) -> int | None:
        """Return the size to be tried next; None if the search is over."""
        ceiling = self.ceiling
        if self.step is _Step.GROWTH:
            return self.failed
        if self.step is _Step.SAME:
            # Nothing is to be repeated if no long frame has ever arrived.
            return same if (same := min(self.passed, ceiling)) > SHORT_PACKET else None
        if self.is_exact:
            return None
        size = self._larger(min(self.failed - 1, ceiling))
        if size is None and self.samples < MAX_SAMPLES and FIRST_PACKET <= ceiling < self._ceiling_at(self.capacity):
            # The controller or a queue may have delayed the frames, rather than the line.
            return min(self.passed, ceiling)
        return size

    def _larger(self, most: int) -> int | None:
        """Return the next size to be tried that is above those that have arrived."""
        if self.passed >= most:
            return None
        for size in (FIRST_PACKET, FULL_PACKET):
            if self.passed < size <= most:
                return size
        if self.passed in COMMON_PACKETS:
            return self.passed + 1
        common = [size for size in COMMON_PACKETS if self.passed < size <= most]
        halves = (self.passed + most + 1) // 2 if self.failed <= MAX_PACKET else None
        return max(common, default=halves)

    def begin(self) -> None:
        """Begin to measure again."""
        self.step = _Step.GROWTH if self.failed <= min(MAX_PACKET, self.ceiling) else _Step.SAME
        self.samples = self.grown = self.lost = 0

    def time(self, size: int, delay: float) -> None:
        """Take in by how much the long frame of a try came later than the quickest short ones do."""
        if self.queued is not None:
            # These may have been slow for minutes.
            delay = max(delay, delay - self.queued)
        pace = max(0.0, delay) / (size + LINE_OVERHEAD)
        self.pace = min(pace, self.pace) if self.samples else pace
        self.samples += 1

    def prove(self, size: int, *, is_awaited: bool) -> bool:
        """Take in that a frame has arrived, of the try under way or a late one; return false if that says nothing."""
        if is_awaited:
            self.tried = self.lost = 0
            if self.step is _Step.SAME:
                self.step = _Step.SEARCH
            elif self.step is _Step.GROWTH:
                self.grown += 1
                if self.grown < CONFIRMATIONS:
                    return True
                self.flaps += 1
                self.step = _Step.SEARCH
        elif self.step is not _Step.SEARCH or size <= self.passed:
            return False
        if size > self.passed:
            self.passed, self.lost = size, 0
            self.samples = min(self.samples, 1)
        if size >= self.failed:
            # It was taken for lost.
            self.failed = MAX_PACKET + 1
        return True

    def lose(self) -> None:
        """Take in that the long frame of the try under way was lost."""
        if self.step is _Step.SEARCH and self.tried <= self.passed:
            # A larger one has come meanwhile, or its time was in question alone.
            self.samples += 1
            return
        self.lost += 1
        if self.step is _Step.GROWTH:
            self.step, self.lost = _Step.SAME, 0
        elif self.lost >= TRIES:
            self.failed, self.lost = self.tried, 0
            if self.step is _Step.SAME:
                self.passed, self.step = SHORT_PACKET, _Step.SEARCH


@dataclass
class FrameSizes:
    """Sizes of all links, for each direction."""

    #: The least that a link has to carry.
    need: int = FULL_PACKET
    #: The largest packet that each direction carries, once it is found; MAX_PACKET stands for more, too.
    known: dict[Hop, int] = field(default_factory=dict)
    #: Slow ones of which larger packets were not tried.
    at_least: set[Hop] = field(default_factory=set)
    #: Those that carry less than is needed.
    small: set[Hop] = field(default_factory=set)
    #: Number of changes of these.
    changes: int = 0
    _directions: dict[Hop, _Direction] = field(default_factory=dict)
    _queue: list[tuple[float, Hop]] = field(default_factory=list)
    #: Directions of a switch's links; when its last try was, and until when all of its time is given away.
    _degree: Counter[int] = field(default_factory=Counter)
    _last: dict[int, float] = field(default_factory=dict)
    _free: dict[int, float] = field(default_factory=dict)
    _number: int = 0
    _not_before: float = 0.0

    def set_need(self, need: int) -> None:
        """Set the least that a link has to carry."""
        self.need = need
        self.small = {hop for hop, size in self.known.items() if size < need and hop not in self.at_least}
        self.changes += 1

    def set_links(self, now: float, links: Mapping[Hop, float]) -> None:
        """Set the directions to be measured, and when each was found; one that was found anew is measured anew."""
        for hop in [hop for hop, each in self._directions.items() if links.get(hop) != each.found]:
            del self._directions[hop]
            self._forget(hop)
        for hop, found in links.items():
            if hop not in self._directions:
                self._directions[hop] = _Direction(found, now + FIRST_DELAY)
                heapq.heappush(self._queue, (now + FIRST_DELAY, hop))
        self._degree = Counter(end.switch for hop in links for end in hop)
        for times in (self._last, self._free):
            for dpid in [dpid for dpid in times if dpid not in self._degree]:
                del times[dpid]

    def poll_try(self, now: float, line_of: Callable[[Hop], Line | None]) -> Try | None:
        """Return the next try that is due, at most one in each 1/MAX_TRIES_PER_SECOND.

        `line_of` returns the state of a direction; None if it cannot be measured now, because a switch is away.
        """
        if now < self._not_before:
            return None
        for _ in range(MAX_LOOKS_AT_ONCE):
            if not self._queue or self._queue[0][0] > now:
                break
            due, hop = heapq.heappop(self._queue)
            each = self._directions.get(hop)
            if each is None or each.due != due:
                continue
            line = line_of(hop)
            if line is None:
                each.tried = 0
                self._retry(now, hop, each)
                continue
            each.capacity = line.capacity
            if each.tried:
                self._judge(now, hop, each, line)
            elif each.step is _Step.SEARCH and each.candidate() is None:
                # It is time to measure it again.
                each.begin()
            if each.due > now:
                continue
            size = each.candidate()
            if size is None:
                self._go_on(now, hop, each, now)
            elif self._has_time(now, hop, each):
                self._number += 1
                each.tried, each.number, each.queued = size, self._number, None
                self._set_due(hop, each, now + TRY_TIMEOUT)
                self._not_before = now + 1 / MAX_TRIES_PER_SECOND
                return Try(hop[0], self._number, size)
        return None

    def handle_short(self, hop: Hop, number: int, delay: float) -> None:
        """Take in the short frame of a try that arrived so much later than the quickest ones do."""
        each = self._directions.get(hop)
        if each is not None and each.tried and each.number == number:
            each.queued = delay

    def handle_long(self, now: float, hop: Hop, number: int, size: int, delay: float) -> None:
        """Take in the long frame of a try, as the short one's. It proves its size also if it comes late."""
        each = self._directions.get(hop)
        if each is None:
            return
        is_awaited = (each.number, each.tried) == (number, size)
        if is_awaited:
            each.unanswered = 0
            each.time(size, delay)
        if each.prove(min(size, MAX_PACKET), is_awaited=is_awaited) and not each.tried:
            self._go_on(now, hop, each, now + TRY_TIMEOUT)

    def poll_timeout(self) -> float | None:
        """Return when the next try is due."""
        while self._queue:
            due, hop = self._queue[0]
            if hop in self._directions and self._directions[hop].due == due:
                return max(due, self._not_before)
            heapq.heappop(self._queue)
        return None

    def _has_time(self, now: float, hop: Hop, each: _Direction) -> bool:
        """Return true if both switches of a link have had no try for a while; else give it a time of theirs."""
        switches = [end.switch for end in hop]
        at = max(self._last.get(dpid, -math.inf) + SWITCH_INTERVAL for dpid in switches)
        if not each.has_slot or at > now:
            at = max(at, *(self._free.get(dpid, at) for dpid in switches))
            for dpid in switches:
                self._free[dpid] = max(at, now) + SWITCH_INTERVAL
        each.has_slot = at > now
        if each.has_slot:
            self._set_due(hop, each, at)
            return False
        for dpid in switches:
            self._last[dpid] = now
        return True

    def _judge(self, now: float, hop: Hop, each: _Direction, line: Line) -> None:
        """Judge a try whose time is over, and whose long frame has not come."""
        if each.queued is None or each.queued > MAX_QUEUE or line.busy:
            each.tried = 0
            self._retry(now, hop, each)
            return
        each.lose()
        each.tried = each.unanswered = 0
        self._go_on(now, hop, each, now)

    def _retry(self, now: float, hop: Hop, each: _Direction) -> None:
        """Try again later, as the last try said nothing."""
        self._set_due(hop, each, now + min(RETRY_INTERVAL * 2**each.unanswered, REPEAT_INTERVAL))
        each.unanswered = min(each.unanswered + 1, 10)

    def _go_on(self, now: float, hop: Hop, each: _Direction, at: float) -> None:
        """Set the next try of a direction, unless it is measured as a whole: then the next measurement."""
        if each.candidate() is not None:
            self._set_due(hop, each, at)
            return
        each.step = _Step.SEARCH
        self._conclude(hop, each)
        least = max(
            len(self._directions) / MAX_TRIES_PER_SECOND,
            max(self._degree[end.switch] for end in hop) * SWITCH_INTERVAL,
        )
        interval = SMALL_REPEAT_INTERVAL if hop in self.small else REPEAT_INTERVAL
        if each.failed <= MAX_PACKET:
            interval = min(interval * 2 ** min(each.flaps, 10), MAX_REPEAT_INTERVAL)
        self._set_due(hop, each, now + max(interval, least * TRIES_PER_REPEAT / REPEAT_SHARE))

    def _conclude(self, hop: Hop, each: _Direction) -> None:
        """Say of a direction what has been found."""
        if not each.is_exact and each.passed < FULL_PACKET:
            # The line is too slow to find out.
            self._forget(hop)
            return
        is_small = each.is_exact and each.passed < self.need
        found = each.passed, not each.is_exact, is_small
        if found != (self.known.get(hop), hop in self.at_least, hop in self.small):
            self.known[hop] = each.passed
            for hops, is_so in ((self.at_least, not each.is_exact), (self.small, is_small)):
                (hops.add if is_so else hops.discard)(hop)
            self.changes += 1

    def _forget(self, hop: Hop) -> None:
        self.at_least.discard(hop)
        self.small.discard(hop)
        self.changes += self.known.pop(hop, None) is not None

    def _set_due(self, hop: Hop, each: _Direction, at: float) -> None:
        each.due = at
        heapq.heappush(self._queue, (at, hop))


def uneven(
    known: Mapping[Hop, int], paths: Iterable[Iterable[Iterable[Hop]]], at_least: Collection[Hop] = ()
) -> dict[Hop, int]:
    """Return the directions that carry less than another path of a pair, and what that one carries.

    `paths` has the hops of each pair's paths; the size of those in `at_least` may be larger.
    """
    found: dict[Hop, int] = {}
    if len(set(known.values())) < 2:
        return found
    for pair in paths:
        ways = [list(path) for path in pair]
        best = max((min((known.get(hop, 0) for hop in way), default=0) for way in ways), default=0)
        for hop in (hop for way in ways for hop in way):
            if known.get(hop, best) < best and hop not in at_least:
                found[hop] = max(best, found.get(hop, 0))
    return found


def limited_switches(known: Mapping[Hop, int]) -> dict[int, int]:
    """Return the switches that seem to have a limit of their own, and its size.

    All directions to such a switch, two or more, carry the same, and all from there more: its way to the controller
    may have that limit, and its links not.
    """
    towards: dict[int, list[int]] = {}
    onward: dict[int, list[int]] = {}
    for (source, target), size in known.items():
        towards.setdefault(target.switch, []).append(size)
        onward.setdefault(source.switch, []).append(size)
    return {
        dpid: sizes[0]
        for dpid, sizes in towards.items()
        if len(sizes) > 1 and len(set(sizes)) == 1 and min(onward.get(dpid, [0])) > sizes[0]
    }
