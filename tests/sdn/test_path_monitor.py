"""When a path counts as dead: silence, but not a queue that grows."""

from __future__ import annotations

import copy
import random

import pytest

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.path_monitor import (
    ALL_SILENT_FACTOR,
    DEAD_MISSED,
    FIRST_PROBE_TIMEOUT,
    HOLD_DOWN,
    MAX_HOLD_DOWN,
    OWN_DELAY,
    PACING_INTERVAL,
    PROBE_INTERVAL,
    PROBED_AS_USED,
    REPEAT_WINDOW,
    SUSPECT_MISSED,
    WATCHED_TIME,
    PathMonitor,
)
from braid_sdn.fabric.plan.plan import TaggedPath

HOPS = ((PortId(1, 1), PortId(2, 1)),)
PATH = TaggedPath(7, (PortId(1, 1), PortId(2, 2)))


def watched() -> PathMonitor:
    monitor = PathMonitor()
    monitor.set_targets(0.0, [(PATH, HOPS)], [])
    return monitor


def looked_at(monitor: PathMonitor, since: float, until: float) -> bool:
    """Judge as often as probes are due; whether the path died."""
    now = since
    while now < until:
        if monitor.judge(now)[0]:
            return True
        now += PROBE_INTERVAL / 2
    return False


def test_a_path_that_falls_silent_is_dead_after_some_probes() -> None:
    monitor = watched()
    for number in range(50):
        monitor.handle_path_probe(number * PROBE_INTERVAL, 7, 0.025)
        monitor.judge(number * PROBE_INTERVAL)
    last, patience = 49 * PROBE_INTERVAL, ALL_SILENT_FACTOR * DEAD_MISSED * PROBE_INTERVAL
    # It is the only one, so all are silent: that may be our own doing.
    assert not looked_at(monitor, last, last + patience)
    assert looked_at(monitor, last + patience, last + patience + 2 * PROBE_INTERVAL)
    assert HOPS in monitor.dead


def silent(monitor: PathMonitor, since: float, *, other_heard: bool) -> float:
    """Path 7 is silent from here on; return how long it took until it counted as dead."""
    now = since
    while now < since + 2.0:
        now += PROBE_INTERVAL / 2
        if other_heard:
            monitor.handle_path_probe(now, 8, 0.025)
        if 7 in monitor.judge(now)[0]:
            return now - since
    return 2.0


def test_a_path_that_falls_silent_while_others_are_heard_is_dead_sooner() -> None:
    assert DEAD_MISSED * PROBE_INTERVAL <= silent(two(), 1.0, other_heard=True) <= (DEAD_MISSED + 1) * PROBE_INTERVAL
    assert silent(two(), 1.0, other_heard=False) > ALL_SILENT_FACTOR * DEAD_MISSED * PROBE_INTERVAL


def test_probes_behind_long_frames_of_ours_are_not_missing_until_a_later_one_has_come() -> None:
    usual = silent(two(), 1.0, other_heard=True)
    for hops, took in ((HOPS, OWN_DELAY), ((HOPS[0][::-1],), usual)):
        monitor = two()
        monitor.handle_own_frames(1.0, hops)
        assert silent(monitor, 1.0, other_heard=True) == pytest.approx(took, abs=PROBE_INTERVAL)
    # A probe that was sent before them says nothing of them; one that was sent later ends it.
    for sent, took in ((0.99, OWN_DELAY - 0.3), (1.02, usual)):
        monitor = two()
        monitor.handle_own_frames(1.0, HOPS)
        monitor.handle_path_probe(1.3, 7, 1.3 - sent)
        # A delay that was seen is no silence either.
        queued = 1.3 - sent - 0.025 if sent > 1.0 else 0.0
        assert silent(monitor, 1.3, other_heard=True) == pytest.approx(took + queued, abs=PROBE_INTERVAL)


def test_frames_of_ours_give_a_silent_path_no_more_time() -> None:
    monitor = two()
    now = 1.0
    while 7 not in monitor.judge(now)[0]:
        now += PROBE_INTERVAL / 2
        monitor.handle_path_probe(now, 8, 0.025)
        if now > 1.05:
            monitor.handle_own_frames(now, HOPS)
    assert now - 1.0 <= (DEAD_MISSED + 1) * PROBE_INTERVAL
    monitor, now = two(), 1.0
    while 7 not in monitor.judge(now)[0]:
        monitor.handle_own_frames(now, HOPS)
        now += PROBE_INTERVAL / 2
        monitor.handle_path_probe(now, 8, 0.025)
    assert now - 1.0 <= OWN_DELAY + PROBE_INTERVAL


