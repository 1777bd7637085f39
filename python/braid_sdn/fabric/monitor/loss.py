"""Detects loss on a path: packets sent by the edge at its beginning, against packets received by the one at its end.

Probes alone do not show loss: a queue that counts bytes and is full of large frames still has room for a small probe.
A path is a FIFO, so when a probe arrives, all packets sent before it have arrived or are lost, and all packets
received so far were sent before the next probe. Lower bound on the loss of an interval: packets sent between its
first and last probe, minus packets received. Edges are polled often while a queue is seen.

An edge samples its counters after the last response and before its report is read. On a busy machine this span is
long. The sample time is uncertain; assume the one that implies least loss.

A flow that fills its own queue loses packets too, half of a window that doubles, but still receives the line's full
rate. Others' traffic takes that rate away. So loss is blamed on others if most packets are lost *and* far fewer
arrive than before.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field

#: Share of the sent packets that must arrive: others that send ten times a line's rate leave a tenth, and a window
#: that doubles loses half once.
MIN_ARRIVAL_RATIO = 1 / 2
#: Share of the former packet rate that still arrives if the queue is the flow's own.
MIN_RATE_RATIO = 0.5
#: Length of the intervals that are examined, seconds.
MIN_INTERVAL = 0.08
MAX_INTERVAL = 1.0
#: Packets that must be lost: fewer prove nothing.
MIN_LOST_PACKETS = 12
#: Seconds that an arrived probe may wait to be read while an edge's report is read.
MAX_READ_DELAY = 0.02
#: Seconds within which waiting probes are read one after the other.
READ_BATCH_SPAN = 0.01
#: Seconds for which probes and what was sent are kept: the longest queue, and MAX_INTERVAL.
HISTORY = 3.0


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe that arrived. Times are seconds."""

    read: float
    sent: float


@dataclass(frozen=True, slots=True)
class CounterSample:
    """A packet counter that an edge sampled between `since` and `at`, in seconds."""

    since: float
    at: float
    packets: int


@dataclass
class Ledger:
    """Packets sent and received by one path."""

    #: In the order in which they were read, which is also the order of sending.
    _probes: deque[Probe] = field(default_factory=deque)
    _tx: deque[CounterSample] = field(default_factory=deque)
    _rx: deque[CounterSample] = field(default_factory=deque)

    def handle_probe(self, now: float, sent: float) -> None:
        """Take in a probe and the time when it was sent."""
        last = self._probes[-1].sent if self._probes else sent
        self._probes.append(Probe(now, max(last, sent)))
        while self._probes[0].read < now - HISTORY:
            self._probes.popleft()

    def handle_tx(self, told: CounterSample) -> None:
        """Take in the total of packets sent by the edge at the path's beginning."""
        if self._tx and told.packets < self._tx[-1].packets:
            # The edge has restarted.
            self._tx.clear()
            self._rx.clear()
        self._tx.append(told)
        while self._tx[0].at < told.at - HISTORY:
            self._tx.popleft()

    def handle_rx(self, told: CounterSample) -> None:
        """Take in the total of packets received by the edge at the path's end."""
        if self._rx and told.packets < self._rx[-1].packets:
            self._rx.clear()
        self._rx.append(told)
        while self._rx[0].at < told.at - MAX_INTERVAL:
            self._rx.popleft()

    def sent_since(self, at: float) -> int | None:
        """Return about how many packets were sent since a time; None if the edge has not told."""
        place = bisect.bisect_right(self._tx, at, key=lambda told: told.at)
        return self._tx[-1].packets - self._tx[place - 1].packets if place > 0 else None

    def is_losing(self, rate: float) -> bool:
        """Return true if others' traffic fills the path; `rate` is its former rate, packets a second."""
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
        """Return a lower bound of the packets that were sent too early to arrive after this sample."""
        place = bisect.bisect_right(self._probes, came.since, key=lambda probe: probe.read)
        if place == 0:
            return None
        probe = self._probes[place - 1]
        place = bisect.bisect_right(self._tx, probe.sent, key=lambda told: told.at)
        return self._tx[place - 1].packets if place > 0 else None

    def _max_sent_before(self, came: CounterSample) -> int | None:
        """Return an upper bound of the packets sent before the last one that this sample counts."""
        place = bisect.bisect_left(self._probes, came.at + MAX_READ_DELAY, key=lambda probe: probe.read)
        if place == len(self._probes):
            return None
        # The first of several probes read in a batch may have waited long.
        last = self._probes[place].read + READ_BATCH_SPAN
        probe = self._probes[bisect.bisect_right(self._probes, last, key=lambda probe: probe.read) - 1]
        place = bisect.bisect_left(self._tx, probe.sent, key=lambda told: told.since)
        return self._tx[place].packets if place < len(self._tx) else None
