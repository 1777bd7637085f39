"""Whether paths and edges work: probes along each tag and out to each edge, and what their silence means.

A path's probe takes the very rules that its packets take. After DEAD_MISSED in a row, while others' are heard, the path is
dead: edges stop using it, and its links are asked one by one, so that the one at fault is known too. It is trusted
again after HOLD_DOWN.

A full queue drops probes as it drops packets. So a path that brings packets works without them; and one that nobody
uses is let alone while all its hops bring what others send. Where probes find room that packets do not, the edges at
both ends tell what is lost (`loss`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.loss import CounterSample, Ledger
from braid_sdn.fabric.plan.plan import Edge, TaggedPath
from braid_sdn.fabric.plan.planner import Hops
from braid_sdn.fabric.view.latency import WindowedMinimum

Hop = tuple[PortId, PortId]

#: Seconds between two probes of a path while there are few.
PROBE_INTERVAL = 0.02
#: Probes a second over all paths: with more paths each is probed less often.
MAX_PROBES_PER_SECOND = 400.0
#: Probes in a row that must be missed. With PROBE_INTERVAL, a silent path is left after some 100 ms and its own latency. A full
#: queue drops probes as it drops packets; then the edge at the path's end tells that packets come. Where that
#: is late, as on a busy machine, it is waited for as long again.
DEAD_MISSED = 5
#: Probes that were due between its first telling since probes are missing and its last: in less, nothing may have
#: come by chance.
MIN_SAMPLE_PROBES = 2
#: Probes in a row that must be missed before the edge at a path's end is asked whether anything comes.
SUSPECT_MISSED = 2
#: Of what its share of packets would be, what a path must bring to count as working without probes.
MIN_SHARE_RATIO = 0.25
#: Of what it brought before, packets a second.
MIN_RATE_RATIO = 0.25
#: Seconds without a packet after which a path counts as not used: a sender that lost everything may be waiting.
UNUSED_AFTER = 1.0
#: Seconds over which that is taken.
MIN_RATE_SPAN = 0.5
#: Packets of which less say nothing of a share: others' traffic lets some through.
MIN_PACKETS = 4
#: Seconds that a probe is longer on its way than the quickest before the edges at both ends are asked what passes.
QUEUE_THRESHOLD = 0.005
#: Seconds between two such questions about a path that is used, and about one that is not; and how many a second are
#: asked about all.
POLL_INTERVAL = 0.05
UNUSED_POLL_INTERVAL = 0.5
MAX_POLLS_PER_SECOND = 200.0
#: Seconds that a new path has until its first probe must have come through.
FIRST_PROBE_TIMEOUT = 2.0
#: Times longer that all paths together must be silent: that may be we ourselves, or the switches' machine.
ALL_SILENT_FACTOR = 5
#: Seconds that a dead path is left alone: longer than the counters need to tell that others fill it. Twice as long
#: each time it dies again within REPEAT_WINDOW, up to MAX_HOLD_DOWN.
HOLD_DOWN = 3.0
MAX_HOLD_DOWN = 12.0
REPEAT_WINDOW = 30.0

#: Seconds between two probes of an edge, and how many it may miss.
EDGE_PROBE_INTERVAL = 1.0
EDGE_DEAD_MISSED = 3


@dataclass
class ProbedTarget:
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
    rx: CounterSample | None = None
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
    polled: float = float("-inf")

    def late(self, now: float, missed: int) -> bool:
        """Whether so many probes in a row are missing.

        They arrive at their pace, however long the way, unless it becomes longer: a queue that a window fills may
        double from one probe to the next. Where an edge tells what comes, that is no question.
        """
        return now - self.heard > missed * self.pace + (self.queued if self.rx is None else 0.0)

    def unanswered(self, now: float) -> bool:
        """Whether the edge at the end has not told of long enough since probes are missing, and may still do so.

        What it tells first is what later packets are held against, and in a few milliseconds none may come.
        """
        if self.rx is None or self.late(now, 2 * DEAD_MISSED):
            return False
        return self.before is None or self.rx.since - self.before[1] < MIN_SAMPLE_PROBES * self.pace

    def hear(self, now: float, seconds: float) -> None:
        """Take in a probe that was so long on its way."""
        self.heard, self.answered, self.before = now, True, None
        self.trip.add(now, seconds)
        self.last = seconds
        self.queued = seconds - (self.trip.get(now) or seconds)


def _delivers_share(tag: int, brought: Mapping[int, int], share: Mapping[int, float]) -> bool:
    """Whether a path brought about its part of all that came."""
    others = [count / share[other] for other, count in brought.items() if other != tag]
    # One that alone brings anything proves nothing: a sender may have given up for the others' sake.
    if brought[tag] < MIN_PACKETS or (len(share) > 1 and not any(others)):
        return False
    return brought[tag] / share[tag] >= MIN_SHARE_RATIO * max(others, default=0.0)


@dataclass
class PathMonitor:
    """All paths and edges that are probed. Times are seconds."""

    paths: dict[int, ProbedTarget] = field(default_factory=dict)
    edges: dict[str, ProbedTarget] = field(default_factory=dict)
    #: Ways that are not to be used, and until when.
    dead: dict[Hops, float] = field(default_factory=dict)
    #: Edges that were given up on.
    silent: set[str] = field(default_factory=set)
    #: How long ways were left alone when they last died, and until when that was.
    _hold_downs: dict[Hops, tuple[float, float]] = field(default_factory=dict)
    _hops: dict[int, Hops] = field(default_factory=dict)
    #: When anything of ours, a probe or a packet, was last known to have come by a hop.
    _last_delivery: dict[Hop, float] = field(default_factory=dict)
    _judged: float | None = None
    #: Paths that lose what others beside them bring.
    _losing: set[int] = field(default_factory=set)

    def set_targets(self, now: float, paths: Iterable[tuple[TaggedPath, Hops]], edges: Iterable[Edge]) -> None:
        """Probe these paths and edges from now on, and no others."""
        wanted = {path.tag: hops for path, hops in paths}
        pace = max(PROBE_INTERVAL, len(wanted) / MAX_PROBES_PER_SECOND)
        self._hops = wanted
        hops = set(itertools.chain.from_iterable(wanted.values()))
        self._last_delivery = {hop: at for hop, at in self._last_delivery.items() if hop in hops}
        self.paths = {tag: self.paths.get(tag) or ProbedTarget(now, now, pace, now) for tag in wanted}
        for each in self.paths.values():
            each.pace = pace
        names = [edge.name for edge in edges]
        self.edges = {
            name: self.edges.get(name) or ProbedTarget(now, now, EDGE_PROBE_INTERVAL, now) for name in names
        }
        self.silent &= set(names)

    def revive(self, now: float, switch: int) -> None:
        """A switch came back: what was silent for its sake may work again, once its rules are there."""
        for tag, hops in self._hops.items():
            if any(switch in (a.switch, b.switch) for a, b in hops):
                self.paths[tag].heard = max(self.paths[tag].heard, now)
        for hops in [hops for hops in self.dead if any(switch in (a.switch, b.switch) for a, b in hops)]:
            del self.dead[hops]

    def handle_path_probe(self, now: float, tag: int, seconds: float) -> None:
        """A path's probe arrived."""
        watched = self.paths.get(tag)
        if watched is not None:
            if now - watched.heard > SUSPECT_MISSED * watched.pace:
                # What was sent before it has come or is lost: the edges know by now.
                watched.polled = float("-inf")
            watched.hear(now, seconds)
            watched.ledger.handle_probe(now, now - seconds)
            self._record_delivery(now, tag)

    def longest(self) -> float:
        """Return how long packets are under way at most, as far as the last probes tell."""
        return max((each.last for each in self.paths.values()), default=0.0)

    def _record_delivery(self, now: float, tag: int) -> None:
        for hop in self._hops[tag]:
            self._last_delivery[hop] = now

    def handle_rx(self, now: float, since: float, counts: Mapping[int, int], share: Mapping[int, float]) -> None:
        """Take in what an edge, answered `since`, has counted of all paths of a pair, which have these shares.

        A path that has brought about its share, and about as much as before, since its probes are missing works: what
        is missing are probes alone, which a full queue drops like anything else. One that brings much less than the
        others, or than it did, is not defended: it may be full of others' traffic.
        """
        known = {tag: watched for tag in share if tag in counts and (watched := self.paths.get(tag)) is not None}
        more = {tag: counts[tag] - each.rx.packets for tag, each in known.items() if each.rx is not None}
        for tag in more:
            if more[tag] > 0:
                self._record_delivery(now, tag)
        for tag, each in known.items():
            if any(more.values()):
                each.used = now
            if each.before is None:
                each.before = dict(counts), now
            elif self._delivers(since, tag, counts, share):
                each.heard, each.before = now, None
            count, at = each.mark
            # However often it is asked: while its probes come.
            if now - at >= MIN_RATE_SPAN and now - each.heard <= SUSPECT_MISSED * each.pace:
                rate = (counts[tag] - count) / (now - at)
                # What comes while a queue stands says what others leave.
                each.rate = max(rate, each.rate) if each.queued > QUEUE_THRESHOLD else rate
                each.mark = counts[tag], now
            each.rx = CounterSample(since, now, counts[tag])
            each.ledger.handle_rx(each.rx)
        self._compare(known)

    def handle_tx(self, now: float, since: float, counts: Mapping[int, int], tags: Iterable[int]) -> None:
        """Take in what an edge, answered `since`, has sent by all paths of a pair."""
        known = {tag: watched for tag in tags if tag in counts and (watched := self.paths.get(tag)) is not None}
        for tag, each in known.items():
            each.ledger.handle_tx(CounterSample(since, now, counts[tag]))
        self._compare(known)

    def _compare(self, beside: Mapping[int, ProbedTarget]) -> None:
        """Note which of a pair's paths others fill, unless they fill all: then none is better."""
        losing = {tag for tag, each in beside.items() if each.ledger.is_losing(each.rate)}
        working = [tag for tag in beside if tag not in losing and self._hops[tag] not in self.dead]
        if working:
            self._losing |= losing

    def _delivers(self, until: float, tag: int, counts: Mapping[int, int], share: Mapping[int, float]) -> bool:
        """Whether a path has brought enough since its probes are missing, `until` then at the least."""
        each = self.paths[tag]
        if each.before is None:
            return False
        was, at = each.before
        brought = {other: counts[other] - was[other] for other in share if other in counts and other in was}
        return brought[tag] >= MIN_RATE_RATIO * each.rate * (until - at) and _delivers_share(tag, brought, share)

    def suspects(self, now: float) -> list[int]:
        """Return the tags of paths whose probes are missing and whose edges have not been asked lately."""
        return [
            tag
            for tag, each in self.paths.items()
            if now - each.heard > SUSPECT_MISSED * each.pace
            and self._hops[tag] not in self.dead
            and (each.rx is None or now - each.rx.at > each.pace)
        ]

    def queued_paths(self, now: float) -> list[int]:
        """Return the tags of paths that a queue is seen on and whose ends have not been asked lately."""
        pace = max(POLL_INTERVAL, len(self.paths) / MAX_POLLS_PER_SECOND)
        return [
            tag
            for tag, each in self.paths.items()
            if each.queued > QUEUE_THRESHOLD
            and self._hops[tag] not in self.dead
            and now - each.polled >= (pace if now - each.used < UNUSED_AFTER else UNUSED_POLL_INTERVAL)
        ]

    def handle_polled(self, now: float, tags: Iterable[int]) -> None:
        """The edges at the ends of these paths are asked what they sent and what came."""
        for tag in tags:
            if tag in self.paths:
                self.paths[tag].polled = now

    def sharing_links(self, tags: Iterable[int]) -> set[int]:
        """Return the tags of these paths and of all that have a hop with one of them in common."""
        hops = {hop for tag in tags for hop in self._hops.get(tag, ())}
        return {tag for tag, own in self._hops.items() if not hops.isdisjoint(own)}

    def handle_edge_probe(self, now: float, name: str, seconds: float) -> bool:
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
        self._forgive_stall(now)
        died = [
            tag
            for tag, each in self.paths.items()
            if each.late(now, DEAD_MISSED)
            and not each.unanswered(now)
            and self._is_no_stall(now, each)
            and self._hops[tag] not in self.dead
            and (each.answered or now - each.since > FIRST_PROBE_TIMEOUT)
            and not self._is_spared(now, tag, each)
        ]
        died += [
            tag for tag in self._losing if tag in self.paths and tag not in died and self._hops[tag] not in self.dead
        ]
        self._losing.clear()
        for tag in died:
            self._hold_down(now, self._hops[tag])
        rested = [hops for hops, until in self.dead.items() if until <= now]
        for hops in rested:
            del self.dead[hops]
        gone = {name for name, each in self.edges.items() if each.late(now, EDGE_DEAD_MISSED)} - self.silent
        self.silent |= gone
        return died, bool(rested or gone)

    def _is_no_stall(self, now: float, each: ProbedTarget) -> bool:
        """Whether others are still heard, or all have been silent for so long that it is no hiccup of ours."""
        others = max((other.heard for other in self.paths.values() if other is not each), default=each.heard)
        return others > each.heard + SUSPECT_MISSED * each.pace or each.late(now, ALL_SILENT_FACTOR * DEAD_MISSED)

    def _hold_down(self, now: float, hops: Hops) -> None:
        rest, until = self._hold_downs.get(hops, (0.0, 0.0))
        rest = min(2 * rest, MAX_HOLD_DOWN) if rest and now - until < REPEAT_WINDOW else HOLD_DOWN
        self._hold_downs = {
            way: (was, end) for way, (was, end) in self._hold_downs.items() if now - end < REPEAT_WINDOW
        }
        self._hold_downs[hops] = rest, now + rest
        self.dead[hops] = now + rest

    def _is_spared(self, now: float, tag: int, each: ProbedTarget) -> bool:
        """Whether nobody uses a path, and all its hops work for others: what its probes met is a queue of theirs."""
        since = now - DEAD_MISSED * each.pace
        unused = each.rx is not None and now - each.used > UNUSED_AFTER
        return unused and all(self._last_delivery.get(hop, 0.0) > since for hop in self._hops[tag])

    def _forgive_stall(self, now: float) -> None:
        """If we were held up ourselves, probes may have come that nobody has read yet: silence is counted anew."""
        if self._judged is not None and now - self._judged > 2 * PROBE_INTERVAL and self.paths:
            for each in (*self.paths.values(), *self.edges.values()):
                each.heard = max(each.heard, now - each.pace)
        self._judged = now

    def poll_timeout(self) -> float | None:
        """Return when the next probe is due."""
        every = [each.due for each in (*self.paths.values(), *self.edges.values())]
        return min([*every, *self.dead.values()], default=None)