def test_an_edge_whose_probes_are_behind_long_frames_of_ours_is_not_believed() -> None:
    monitor = two()
    monitor.handle_own_frames(1.0, HOPS)
    assert not monitor.handle_states(1.05, [], [7])
    # It waited for what was behind these frames.
    monitor.handle_path_probe(1.06, 7, 0.025)
    assert monitor.judge(1.06)[0] == []
    assert monitor.handle_states(1.07, [], [7])


def test_an_edge_that_called_a_path_silent_behind_our_frames_is_believed_once_they_must_have_left() -> None:
    monitor = two()
    monitor.handle_own_frames(1.0, HOPS)
    assert not monitor.handle_states(1.05, [], [7])
    assert monitor.judge(1.06)[0] == []
    assert monitor.poll_timeout() is not None
    for now in (1.2, 1.5, 1.8):
        monitor.handle_own_frames(now, HOPS)
        monitor.handle_path_probe(now, 8, 0.025)
    monitor.handle_path_probe(1.0 + OWN_DELAY, 8, 0.025)
    assert monitor.judge(1.0 + OWN_DELAY)[0] == [7]


@pytest.mark.parametrize(("paths", "stall_every"), [(100, 1e9), (100, 0.45), (1000, 4.0)])
def test_our_frames_excuse_no_dead_path_again_and_again(paths: int, stall_every: float) -> None:
    """A path dies at 10 s among many that are probed rarely; its edge tells it once, and our frames go on."""
    monitor, now, stalled, ours = PathMonitor(), 0.0, 0.0, 0.0
    beyond = [((PortId(2, 2), PortId(3, tag)),) for tag in range(paths)]
    monitor.set_targets(
        0.0, [(TaggedPath(tag, (PortId(1, 1), PortId(2, 2))), HOPS + beyond[tag]) for tag in range(paths)], []
    )
    is_told, died = False, None
    while died is None and now < 20:
        is_stall = now >= stalled + stall_every
        now += 0.05 if is_stall else 0.02
        stalled = now if is_stall else stalled
        for tag in monitor.due(now)[0]:
            if tag != 7 or now < 10:
                monitor.handle_path_probe(now + 0.001, tag, 0.001)
        if now >= ours + 0.2:
            monitor.handle_own_frames(now, HOPS)
            ours = now
        if now >= 10.3 and not is_told:
            monitor.handle_states(now, [7], [7])
            is_told = True
        if 7 in monitor.judge(now)[0]:
            died = now
    assert died is not None
    assert died < 10.3 + OWN_DELAY


def test_a_path_that_dies_again_and_again_rests_longer_each_time() -> None:
    monitor, now, rests = two(), 1.0, []
    for _ in range(4):
        now += silent(monitor, now, other_heard=True)
        rests.append(monitor.dead[HOPS] - now)
        now = monitor.dead[HOPS] + 1.0
        for tag in (7, 8):
            monitor.handle_path_probe(now, tag, 0.025)
        monitor.judge(now)
    assert rests == pytest.approx([HOLD_DOWN, 2 * HOLD_DOWN, MAX_HOLD_DOWN, MAX_HOLD_DOWN])
    now += REPEAT_WINDOW
    for tag in (7, 8):
        monitor.handle_path_probe(now, tag, 0.025)
    monitor.judge(now)
    now += silent(monitor, now, other_heard=True)
    assert monitor.dead[HOPS] - now == pytest.approx(HOLD_DOWN)


def test_a_queue_that_doubles_from_probe_to_probe_is_no_silence() -> None:
    monitor = watched()
    sent = heard = 0.0
    for number in range(50):
        sent = heard = number * PROBE_INTERVAL
        monitor.handle_path_probe(heard, 7, 0.025)
    queue = 0.06
    while queue < 1.0:
        # The next one waits behind what came in the meantime.
        sent += PROBE_INTERVAL
        arrives = max(heard + PROBE_INTERVAL, sent + queue)
        assert not looked_at(monitor, heard, arrives)
        monitor.handle_path_probe(arrives, 7, 0.025 + arrives - sent)
        heard, queue = arrives, 2 * queue
    # It is one once nothing comes any more.
    assert looked_at(monitor, heard, heard + 2.5)


