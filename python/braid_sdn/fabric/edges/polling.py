"""What edges are asked about their paths, and what they tell: how many packets they sent, and how many came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.edges.distribution import Distributor
from braid_sdn.fabric.monitor.path_monitor import PathMonitor
from braid_sdn.fabric.plan.plan import Pair


@dataclass
class CounterPoller:
    """Has edges asked when a path is in doubt, and `watch` know what they tell. Times are seconds."""

    monitor: PathMonitor
    distributor: Distributor
    #: When each edge was last answered: what it tells next it counts after that.
    _last_response: dict[str, float] = field(default_factory=dict)

    def handle_response(self, now: float, edge: str) -> None:
        """An edge's question is answered."""
        self._last_response[edge] = now

    def handle_rx(self, now: float, edge: str, counts: Mapping[int, int]) -> None:
        """An edge tells how many packets came to it by each of its paths."""
        since = self._last_response.get(edge, 0.0)
        for pair in self._pairs():
            if pair.target.name == edge:
                self.monitor.handle_rx(now, since, counts, {path.tag: pair.share(path.tag) for path in pair.paths})

    def handle_tx(self, now: float, edge: str, counts: Mapping[int, int]) -> None:
        """An edge tells how many packets it has sent by each of its paths."""
        since = self._last_response.get(edge, 0.0)
        for pair in self._pairs():
            if pair.source.name == edge and len(pair.paths) > 1:
                self.monitor.handle_tx(now, since, counts, [path.tag for path in pair.paths])

    def handle_timeout(self, now: float) -> None:
        """Have edges tell what passes by paths whose probes are missing or late, and by those beside."""
        asked = self.monitor.sharing_links(self.monitor.suspects(now)) | set(self.monitor.queued_paths(now))
        if asked:
            self._poll(now, (pair for pair in self._pairs() if asked & {path.tag for path in pair.paths}))

    def poll_all(self, now: float) -> None:
        """Have edges tell what passes while all is well, to hold against it what passes when probes are missing."""
        self._poll(now, (pair for pair in self._pairs() if len(pair.paths) > 1))

    def _poll(self, now: float, pairs: Iterable[Pair]) -> None:
        """Have edges tell what came by these pairs' paths, and what was sent where there is another way."""
        ends = set[str]()
        for pair in pairs:
            ends |= {pair.target.name} if len(pair.paths) == 1 else {pair.source.name, pair.target.name}
            self.monitor.handle_polled(now, [path.tag for path in pair.paths])
        self.distributor.request_counts(ends)

    def _pairs(self) -> Iterable[Pair]:
        return self.distributor.tables.pairs.values()
