"""Capacity of paths for which none is configured, by trains of frames sent at once over idle paths.

The frames of a train arrive at the rate of the narrowest line, so capacity = bits behind the first frame / time from
its arrival to the last one's (packet-train dispersion). The controller itself takes time for each frame, so it can
tell only lines up to MAX_RATE; of faster ones it says nothing. `view.path_capacity` corrects the result by what the
path carries.

A train delays all that is behind it, so probes of paths too. So the first one is two short frames. The next ones are
as long as the line sends in MAX_LINE_TIME by what the last one showed, and at most MAX_GROWTH times as long as that:
a machine that is held up reads both frames at once, and the line seems quick. Only trains of the size that is reached
so count. If most of two trains in a row is lost, they were too long for the line's queue: the next ones are half as
long at most.
A path is a FIFO, so a train is over when a probe arrives that was sent later. Times are seconds, rates bit/s.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.monitor.probe import TRAIN_FRAME_BYTES
from braid_sdn.fabric.plan.planner import Hops

#: Frames of the longest train.
TRAIN_FRAMES = 24
#: Frames of the shortest train, and bytes of each: a line of 0.25 Mbit/s sends them in 33 ms.
FIRST_FRAMES = 2
FIRST_FRAME_BYTES = 512
#: Seconds of the narrowest line that a train may take: half of the time after which a path counts as dead.
MAX_LINE_TIME = 0.05
#: Factor by which a train may have more bytes than the one before.
MAX_GROWTH = 4.0
#: Factor by which it must have more, or else the line does not allow more than the one before was.
MIN_GROWTH = 1.5
#: Part of a train's frames that must arrive: a slow line's queue may be shorter than the train.
MIN_ARRIVED_RATIO = 1 / 3
#: Trains of the same size of which the median counts: a machine that is held up for a moment falsifies one.
TRAINS = 3
#: Trains after which those that come count, whatever size they would need.
MAX_GROWING_TRAINS = 8
#: Seconds between two of the longest trains, of all paths; between shorter ones less, by their bytes.
TRAIN_SPACING = 0.2
#: Seconds after which no more frames of a train are expected.
TRAIN_TIMEOUT = 1.0
MAX_RATE = 30e6
#: A frame bears its time in nanoseconds, rounded.
CLOCK_ERROR = 1e-6


@dataclass(frozen=True, slots=True)
class TrainSize:
    """Size of a train."""

    frames: int = FIRST_FRAMES
    frame_bytes: int = FIRST_FRAME_BYTES

    @property
    def total_bytes(self) -> int:
        """Bytes of all frames."""
        return self.frames * self.frame_bytes

    @classmethod
    def within(cls, most_bytes: float) -> TrainSize:
        """Return the largest size of at most so many bytes, of full frames if two fit, but none below the first."""
        frames = int(min(most_bytes // TRAIN_FRAME_BYTES, TRAIN_FRAMES))
        if frames >= FIRST_FRAMES:
            return cls(frames, TRAIN_FRAME_BYTES)
        return cls(FIRST_FRAMES, max(FIRST_FRAME_BYTES, int(most_bytes / FIRST_FRAMES)))


@dataclass
class _Train:
    tag: int
    began: float
    size: TrainSize
    arrivals: list[float] = field(default_factory=list)


@dataclass
class _Search:
    """State of a path's measurement."""

    size: TrainSize = TrainSize()
    #: Bytes that the queue may take.
    most_bytes: float = float("inf")
    #: Trains until now, and rates by those that count; infinite where one said nothing.
    trains: int = 0
    rates: list[float] = field(default_factory=list)
    #: True if most of the last train was lost, and of none before: any frame may be lost once.
    was_lost: bool = False

    @property
    def is_over(self) -> bool:
        """True if more trains would not change the result."""
        fast = sum(rate > MAX_RATE for rate in self.rates)
        return len(self.rates) >= TRAINS or fast > TRAINS // 2

    def handle_train(self, train: _Train) -> None:
        """Take in a train that is over."""
        self.trains += 1
        count, total = len(train.arrivals), train.size.total_bytes
        if count < max(FIRST_FRAMES, MIN_ARRIVED_RATIO * train.size.frames):
            if self.was_lost:
                self.most_bytes = min(self.most_bytes, total / 2)
                self.size = TrainSize.within(self.most_bytes)
            if (self.was_lost and self.size == train.size) or self.trains > MAX_GROWING_TRAINS:
                self.rates.append(float("inf"))
            self.was_lost = not self.was_lost
            return
        self.was_lost = False
        seconds = train.arrivals[-1] - train.arrivals[0]
        rate = 8 * train.size.frame_bytes * (count - 1) / seconds if seconds > 0 else float("inf")
        self.size = TrainSize.within(min(MAX_LINE_TIME * rate / 8, MAX_GROWTH * total, self.most_bytes))
        if self.trains <= MAX_GROWING_TRAINS and self.size.total_bytes >= MIN_GROWTH * total:
            self.rates.clear()
        else:
            self.rates.append(rate)


