"""Trains of probes show how much a path carries for which no capacity is configured."""

from __future__ import annotations

import pytest

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import TRAIN_FRAME_BYTES, Kind, Probe, open_frame, seal
from braid_sdn.fabric.monitor.probe_train import MIN_FRAMES, TRAIN_FRAMES, TRAIN_TIMEOUT, TRAINS, ProbeTrains
from braid_sdn.fabric.plan.planner import Hops

P: Hops = ((PortId(1, 1), PortId(3, 1)),)
Q: Hops = ((PortId(1, 2), PortId(4, 1)),)


def measure(trains: ProbeTrains, tag: int, rates: list[float], frames: int = TRAIN_FRAMES) -> dict[Hops, float]:
    """Answer each train with frames at these rates; return what is found of the path."""
    found: dict[Hops, float] = {}
    now = 0.0
    for rate in rates:
        now += 10 * TRAIN_TIMEOUT
        assert trains.poll_train(now, lambda _: True) == tag
        assert trains.poll_train(now + 0.01, lambda _: True) is None, "one at a time"
        for number in range(frames):
            trains.handle_frame(now + 0.02 + number * 8 * TRAIN_FRAME_BYTES / rate, tag)
    # Some trains end by their timeout.
    trains.poll_train(now + 10 * TRAIN_TIMEOUT, lambda _: False)
    while (told := trains.poll_capacity()) is not None:
        found |= [told]
    return found


def test_a_train_arrives_at_the_rate_of_the_narrowest_line() -> None:
    trains = ProbeTrains()
    trains.set_paths({2: P})
    assert measure(trains, 2, [10e6] * TRAINS)[P] == pytest.approx(10e6)
    assert trains.poll_train(1000.0, lambda _: True) is None, "it is known"


def test_one_late_reading_changes_nothing() -> None:
    trains = ProbeTrains()
    trains.set_paths({2: P})
    assert measure(trains, 2, [10e6, 3e6, 10e6])[P] == pytest.approx(10e6)


def test_nothing_is_said_of_lines_that_are_faster_than_the_controller() -> None:
    trains = ProbeTrains()
    trains.set_paths({2: P})
    assert measure(trains, 2, [80e6] * TRAINS) == {}


def test_a_path_is_measured_while_it_is_idle() -> None:
    trains = ProbeTrains()
    trains.set_paths({2: P, 3: Q})
    assert trains.poll_train(1.0, lambda tag: tag == 3) == 3
    assert trains.poll_train(1.0 + 2 * TRAIN_TIMEOUT, lambda _: False) is None


def test_a_queue_that_is_shorter_than_the_train_loses_its_end() -> None:
    trains = ProbeTrains()
    trains.set_paths({2: P})
    assert measure(trains, 2, [1e6] * TRAINS, frames=MIN_FRAMES)[P] == pytest.approx(1e6)
    trains = ProbeTrains()
    trains.set_paths({3: Q})
    assert measure(trains, 3, [1e6] * TRAINS, frames=MIN_FRAMES - 1) == {}


def test_frames_of_no_train_are_ignored() -> None:
    trains = ProbeTrains()
    trains.handle_frame(1.0, 2)
    trains.set_paths({2: P, 3: Q})
    assert trains.poll_train(1.0, lambda _: True) == 2
    trains.handle_frame(1.1, 3)
    trains.set_paths({3: Q})
    for number in range(TRAIN_FRAMES):
        trains.handle_frame(1.2 + 0.01 * number, 2)
    assert trains.poll_capacity() is None


def test_a_frame_of_a_train_is_full_and_sealed() -> None:
    probe = Probe(Kind.TRAIN, PortId(1, 0), 7, 3, 5)
    frame = seal(probe, b"k" * 16)
    assert len(frame) == TRAIN_FRAME_BYTES
    assert open_frame(frame, b"k" * 16, 6) == probe
