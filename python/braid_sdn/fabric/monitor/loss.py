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
MIN_ARRIVAL_RATIO = 1 / 2
#: Of what came before, packets a second, what comes from a queue of the flow's own.
MIN_RATE_RATIO = 0.5
#: Seconds over which that is looked at.
MIN_INTERVAL = 0.08
MAX_INTERVAL = 1.0
#: Packets that must be lost: of fewer nobody knows whose fault it is.
MIN_LOST_PACKETS = 12
#: Seconds for which a probe that has come may wait to be read, while an edge's telling is.
MAX_READ_DELAY = 0.02
#: Seconds in which probes are read that have waited, one after the other.
READ_BATCH_SPAN = 0.01
#: Seconds for which probes and what was sent are kept: the longest queue, and MAX_INTERVAL.
HISTORY = 3.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One that came. Times are seconds."""

    read: float
    sent: float


@dataclass(frozen=True, slots=True)
class CounterSample:
    """What an edge has counted at some time between these two, in seconds."""

    since: float
    at: float
    packets: int


@dataclass
class Ledger:
    """Of one path."""

    #: By when they were read; of those sent later none is read earlier.
    _probes: deque[Probe] = field(default_factory=deque)
    _tx: deque[CounterSample] = field(default_factory=deque)
    _rx: deque[CounterSample] = field(default_factory=deque)

    def handle_probe(self, now: float, sent: float) -> None:
        """Take in a probe that was sent then."""
        last = self._probes[-1].sent if self._probes else sent
        self._probes.append(Probe(now, max(last, sent)))
        while self._probes[0].read < now - HISTORY:
            self._probes.popleft()

    def handle_tx(self, told: CounterSample) -> None:
        """Take in how many packets the edge at the path's beginning has sent in all."""
        if self._tx and told.packets < self._tx[-1].packets:
            # It has started anew.
            self._tx.clear()
            self._rx.clear()
        self._tx.append(told)
        while self._tx[0].at < told.at - HISTORY:
            self._tx.popleft()

    def handle_rx(self, told: CounterSample) -> None:
        """Take in how many packets have come in all to the edge at the path's end."""
        if self._rx and told.packets < self._rx[-1].packets:
            self._rx.clear()
        self._rx.append(told)
        while self._rx[0].at < told.at - MAX_INTERVAL:
            self._rx.popleft()

    def is_losing(self, rate: float) -> bool:
        """Whether others fill the path, by which so many packets a second came before."""
        if not self._rx:
            return False
        last = self._rx[-1]
        sent = self._min_sent_before(last)
        if sent is None:
            return False
        for first in self._rx:
            seconds = last.since - first.at
            if seconds < MIN_INTERVAL:
                break
            was = self._max_sent_before(first)
            if was is None:
                continue
            brought = last.packets - first.packets
            lost = sent - was - brought
            if (
                lost >= MIN_LOST_PACKETS
                and brought < MIN_ARRIVAL_RATIO * (lost + brought)
                and brought < MIN_RATE_RATIO * rate * seconds
            ):
                return True
        return False

    def _min_sent_before(self, came: CounterSample) -> int | None:
        """Return how many packets, at the least, were sent so early that none of them can come after it."""
        place = bisect.bisect_right(self._probes, came.since, key=lambda probe: probe.read)
        if place == 0:
            return None
        probe = self._probes[place - 1]
        place = bisect.bisect_right(self._tx, probe.sent, key=lambda told: told.at)
        return self._tx[place - 1].packets if place > 0 else None

    def _max_sent_before(self, came: CounterSample) -> int | None:
        """Return how many packets, at the most, were sent before the last of those that it counts."""
        place = bisect.bisect_left(self._probes, came.at + MAX_READ_DELAY, key=lambda probe: probe.read)
        if place == len(self._probes):
            return None
        # Of those that are read at once the first may have waited long.
        last = self._probes[place].read + READ_BATCH_SPAN
        probe = self._probes[bisect.bisect_right(self._probes, last, key=lambda probe: probe.read) - 1]
        place = bisect.bisect_left(self._tx, probe.sent, key=lambda told: told.since)
        return self._tx[place].packets if place < len(self._tx) else None
