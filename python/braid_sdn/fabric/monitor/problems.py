"""Recent problems by name, each with a count, kept for a while after the last occurrence."""

from __future__ import annotations

from dataclasses import dataclass, field

from braid_sdn.fabric.model import Problem

#: Seconds for which an event counts as a present problem.
RETENTION = 60.0

#: Seconds for which no path leads through a switch whose table was full, at first; twice as long if it is full again
#: when it is tried, up to a bound.
FULL_RETENTION = 60.0
MAX_FULL_RETENTION = 3600.0

#: Limit of distinct problems: malformed input must not fill our memory.
MAX_PROBLEMS = 256


@dataclass
class Problems:
    """Events, as opposed to states that can be read at any time."""

    _seen: dict[tuple[str, str], tuple[Problem, float, int]] = field(default_factory=dict)
    #: Until when each switch counts as full, and for how many seconds it does.
    _full: dict[int, tuple[float, float]] = field(default_factory=dict)

    def report(self, now: float, problem: Problem) -> None:
        """Record an occurrence."""
        key = (problem.code, problem.subject)
        _, _, count = self._seen.get(key, (problem, now, 0))
        if count or len(self._seen) < MAX_PROBLEMS:
            self._seen[key] = (problem, now, count + 1)

    def withdraw(self, code: str) -> None:
        """Forget all occurrences of a code: they were something else."""
        self._seen = {key: each for key, each in self._seen.items() if key[0] != code}

    def full(self, now: float, switch: int) -> None:
        """Record that a switch takes no more rules of paths."""
        until, span = self._full.get(switch, (0.0, 0.0))
        if now >= until + span:
            span = FULL_RETENTION
        elif now >= until:
            span = min(2 * span, MAX_FULL_RETENTION)
        self._full[switch] = (now + span, span)

    def switches_full(self, now: float) -> frozenset[int]:
        """Return the switches that took no more rules of paths lately."""
        return frozenset(switch for switch, (until, _) in self._full.items() if now < until)

    def current(self, now: float) -> list[Problem]:
        """Return recent problems, with a count if there was more than one."""
        self._seen = {key: each for key, each in self._seen.items() if now - each[1] < RETENTION}
        return [
            Problem(problem.code, problem.subject, f"{problem.text} ({count} times)" if count > 1 else problem.text)
            for problem, _, count in self._seen.values()
        ]

    def count(self, code: str) -> int:
        """Return the number of recent occurrences of a code."""
        return sum(count for (kind, _), (_, _, count) in self._seen.items() if kind == code)