@dataclass
class ProbeTrains:
    """Trains over all paths of unknown capacity, one at a time."""

    #: Paths to be measured, by tag.
    _paths: dict[int, Hops] = field(default_factory=dict)
    _searches: dict[Hops, _Search] = field(default_factory=dict)
    #: Those of the paths whose search is not over, in the same order: most are, and each turn would look at them.
    _due: dict[int, Hops] = field(default_factory=dict)
    _found: list[tuple[Hops, float]] = field(default_factory=list)
    _train: _Train | None = None
    _not_before: float = 0.0

    def set_paths(self, paths: Mapping[int, Hops]) -> None:
        """Set the paths whose capacity is unknown; measured ones are not measured again as long as they are named."""
        self._paths, self._due = dict(paths), {}
        before, self._searches = self._searches, {}
        for tag, hops in paths.items():
            search = before.get(hops)
            if search is not None:
                self._searches[hops] = search
            if search is None or not search.is_over:
                self._due[tag] = hops

    def poll_train(self, now: float, is_idle: Callable[[int], bool]) -> tuple[int, TrainSize] | None:
        """Return the tag of a path over which a train is due, and its size."""
        if self.under_way(now) is not None or now < self._not_before:
            return None
        for tag, hops in self._due.items():
            if is_idle(tag):
                search = self._searches.setdefault(hops, _Search())
                self._train = _Train(tag, now, search.size)
                part = search.size.total_bytes / (TRAIN_FRAMES * TRAIN_FRAME_BYTES)
                self._not_before = now + TRAIN_SPACING * part
                return tag, search.size
        return None

    def under_way(self, now: float) -> int | None:
        """Return the tag of the path on which a train may still be."""
        if self._train is not None and now - self._train.began > TRAIN_TIMEOUT:
            self._end(self._train)
        return self._train.tag if self._train is not None else None

    def handle_frame(self, now: float, tag: int, sent: float) -> None:
        """Take in a frame of a train, and the time when it was sent."""
        train = self._train
        if train is None or train.tag != tag or sent < train.began - CLOCK_ERROR:
            return
        train.arrivals.append(now)
        if len(train.arrivals) == train.size.frames:
            self._end(train)

    def handle_path_probe(self, tag: int, sent: float) -> None:
        """Take in a path's probe, and the time when it was sent: all frames from before have come or are lost."""
        if self._train is not None and self._train.tag == tag and sent > self._train.began + CLOCK_ERROR:
            self._end(self._train)

    def poll_capacity(self) -> tuple[Hops, float] | None:
        """Return a path whose capacity was found, and that, once."""
        return self._found.pop() if self._found else None

    def _end(self, train: _Train) -> None:
        self._train = None
        hops = self._paths.get(train.tag)
        if hops is None:
            return
        search = self._searches.setdefault(hops, _Search())
        search.handle_train(train)
        if not search.is_over:
            return
        # Several tags may have the same path.
        self._due = {tag: each for tag, each in self._due.items() if each != hops}
        rate = statistics.median(search.rates)
        if rate <= MAX_RATE:
            self._found.append((hops, rate))
