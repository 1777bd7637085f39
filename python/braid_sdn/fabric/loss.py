"""Whether packets arrive: what the edge at a path's beginning has sent, held against what came to the one at its end.

A queue that counts bytes and is full of others' full frames still has room for a small probe, where most packets find
none: probes alone do not show it. A path is a FIFO, so once a probe has come, whatever was sent before it has come as
well, or is lost; and what has come was sent before the next probe. Edges are asked often while a queue is seen. So
much is lost in a while at the least: what was sent from the next probe after its beginning to the last one before its
end, less what came.

An edge counts some time after it was answered, and before what it tells is read. On a busy machine these two are far
apart, and of all times between them that is taken which makes the least loss.

A queue of a flow's own loses too, half of a window that doubles; but it brings all that its line carries meanwhile.
Others' traffic takes the line away: so it is theirs if most is lost *and* much less comes than before.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field

#: Of what was sent in a while, what must come at the least: others that fill a line ten times leave a tenth, and a
#: window that doubles loses half of it once.
LEAST_ARRIVING = 1 / 2
#: Of what came before, packets a second, what comes from a queue of the flow's own.
LEAST_OF_BEFORE = 0.5
#: Seconds over which that is looked at.
SHORTEST = 0.08
LONGEST = 1.0
#: Packets that must be lost: of fewer nobody knows whose fault it is.
FEW = 12
#: Seconds for which a probe that has come may wait to be read, while an edge's telling is.
UNREAD = 0.02
#: Seconds in which probes are read that have waited, one after the other.
TOGETHER = 0.01
#: Seconds for which probes and what was sent are kept: the longest queue, and LONGEST.
KEPT = 3.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One that came. Times are seconds."""

    read: float
    sent: float


@dataclass(frozen=True, slots=True)
class Told:
    """What an edge has counted at some time between these two, in seconds."""

    since: float
    at: float
    packets: int


@dataclass
class Ledger:
    """Of one path."""

    #: By when they were read; of those sent later none is read earlier.
    _probes: deque[Probe] = field(default_factory=deque)
    _sent: deque[Told] = field(default_factory=deque)
    _came: deque[Told] = field(default_factory=deque)

    def handle_probe(self, now: float, sent: float) -> None:
        """Take in a probe that was sent then."""
        last = self._probes[-1].sent if self._probes else sent
        self._probes.append(Probe(now, max(last, sent)))
        while self._probes[0].read < now - KEPT:
            self._probes.popleft()

    def handle_sent(self, told: Told) -> None:
        """Take in how many packets the edge at the path's beginning has sent in all."""
        if self._sent and told.packets < self._sent[-1].packets:
            # It has started anew.
            self._sent.clear()
            self._came.clear()
        self._sent.append(told)
        while self._sent[0].at < told.at - KEPT:
            self._sent.popleft()

    def handle_came(self, told: Told) -> None:
        """Take in how many packets have come in all to the edge at the path's end."""
        if self._came and told.packets < self._came[-1].packets:
            self._came.clear()
        self._came.append(told)
        while self._came[0].at < told.at - LONGEST:
            self._came.popleft()

    def losing(self, rate: float) -> bool:
        """Whether others fill the path, by which so many packets a second came before."""
        if not self._came:
            return False
        last = self._came[-1]
        sent = self._sent_before(last)
        if sent is None:
            return False
        for first in self._came:
            seconds = last.since - first.at
            if seconds < SHORTEST:
                break
            was = self._sent_by(first)
            if was is None:
                continue
            brought = last.packets - first.packets
            lost = sent - was - brought
            if (
                lost >= FEW
                and brought < LEAST_ARRIVING * (lost + brought)
                and brought < LEAST_OF_BEFORE * rate * seconds
            ):
                return True
        return False

    def _sent_before(self, came: Told) -> int | None:
        """Return how many packets, at the least, were sent so early that none of them can come after it."""
        place = bisect.bisect_right(self._probes, came.since, key=lambda probe: probe.read)
        if place == 0:
            return None
        probe = self._probes[place - 1]
        place = bisect.bisect_right(self._sent, probe.sent, key=lambda told: told.at)
        return self._sent[place - 1].packets if place > 0 else None

    def _sent_by(self, came: Told) -> int | None:
        """Return how many packets, at the most, were sent before the last of those that it counts."""
        place = bisect.bisect_left(self._probes, came.at + UNREAD, key=lambda probe: probe.read)
        if place == len(self._probes):
            return None
        # Of those that are read at once the first may have waited long.
        last = self._probes[place].read + TOGETHER
        probe = self._probes[bisect.bisect_right(self._probes, last, key=lambda probe: probe.read) - 1]
        place = bisect.bisect_left(self._sent, probe.sent, key=lambda told: told.since)
        return self._sent[place].packets if place < len(self._sent) else None