def two() -> PathMonitor:
    """Two paths of the same share, both heard until second 1."""
    monitor = PathMonitor()
    other = TaggedPath(8, (PortId(1, 2), PortId(2, 2)))
    monitor.set_targets(0.0, [(PATH, HOPS), (other, ((PortId(1, 2), PortId(2, 3)),))], [])
    for number in range(51):
        for tag in (7, 8):
            monitor.handle_path_probe(number * PROBE_INTERVAL, tag, 0.025)
        monitor.judge(number * PROBE_INTERVAL)
    return monitor


def told(
    monitor: PathMonitor, counts: dict[int, int], step: dict[int, int], sent: dict[int, int] | None = None
) -> set[int]:
    """Path 7's probes are missing from second 1 on, and the edges are asked about it; return the tags that died.

    `step` is what comes between two answers, and `sent` what is sent.
    """
    dead: set[int] = set()
    out = dict(counts)
    now = 1.0
    while now < 2.0:
        now += PROBE_INTERVAL / 2
        monitor.handle_path_probe(now, 8, 0.025)
        if 7 in monitor.suspects(now):
            counts = {tag: counts[tag] + step[tag] for tag in counts}
            if sent is not None:
                out = {tag: out[tag] + sent[tag] for tag in out}
                monitor.handle_tx(now, now, out, [7, 8])
            monitor.handle_rx(now, now, counts, {7: 0.5, 8: 0.5})
        dead |= set(monitor.judge(now)[0])
    return dead


def test_a_path_that_brings_packets_but_no_probes_works() -> None:
    assert told(two(), {7: 100, 8: 100}, {7: 15, 8: 16}) == set()


def test_a_path_that_brings_what_is_sent_by_it_works_whatever_others_bring() -> None:
    """A flow that one path carries takes no other, and fills that one's queue."""
    assert told(two(), {7: 100, 8: 100}, {7: 15, 8: 0}, {7: 20, 8: 0}) == set()
    assert told(two(), {7: 100, 8: 100}, {7: 5, 8: 60}, {7: 6, 8: 60}) == set()
    assert told(two(), {7: 100, 8: 100}, {7: 5, 8: 60}, {7: 40, 8: 60}) == {7}
    assert told(two(), {7: 100, 8: 100}, {7: 5, 8: 0}, {7: 40, 8: 0}) == {7}


def test_a_path_that_brings_next_to_nothing_does_not() -> None:
    assert told(two(), {7: 100, 8: 100}, {7: 2, 8: 30}) == {7}
    assert told(two(), {7: 100, 8: 100}, {7: 0, 8: 0}) == {7}
    assert told(two(), {7: 100, 8: 100}, {7: 1, 8: 0}) == {7}


def test_a_slow_line_that_is_full_of_our_own_works() -> None:
    """Two packets between two looks: it takes a while until they prove anything, but not too long."""
    assert told(two(), {7: 100, 8: 100}, {7: 2, 8: 2}) == set()


def test_a_path_that_brings_much_less_than_before_does_not_work() -> None:
    """Others fill it, and the sender gives up on the other path too: shares alone would not tell."""
    monitor = two()
    # However often it was asked, and whatever had come before that.
    for at in range(101):
        monitor.handle_rx(at / 100, at / 100, {7: 5000 + 8 * at, 8: 5000 + 8 * at}, {7: 0.5, 8: 0.5})
    counts = {7: 5800, 8: 5800}
    again = copy.deepcopy(monitor)
    assert told(monitor, counts, {7: 4, 8: 4}) == {7}
    assert told(again, counts, {7: 16, 8: 16}) == set()


def told_late(monitor: PathMonitor, step: int) -> float:
    """Path 7's probes are missing from second 1 on, and answers take 70 ms; return when it died."""
    count, next_ = 100, 1.07
    monitor.handle_rx(1.0, 1.0, {7: count, 8: count}, {7: 0.5, 8: 0.5})
    for tick in range(1, 100):
        now = 1.0 + tick * PROBE_INTERVAL / 2
        monitor.handle_path_probe(now, 8, 0.025)
        if now >= next_:
            count, next_ = count + step, next_ + 0.07
            monitor.handle_rx(now, now, {7: count, 8: 100 + tick * 8}, {7: 0.5, 8: 0.5})
        if 7 in monitor.judge(now)[0]:
            return now
    return 2.0


