"""Figures computed from goodput traces and echo probes; pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braid_lab.process import LabError

#: Start of a stream that most figures leave out: windows open and rates are found. t90 measures it.
WARM_UP_SECONDS = 2.0

#: Time span in which t90 requires 90 %.
SPAN_SECONDS = 0.5


@dataclass(frozen=True)
class EchoProbe:
    """One echo probe and its outcome, times in s on one clock."""

    sent: float
    #: Arrival time of the reply, and the address that the server saw; None without a reply.
    answered: float | None
    via: str | None


@dataclass(frozen=True)
class RoundTrips:
    """Round trips of one kind of probe, ms, the send time of each, s, and the share without a reply."""

    ms: tuple[float, ...]
    at: tuple[float, ...]
    lost: float

    def jitter(self) -> float:
        """Return the mean difference of neighbours (RFC 3550 §6.4.1, of round trips), ms."""
        return statistics.fmean(abs(later - earlier) for earlier, later in itertools.pairwise(self.ms))


def round_trips(probes: Sequence[EchoProbe], start: float, end: float) -> RoundTrips:
    """Return the round trips of probes sent between two times."""
    some = [probe for probe in probes if start <= probe.sent <= end]
    back = [(probe.sent, 1000 * (probe.answered - probe.sent)) for probe in some if probe.answered is not None]
    return RoundTrips(tuple(ms for _, ms in back), tuple(at - start for at, _ in back), 1 - len(back) / len(some))


def loaded_round_trips(train: Sequence[Sequence[Any]], seconds: float) -> RoundTrips:
    """Return the round trips of an echo train beside the load of its last `seconds`, without the warm-up."""
    sent = [EchoProbe(*one) for one in train]
    end = sent[-1].sent
    return round_trips(sent, end - seconds + WARM_UP_SECONDS, end)


@dataclass(frozen=True)
class GoodputTrace:
    """Bytes of one stream that arrived, bin by bin since it began to connect."""

    bin_s: float
    bytes: tuple[int, ...]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> GoodputTrace:
        """Parse the report of a stream's receiver or sender (`braid_lab.clients.tcp_stream`)."""
        return cls(told["bin_s"], tuple(told["bytes"]))

    @classmethod
    def unbroken(cls, told: Mapping[str, Any], what: str) -> GoodputTrace:
        """Parse the same; LabError if the stream broke."""
        if told["broken"]:
            raise LabError(f"{what} broke off: {told['broken']}")
        return cls.of(told)

    @property
    def seconds(self) -> float:
        """Length of the trace."""
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
        """Return the end of the first half-second with this goodput; the whole length if there is none."""
        width = round(SPAN_SECONDS / self.bin_s)
        need = mbit * 1e6 / 8 * SPAN_SECONDS
        sums = list(itertools.accumulate(self.bytes, initial=0))
        for end in range(width, len(sums)):
            if sums[end] - sums[end - width] >= need:
                return end * self.bin_s
        return self.seconds

    def longest_silence(self, start: float) -> float:
        """Return the longest run of bins from `start` on in which nothing arrived, s."""
        silent = [count == 0 for count in self.bytes[round(start / self.bin_s) :]]
        return max((len(list(run)) for empty, run in itertools.groupby(silent) if empty), default=0) * self.bin_s


def goodput_table(traces: Mapping[str, GoodputTrace], bins: int = 1) -> list[dict[str, float]]:
    """Return traces as a table: `bins` bins a row, with the time at the row's end and each trace's goodput."""
    one = next(iter(traces.values()))
    span = bins * one.bin_s
    return [
        {"s": round((at + bins) * one.bin_s, 3)}
        | {f"{name}_mbit": round(8e-6 * sum(trace.bytes[at : at + bins]) / span, 3) for name, trace in traces.items()}
        for at in range(0, len(one.bytes) - bins + 1, bins)
    ]


def outage_ms(arrivals: Sequence[float], since: float, usual_s: float) -> float:
    """Return the longest pause between arrivals that ended after `since`, less the usual one, ms.

    Times are seconds on one clock. Raises ValueError if nothing arrived after `since`, since there is no outage to
    measure.
    """
    after = [at for at in arrivals if at > since]
    if not after:
        raise ValueError("nothing arrived any more")
    before = max((at for at in arrivals if at <= since), default=since)
    pauses = [later - earlier for earlier, later in itertools.pairwise([before, *after])]
    return max(0.0, 1000 * (max(pauses) - usual_s))
