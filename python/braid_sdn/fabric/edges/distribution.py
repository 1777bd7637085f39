"""What edges are told, in which order, and what they are asked.

A packet under a tag that the far edge does not know is dropped there. So where a pair gets new tags its target is
told first what may come; once it follows, or has been waited for long enough, the source is told to send so. Times
are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from braid_sdn.fabric.plan.plan import Pair, differs_for_edges

Pairs = dict[tuple[str, str], Pair]

#: Seconds after which an edge that has not asked for a table is not waited for: it asks every ten.
ACTIVE_EDGE_TIMEOUT = 15.0
#: Seconds that edges get to know new tags: a round trip or two.
ACKNOWLEDGE_TIMEOUT = 0.5


@dataclass(frozen=True)
class Tables:
    """What edges are to do; each change of anything has a new generation."""

    generation: int
    #: By which paths packets come, and are probed.
    pairs: Pairs
    #: By which they are sent: of pairs whose targets do not know their new tags yet, as before.
    egress: Pairs


@dataclass
class Distributor:
    """Tells edges their tables."""

    tables: Tables = field(default_factory=lambda: Tables(0, {}, {}))
    #: How often each edge was asked to tell what it sent and what came to it.
    requests: dict[str, int] = field(default_factory=dict)
    #: Edges that want what has no numbers of its own to be numbered by others.
    shims: set[str] = field(default_factory=set)
    #: The pairs as their targets were last known to take them.
    acknowledged: Pairs = field(default_factory=dict)
    #: The pairs that the present generation is about.
    _announced: Pairs = field(default_factory=dict)
    #: When each edge last asked for its table.
    _last_request: dict[str, float] = field(default_factory=dict)
    #: Edges that are to know new tags before anybody uses them, and until when each is waited for.
    _awaited: dict[str, float] = field(default_factory=dict)
    #: Edges for whom something changed; None once they were named.
    _affected: set[str] | None = None

    def handle_plan(self, now: float, plan: Mapping[tuple[str, str], Pair]) -> None:
        """Tell edges of another plan, whose rules are in place."""
        pairs, before = dict(plan), self.tables
        changed = {
            key
            for key in pairs.keys() | self._announced.keys()
            if differs_for_edges(self._announced.get(key), pairs.get(key))
        }
        if changed:
            self._announced = pairs
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
        """An edge asks for its next table; whether it follows the current one."""
        self._last_request[edge] = now
        if not current:
            return
        others = {key: pair for key, pair in self.acknowledged.items() if key[1] != edge}
        self.acknowledged = others | {key: pair for key, pair in self.tables.pairs.items() if key[1] == edge}
        if self._awaited.pop(edge, None) is not None:
            self._release()

    def handle_timeout(self, now: float) -> None:
        """Wait for nobody any more, if it is time."""
        if self._awaited and now >= max(self._awaited.values()):
            self._awaited.clear()
            self._release()

    def poll_timeout(self) -> float | None:
        """Return when to call `handle_timeout`."""
        return max(self._awaited.values(), default=None)

    def poll_affected(self) -> set[str] | None:
        """Return, once, the edges that are to follow the tables that all have been told by now."""
        if self._awaited:
            return None
        affected, self._affected = self._affected, None
        return affected

    def request_counts(self, edges: Iterable[str]) -> None:
        """Have edges tell what passed."""
        for name in edges:
            self.requests[name] = self.requests.get(name, 0) + 1

    def _release(self) -> None:
        if not self._awaited:
            tables = self.tables
            self.tables = replace(tables, generation=tables.generation + 1, egress=tables.pairs)


def _tags(pair: Pair | None) -> set[int]:
    return {path.tag for path in pair.paths} if pair else set()
