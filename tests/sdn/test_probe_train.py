"""Trains of probes show how much a path carries for which no capacity is configured."""

from __future__ import annotations

import pytest

from braid_lab.fabric.shapes import parallel, two_paths
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.path_monitor import DEAD_MISSED, PROBE_INTERVAL
from braid_sdn.fabric.monitor.probe import TAGGED_HEADER_BYTES, TRAIN_FRAME_BYTES, Kind, Probe, open_frame, seal
from braid_sdn.fabric.monitor.probe_train import (
    FIRST_FRAME_BYTES,
    FIRST_FRAMES,
    MAX_LINE_TIME,
    MAX_RATE,
    TRAIN_FRAMES,
    TRAIN_TIMEOUT,
    TRAINS,
    ProbeTrains,
    TrainSize,
)
from braid_sdn.fabric.plan.planner import Hops

from .virtual import Network

P: Hops = ((PortId(1, 1), PortId(3, 1)),)
Q: Hops = ((PortId(1, 2), PortId(4, 1)),)


class Line:
    """A line in virtual time over which trains are sent until no more are due."""

    def __init__(self, rate: float, *, queue_bytes: float = 1e6) -> None:
        self.rate, self.queue_bytes = rate, queue_bytes
        #: Trains of which the controller reads all frames at once, or the last one late, by their numbers.
        self.at_once: set[int] = set()
        self.late: set[int] = set()
        self.now = 0.0
        self.sizes: list[TrainSize] = []
        self.found: dict[Hops, float] = {}

    def measure(self, trains: ProbeTrains, tag: int) -> None:
        for number in range(100):
            self.now += 10 * TRAIN_TIMEOUT
            now = self.now
            due = trains.poll_train(now, lambda _: True)
            if due is None:
                break
            assert due[0] == tag
            assert trains.poll_train(now + 0.01, lambda _: True) is None, "one at a time"
            size = due[1]
            self.sizes.append(size)
            frames = min(size.frames, int(1 + self.queue_bytes // size.frame_bytes))
            arrivals = [now + 0.02 + each * 8 * size.frame_bytes / self.rate for each in range(frames)]
            if number in self.at_once:
                arrivals = [arrivals[-1]] * frames
            if number in self.late:
                arrivals[-1] += 0.1
            for at in arrivals:
                trains.handle_frame(at, tag, now)
        while (told := trains.poll_capacity()) is not None:
            self.found |= [told]


def measured(rate: float, **more: float) -> Line:
    trains, line = ProbeTrains(), Line(rate, **more)
    trains.set_paths({2: P})
    line.measure(trains, 2)
    return line


@pytest.mark.parametrize("mbit", [0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 29])
def test_a_train_arrives_at_the_rate_of_the_narrowest_line(mbit: float) -> None:
    line = measured(1e6 * mbit)
    assert line.found[P] == pytest.approx(1e6 * mbit)


@pytest.mark.parametrize("mbit", [0.25, 0.5, 1, 2, 5, 10, 20, 100, 1000])
def test_trains_grow_as_far_as_the_line_allows(mbit: float) -> None:
    sizes = measured(1e6 * mbit).sizes
    assert sizes[0] == TrainSize(FIRST_FRAMES, FIRST_FRAME_BYTES)
    assert all(8 * size.total_bytes / (1e6 * mbit) <= MAX_LINE_TIME for size in sizes)
    longest = min(TRAIN_FRAMES * TRAIN_FRAME_BYTES, MAX_LINE_TIME * 1e6 * mbit / 8)
    assert sizes[-1].total_bytes > longest - TRAIN_FRAME_BYTES
    assert len(sizes) <= 6


def test_a_line_below_that_gets_the_shortest_train() -> None:
    assert set(measured(5e4).sizes) == {TrainSize(FIRST_FRAMES, FIRST_FRAME_BYTES)}


def test_a_machine_that_reads_all_frames_at_once_makes_no_train_long() -> None:
    trains, line = ProbeTrains(), Line(0.5e6)
    line.at_once = {0}
    trains.set_paths({2: P})
    line.measure(trains, 2)
    assert max(size.frames for size in line.sizes) == FIRST_FRAMES
    assert line.found[P] == pytest.approx(0.5e6)


def test_one_late_reading_changes_nothing() -> None:
    for number in range(6):
        trains, line = ProbeTrains(), Line(10e6)
        line.late = {number}
        trains.set_paths({2: P})
        line.measure(trains, 2)
        assert line.found[P] == pytest.approx(10e6)


def test_nothing_is_said_of_lines_that_are_faster_than_the_controller() -> None:
    line = measured(2.5 * MAX_RATE)
    assert line.found == {}
    assert line.sizes.count(TrainSize(TRAIN_FRAMES, TRAIN_FRAME_BYTES)) == TRAINS // 2 + 1, "more would not change it"


def test_a_path_is_measured_while_it_is_idle() -> None:
    trains = ProbeTrains()
    trains.set_paths({2: P, 3: Q})
    due = trains.poll_train(1.0, lambda tag: tag == 3)
    assert due is not None
    assert due[0] == 3
    assert trains.poll_train(1.0 + 2 * TRAIN_TIMEOUT, lambda _: False) is None


class CountedHops(tuple[tuple[PortId, PortId], ...]):
    """A path that counts how often any is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        CountedHops.lookups += 1
        return super().__hash__()


def test_paths_that_are_measured_are_not_looked_at_again() -> None:
    trains, line = ProbeTrains(), Line(10e6)
    # Two tags of the same path are measured at once.
    paths = {tag: CountedHops(((PortId(1, tag // 2), PortId(3, 1)),)) for tag in range(2, 12)}
    for last in range(3, 12, 2):
        trains.set_paths({tag: hops for tag, hops in paths.items() if tag <= last})
        line.measure(trains, last - 1)
    assert line.found == dict.fromkeys(paths.values(), pytest.approx(10e6))
    CountedHops.lookups = 0
    assert trains.poll_train(5000.0, lambda _: True) is None
    assert CountedHops.lookups == 0
    # A path that is named anew is measured anew.
    trains.set_paths({})
    trains.set_paths(paths)
    assert trains.poll_train(5001.0, lambda _: True) == (2, TrainSize())


@pytest.mark.parametrize("queue_ms", [5, 20, 100])
@pytest.mark.parametrize("mbit", [1, 2, 10, 20])
def test_a_queue_that_is_shorter_than_the_train_loses_its_end(mbit: float, queue_ms: float) -> None:
    line = measured(1e6 * mbit, queue_bytes=max(600.0, 1e3 * mbit * queue_ms / 8))
    assert line.found[P] == pytest.approx(1e6 * mbit)


def test_a_path_that_brings_no_frame_is_given_up() -> None:
    trains, line = ProbeTrains(), Line(1e6, queue_bytes=-1000)
    trains.set_paths({2: P})
    line.measure(trains, 2)
    # Each one lost is tried once more: any frame may be lost.
    assert len(line.sizes) <= 2 * TRAINS
    assert line.found == {}


def test_a_frame_that_is_lost_once_makes_no_train_shorter() -> None:
    trains = ProbeTrains()
    trains.set_paths({2: P})
    assert trains.poll_train(1.0, lambda _: True) == (2, TrainSize())
    trains.handle_frame(1.01, 2, 1.0)
    trains.handle_path_probe(2, 1.02)
    assert trains.poll_train(2.0, lambda _: True) == (2, TrainSize())
    for at in (2.01, 2.0104):
        trains.handle_frame(at, 2, 2.0)
    due = trains.poll_train(3.0, lambda _: True)
    assert due is not None
    assert due[1].total_bytes > 2 * TrainSize().total_bytes


def test_frames_of_no_train_are_ignored() -> None:
    trains = ProbeTrains()
    trains.handle_frame(1.0, 2, 0.9)
    trains.set_paths({2: P, 3: Q})
    assert trains.poll_train(1.0, lambda _: True) == (2, TrainSize())
    trains.handle_frame(1.1, 3, 1.0)
    # Of a train before, which was given up.
    for _ in range(FIRST_FRAMES):
        trains.handle_frame(1.1, 2, 0.5)
    assert trains.under_way(1.1) == 2
    trains.set_paths({3: Q})
    for number in range(FIRST_FRAMES):
        trains.handle_frame(1.2 + 0.01 * number, 2, 1.0)
    assert trains.poll_capacity() is None


def test_a_train_is_over_with_its_last_frame_or_a_later_probe_or_in_the_end() -> None:
    trains = ProbeTrains()
    trains.set_paths({2: P})
    trains.poll_train(1.0, lambda _: True)
    trains.handle_path_probe(2, 0.99)
    trains.handle_path_probe(3, 1.02)
    assert trains.under_way(1.1) == 2
    trains.handle_path_probe(2, 1.02)
    assert trains.under_way(1.1) is None
    trains.poll_train(3.0, lambda _: True)
    for _ in range(FIRST_FRAMES):
        assert trains.under_way(3.1) == 2
        trains.handle_frame(3.1, 2, 3.0)
    assert trains.under_way(3.1) is None
    trains.set_paths({})
    trains.set_paths({2: P})
    trains.poll_train(5.0, lambda _: True)
    assert trains.under_way(5.0 + TRAIN_TIMEOUT) == 2
    assert trains.under_way(5.01 + TRAIN_TIMEOUT) is None


def test_a_frame_of_a_train_is_full_and_sealed() -> None:
    probe = Probe(Kind.TRAIN, PortId(1, 0), 7, 3, 5, TRAIN_FRAME_BYTES - TAGGED_HEADER_BYTES)
    frame = seal(probe, b"k" * 16)
    assert len(frame) == TRAIN_FRAME_BYTES
    assert open_frame(frame, b"k" * 16, 6) == probe


class Unconfigured(Network):
    """A network whose lines' rates are not configured; it counts the paths that die."""

    def __init__(self, mbit: float, queue_ms: float, *, paths: int = 2) -> None:
        super().__init__(two_paths(delay_ms=2) if paths == 2 else parallel([(10, 2)] * paths), links=())
        self.rate = dict.fromkeys(self.peer, 1e6 * mbit)
        self.queue = dict.fromkeys(self.peer, queue_ms / 1000)
        self.dead: list[tuple[float, int]] = []
        judge = self.controller.path_monitor.judge

        def watched(now: float) -> tuple[list[int], bool]:
            judged = judge(now)
            self.dead += [(now, tag) for tag in judged[0]]
            return judged

        self.controller.path_monitor.judge = watched  # type: ignore[method-assign]
        self.connect()

    def limits(self) -> list[float]:
        return list(self.controller.path_capacity.limits.values())


@pytest.mark.parametrize("queue_ms", [20, 100])
@pytest.mark.parametrize("mbit", [0.25, 0.5, 1, 2, 10])
def test_trains_kill_no_path_over_slow_lines(mbit: float, queue_ms: float) -> None:
    net = Unconfigured(mbit, queue_ms)
    net.run(15)
    assert net.dead == []
    # Of each frame 24 bytes on the line are none of the frame's own: the shortest ones show 4.5 % less. A queue that
    # does not hold two frames tells nothing, or the truth.
    is_told = 1e6 * mbit * queue_ms / 1000 > 8 * FIRST_FRAMES * FIRST_FRAME_BYTES
    assert len(net.limits()) == 4 or not is_told
    assert net.limits() == pytest.approx([1e6 * mbit] * len(net.limits()), rel=0.05)


def test_a_line_that_is_slower_than_any_train_allows_kills_no_path() -> None:
    """The first train takes 134 ms: longer than it takes until a path that nothing delays counts as dead."""
    assert 8 * FIRST_FRAMES * (FIRST_FRAME_BYTES + 24) / 0.064e6 > (DEAD_MISSED + 1) * PROBE_INTERVAL
    net = Unconfigured(0.064, 400)
    net.run(15)
    assert net.dead == []


@pytest.mark.parametrize("after", [0.005, 0.03, 0.045])
def test_a_path_that_falls_silent_during_a_train_is_dead_at_most_a_timeout_later(after: float) -> None:
    net = Unconfigured(0.25, 100)
    monitor, trains = net.controller.path_monitor, net.controller.probe_trains
    net.run_until(lambda: trains.under_way(net.now) is not None, within=5)
    tag = trains.under_way(net.now)
    assert tag is not None
    net.run(after)
    net.silent.add(monitor._hops[tag][0][0])
    # The delay that a late probe had before counts as well.
    net.run_until(lambda: bool(net.dead), within=TRAIN_TIMEOUT + 2 * DEAD_MISSED * PROBE_INTERVAL)
    assert [dead for _, dead in net.dead] == [tag]
