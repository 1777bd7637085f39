"""Polls edges for the packet counters of their paths, and passes them to the path monitor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.edges.distribution import Distributor
from braid_sdn.fabric.monitor.path_monitor import PathMonitor
from braid_sdn.fabric.plan.plan import Pair
from braid_sdn.fabric.view.path_rates import PathRates


@dataclass
class CounterPoller:
    """Requests counters when a path is suspect. Times are seconds."""

    monitor: PathMonitor
    distributor: Distributor
    rates: PathRates
    #: Time of the last response to each edge, which counts after it for its next report.
    _last_response: dict[str, float] = field(default_factory=dict)

    def handle_response(self, now: float, edge: str) -> None:
        """Record that an edge's request is answered."""
        self._last_response[edge] = now

    def handle_rx(self, now: float, edge: str, counts: Mapping[int, int]) -> None:
        """Take in the packets that an edge has received by each path."""
        since = self._last_response.get(edge, 0.0)
        for pair in self._pairs():
            if pair.target.name == edge:
                self.monitor.handle_rx(now, since, counts, {path.tag: pair.share(path.tag) for path in pair.paths})

    def handle_rx_bytes(self, now: float, counted: float, counts: Mapping[int, int]) -> None:
        """Take in the bytes that an edge had received by each path at a time of its own clock."""
        self.rates.handle_bytes(now, counted, counts)

    def handle_tx(self, now: float, edge: str, counts: Mapping[int, int]) -> None:
        """Take in the packets that an edge has sent by each path."""
        since = self._last_response.get(edge, 0.0)
        for pair in self._pairs():
            if pair.source.name == edge and len(pair.paths) > 1:
                self.monitor.handle_tx(now, since, counts, [path.tag for path in pair.paths])

    def handle_states(self, now: float, edge: str, probed: Collection[int], silent: Collection[int]) -> bool:
        """Take in which of its paths an edge probes, and which of them are silent; return true if one died."""
        own = {path.tag for pair in self._pairs() if pair.source.name == edge for path in pair.paths}
        return self.monitor.handle_states(now, own.intersection(probed), own.intersection(silent))

    def handle_timeout(self, now: float) -> None:
        """Request counters of paths whose probes are missing or late, and of paths that share links with them."""
        asked = self.monitor.sharing_links(self.monitor.suspects(now)) | set(self.monitor.queued_paths(now))
        if asked:
            self._poll(now, (pair for pair in self._pairs() if asked & {path.tag for path in pair.paths}))

    def poll_all(self, now: float) -> None:
        """Request all counters while paths work, as a baseline for when probes are missing."""
        self._poll(now, (pair for pair in self._pairs() if len(pair.paths) > 1))

    def poll_pairs(self, now: float, pairs: Iterable[Pair]) -> None:
        """Request the counters of these pairs."""
        self._poll(now, pairs)

    def _poll(self, now: float, pairs: Iterable[Pair]) -> None:
        """Request received packets of these pairs, and sent packets of those with several paths."""
        ends = set[str]()
        for pair in pairs:
            ends |= {pair.target.name} if len(pair.paths) == 1 else {pair.source.name, pair.target.name}
            self.monitor.handle_polled(now, [path.tag for path in pair.paths])
        self.distributor.request_counts(ends)

    def _pairs(self) -> Iterable[Pair]:
        return self.distributor.tables.pairs.values()
