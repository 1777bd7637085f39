"""Whether paths and edges work: probes along each tag and out to each edge, and what their silence means.

A path's probe takes the very rules that its packets take. After MISSED in a row, while others' are heard, the path is
dead: edges stop using it, and its links are asked one by one, so that the one at fault is known too. It is trusted
again after REST.

A full queue drops probes as it drops packets. So a path that brings packets works without them; and one that nobody
uses is let alone while all its hops bring what others send. Where probes find room that packets do not, the edges at
both ends tell what is lost (`loss`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.latency import WindowedMinimum
from braid_sdn.fabric.loss import Ledger, Told
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan import Edge, TaggedPath
from braid_sdn.fabric.planner import Hops

Hop = tuple[PortId, PortId]

#: Seconds between two probes of a path while there are few.
PACE = 0.02
#: Probes a second over all paths: with more paths each is probed less often.
BUDGET = 400.0
#: Probes in a row that must be missed. With PACE, a silent path is left after some 100 ms and its own latency. A full
#: queue drops probes as it drops packets; then the edge at the path's end tells that packets come. Where that
#: is late, as on a busy machine, it is waited for as long again.
MISSED = 5
#: Probes that were due between its first telling since probes are missing and its last: in less, nothing may have
#: come by chance.
TOLD = 2
#: Probes in a row that must be missed before the edge at a path's end is asked whether anything comes.
DOUBT = 2
#: Of what its share of packets would be, what a path must bring to count as working without probes.
LEAST_OF_SHARE = 0.25
#: Of what it brought before, packets a second.
LEAST_OF_BEFORE = 0.25
#: Seconds without a packet after which a path counts as not used: a sender that lost everything may be waiting.
UNUSED = 1.0
#: Seconds over which that is taken.
LEAST_SPAN = 0.5
#: Packets of which less say nothing of a share: others' traffic lets some through.
FEW = 4
#: Seconds that a probe is longer on its way than the quickest before the edges at both ends are asked what passes.
RISEN = 0.005
#: Seconds between two such questions about a path that is used, and about one that is not; and how many a second are
#: asked about all.
ASK_PACE = 0.05
ASK_UNUSED = 0.5
ASK_BUDGET = 200.0
#: Seconds that a new path has until its first probe must have come through.
FIRST_ANSWER = 2.0
#: Times longer that all paths together must be silent: that may be we ourselves, or the switches' machine.
ALL_SILENT = 5
#: Seconds that a dead path is left alone: longer than the counters need to tell that others fill it. Twice as long
#: each time it dies again within SOON, up to LONGEST_REST.
REST = 3.0
LONGEST_REST = 12.0
SOON = 30.0

#: Seconds between two probes of an edge, and how many it may miss.
EDGE_PACE = 1.0
EDGE_MISSED = 3


@dataclass
class Watched:
    """One path, or one edge."""

    since: float
    #: When the next probe is due.
    due: float
    pace: float
    heard: float
    #: Seconds from end to end; empty until the first probe came back.
    trip: WindowedMinimum = field(default_factory=WindowedMinimum)
    answered: bool = False
    #: Seconds that the last one was longer on its way than the quickest: what waits in front of it.
    queued: float = 0.0
    #: Seconds that the last one was on its way.
    last: float = 0.0
    #: What the edge at its end has counted.
    came: Told | None = None
    #: When anything was last known to have come by it or a path beside it.
    used: float = float("-inf")

    #: What the edge had counted of each path when it was first asked after the last probe, and when that was.
    before: tuple[dict[int, int], float] | None = None
    #: Packets a second that came by it, over the last while that nothing was missing.
    rate: float = 0.0
    #: What the edge had counted when that was taken, and when.
    mark: tuple[int, float] = (0, float("-inf"))
    #: What was sent by it and what came, and when its ends were last asked.
    ledger: Ledger = field(default_factory=Ledger)
    asked: float = float("-inf")

    def late(self, now: float, missed: int) -> bool:
        """Whether so many probes in a row are missing.

        They arrive at their pace, however long the way, unless it becomes longer: a queue that a window fills may
        double from one probe to the next. Where an edge tells what comes, that is no question.
        """
        return now - self.heard > missed * self.pace + (self.queued if self.came is None else 0.0)

    def unanswered(self, now: float) -> bool:
        """Whether the edge at the end has not told of long enough since probes are missing, and may still do so.

        What it tells first is what later packets are held against, and in a few milliseconds none may come.
        """
        if self.came is None or self.late(now, 2 * MISSED):
            return False
        return self.before is None or self.came.since - self.before[1] < TOLD * self.pace

    def hear(self, now: float, seconds: float) -> None:
        """Take in a probe that was so long on its way."""
        self.heard, self.answered, self.before = now, True, None
        self.trip.add(now, seconds)
        self.last = seconds
        self.queued = seconds - (self.trip.get(now) or seconds)


def _fair(tag: int, brought: Mapping[int, int], share: Mapping[int, float]) -> bool:
    """Whether a path brought about its part of all that came."""
    others = [count / share[other] for other, count in brought.items() if other != tag]
    # One that alone brings anything proves nothing: a sender may have given up for the others' sake.
    if brought[tag] < FEW or (len(share) > 1 and not any(others)):
        return False
    return brought[tag] / share[tag] >= LEAST_OF_SHARE * max(others, default=0.0)


@dataclass
class Watch:
    """All paths and edges that are probed. Times are seconds."""

    paths: dict[int, Watched] = field(default_factory=dict)
    edges: dict[str, Watched] = field(default_factory=dict)
    #: Ways that are not to be used, and until when.
    dead: dict[Hops, float] = field(default_factory=dict)
    #: Edges that were given up on.
    silent: set[str] = field(default_factory=set)
    #: How long ways were left alone when they last died, and until when that was.
    _rested: dict[Hops, tuple[float, float]] = field(default_factory=dict)
    _hops: dict[int, Hops] = field(default_factory=dict)
    #: When anything of ours, a probe or a packet, was last known to have come by a hop.
    _brought: dict[Hop, float] = field(default_factory=dict)
    _judged: float | None = None
    #: Paths that lose what others beside them bring.
    _losing: set[int] = field(default_factory=set)

    def follow(self, now: float, paths: Iterable[tuple[TaggedPath, Hops]], edges: Iterable[Edge]) -> None:
        """Probe these paths and edges from now on, and no others."""
        wanted = {path.tag: hops for path, hops in paths}
        pace = max(PACE, len(wanted) / BUDGET)
        self._hops = wanted
        hops = set(itertools.chain.from_iterable(wanted.values()))
        self._brought = {hop: at for hop, at in self._brought.items() if hop in hops}
        self.paths = {tag: self.paths.get(tag) or Watched(now, now, pace, now) for tag in wanted}
        for each in self.paths.values():
            each.pace = pace
        names = [edge.name for edge in edges]
        self.edges = {name: self.edges.get(name) or Watched(now, now, EDGE_PACE, now) for name in names}
        self.silent &= set(names)

    def revive(self, now: float, switch: int) -> None:
        """A switch came back: what was silent for its sake may work again, once its rules are there."""
        for tag, hops in self._hops.items():
            if any(switch in (a.switch, b.switch) for a, b in hops):
                self.paths[tag].heard = max(self.paths[tag].heard, now)
        for hops in [hops for hops in self.dead if any(switch in (a.switch, b.switch) for a, b in hops)]:
            del self.dead[hops]

    def heard_path(self, now: float, tag: int, seconds: float) -> None:
        """A path's probe arrived."""
        watched = self.paths.get(tag)
        if watched is not None:
            if now - watched.heard > DOUBT * watched.pace:
                # What was sent before it has come or is lost: the edges know by now.
                watched.asked = float("-inf")
            watched.hear(now, seconds)
            watched.ledger.handle_probe(now, now - seconds)
            self._bring(now, tag)

    def longest(self) -> float:
        """Return how long packets are under way at most, as far as the last probes tell."""
        return max((each.last for each in self.paths.values()), default=0.0)

    def _bring(self, now: float, tag: int) -> None:
        for hop in self._hops[tag]:
            self._brought[hop] = now

    def handle_came(self, now: float, since: float, counts: Mapping[int, int], share: Mapping[int, float]) -> None:
        """Take in what an edge, answered `since`, has counted of all paths of a pair, which have these shares.

        A path that has brought about its share, and about as much as before, since its probes are missing works: what
        is missing are probes alone, which a full queue drops like anything else. One that brings much less than the
        others, or than it did, is not defended: it may be full of others' traffic.
        """
        known = {tag: watched for tag in share if tag in counts and (watched := self.paths.get(tag)) is not None}
        more = {tag: counts[tag] - each.came.packets for tag, each in known.items() if each.came is not None}
        for tag in more:
            if more[tag] > 0:
                self._bring(now, tag)
        for tag, each in known.items():
            if any(more.values()):
                each.used = now
            if each.before is None:
                each.before = dict(counts), now
            elif self._brings(since, tag, counts, share):
                each.heard, each.before = now, None
            count, at = each.mark
            # However often it is asked: while its probes come.
            if now - at >= LEAST_SPAN and now - each.heard <= DOUBT * each.pace:
                rate = (counts[tag] - count) / (now - at)
                # What comes while a queue stands says what others leave.
                each.rate = max(rate, each.rate) if each.queued > RISEN else rate
                each.mark = counts[tag], now
            each.came = Told(since, now, counts[tag])
            each.ledger.handle_came(each.came)
        self._compare(known)

    def handle_sent(self, now: float, since: float, counts: Mapping[int, int], tags: Iterable[int]) -> None:
        """Take in what an edge, answered `since`, has sent by all paths of a pair."""
        known = {tag: watched for tag in tags if tag in counts and (watched := self.paths.get(tag)) is not None}
        for tag, each in known.items():
            each.ledger.handle_sent(Told(since, now, counts[tag]))
        self._compare(known)

    def _compare(self, beside: Mapping[int, Watched]) -> None:
        """Note which of a pair's paths others fill, unless they fill all: then none is better."""
        losing = {tag for tag, each in beside.items() if each.ledger.losing(each.rate)}
        working = [tag for tag in beside if tag not in losing and self._hops[tag] not in self.dead]
        if working:
            self._losing |= losing

    def _brings(self, until: float, tag: int, counts: Mapping[int, int], share: Mapping[int, float]) -> bool:
        """Whether a path has brought enough since its probes are missing, `until` then at the least."""
        each = self.paths[tag]
        if each.before is None:
            return False
        was, at = each.before
        brought = {other: counts[other] - was[other] for other in share if other in counts and other in was}
        return brought[tag] >= LEAST_OF_BEFORE * each.rate * (until - at) and _fair(tag, brought, share)

    def doubtful(self, now: float) -> list[int]:
        """Return the tags of paths whose probes are missing and whose edges have not been asked lately."""
        return [
            tag
            for tag, each in self.paths.items()
            if now - each.heard > DOUBT * each.pace
            and self._hops[tag] not in self.dead
            and (each.came is None or now - each.came.at > each.pace)
        ]

    def pressed(self, now: float) -> list[int]:
        """Return the tags of paths that a queue is seen on and whose ends have not been asked lately."""
        pace = max(ASK_PACE, len(self.paths) / ASK_BUDGET)
        return [
            tag
            for tag, each in self.paths.items()
            if each.queued > RISEN
            and self._hops[tag] not in self.dead
            and now - each.asked >= (pace if now - each.used < UNUSED else ASK_UNUSED)
        ]

    def asked(self, now: float, tags: Iterable[int]) -> None:
        """The edges at the ends of these paths are asked what they sent and what came."""
        for tag in tags:
            if tag in self.paths:
                self.paths[tag].asked = now

    def beside(self, tags: Iterable[int]) -> set[int]:
        """Return the tags of these paths and of all that have a hop with one of them in common."""
        hops = {hop for tag in tags for hop in self._hops.get(tag, ())}
        return {tag for tag, own in self._hops.items() if not hops.isdisjoint(own)}

    def heard_edge(self, now: float, name: str, seconds: float) -> bool:
        """An edge sent a probe back; whether it had been given up on."""
        watched = self.edges.get(name)
        if watched is None:
            return False
        watched.hear(now, seconds)
        back = name in self.silent
        self.silent.discard(name)
        return back

    def due(self, now: float) -> tuple[list[int], list[str]]:
        """Return the tags and the edges to probe now."""
        tags = [tag for tag, each in self.paths.items() if each.due <= now]
        names = [name for name, each in self.edges.items() if each.due <= now]
        for each in [self.paths[tag] for tag in tags] + [self.edges[name] for name in names]:
            # Probes that were not sent in time are not made up for, and their silence is nobody's fault.
            if now - each.due > each.pace:
                each.heard = max(each.heard, now - each.pace)
            each.due = max(each.due + each.pace, now)
        return tags, names

    def judge(self, now: float) -> tuple[list[int], bool]:
        """Return the tags of paths that just died, and whether anything else changed that a plan depends on."""
        self._excuse(now)
        died = [
            tag
            for tag, each in self.paths.items()
            if each.late(now, MISSED)
            and not each.unanswered(now)
            and self._alone(now, each)
            and self._hops[tag] not in self.dead
            and (each.answered or now - each.since > FIRST_ANSWER)
            and not self._let_alone(now, tag, each)
        ]
        died += [
            tag for tag in self._losing if tag in self.paths and tag not in died and self._hops[tag] not in self.dead
        ]
        self._losing.clear()
        for tag in died:
            self._bury(now, self._hops[tag])
        rested = [hops for hops, until in self.dead.items() if until <= now]
        for hops in rested:
            del self.dead[hops]
        gone = {name for name, each in self.edges.items() if each.late(now, EDGE_MISSED)} - self.silent
        self.silent |= gone
        return died, bool(rested or gone)

    def _alone(self, now: float, each: Watched) -> bool:
        """Whether others are still heard, or all have been silent for so long that it is no hiccup of ours."""
        others = max((other.heard for other in self.paths.values() if other is not each), default=each.heard)
        return others > each.heard + DOUBT * each.pace or each.late(now, ALL_SILENT * MISSED)

    def _bury(self, now: float, hops: Hops) -> None:
        rest, until = self._rested.get(hops, (0.0, 0.0))
        rest = min(2 * rest, LONGEST_REST) if rest and now - until < SOON else REST
        self._rested = {way: (was, end) for way, (was, end) in self._rested.items() if now - end < SOON}
        self._rested[hops] = rest, now + rest
        self.dead[hops] = now + rest

    def _let_alone(self, now: float, tag: int, each: Watched) -> bool:
        """Whether nobody uses a path, and all its hops work for others: what its probes met is a queue of theirs."""
        since = now - MISSED * each.pace
        unused = each.came is not None and now - each.used > UNUSED
        return unused and all(self._brought.get(hop, 0.0) > since for hop in self._hops[tag])

    def _excuse(self, now: float) -> None:
        """If we were held up ourselves, probes may have come that nobody has read yet: silence is counted anew."""
        if self._judged is not None and now - self._judged > 2 * PACE and self.paths:
            for each in (*self.paths.values(), *self.edges.values()):
                each.heard = max(each.heard, now - each.pace)
        self._judged = now

    def poll_timeout(self) -> float | None:
        """Return when the next probe is due."""
        every = [each.due for each in (*self.paths.values(), *self.edges.values())]
        return min([*every, *self.dead.values()], default=None)
