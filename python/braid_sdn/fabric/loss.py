"""Whether packets arrive: what the edge at a path's beginning has sent, held against what came to the one at its end.

A queue that counts bytes and is full of others' full frames still has room for a small probe, where most packets find
none: probes alone do not show it. A path is a FIFO, so once a probe has come, whatever was sent before it has come as
well, or is lost. Edges are asked often while a queue is seen; what was sent before the last probe that had come when
they were asked, less what came, is what the path has lost.

An edge counts some time after it was answered, and before what it tells is read. On a busy machine these two are far
apart, and what is believed is that which makes the least loss.

A queue of a flow's own loses too, half of a window that doubles; but it brings all that its line carries meanwhile.
Others' traffic takes the line away: so it is theirs if most is lost *and* much less comes than before.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field

#: Of what was sent in a while, what must come at the least: others that fill a line ten times leave a tenth.
LEAST_ARRIVING = 1 / 3
#: Of what came before, packets a second, what comes from a queue of the flow's own.
LEAST_OF_BEFORE = 0.5
#: Seconds over which that is looked at.
SHORTEST = 0.08
LONGEST = 0.5
#: Packets that must be lost: of fewer nobody knows whose fault it is.
FEW = 12
#: Seconds for which tellings are kept: the longest queue, and LONGEST.
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


@dataclass(frozen=True, slots=True)
class Came:
    """What the edge at a path's end told."""

    told: Told
    #: The last probe that had come before it counted.
    probe: Probe


@dataclass
class Ledger:
    """Of one path."""

    #: By when they were read; of those sent later none is read earlier.
    _probes: deque[Probe] = field(default_factory=deque)
    _sent: deque[Told] = field(default_factory=deque)
    _came: deque[Came] = field(default_factory=deque)

    def handle_probe(self, now: float, sent: float) -> None:
        """Take in a probe that was sent then."""
        last = self._probes[-1].sent if self._probes else sent
        self._probes.append(Probe(now, max(last, sent)))
        while self._probes[0].read < now - KEPT:
            self._probes.popleft()

    def handle_sent(self, now: float, since: float, packets: int) -> None:
        """Take in how many packets the edge at the path's beginning, answered `since`, has sent in all."""
        if self._sent and packets < self._sent[-1].packets:
            # It has started anew.
            self._sent.clear()
            self._came.clear()
        self._sent.append(Told(since, now, packets))
        while self._sent[0].at < now - KEPT:
            self._sent.popleft()

    def handle_came(self, now: float, since: float, packets: int) -> None:
        """Take in how many packets have come in all to the edge at the path's end, answered `since`."""
        if self._came and packets < self._came[-1].told.packets:
            self._came.clear()
        place = bisect.bisect_right(self._probes, since, key=lambda each: each.read)
        if place > 0:
            self._came.append(Came(Told(since, now, packets), self._probes[place - 1]))
        while self._came and self._came[0].told.at < now - LONGEST:
            self._came.popleft()

    def losing(self, rate: float) -> bool:
        """Whether others fill the path, by which so many packets a second came before."""
        if not self._came:
            return False
        last = self._came[-1]
        # So much had been sent before its probe, at the least.
        place = bisect.bisect_right(self._sent, last.probe.sent, key=lambda told: told.at)
        if place == 0:
            return False
        lost = self._sent[place - 1].packets - last.told.packets
        known = float("-inf")
        for first in self._came:
            seconds = last.told.since - first.told.at
            if seconds < SHORTEST:
                break
            # And at the most before this one's.
            place = bisect.bisect_left(self._sent, first.probe.sent, key=lambda told: told.since)
            if place == len(self._sent):
                continue
            # What is lost stays lost: where less of it was seen, later ones had come already.
            known = max(known, self._sent[place].packets - first.told.packets)
            new, brought = lost - known, last.told.packets - first.told.packets
            if (
                new >= FEW
                and brought < LEAST_ARRIVING * (new + brought)
                and brought < LEAST_OF_BEFORE * rate * seconds
            ):
                return True
        return False
