"""An estimate of what flow balancing gains for captured visits over given lines.

The model: a visit's flows begin when as many of its bytes have come as had in the capture, since a browser asks for
things because of what it has; a line's rate is shared equally by the flows on it; a flow sends all that it has as
fast as that share allows. Round trips, slow start, losses and the time that scripts take are left out, so the
estimate is that of a capacity alone: an upper bound for what a reader gains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from braid_lab.capture.flows import Visit

#: Bytes that are none.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds of a visit."""

    site: str
    #: Over the fastest line alone.
    single: float
    #: Flows dealt out by weighted round robin, and each to the line with the fewest for its rate.
    wrr: float
    least_loaded: float
    #: Packets dealt out in proportion to the lines' rates: no flow is behind a line.
    packets: float


def estimate(visit: Visit, mbit: Sequence[float]) -> Estimate:
    """Estimate a visit over lines of these rates."""
    flows = [(flow.began_after, flow.bytes) for flow in visit.flows]
    rates = [1e6 * each / 8 for each in mbit]
    turns = _round_robin(rates)
    return Estimate(
        visit.site,
        _seconds(flows, [max(rates)], lambda _: 0),
        _seconds(flows, rates, lambda _: next(turns)),
        _seconds(flows, rates, lambda left: min(range(len(rates)), key=lambda line: (left[line] + 1) / rates[line])),
        _seconds(flows, [sum(rates)], lambda _: 0),
    )


def _round_robin(rates: Sequence[float]) -> Iterator[int]:
    """Yield lines in proportion to their rates, as evenly as can be."""
    dealt = [0] * len(rates)
    while True:
        line = min(range(len(rates)), key=lambda each: (dealt[each] + 1) / rates[each])
        dealt[line] += 1
        yield line


def _seconds(
    flows: Sequence[tuple[int, int]], rates: Sequence[float], choose: Callable[[Sequence[int]], int]
) -> float:
    """Return when the last byte has come; `choose` takes the numbers of flows on the lines, and names one."""
    waiting = deque(sorted(flows, key=lambda flow: flow[0]))
    running: list[list[float]] = [[] for _ in rates]
    now, come = 0.0, 0.0
    while waiting or any(running):
        while waiting and (waiting[0][0] <= come + ROUNDING or not any(running)):
            line = choose([len(each) for each in running])
            running[line].append(float(waiting.popleft()[1]))
        # Until the next flow ends, or as many bytes have come as the next one waits for.
        busy = [(rate, left) for rate, left in zip(rates, running, strict=True) if left]
        step = min(min(left) * len(left) / rate for rate, left in busy)
        if waiting:
            step = min(step, (waiting[0][0] - come) / sum(rate for rate, _ in busy))
        for rate, left in busy:
            share = rate * step / len(left)
            left[:] = [each - share for each in left if each - share > ROUNDING]
            come += rate * step
        now += step
    return now
