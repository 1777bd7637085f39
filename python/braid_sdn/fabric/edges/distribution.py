"""Distribution of tables to edges, and requests for their counters.

An edge drops packets with an unknown tag. So when a pair gets new tags, its target gets its table first; once the
target acknowledges it, or a timeout has passed, the source is told to use the tags. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from braid_sdn.fabric.plan.plan import Pair, differs_for_edges

Pairs = dict[tuple[str, str], Pair]

#: Edges that have not sent a request for this long, seconds, are not waited for; they send one every ten.
ACTIVE_EDGE_TIMEOUT = 15.0
#: Seconds for an edge to acknowledge new tags: a round trip or two.
ACKNOWLEDGE_TIMEOUT = 0.5


@dataclass(frozen=True)
class Tables:
    """The tables of all edges; every change increments the generation."""

    generation: int
    #: Paths by which packets may arrive, and which are probed.
    pairs: Pairs
    #: Paths by which packets are sent: the old ones while a target has not acknowledged new tags.
    egress: Pairs


@dataclass
class Distributor:
    """Distributes tables to edges."""

    tables: Tables = field(default_factory=lambda: Tables(0, {}, {}))
    #: False until the first plan: edges keep what the controller before told them.
    has_plan: bool = False
    #: Number of requests to each edge for its counters.
    requests: dict[str, int] = field(default_factory=dict)
    #: Edges that want other edges to add shims.
    shims: set[str] = field(default_factory=set)
    #: The pairs that their targets have acknowledged.
    acknowledged: Pairs = field(default_factory=dict)
    #: The pairs of the current generation.
    _published: Pairs = field(default_factory=dict)
    #: Time of each edge's last request.
    _last_request: dict[str, float] = field(default_factory=dict)
    #: Edges that must acknowledge new tags before these are used, and the end of each wait.
    _awaited: dict[str, float] = field(default_factory=dict)
    #: Edges whose tables changed; None once they were returned.
    _affected: set[str] | None = None

    def handle_plan(self, now: float, plan: Mapping[tuple[str, str], Pair]) -> None:
        """Distribute another plan, whose rules are in place."""
        self.has_plan = True
        pairs, before = dict(plan), self.tables
        changed = {
            key
            for key in pairs.keys() | self._published.keys()
            if differs_for_edges(self._published.get(key), pairs.get(key))
        }
        if changed:
            self._published = pairs
        following = {name for name, at in self._last_request.items() if now - at < ACTIVE_EDGE_TIMEOUT}
        held = {
            (source, target)
            for (source, target), pair in pairs.items()
            if target in following
            and _tags(pair)
            - _tags(self.acknowledged.get((source, target)))
            - _tags(before.egress.get((source, target)))
        }
        named = following & {name for key in changed for name in key}
        self._affected = named | ((self._affected or set()) if self._awaited else set())
        self._awaited = {target: self._awaited.get(target, now + ACKNOWLEDGE_TIMEOUT) for _, target in held}
        egress = {key: pair for key, pair in pairs.items() if key not in held}
        egress |= {key: before.egress[key] for key in held if key in before.egress}
        self.tables = Tables(before.generation + bool(changed), pairs, egress)

    def handle_request(self, now: float, edge: str, *, current: bool) -> None:
        """Take in an edge's request for its next table; `current` if it acknowledges the present one."""
        self._last_request[edge] = now
        if not current:
            return
        others = {key: pair for key, pair in self.acknowledged.items() if key[1] != edge}
        self.acknowledged = others | {key: pair for key, pair in self.tables.pairs.items() if key[1] == edge}
        if self._awaited.pop(edge, None) is not None:
            self._release()

    def handle_timeout(self, now: float) -> None:
        """End the wait for acknowledgements, if it is time."""
        if self._awaited and now >= max(self._awaited.values()):
            self._awaited.clear()
            self._release()

    def poll_timeout(self) -> float | None:
        """Return when to call `handle_timeout`."""
        return max(self._awaited.values(), default=None)

    def poll_affected(self) -> set[str] | None:
        """Return, once, the edges with changed tables, when no acknowledgement is awaited any more."""
        if self._awaited:
            return None
        affected, self._affected = self._affected, None
        return affected

    def request_counts(self, edges: Iterable[str]) -> None:
        """Request counters from edges."""
        for name in edges:
            self.requests[name] = self.requests.get(name, 0) + 1

    def _release(self) -> None:
        if not self._awaited:
            tables = self.tables
            self.tables = replace(tables, generation=tables.generation + 1, egress=tables.pairs)


def _tags(pair: Pair | None) -> set[int]:
    return {path.tag for path in pair.paths} if pair else set()
