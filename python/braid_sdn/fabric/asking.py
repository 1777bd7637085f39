"""What edges are asked about their paths, and what they tell: how many packets they sent, and how many came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.plan import Pair
from braid_sdn.fabric.telling import Telling
from braid_sdn.fabric.watch import Watch


@dataclass
class Asking:
    """Has edges asked when a path is in doubt, and `watch` know what they tell. Times are seconds."""

    watch: Watch
    telling: Telling
    #: When each edge was last answered: what it tells next it counts after that.
    _answered: dict[str, float] = field(default_factory=dict)

    def handle_answered(self, now: float, edge: str) -> None:
        """An edge's question is answered."""
        self._answered[edge] = now

    def handle_came(self, now: float, edge: str, counts: Mapping[int, int]) -> None:
        """An edge tells how many packets came to it by each of its paths."""
        since = self._answered.get(edge, 0.0)
        for pair in self._pairs():
            if pair.target.name == edge:
                self.watch.handle_came(now, since, counts, {path.tag: pair.share(path.tag) for path in pair.paths})

    def handle_sent(self, now: float, edge: str, counts: Mapping[int, int]) -> None:
        """An edge tells how many packets it has sent by each of its paths."""
        since = self._answered.get(edge, 0.0)
        for pair in self._pairs():
            if pair.source.name == edge and len(pair.paths) > 1:
                self.watch.handle_sent(now, since, counts, [path.tag for path in pair.paths])

    def handle_timeout(self, now: float) -> None:
        """Have edges tell what passes by paths whose probes are missing or late, and by those beside."""
        asked = self.watch.beside(self.watch.doubtful(now)) | set(self.watch.pressed(now))
        if asked:
            self._ask(now, (pair for pair in self._pairs() if asked & {path.tag for path in pair.paths}))

    def ask_all(self, now: float) -> None:
        """Have edges tell what passes while all is well, to hold against it what passes when probes are missing."""
        self._ask(now, (pair for pair in self._pairs() if len(pair.paths) > 1))

    def _ask(self, now: float, pairs: Iterable[Pair]) -> None:
        """Have edges tell what came by these pairs' paths, and what was sent where there is another way."""
        ends = set[str]()
        for pair in pairs:
            ends |= {pair.target.name} if len(pair.paths) == 1 else {pair.source.name, pair.target.name}
            self.watch.asked(now, [path.tag for path in pair.paths])
        self.telling.ask(ends)

    def _pairs(self) -> Iterable[Pair]:
        return self.telling.tables.pairs.values()