def test_an_edge_that_answers_late_is_waited_for_but_not_for_long() -> None:
    """A machine that is busy lost no packets, and 0.114 s after its last probe both paths of a pair were dead."""
    assert told_late(two(), 60) == 2.0
    assert told_late(two(), 0) <= 1.0 + (2 * DEAD_MISSED + 1) * PROBE_INTERVAL


def test_a_lull_between_two_answers_is_no_verdict() -> None:
    """With others at work too, 10 packets of 1172 a second came in 37 ms, and the whole pair was dead."""
    monitor, counts = two(), {50: 1000, 87: 1003, 125: 1060, 165: 1090}
    monitor.handle_rx(1.0, 1.0, {7: 1000, 8: 1000}, {7: 0.5, 8: 0.5})
    monitor.handle_path_probe(1.0, 7, 0.025)
    for milliseconds in range(1, 180):
        now = 1 + milliseconds / 1000
        monitor.handle_path_probe(now, 8, 0.025)
        if (count := counts.get(milliseconds)) is not None:
            monitor.handle_rx(now, now, {7: count, 8: count}, {7: 0.5, 8: 0.5})
        assert monitor.judge(now)[0] == []


@pytest.mark.parametrize(("arrivals", "asked"), [([1.03, 1.055], []), ([1.055], [7])])
def test_edges_are_asked_at_once_when_a_late_probe_has_come(arrivals: list[float], asked: list[int]) -> None:
    """Whatever was sent before it has come by now, or is lost."""
    monitor = two()
    monitor.handle_rx(1.0, 1.0, {7: 100, 8: 100}, {7: 0.5, 8: 0.5})
    monitor.handle_rx(1.0, 1.0, {7: 101, 8: 101}, {7: 0.5, 8: 0.5})
    monitor.handle_path_probe(1.01, 7, 0.1)
    assert monitor.queued_paths(1.011) == [7]
    monitor.handle_polled(1.011, [7])
    for now in arrivals:
        monitor.handle_path_probe(now, 7, 0.1)
    assert monitor.queued_paths(1.056) == asked


def beside() -> PathMonitor:
    """Path 9 uses the first hop of path 7 and one of its own; all are heard until second 1."""
    monitor = PathMonitor()
    first, onward, other = HOPS[0], (PortId(2, 2), PortId(3, 1)), (PortId(2, 3), PortId(4, 1))
    long = TaggedPath(9, (PortId(1, 1), PortId(2, 3), PortId(4, 2)))
    monitor.set_targets(0.0, [(TaggedPath(7, (PortId(1, 1), PortId(2, 2), PortId(3, 2))), (first, onward)),
                       (long, (first, other))], [])  # fmt: skip
    for number in range(51):
        for tag in (7, 9):
            monitor.handle_path_probe(number * PROBE_INTERVAL, tag, 0.025)
        monitor.judge(number * PROBE_INTERVAL)
    return monitor


def filled(monitor: PathMonitor, used: int, *, last_hop_heard: bool) -> set[int]:
    """Others of ours fill the first hop, so that no probe of 9 passes; return the tags that died."""
    counts, dead, now = {7: 100, 9: 100}, set[int](), 1.0
    while now < 2.0:
        now += PROBE_INTERVAL / 2
        monitor.handle_path_probe(now, 7, 0.4)
        if last_hop_heard:
            monitor._last_delivery[PortId(2, 3), PortId(4, 1)] = now
        if 9 in monitor.suspects(now):
            counts = {7: counts[7] + 16, 9: counts[9] + used}
            monitor.handle_rx(now, now, {7: counts[7]}, {7: 1.0})
            monitor.handle_rx(now, now, {9: counts[9]}, {9: 1.0})
        dead |= set(monitor.judge(now)[0])
    return dead


def test_a_path_that_nobody_uses_is_let_alone_while_its_hops_bring_what_others_send() -> None:
    assert filled(beside(), 0, last_hop_heard=True) == set()
    # Used, it has to bring something itself; and a hop that brings nothing is no queue of others.
    assert filled(beside(), 1, last_hop_heard=True) == {9}
    assert filled(beside(), 0, last_hop_heard=False) == {9}


