"""Capacity of paths for which none is configured, by trains of full frames sent at once over idle paths.

The frames of a train arrive at the rate of the narrowest line, so capacity = bits behind the first frame / time from
its arrival to the last one's (packet-train dispersion). The controller itself takes time for each frame, so it can
tell only lines up to MAX_RATE; of faster ones it says nothing. `view.path_capacity` corrects the result by what the
path carries. Times are seconds, rates bit/s.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.monitor.probe import TRAIN_FRAME_BYTES
from braid_sdn.fabric.plan.planner import Hops

#: Frames of a train.
TRAIN_FRAMES = 24
#: Frames that must arrive: a slow line's queue is shorter than the train.
MIN_FRAMES = 8
#: Trains of which the median counts: a machine that is held up for a moment falsifies one.
TRAINS = 3
#: Seconds between two trains, of all paths.
TRAIN_SPACING = 0.2
#: Seconds after which no more frames of a train are expected.
TRAIN_TIMEOUT = 1.0
MAX_RATE = 30e6


@dataclass
class _Train:
    tag: int
    began: float
    arrivals: list[float] = field(default_factory=list)


@dataclass
class ProbeTrains:
    """Trains over all paths of unknown capacity, one at a time."""

    #: Paths to be measured, by tag.
    _paths: dict[int, Hops] = field(default_factory=dict)
    _results: dict[Hops, list[float]] = field(default_factory=dict)
    _found: list[tuple[Hops, float]] = field(default_factory=list)
    _train: _Train | None = None
    _not_before: float = 0.0

    def set_paths(self, paths: Mapping[int, Hops]) -> None:
        """Set the paths whose capacity is unknown; measured ones are not measured again as long as they are named."""
        self._paths = dict(paths)
        named = set(paths.values())
        self._results = {hops: rates for hops, rates in self._results.items() if hops in named}

    def poll_train(self, now: float, is_idle: Callable[[int], bool]) -> int | None:
        """Return the tag of a path over which a train is due."""
        if self._train is not None and now - self._train.began > TRAIN_TIMEOUT:
            self._end(self._train)
        if self._train is not None or now < self._not_before:
            return None
        for tag, hops in self._paths.items():
            if len(self._results.get(hops, ())) < TRAINS and is_idle(tag):
                self._train = _Train(tag, now)
                self._not_before = now + TRAIN_SPACING
                return tag
        return None

    def handle_frame(self, now: float, tag: int) -> None:
        """Take in a frame of a train."""
        if self._train is None or self._train.tag != tag:
            return
        self._train.arrivals.append(now)
        if len(self._train.arrivals) == TRAIN_FRAMES:
            self._end(self._train)

    def poll_capacity(self) -> tuple[Hops, float] | None:
        """Return a path whose capacity was found, and that, once."""
        return self._found.pop() if self._found else None

    def _end(self, train: _Train) -> None:
        self._train = None
        hops = self._paths.get(train.tag)
        if hops is None:
            return
        count = len(train.arrivals)
        seconds = train.arrivals[-1] - train.arrivals[0] if count >= MIN_FRAMES else 0.0
        rates = self._results.setdefault(hops, [])
        rates.append(8 * TRAIN_FRAME_BYTES * (count - 1) / seconds if seconds > 0 else float("inf"))
        rate = statistics.median(rates)
        if len(rates) == TRAINS and rate <= MAX_RATE:
            self._found.append((hops, rate))
