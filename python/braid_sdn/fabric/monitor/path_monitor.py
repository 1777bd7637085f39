"""Liveness of paths and edges, by probes along each tag and out to each edge.

A path's probe matches the same rules as its packets. After DEAD_MISSED missed probes in a row, while other paths'
arrive, the path is dead: edges stop using it, and each of its links is checked, to find the failed one. After
HOLD_DOWN the path may be used again.

A full queue drops probes as it drops packets. So a path that delivers packets is alive without probes, and an unused
one is left alone while all its links deliver other traffic. If probes find room in a queue where packets do not, the
counters of the edges at both ends show the loss (`loss`).

What the controller itself sends is no failure. After long frames of its own (`probe_train`, `frame_sizes`) have left
for a hop, the probes of paths over it do not count as missing until one arrives that was sent later: a path is a
FIFO, so these frames have left its queues then. That lasts OWN_DELAY at most, and begins only where no probe was
missing.

Edges probe the paths from them by themselves, and more often than the controller can where there are many. A path
that its edge tells to be silent is dead at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.loss import CounterSample, Ledger
from braid_sdn.fabric.plan.plan import Edge, TaggedPath
from braid_sdn.fabric.plan.planner import Hops
from braid_sdn.fabric.view.latency import BASE_WINDOW, WindowedMinimum

Hop = tuple[PortId, PortId]

#: Seconds between two probes of a path while there are few.
PROBE_INTERVAL = 0.02
#: Probes a second over all paths: with more paths each is probed less often, the used ones last.
MAX_PROBES_PER_SECOND = 400.0
#: Part of them that is for used paths, if there are so many.
USED_PROBE_SHARE = 0.75
#: Seconds without a packet after which a path is probed as an unused one: its edges are asked every 2 s.
PROBED_AS_USED = 6.0
#: Seconds for which an edge counts as probing a path after it said so: it reports at least every ten.
WATCHED_TIME = 15.0
#: Seconds between two looks at which paths are used.
PACING_INTERVAL = 0.5
#: Missed probes in a row that make a path dead: with PROBE_INTERVAL some 100 ms and the path's latency. A full queue
#: drops probes too; then the counters of the edge at the path's end show arriving packets. If its report is late, as
#: on a busy machine, it is waited for as long again.
DEAD_MISSED = 5
#: Probe intervals between the edge's first and last report since probes are missing: in less, no packet may have
#: arrived by chance.
MIN_SAMPLE_PROBES = 2
#: Missed probes in a row before the edge at a path's end is polled for its counters.
SUSPECT_MISSED = 2
#: Part of what is sent by it, or of its share of packets, that a path must deliver to count as alive without probes.
MIN_SHARE_RATIO = 0.25
#: Part of its former packet rate that it must deliver.
MIN_RATE_RATIO = 0.25
#: Seconds without a packet after which a path counts as unused: a sender that lost everything may be waiting.
UNUSED_AFTER = 1.0
#: Seconds over which the packet rate is measured.
MIN_RATE_SPAN = 0.5
#: Fewer packets prove nothing about a share: others' traffic lets some through.
MIN_PACKETS = 4
#: Queueing delay of a probe, seconds, from which on the edges at both ends are polled.
QUEUE_THRESHOLD = 0.005
#: Seconds between two such polls of a used path, and of an unused one; and the limit of polls a second over all.
POLL_INTERVAL = 0.05
UNUSED_POLL_INTERVAL = 0.5
MAX_POLLS_PER_SECOND = 200.0
#: Seconds within which a new path's first probe must arrive.
FIRST_PROBE_TIMEOUT = 2.0
#: Factor of the timeout while all paths are silent: the controller, or the switches' machine, may have stalled.
ALL_SILENT_FACTOR = 5
#: Seconds for which a dead path is not used: longer than counters need to show that others fill it. Doubled each time
#: it dies again within REPEAT_WINDOW, up to MAX_HOLD_DOWN.
HOLD_DOWN = 3.0
MAX_HOLD_DOWN = 12.0
REPEAT_WINDOW = 30.0

#: Seconds for which probes may be behind the controller's own long frames.
OWN_DELAY = 1.0
#: A probe bears its time in nanoseconds, rounded; seconds.
CLOCK_ERROR = 1e-6

#: Seconds between two probes of an edge, and the missed ones that make it silent.
EDGE_PROBE_INTERVAL = 1.0
EDGE_DEAD_MISSED = 3


@dataclass
class ProbedTarget:
    """A path or an edge that is probed."""

    since: float
    #: When the next probe is due.
    due: float
    pace: float
    heard: float
    #: Seconds from end to end; empty until the first probe has arrived.
    trip: WindowedMinimum = field(default_factory=WindowedMinimum)
    answered: bool = False
    #: Queueing delay of the last probe, seconds: its time minus the minimum.
    queued: float = 0.0
    #: Travel time of the last probe, seconds.
    last: float = 0.0
    #: Least travel time of minutes: a queue that stands for as long as `trip` remembers is one still.
    base: WindowedMinimum = field(default_factory=lambda: WindowedMinimum(BASE_WINDOW))
    #: Least queueing delay since it was last taken, seconds.
    least_queue: float = float("inf")
    #: Last counter of the edge at its end.
    rx: CounterSample | None = None
    #: When packets last arrived by it or by another path of its pair.
    used: float = float("-inf")
    #: When the controller's own long frames last left for a hop of it, and until when probes may be behind them.
    behind: float = float("-inf")
    excused: float = float("-inf")
    #: Time at which the edge at its beginning last told that it probes the path too.
    watched: float = float("-inf")

    #: The edge's counters of each path in its first report after the last probe, and the time of that.
    before: tuple[dict[int, int], float] | None = None
    #: Packets a second received by it while probes last arrived.
    rate: float = 0.0
    #: Counter and time of the last measurement of `rate`.
    mark: tuple[int, float] = (0, float("-inf"))
    #: Packets sent and received by it, and when its edges were last polled.
    ledger: Ledger = field(default_factory=Ledger)
    polled: float = float("-inf")

    def late(self, now: float, missed: int) -> bool:
        """Return true if `missed` probes in a row are missing.

        Probes arrive at the interval at which they are sent, whatever the latency, unless it grows: a queue that a
        window fills may double from one probe to the next. This is ignored if the edge reports counters.
        """
        return now - self.heard > missed * self.pace + (self.queued if self.rx is None else 0.0)

    def unanswered(self, now: float) -> bool:
        """Return true if the edge's reports since probes are missing span too little time, and more may come.

        Its first report is the baseline for later ones; within a few milliseconds no packet may arrive.
        """
        if self.rx is None or self.late(now, 2 * DEAD_MISSED):
            return False
        return self.before is None or self.rx.since - self.before[1] < MIN_SAMPLE_PROBES * self.pace

    def hear(self, now: float, seconds: float) -> None:
        """Take in a probe and its travel time."""
        self.heard, self.answered, self.before = now, True, None
        if now - seconds > self.behind + CLOCK_ERROR:
            self.excused = float("-inf")
        self.trip.add(now, seconds)
        self.base.add(now, seconds)
        self.least_queue = min(self.least_queue, seconds - (self.base.get(now) or seconds))
        self.last = seconds
        self.queued = seconds - (self.trip.get(now) or seconds)


def _delivers_share(tag: int, brought: Mapping[int, int], share: Mapping[int, float]) -> bool:
    """Return true if a path delivered about its share of all packets."""
    others = [count / share[other] for other, count in brought.items() if other != tag]
    # Deliveries by one path alone prove nothing: the sender may have stopped because of the others.
    if len(share) > 1 and not any(others):
        return False
    return brought[tag] / share[tag] >= MIN_SHARE_RATIO * max(others, default=0.0)


def _is_no_stall(now: float, each: ProbedTarget, newest: Sequence[float]) -> bool:
    """Return true if other paths' probes arrive, or all are missing for too long to be a stall of ours.

    `newest` are the two latest times at which any path was heard.
    """
    others = newest[each.heard == newest[0]] if len(newest) > 1 else each.heard
    return others > each.heard + SUSPECT_MISSED * each.pace or each.late(now, ALL_SILENT_FACTOR * DEAD_MISSED)


@dataclass
class PathMonitor:
    """All paths and edges that are probed. Times are seconds."""

    paths: dict[int, ProbedTarget] = field(default_factory=dict)
    edges: dict[str, ProbedTarget] = field(default_factory=dict)
    #: Dead paths, and until when they are not used.
    dead: dict[Hops, float] = field(default_factory=dict)
    #: Edges that do not answer.
    silent: set[str] = field(default_factory=set)
    #: Last hold-down of each path, and its end.
    _hold_downs: dict[Hops, tuple[float, float]] = field(default_factory=dict)
    _hops: dict[int, Hops] = field(default_factory=dict)
    #: Tags of the paths over each hop.
    _tags: dict[Hop, list[int]] = field(default_factory=dict)
    #: When a probe or a packet last arrived over a hop.
    _last_delivery: dict[Hop, float] = field(default_factory=dict)
    _judged: float | None = None
    _paced: float = float("-inf")
    #: Paths that others' traffic fills while other paths of the pair work.
    _losing: set[int] = field(default_factory=set)
    #: Paths by which nothing arrives, as the edges at their beginnings tell.
    _silent_paths: set[int] = field(default_factory=set)

    def set_targets(self, now: float, paths: Iterable[tuple[TaggedPath, Hops]], edges: Iterable[Edge]) -> None:
        """Set the paths and edges to probe."""
        wanted = {path.tag: hops for path, hops in paths}
        self._hops, self._tags = wanted, {}
        for tag, hops in wanted.items():
            for hop in hops:
                self._tags.setdefault(hop, []).append(tag)
        self._last_delivery = {hop: at for hop, at in self._last_delivery.items() if hop in self._tags}
        self.paths = {tag: self.paths.get(tag) or ProbedTarget(now, now, PROBE_INTERVAL, now) for tag in wanted}
        self._silent_paths &= wanted.keys()
        self._set_paces(now)
        names = [edge.name for edge in edges]
        self.edges = {
            name: self.edges.get(name) or ProbedTarget(now, now, EDGE_PROBE_INTERVAL, now) for name in names
        }
        self.silent &= set(names)

    def _set_paces(self, now: float) -> None:
        """Share the probes among the paths: a failure of a used one matters at once."""
        self._paced = now
        known = [each for each in self.paths.values() if now - each.used < PROBED_AS_USED]
        if len(known) / PROBE_INTERVAL > USED_PROBE_SHARE * MAX_PROBES_PER_SECOND:
            # Too many for the shortest interval: those that edges probe as well come after the others.
            known = [each for each in known if now - each.watched >= WATCHED_TIME]
        quickly = {id(each) for each in known}
        used = len(known)
        unused = len(self.paths) - used
        all_alike = max(PROBE_INTERVAL, len(self.paths) / MAX_PROBES_PER_SECOND)
        quick = min(all_alike, max(PROBE_INTERVAL, used / (USED_PROBE_SHARE * MAX_PROBES_PER_SECOND)))
        slow = max(all_alike, unused / (MAX_PROBES_PER_SECOND - used / quick)) if all_alike > quick else all_alike
        for number, each in enumerate(self.paths.values()):
            pace = quick if id(each) in quickly else slow
            if pace < each.pace:
                # It is due sooner; until now nothing was missed at the new pace.
                each.due, each.heard = min(each.due, now + pace), max(each.heard, now)
            elif pace > each.pace and each.due > now:
                # Spread, so that not all are due at once.
                each.due = now + pace * (number + 1) / len(self.paths)
            each.pace = pace

    def revive(self, now: float, switch: int) -> None:
        """Take in that a switch reconnected: silent paths through it may work again once it has its rules."""
        for tag, hops in self._hops.items():
            if any(switch in (a.switch, b.switch) for a, b in hops):
                self.paths[tag].heard = max(self.paths[tag].heard, now)
        for hops in [hops for hops in self.dead if any(switch in (a.switch, b.switch) for a, b in hops)]:
            del self.dead[hops]

    def handle_own_frames(self, now: float, hops: Iterable[Hop]) -> None:
        """Take in that the controller has sent long frames over these hops."""
        for tag in self._over(hops):
            each = self.paths[tag]
            if now < each.excused:
                # More frames meanwhile give a silent path no more time.
                each.behind = now
            elif each.excused == float("-inf") and self.is_answering(now, tag):
                # Nor do later ones, until a probe has come that was sent after those before.
                each.excused, each.behind = now + OWN_DELAY, now

    def handle_path_probe(self, now: float, tag: int, seconds: float) -> None:
        """Take in a path's probe."""
        watched = self.paths.get(tag)
        if watched is not None:
            if now - watched.heard > SUSPECT_MISSED * watched.pace:
                # All packets sent before it have arrived or are lost: the edges' counters show it now.
                watched.polled = float("-inf")
            watched.hear(now, seconds)
            if watched.excused == float("-inf"):
                # An edge that called it silent waited for what was behind our frames.
                self._silent_paths.discard(tag)
            watched.ledger.handle_probe(now, now - seconds)
            self._record_delivery(now, tag)

    def handle_states(self, now: float, probed: Iterable[int], silent: Iterable[int]) -> bool:
        """Take in which paths the edges at their beginnings probe, and which are silent; return true if one died."""
        for tag in probed:
            if tag in self.paths:
                self.paths[tag].watched = now
        self._silent_paths |= {tag for tag in silent if tag in self.paths and self._hops[tag] not in self.dead}
        return any(now >= self.paths[tag].excused for tag in self._silent_paths)

    def is_watched(self, now: float, tag: int) -> bool:
        """Return true if the edge at a path's beginning probes it too."""
        return tag in self.paths and now - self.paths[tag].watched < WATCHED_TIME

    def has_brought(self, now: float, tags: Iterable[int]) -> bool:
        """Return true if the edge at the end of these paths of a pair got packets by one of them lately."""
        return any(now - self.paths[tag].used < PROBED_AS_USED for tag in tags if tag in self.paths)

    def take_least_queue(self, tag: int) -> float | None:
        """Return the least queueing delay of a path's probes since the last call, seconds; None without a probe."""
        watched = self.paths.get(tag)
        if watched is None or watched.least_queue == float("inf"):
            return None
        least, watched.least_queue = watched.least_queue, float("inf")
        return least

    def is_used(self, now: float, tags: Iterable[int]) -> bool:
        """Return true if packets arrived by one of these paths lately, or a queue stands in front of one."""
        watched = [self.paths[tag] for tag in tags if tag in self.paths]
        return any(now - each.used < PROBED_AS_USED or each.queued > QUEUE_THRESHOLD for each in watched)

    def has_queue(self, tag: int) -> bool:
        """Return true if a queue stands in front of a path."""
        return tag in self.paths and self.paths[tag].queued > QUEUE_THRESHOLD

    def is_answering(self, now: float, tag: int) -> bool:
        """Return true if no probe of a path is missing."""
        each = self.paths.get(tag)
        return each is not None and each.answered and now - each.heard <= SUSPECT_MISSED * each.pace

    def longest(self) -> float:
        """Return the longest travel time of the last probes, seconds."""
        return max((each.last for each in self.paths.values()), default=0.0)

    def _record_delivery(self, now: float, tag: int) -> None:
        for hop in self._hops[tag]:
            self._last_delivery[hop] = now

    def handle_rx(self, now: float, since: float, counts: Mapping[int, int], share: Mapping[int, float]) -> None:
        """Take in an edge's counters of all paths of a pair, sampled after `since`, with the paths' shares.

        A path that delivers about its share, and about its former rate, while probes are missing is alive: only
        probes are missing, which a full queue drops too. A path that delivers far less counts as dead: it may be full
        of others' traffic.
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
            # Measured only while its probes arrive, however often it is polled.
            if now - at >= MIN_RATE_SPAN and now - each.heard <= SUSPECT_MISSED * each.pace:
                rate = (counts[tag] - count) / (now - at)
                # While there is a queue this is only what others leave.
                each.rate = max(rate, each.rate) if each.queued > QUEUE_THRESHOLD else rate
                each.mark = counts[tag], now
            each.rx = CounterSample(since, now, counts[tag])
            each.ledger.handle_rx(each.rx)
        self._compare(known)

    def handle_tx(self, now: float, since: float, counts: Mapping[int, int], tags: Iterable[int]) -> None:
        """Take in the packets that an edge has sent by all paths of a pair, sampled after `since`."""
        known = {tag: watched for tag in tags if tag in counts and (watched := self.paths.get(tag)) is not None}
        for tag, each in known.items():
            each.ledger.handle_tx(CounterSample(since, now, counts[tag]))
        self._compare(known)

    def _compare(self, beside: Mapping[int, ProbedTarget]) -> None:
        """Record the paths of a pair that others fill, unless they fill all: then none is better."""
        losing = {tag for tag, each in beside.items() if each.ledger.is_losing(each.rate)}
        working = [tag for tag in beside if tag not in losing and self._hops[tag] not in self.dead]
        if working:
            self._losing |= losing

    def _delivers(self, until: float, tag: int, counts: Mapping[int, int], share: Mapping[int, float]) -> bool:
        """Return true if a path delivered enough since its probes are missing; `until` is the first sample time."""
        each = self.paths[tag]
        if each.before is None:
            return False
        was, at = each.before
        brought = {other: counts[other] - was[other] for other in share if other in counts and other in was}
        if brought[tag] < max(MIN_PACKETS, MIN_RATE_RATIO * each.rate * (until - at)):
            return False
        # An edge sends by the path of the earliest arrival, which may be one alone for long.
        sent = each.ledger.sent_since(at)
        return bool(sent and brought[tag] >= MIN_SHARE_RATIO * sent) or _delivers_share(tag, brought, share)

    def suspects(self, now: float) -> list[int]:
        """Return the tags of paths whose probes are missing and whose edges were not polled lately."""
        return [
            tag
            for tag, each in self.paths.items()
            if now - each.heard > SUSPECT_MISSED * each.pace
            and self._hops[tag] not in self.dead
            and (each.rx is None or now - each.rx.at > each.pace)
        ]

    def queued_paths(self, now: float) -> list[int]:
        """Return the tags of paths with a queue whose edges were not polled lately."""
        pace = max(POLL_INTERVAL, len(self.paths) / MAX_POLLS_PER_SECOND)
        return [
            tag
            for tag, each in self.paths.items()
            if each.queued > QUEUE_THRESHOLD
            and self._hops[tag] not in self.dead
            and now - each.polled >= (pace if now - each.used < UNUSED_AFTER else UNUSED_POLL_INTERVAL)
        ]

    def handle_polled(self, now: float, tags: Iterable[int]) -> None:
        """Record that the edges of these paths are polled."""
        for tag in tags:
            if tag in self.paths:
                self.paths[tag].polled = now

    def hops_of(self, tag: int) -> Hops:
        """Return the hops of a path that is probed; none of others."""
        return self._hops.get(tag, ())

    def sharing_links(self, tags: Iterable[int]) -> set[int]:
        """Return the tags of these paths and of all that share a hop with one of them."""
        return self._over(hop for tag in tags for hop in self._hops.get(tag, ()))

    def handle_edge_probe(self, now: float, name: str, seconds: float) -> bool:
        """Take in an edge's probe; return true if the edge had been silent."""
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
            # Probes that were not sent in time are skipped, and do not count as missed.
            if now - each.due > each.pace:
                each.heard = max(each.heard, now - each.pace)
            each.due = max(each.due + each.pace, now)
        return tags, names

    def judge(self, now: float) -> tuple[list[int], bool]:
        """Return the tags of paths that just died, and true if anything else changed that a plan depends on."""
        self._forgive_stall(now)
        if now - self._paced >= PACING_INTERVAL:
            self._set_paces(now)
        newest = heapq.nlargest(2, (each.heard for each in self.paths.values()))
        died = dict.fromkeys(
            tag
            for tag, each in self.paths.items()
            if each.late(now, DEAD_MISSED)
            and self._hops[tag] not in self.dead
            and now >= each.excused
            and not each.unanswered(now)
            and _is_no_stall(now, each, newest)
            and (each.answered or now - each.since > FIRST_PROBE_TIMEOUT)
            and not self._is_spared(now, tag, each)
        )
        died |= dict.fromkeys(tag for tag in self._losing if tag in self.paths and self._hops[tag] not in self.dead)
        believed = {tag for tag in self._silent_paths if now >= self.paths[tag].excused}
        died |= dict.fromkeys(tag for tag in believed if self._hops[tag] not in self.dead)
        self._losing.clear()
        self._silent_paths -= believed
        if died:
            self._hold_down(now, [self._hops[tag] for tag in died])
        rested = [hops for hops, until in self.dead.items() if until <= now]
        for hops in rested:
            del self.dead[hops]
        gone = {name for name, each in self.edges.items() if each.late(now, EDGE_DEAD_MISSED)} - self.silent
        self.silent |= gone
        return list(died), bool(rested or gone)

    def _over(self, hops: Iterable[Hop]) -> set[int]:
        """Return the tags of the paths over these hops."""
        return {tag for hop in hops for tag in self._tags.get(hop, ())}

    def _hold_down(self, now: float, ways: Iterable[Hops]) -> None:
        self._hold_downs = {
            hops: (was, end) for hops, (was, end) in self._hold_downs.items() if now - end < REPEAT_WINDOW
        }
        for hops in ways:
            before, _ = self._hold_downs.get(hops, (0.0, 0.0))
            rest = min(2 * before, MAX_HOLD_DOWN) if before else HOLD_DOWN
            self._hold_downs[hops] = rest, now + rest
            self.dead[hops] = now + rest

    def _is_spared(self, now: float, tag: int, each: ProbedTarget) -> bool:
        """Return true if a path is unused and all its hops deliver: others' queue dropped its probes."""
        since = now - DEAD_MISSED * each.pace
        unused = each.rx is not None and now - each.used > UNUSED_AFTER
        return unused and all(self._last_delivery.get(hop, 0.0) > since for hop in self._hops[tag])

    def _forgive_stall(self, now: float) -> None:
        """Restart timeouts if the controller stalled: probes may have arrived that are not read yet."""
        if self._judged is not None and now - self._judged > 2 * PROBE_INTERVAL and self.paths:
            for each in (*self.paths.values(), *self.edges.values()):
                each.heard = max(each.heard, now - each.pace)
        self._judged = now

    def poll_timeout(self) -> float | None:
        """Return when the next probe is due, or a path that an edge called silent is excused no longer."""
        every = [each.due for each in (*self.paths.values(), *self.edges.values())]
        told = [self.paths[tag].excused for tag in self._silent_paths]
        return min([*every, *self.dead.values(), *told], default=None)