def test_a_path_whose_sender_waits_is_not_unused() -> None:
    """Others fill it: a packet passes now and then, and between them nothing comes by either path."""
    monitor, counts, now, dead = two(), {7: 100, 8: 100}, 1.0, set[int]()
    for step in range(100):
        now += PROBE_INTERVAL / 2
        monitor.handle_path_probe(now, 8, 0.025)
        dead |= set(monitor.judge(now)[0])
        counts = {7: counts[7] + (step % 7 == 0), 8: counts[8]}
        monitor.handle_rx(now, now, counts, {7: 0.5, 8: 0.5})
        monitor.handle_rx(now, now, counts, {7: 0.5, 8: 0.5})
    assert dead == {7}


def test_who_has_a_hop_in_common_is_asked_too() -> None:
    assert beside().sharing_links([9]) == {7, 9}
    assert two().sharing_links([7]) == {7}


def test_it_is_known_how_long_packets_are_under_way_at_most() -> None:
    monitor = two()
    monitor.handle_path_probe(1.01, 8, 0.8)
    assert monitor.longest() == 0.8
    monitor.handle_path_probe(1.03, 8, 0.1)
    assert monitor.longest() == 0.1


def many(number: int, used: int) -> PathMonitor:
    """Paths over hops of their own, of which the first ones bring packets."""
    monitor = PathMonitor()
    ways = [
        (TaggedPath(tag, (PortId(1, tag), PortId(2, 99))), ((PortId(1, tag), PortId(2, tag)),))
        for tag in range(2, 2 + number)
    ]
    monitor.set_targets(0.0, ways, [])
    for tag in list(monitor.paths)[:used]:
        monitor.handle_rx(0.1, 0.0, {tag: 0}, {tag: 1.0})
        monitor.handle_rx(0.2, 0.1, {tag: 100}, {tag: 1.0})
    return monitor


@pytest.mark.parametrize("number", [4, 64, 256, 1000])
def test_used_paths_are_probed_quickly_however_many_there_are(number: int) -> None:
    monitor, now, sent, dead = many(number, 4), 0.2, dict[int, int](), None
    while now < 8.0 and dead is None:
        now += 0.005
        # The path with tag 2 falls silent after 3 s.
        for tag in monitor.due(now)[0]:
            # The first probe of each is sent at once.
            sent[tag] = sent.get(tag, 0) + (now > 1.0)
            if tag != 2 or now < 3.0:
                monitor.handle_path_probe(now, tag, 0.02)
        for tag in range(2, 6):
            monitor.paths[tag].used = now
        if 2 in monitor.judge(now)[0]:
            dead = now
    assert dead is not None
    assert dead - 3.0 < 0.3
    assert sum(sent.values()) / (dead - 1.0) <= 1.1 * 400
    # None is forgotten.
    assert len(sent) == number


def test_a_path_that_its_edge_tells_to_be_silent_is_dead_at_once_and_rests() -> None:
    monitor = two()
    assert not monitor.handle_states(1.0, [7, 8, 99], [99])
    assert monitor.judge(1.0) == ([], False)
    # Its probes arrive: the edge's verdict is about what is sent by it.
    monitor.handle_path_probe(1.0, 7, 0.025)
    assert monitor.handle_states(1.0, [7, 8], [7])
    due = monitor.poll_timeout()
    assert due is not None
    assert due < 1.0
    assert monitor.judge(1.0)[0] == [7]
    # Said again, until the edge has another table.
    assert not monitor.handle_states(1.1, [7, 8], [7])
    assert monitor.judge(1.1)[0] == []
    assert monitor.dead[HOPS] == pytest.approx(1.0 + HOLD_DOWN)


@pytest.mark.parametrize("number", [64, 256])
def test_paths_that_edges_probe_leave_the_probes_to_others_that_are_used(number: int) -> None:
    monitor, now, sent = many(number, number), 0.2, dict[int, int]()
    watched = list(monitor.paths)[4:]
    while now < 3.0:
        now += 0.005
        for tag in monitor.paths:
            monitor.paths[tag].used = now
        monitor.handle_states(now, watched, [])
        monitor.judge(now)
        for tag in monitor.due(now)[0]:
            sent[tag] = sent.get(tag, 0) + (now > 1.0)
            monitor.handle_path_probe(now, tag, 0.02)
    assert all(sent[tag] >= 0.9 * 2.0 / PROBE_INTERVAL for tag in list(monitor.paths)[:4])
    assert sum(sent.values()) <= 1.1 * 2.0 * 400
    assert len(sent) == number


