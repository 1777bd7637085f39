"""What is worked out from the courses of streams, without touching anything."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braid_lab.process import LabError

#: At the beginning, windows open and rates are found: what that costs is t90's to say, and not counted elsewhere.
WARM_UP_SECONDS = 2.0

#: The span in which t90 asks for 90 %.
SPAN_SECONDS = 0.5


@dataclass(frozen=True)
class EchoProbe:
    """One question and what became of it, times in s on one clock."""

    sent: float
    #: When the answer was there, and the address that the server saw; None if no answer came.
    answered: float | None
    via: str | None


@dataclass(frozen=True)
class RoundTrips:
    """Round trips of one kind of beats, ms, when each began, s, and the share that never came back."""

    ms: tuple[float, ...]
    at: tuple[float, ...]
    lost: float

    def jitter(self) -> float:
        """Return the mean difference of neighbours (RFC 3550 §6.4.1, of round trips), ms."""
        return statistics.fmean(abs(later - earlier) for earlier, later in itertools.pairwise(self.ms))


def round_trips(probes: Sequence[EchoProbe], start: float, end: float) -> RoundTrips:
    """Return the round trips of what was sent between two times."""
    some = [probe for probe in probes if start <= probe.sent <= end]
    back = [(probe.sent, 1000 * (probe.answered - probe.sent)) for probe in some if probe.answered is not None]
    return RoundTrips(tuple(ms for _, ms in back), tuple(at - start for at, _ in back), 1 - len(back) / len(some))


@dataclass(frozen=True)
class GoodputTrace:
    """What arrived of one stream, bin by bin since it began to connect."""

    bin_s: float
    bytes: tuple[int, ...]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> GoodputTrace:
        """Take in what a stream's receiver, or its sender, tells (`braid_lab.clients.tcp_stream`)."""
        return cls(told["bin_s"], tuple(told["bytes"]))

    @classmethod
    def unbroken(cls, told: Mapping[str, Any], what: str) -> GoodputTrace:
        """Take in the same; LabError if the stream did not last."""
        if told["broken"]:
            raise LabError(f"{what} broke off: {told['broken']}")
        return cls.of(told)

    @property
    def seconds(self) -> float:
        """How long it was looked at."""
        return self.bin_s * len(self.bytes)

    def mbit(self, start: float, end: float) -> float:
        """Return the goodput between two times, whole bins."""
        some = self.bytes[round(start / self.bin_s) : round(end / self.bin_s)]
        return 8e-6 * sum(some) / (self.bin_s * len(some)) if some else 0.0

    @property
    def steady_mbit(self) -> float:
        """The goodput after the warm-up."""
        return self.mbit(WARM_UP_SECONDS, self.seconds)

    def reaches(self, mbit: float) -> float:
        """Return when the first half-second ended that had this goodput; the whole time if none had."""
        width = round(SPAN_SECONDS / self.bin_s)
        need = mbit * 1e6 / 8 * SPAN_SECONDS
        sums = list(itertools.accumulate(self.bytes, initial=0))
        for end in range(width, len(sums)):
            if sums[end] - sums[end - width] >= need:
                return end * self.bin_s
        return self.seconds

    def longest_silence(self, start: float) -> float:
        """Return the longest run of bins from this time on in which nothing arrived, s."""
        silent = [count == 0 for count in self.bytes[round(start / self.bin_s) :]]
        return max((len(list(run)) for empty, run in itertools.groupby(silent) if empty), default=0) * self.bin_s


def goodput_table(traces: Mapping[str, GoodputTrace], bins: int = 1) -> list[dict[str, float]]:
    """Return courses as a table: so many bins a row, each with the time at its end and their goodput."""
    one = next(iter(traces.values()))
    span = bins * one.bin_s
    return [
        {"s": round((at + bins) * one.bin_s, 3)}
        | {f"{name}_mbit": round(8e-6 * sum(trace.bytes[at : at + bins]) / span, 3) for name, trace in traces.items()}
        for at in range(0, len(one.bytes) - bins + 1, bins)
    ]


def outage_ms(arrivals: Sequence[float], since: float, usual_s: float) -> float:
    """Return the longest pause between arrivals that ended after `since`, less what is usual, ms.

    Times are seconds on one clock. Nothing after `since` is no outage that could be measured: ValueError.
    """
    after = [at for at in arrivals if at > since]
    if not after:
        raise ValueError("nothing arrived any more")
    before = max((at for at in arrivals if at <= since), default=since)
    pauses = [later - earlier for earlier, later in itertools.pairwise([before, *after])]
    return max(0.0, 1000 * (max(pauses) - usual_s))
