"""Load of links: in all, by our own paths, and saturation limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from braid_sdn.fabric.model import Arc, Graph, PortId
from braid_sdn.fabric.switches.rules import PATHS
from braid_sdn.fabric.view.load import COUNTER_PERIOD, PortRates, capacity, observe, rates
from braid_sdn.fabric.view.topology import LinkDirection, Topology
from braid_sdn.openflow.messages import FlowStats, PortCounters

#: Factor of a link's capacity that no window of our own flows would exceed for a whole period.
OVERLOAD_FACTOR = 2.0

#: Part of a link's capacity from which on it is busy.
BUSY_SHARE = 0.5

#: Shortest time over which a rate is measured, seconds.
MIN_RATE_PERIOD = COUNTER_PERIOD / 2

#: Added latency of a link whose switch lost its controller, seconds: longer than any working link.
STALE_PENALTY = 10.0


@dataclass
class Traffic:
    """Rates by port and by tag."""

    #: Configured capacity of a port's link, bit/s.
    configured: dict[PortId, float] = field(default_factory=dict)
    rates: dict[PortId, PortRates] = field(default_factory=dict)
    #: bit/s that each port sent in the previous period.
    before: dict[PortId, float] = field(default_factory=dict)
    #: bit/s that a tag's rules matched at a switch: the traffic of that path arriving there.
    tagged: dict[tuple[int, int], float] = field(default_factory=dict)
    #: The same in the previous period.
    tagged_before: dict[tuple[int, int], float] = field(default_factory=dict)
    _ports: dict[PortId, PortCounters] = field(default_factory=dict)
    _rules: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    #: Tags that each switch had rules of.
    _tags: dict[int, set[int]] = field(default_factory=dict)
    #: Bytes that the controller had sent by each port to measure something, in this period and in the one before.
    _own: dict[PortId, int] = field(default_factory=dict)
    _own_before: dict[PortId, int] = field(default_factory=dict)
    #: When the last period ended, and its length.
    _observed: float | None = None
    _period: float = COUNTER_PERIOD

    def handle_ports(self, switch: int, counters: Iterable[PortCounters]) -> None:
        """Take in a switch's port counters."""
        for each in counters:
            port = PortId(switch, each.port)
            before = self._ports.get(port)
            if before and 0 <= each.age - before.age < MIN_RATE_PERIOD:
                # An extra reading, for a link check: the rate of so short a time is that of a burst.
                continue
            self._ports[port] = each
            seen = rates(before, each) if before else None
            if seen is not None:
                if port in self.rates:
                    self.before[port] = self.rates[port].sent
                self.rates[port] = seen

    def handle_rules(self, now: float, switch: int, rules: Iterable[FlowStats]) -> None:
        """Take in the counters of all of a switch's path rules; one whose counter was reset starts anew."""
        listed = set[int]()
        for each in rules:
            tag = each.rule.match.vlan
            match = each.rule.match
            others = (match.eth_type, match.vlan_pcp, match.in_port)
            if each.rule.table != PATHS or not isinstance(tag, int) or any(field is not None for field in others):
                continue
            key = (switch, tag)
            listed.add(tag)
            # A young rule counted everything in this period.
            before, at = self._rules.get(key, (0, now - self._period if each.age < self._period else now))
            self._rules[key] = (each.bytes, now)
            if now > at:
                if key in self.tagged:
                    self.tagged_before[key] = self.tagged[key]
                self.tagged[key] = max(0, 8 * (each.bytes - before)) / (now - at)
        # Tags go round: in the end each switch would have had them all.
        for tag in self._tags.get(switch, set()) - listed:
            for known in (self._rules, self.tagged, self.tagged_before):
                known.pop((switch, tag), None)
        self._tags[switch] = listed

    def forget(self, switch: int) -> None:
        """Forget a switch that restarted or left: its counters are reset."""
        for ports in (self._ports, self.rates, self.before):
            for port in [port for port in ports if port.switch == switch]:
                del ports[port]
        for tag in self._tags.pop(switch, ()):
            for known in (self._rules, self.tagged, self.tagged_before):
                known.pop((switch, tag), None)

    def handle_measuring(self, port: PortId, size: int) -> None:
        """Take in bytes that the controller has a port send to measure something: they may be lost at any load."""
        self._own[port] = self._own.get(port, 0) + size

    def observe(self, now: float, links: Iterable[LinkDirection]) -> None:
        """Compare, after a period, the rates that entered and left each link."""
        for link in links:
            sent, received = self.rates.get(link.source), self.rates.get(link.target)
            if sent and received:
                # Switches may have counted them in either period.
                own = self._own.get(link.source, 0) + self._own_before.get(link.source, 0)
                # Counters are read more rarely in a large network.
                others = sent.sent - 8 * own / sent.seconds
                link.saturation = observe(link.saturation, now, others, received.received)
        self._own_before, self._own = self._own, {}
        if self._observed is not None:
            self._period = max(COUNTER_PERIOD, now - self._observed)
        self._observed = now

    def is_busy(self, link: LinkDirection, topology: Topology) -> bool:
        """Return true if a link carries so much that it may drop packets."""
        sent = self.rates.get(link.source)
        is_full = sent is not None and sent.sent > BUSY_SHARE * self.capacity_of(link, topology)
        return is_full or link.saturation.losing

    def capacity_of(self, link: LinkDirection, topology: Topology) -> float:
        """Return a link's capacity, bit/s."""
        speeds = [
            switch.ports[end.port].speed
            for end in (link.source, link.target)
            if (switch := topology.switches.get(end.switch)) and end.port in switch.ports
        ]
        return capacity(self.configured.get(link.source), link.saturation.limit, *speeds)

    def graph(self, now: float, topology: Topology) -> Graph:
        """Return the network with capacity and load of each link, our own paths included."""
        return graph_of(self.arcs(now, topology), topology)

    def arcs(self, now: float, topology: Topology) -> Iterator[Arc]:
        """Yield both directions of each working link, for `graph_of`. They may miss a change after the first one."""
        echoes = topology.echoes(now)
        for link in topology.links():
            promised = self.configured.get(link.source)
            room = self.capacity_of(link, topology)
            sent = self.rates.get(link.source)
            used = room if link.stale else sent.sent if sent else 0.0
            latency, uncertainty = topology.latency(now, link, echoes)
            if link.stale:
                # It is the last choice for certain.
                latency, uncertainty = latency + STALE_PENALTY, 0.0
            promised = math.inf if promised is None else promised
            yield Arc(link.source, link.target, room, used, latency, promised, uncertainty)

    def without_own(self, graph: Graph, paths: Mapping[int, Iterable[PortId]]) -> Graph:
        """Return the graph as a pair sees it: load without the traffic of its own paths (tag: steps)."""
        own: dict[PortId, float] = {}
        own_before: dict[PortId, float] = {}
        for tag, steps in paths.items():
            walk = list(steps)
            for here, onward in itertools.pairwise(walk):
                # The traffic that arrived at the next switch, not that sent: lost packets were not carried.
                key = (onward.switch, tag)
                own[here] = own.get(here, 0.0) + self.tagged.get(key, 0.0)
                own_before[here] = own_before.get(here, 0.0) + self.tagged_before.get(key, 0.0)
        if not own:
            return graph

        def others(arc: Arc) -> float:
            use = max(0.0, arc.used - own.get(arc.source, 0.0))
            # Switches count rules up to half a second late, ports at once. So others' load on a link of ours is the
            # lower one of two periods; but no delay explains an overload.
            if arc.source in own and arc.source in self.before and arc.used <= OVERLOAD_FACTOR * arc.capacity:
                use = min(use, max(0.0, self.before[arc.source] - own_before[arc.source]))
            return use

        # All others are the same objects, in the same order: a graph has thousands.
        arcs = (replace(arc, used=others(arc)) if arc.source in own else arc for arc in graph.arcs)
        return Graph(graph.switches, tuple(arcs))


def graph_of(arcs: Iterable[Arc], topology: Topology) -> Graph:
    """Return the graph of a network's arcs, which are in order, and of all its switches."""
    kept = tuple(arcs)
    ends = {arc.source.switch for arc in kept}
    return Graph(frozenset(ends | topology.switches.keys()), kept)