def test_few_paths_are_probed_as_quickly_whoever_else_probes_them() -> None:
    """Their queues are measured by these probes."""
    monitor = two()
    for tag in (7, 8):
        monitor.paths[tag].used = 1.0
    monitor.handle_states(1.0, [7, 8], [])
    monitor.judge(2.0)
    assert [monitor.paths[tag].pace for tag in (7, 8)] == [PROBE_INTERVAL] * 2


def test_paths_through_a_switch_that_is_back_get_another_chance_and_others_do_not() -> None:
    for switch, revived in ((2, True), (9, False)):
        monitor = two()
        now = 1.0 + silent(monitor, 1.0, other_heard=True)
        assert HOPS in monitor.dead
        monitor.revive(now, switch)
        assert (HOPS not in monitor.dead) == revived
        assert monitor.is_answering(now, 7) == revived


def test_a_path_is_used_while_it_brings_packets_or_has_a_queue() -> None:
    monitor = two()
    assert not monitor.is_used(1.0, [7, 8, 99])
    monitor.paths[7].used = 1.0
    assert monitor.is_used(1.0, [7])
    assert not monitor.is_used(1.0, [8])
    assert not monitor.is_used(1.0 + PROBED_AS_USED, [7])
    monitor.handle_path_probe(1.0, 8, 0.1)
    assert monitor.is_used(1.0, [8])


def test_an_edge_that_told_long_ago_that_it_probes_a_path_does_not_any_more() -> None:
    monitor = two()
    monitor.handle_states(1.0, [7], [])
    assert [monitor.is_watched(1.0, tag) for tag in (7, 8, 99)] == [True, False, False]
    assert not monitor.is_watched(1.0 + WATCHED_TIME, 7)


def judged_one_by_one(monitor: PathMonitor, now: float) -> set[int]:
    """Return what dies, by the rules for one path alone; the stall of ours is known from all others."""
    died = set()
    for tag, each in monitor.paths.items():
        others = max((other.heard for other in monitor.paths.values() if other is not each), default=each.heard)
        is_no_stall = others > each.heard + SUSPECT_MISSED * each.pace
        is_late = each.late(now, DEAD_MISSED) and not each.unanswered(now) and now >= each.excused
        is_old = each.answered or now - each.since > FIRST_PROBE_TIMEOUT
        is_silent = tag in monitor._silent_paths and now >= each.excused
        silent_too = is_no_stall or each.late(now, ALL_SILENT_FACTOR * DEAD_MISSED)
        if is_silent or (is_late and silent_too and is_old and not monitor._is_spared(now, tag, each)):
            died.add(tag)
    return {tag for tag in died if monitor._hops[tag] not in monitor.dead}


@pytest.mark.parametrize("seed", range(10))
def test_of_many_paths_those_die_that_each_would_by_itself(seed: int) -> None:
    rnd = random.Random(seed)
    number = rnd.choice([1, 2, 3, 8])
    monitor, now, count = many(number, number), 0.2, 0
    tags = list(monitor.paths)
    failing = set[int]()
    for _ in range(1500):
        now += rnd.choice([0.005, 0.01, 0.02])
        if rnd.random() < 0.02:
            failing ^= {rnd.choice(tags)}
        if rnd.random() < 0.005:
            failing = {*tags} if rnd.random() < 0.5 else set()
        if rnd.random() < 0.01:
            tag = rnd.choice(tags)
            monitor.handle_states(now, [tag], [tag])
        if rnd.random() < 0.01:
            monitor.handle_own_frames(now, monitor.hops_of(rnd.choice(tags)))
        for tag in monitor.due(now)[0]:
            if tag not in failing:
                monitor.handle_path_probe(now, tag, 0.001)
        before = copy.deepcopy(monitor)
        before._forgive_stall(now)
        if now - before._paced >= PACING_INTERVAL:
            before._set_paces(now)
        died = monitor.judge(now)[0]
        assert {*died} == judged_one_by_one(before, now)
        assert len(died) == len({*died})
        for tag in died:
            known, until = before._hold_downs.get(before.hops_of(tag), (0.0, 0.0))
            rest = min(2 * known, MAX_HOLD_DOWN) if known and now - until < REPEAT_WINDOW else HOLD_DOWN
            assert monitor.dead[monitor.hops_of(tag)] == now + rest
        count += len(died)
    assert count
