"""What went wrong lately, by name. Each is kept for a while after it was last seen, with how often it was."""

from __future__ import annotations

from dataclasses import dataclass, field

from braid_sdn.fabric.model import Problem

#: Seconds for which something that happened counts as a problem that is.
RETENTION = 60.0

#: Different problems that are kept: whoever sends us rubbish must not fill our memory.
MAX_PROBLEMS = 256


@dataclass
class Problems:
    """Things that happened, as opposed to states that can be seen at any time."""

    _seen: dict[tuple[str, str], tuple[Problem, float, int]] = field(default_factory=dict)
    _full: dict[int, float] = field(default_factory=dict)

    def report(self, now: float, problem: Problem) -> None:
        """Something happened."""
        key = (problem.code, problem.subject)
        _, _, count = self._seen.get(key, (problem, now, 0))
        if count or len(self._seen) < MAX_PROBLEMS:
            self._seen[key] = (problem, now, count + 1)

    def full(self, now: float, switch: int) -> None:
        """A switch takes no more rules for now."""
        self._full[switch] = now

    def switches_full(self, now: float) -> frozenset[int]:
        """Return the switches that took no more rules lately."""
        return frozenset(switch for switch, at in self._full.items() if now - at < RETENTION)

    def current(self, now: float) -> list[Problem]:
        """Return what happened lately, with how often where it was more than once."""
        self._seen = {key: each for key, each in self._seen.items() if now - each[1] < RETENTION}
        return [
            Problem(problem.code, problem.subject, f"{problem.text} ({count} times)" if count > 1 else problem.text)
            for problem, _, count in self._seen.values()
        ]

    def count(self, code: str) -> int:
        """Return how often a kind of problem happened lately."""
        return sum(count for (kind, _), (_, _, count) in self._seen.items() if kind == code)
