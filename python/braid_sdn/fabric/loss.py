"""Whether packets arrive: what the edge at a path's beginning has sent, held against what came to the one at its end.

A queue that counts bytes and is full of others' full frames still has room for a small probe, where most packets find
none: probes alone do not show it. A path is a FIFO, so once a probe has come, whatever was sent before it has come as
well, or is lost. Edges are asked often while a queue is seen; what was sent before the last probe that had come when
they were asked, less what came, is what the path has lost.

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
#: So many seconds' worth of packets must be lost: what was sent between two tellings is known in sum alone.
WORTH = 0.05
#: Seconds between two tellings over which that sum is taken for even.
APART = 0.15
#: Seconds for which tellings are kept: the longest queue, and LONGEST.
KEPT = 3.0


@dataclass(frozen=True, slots=True)
class Came:
    """What the edge at a path's end told. Times are seconds."""

    at: float
    packets: int
    #: When the last probe was sent that had come before it counted.
    before: float


@dataclass
class Ledger:
    """Of one path."""

    #: When the last probe that came had been sent.
    _probe: float | None = None
    #: The same as the edge was asked what came, until it tells.
    _asked: float | None = None
    #: When how many packets had been sent.
    _sent: deque[tuple[float, int]] = field(default_factory=deque)
    _came: deque[Came] = field(default_factory=deque)

    def handle_probe(self, sent: float) -> None:
        """Take in that a probe came that was sent then."""
        self._probe = sent if self._probe is None else max(self._probe, sent)

    def handle_asked(self) -> None:
        """The edge at the path's end is asked: it counts later than what has come by now."""
        if self._asked is None:
            self._asked = self._probe

    def handle_sent(self, now: float, packets: int) -> None:
        """Take in how many packets the edge at the path's beginning has sent in all."""
        if self._sent and packets < self._sent[-1][1]:
            # It has started anew.
            self._sent.clear()
            self._came.clear()
        self._sent.append((now, packets))
        while self._sent[0][0] < now - KEPT:
            self._sent.popleft()

    def handle_came(self, now: float, packets: int) -> None:
        """Take in how many packets have come in all to the edge at the path's end."""
        if self._came and packets < self._came[-1].packets:
            self._came.clear()
        if self._asked is not None:
            self._came.append(Came(now, packets, self._asked))
            self._asked = None
        while self._came and self._came[0].at < now - LONGEST:
            self._came.popleft()

    def losing(self, rate: float) -> bool:
        """Whether others fill the path, by which so many packets a second came before."""
        if not self._came:
            return False
        last = self._came[-1]
        now_lost = self._lost(last)
        if now_lost is None:
            return False
        lost, apart = now_lost
        known = float("-inf")
        for first in self._came:
            if last.at - first.at < SHORTEST:
                break
            was = self._lost(first)
            if was is None:
                continue
            # What is lost stays lost: where less of it was seen, later ones had come already.
            known = max(known, was[0])
            new, brought = lost - known, last.packets - first.packets
            if (
                new >= max(FEW, rate * max(WORTH, apart, was[1]))
                and brought < LEAST_ARRIVING * (new + brought)
                and brought < LEAST_OF_BEFORE * rate * (last.at - first.at)
            ):
                return True
        return False

    def _lost(self, came: Came) -> tuple[float, float] | None:
        """Return the packets lost until then, but for a constant, and how far the tellings around were apart."""
        place = bisect.bisect_right(self._sent, came.before, key=lambda each: each[0])
        if place == 0 or place == len(self._sent):
            return None
        (since, were), (until, are) = self._sent[place - 1], self._sent[place]
        if until - since > APART:
            return None
        sent = were + (are - were) * (came.before - since) / (until - since)
        return sent - came.packets, until - since
