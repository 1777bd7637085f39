"""Rates that ports may have flooded by the links of each tenant's flood: half of the slowest one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.plan import Flood
from braid_sdn.fabric.switches.flood_limit import AUTO_SHARE, MAX_AUTO_LIMIT, MIN_SPEED
from braid_sdn.fabric.view.load import capacity
from braid_sdn.fabric.view.topology import Topology
from braid_sdn.openflow.messages import Port

#: Rates of ports, bit/s, by switch and number.
_Rates = dict[int, dict[int, float]]


@dataclass
class FloodRates:
    """Rates of one plan after another: a flood is looked at again if it, or the rate of a link, has changed."""

    _links: _Rates = field(default_factory=dict)
    _known: dict[int, tuple[Flood, float]] = field(default_factory=dict)
    _told: dict[int, float] = field(default_factory=dict)

    def get(
        self,
        limit: float | None,
        floods: Mapping[int, Flood],
        topology: Topology,
        configured: Mapping[PortId, float],
    ) -> Mapping[int, float]:
        """Return what ports of each tenant's hosts may have flooded if nothing is said of them, bit/s.

        The same object as before if nothing has changed.
        """
        made = dict.fromkeys(sorted(floods), limit) if limit is not None else self._auto(floods, topology, configured)
        if made != self._told:
            self._told = made
        return self._told

    def _auto(
        self, floods: Mapping[int, Flood], topology: Topology, configured: Mapping[PortId, float]
    ) -> dict[int, float]:
        links = _rates(topology, configured)
        before = self._known if links == self._links else {}
        self._links, self._known = links, {}
        made = {}
        for tenant, flood in sorted(floods.items()):
            known = before.get(tenant)
            if known is None or known[0] is not flood:
                slowest, is_whole = self._slowest(flood, topology, configured)
                known = (flood, min(MAX_AUTO_LIMIT, AUTO_SHARE * slowest))
            else:
                is_whole = True
            if is_whole:
                self._known[tenant] = known
            made[tenant] = known[1]
        return made

    def _slowest(self, flood: Flood, topology: Topology, configured: Mapping[PortId, float]) -> tuple[float, bool]:
        """Return the slowest rate of a flood's links, bit/s, and true if all of them are known to be links."""
        slowest, is_whole = math.inf, True
        for switch, ports in flood.ports.items():
            links = self._links.get(switch, {})
            for port in ports:
                rate = links.get(port)
                if rate is None:
                    is_whole = False
                    rate = _rate(PortId(switch, port), topology, configured)
                if rate is not None and rate < slowest:
                    slowest = rate
        return slowest, is_whole


def _rates(topology: Topology, configured: Mapping[PortId, float]) -> _Rates:
    """Return the rate of each port that is a link."""
    made: _Rates = {}
    for port in topology.neighbours():
        rate = _rate(port, topology, configured)
        if rate is not None:
            made.setdefault(port.switch, {})[port.port] = rate
    return made


def _rate(port: PortId, topology: Topology, configured: Mapping[PortId, float]) -> float | None:
    """Return a link's rate, bit/s; None of a switch that is not connected."""
    # Not what saturation shows: that comes and goes with the load.
    switch = topology.switches.get(port.switch)
    known = switch.ports.get(port.port) if switch is not None else None
    return capacity(configured.get(port), None, _speed(known)) if known is not None else None


def _speed(port: Port) -> float:
    """Return a port's speed, bit/s, 0 if it is not known: nonsense that a switch says cuts off nobody's hosts."""
    return max(MIN_SPEED, port.speed) if port.speed else 0.0
