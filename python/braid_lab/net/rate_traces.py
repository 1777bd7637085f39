"""Rates of radio links over time: recordings, and random walks with similar statistics, for `braid emulate --trace`.

The walks are those of `src/walk.rs` in `crates/braid-emulate`, with another generator.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from braid_lab.process import LabError

#: A walk's step, s.
STEP_SECONDS = 0.01

#: Start of recordings that is skipped, s: most begin before the vehicle moves.
FROM_SECONDS = 10.0

#: Bits that a radio's scheduler sends at once: a full frame.
OPPORTUNITY_BITS = 8 * 1514


@dataclass(frozen=True)
class RateTrace:
    """Rows of a time, s, and the Mbit/s from then until the next row; the last row lasts as long as the previous."""

    rows: tuple[tuple[float, float], ...]

    @classmethod
    def read(cls, file: Path) -> RateTrace:
        """Read a recording: `seconds,Mbit/s`, with comments as `braid history --record` writes them."""
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        rows = [line.split(",") for line in lines[1:]]
        try:
            found = tuple((float(at), float(mbit)) for at, mbit in rows)
        except ValueError as error:
            raise LabError(f"{file}: {error}: lines of seconds,Mbit/s after a heading are wanted") from error
        if len(found) < 2:
            raise LabError(f"{file}: two rates at least are wanted")
        return cls(found)

    @property
    def seconds(self) -> float:
        """Length of the trace, after which it repeats, s."""
        (before, _), (last, _) = self.rows[-2:]
        return last + (last - before)

    def trace(self, start: float, span: float) -> Iterator[tuple[float, float, float]]:
        """Yield the rates of a span, wrapping around at the end: start, duration and rate of each."""
        times = [at for at, _ in self.rows]
        at, passed = start % self.seconds, 0.0
        index = bisect.bisect_right(times, at) - 1
        while passed < span:
            end = times[index + 1] if index + 1 < len(times) else self.seconds
            holds = min(end - at, span - passed)
            yield passed, holds, self.rows[index][1]
            passed += end - at
            index = (index + 1) % len(times)
            at = times[index]

    def mean(self, start: float, span: float) -> float:
        """Return the mean rate of a span, Mbit/s."""
        return sum(holds * mbit for _, holds, mbit in self.trace(start, span)) / span

    def write(self, file: Path, start: float, span: float) -> None:
        """Write the given span as a trace."""
        rows = "".join(f"{at:.6f},{mbit:g}\n" for at, _, mbit in self.trace(start, span))
        file.write_text(f"seconds,Mbit/s\n{rows}")


def fixed(mbit: float) -> RateTrace:
    """Return the rates of a line with a constant rate."""
    return RateTrace(((0.0, mbit), (1.0, mbit)))


def lte(mean: float, seconds: float, seed: int) -> RateTrace:
    """Return the rates of LTE in a car.

    The median change from second to second is a fifth, with occasional doubling or halving; frames leave singly; the
    scheduler stalls for 10 to 150 ms about twice a second, and for up to a second about twice a minute.
    """
    draw = random.Random(seed)
    rows: list[tuple[float, float]] = []
    level = stalled = owed = 0.0
    for number in range(round(seconds / STEP_SECONDS)):
        # Standard deviation 0.6, correlation 0.9 after a second.
        level += -0.1 * level * STEP_SECONDS + 0.6 * math.sqrt(0.2 * STEP_SECONDS) * draw.gauss(0, 1)
        if draw.random() < 0.2 * STEP_SECONDS:
            level += 0.7 * draw.gauss(0, 1)
        if stalled <= 0:
            stalled = _stall(draw)
        mbit = mean * math.exp(min(1.5, max(-2.5, level - 0.18)))
        bits = mbit * 1e6 * STEP_SECONDS
        if stalled > 0:
            stalled -= STEP_SECONDS
            # After a stall the scheduler makes up for part of what it did not send.
            owed = min(owed + bits / 2, mbit * 1e6 * 0.05)
            sent = 0.0
        else:
            burst = min(owed, bits)
            owed -= burst
            sent = OPPORTUNITY_BITS * _poisson(draw, (bits + burst) / OPPORTUNITY_BITS)
        rows.append((number * STEP_SECONDS, sent / STEP_SECONDS / 1e6))
    return RateTrace(tuple(rows))


def _stall(draw: random.Random) -> float:
    """Return the length of a scheduler's stall that begins now, s; mostly 0."""
    chance = draw.random()
    if chance < STEP_SECONDS / 30:
        return draw.uniform(0.3, 1.0)
    return 0.01 + 0.14 * draw.random() * draw.random() if chance < 2 * STEP_SECONDS else 0.0


def _poisson(draw: random.Random, mean: float) -> int:
    if mean > 30:
        return max(0, round(draw.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), draw.random(), 0
    while product > limit:
        product *= draw.random()
        count += 1
    return count


def satellite(mean: float, seconds: float, seed: int) -> RateTrace:
    """Return a satellite's rates: a new one each second, and never long silence."""
    draw = random.Random(seed)
    rates = (mean * min(1.6, max(0.1, draw.gauss(1, 0.35))) for _ in range(round(seconds)))
    return RateTrace(tuple((float(at), rate) for at, rate in enumerate(rates)))
