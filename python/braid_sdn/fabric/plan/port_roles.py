"""The tenant of each port by the configuration, and the links that this permits.

Each plan and each discovery frame asks for it, so it is worked out once for each change of a switch's ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.tenants import NOBODY, Tenants, places
from braid_sdn.fabric.view.topology import Switch, Topology

#: Pairs of ports that are remembered: hosts that hand on our frames could make up very many.
MAX_PAIRS = 65_536

_NO_TENANTS = Tenants()


@dataclass(frozen=True, slots=True)
class _Roles:
    """Those of a switch's ports, and what they were made of."""

    switch: Switch
    revision: int
    #: The tenant of each port that has one.
    tenants: dict[int, int]
    #: The tenants at each trunk by VIDs.
    trunks: dict[int, dict[int, int]]


@dataclass
class PortRoles:
    """Roles of ports by one configuration and topology after another."""

    _tenants: Tenants = _NO_TENANTS
    _revision: int = -1
    _may_link: dict[tuple[PortId, PortId], bool] = field(default_factory=dict)
    _roles: dict[int, _Roles] = field(default_factory=dict)
    #: Links of the topology, and the ports of each switch that are ends of them.
    _around: Mapping[PortId, Set[PortId]] | None = None
    _linked: dict[int, set[int]] = field(default_factory=dict)
    #: Answers until one of these changes.
    _port_tenants: dict[int, dict[int, int]] | None = None
    _trunks: dict[int, dict[int, dict[int, int]]] = field(default_factory=dict)

    def may_link(self, tenants: Tenants, topology: Topology, source: PortId, arrived: PortId) -> bool:
        """Return true if a discovery frame from one port at another may show a link."""
        if not tenants or source == arrived:
            return True
        self._follow(tenants, topology)
        key = (source, arrived)
        known = self._may_link.get(key)
        if known is None:
            if len(self._may_link) >= MAX_PAIRS:
                self._may_link.clear()
            known = self._may_link[key] = _may_link(tenants, [names_of(end, topology) for end in key])
        return known

    def tenants_of_ports(self, tenants: Tenants, topology: Topology) -> dict[int, dict[int, int]]:
        """Return the tenant of each port of switches that is no link; nothing where there are no tenants."""
        if not tenants:
            return {}
        self._follow(tenants, topology)
        around = topology.neighbours()
        if around is not self._around:
            linked: dict[int, set[int]] = {}
            for port in around:
                linked.setdefault(port.switch, set()).add(port.port)
            self._around, self._linked, self._port_tenants = around, linked, None
        if self._port_tenants is None:
            self._port_tenants = {dpid: self._outside(dpid, roles.tenants) for dpid, roles in self._roles.items()}
        return self._port_tenants

    def trunks_of_switches(self, tenants: Tenants, topology: Topology) -> dict[int, dict[int, dict[int, int]]]:
        """Return the tenants by VIDs of each switch's trunks; nothing where there are none."""
        if not tenants:
            return {}
        self._follow(tenants, topology)
        return self._trunks

    def _outside(self, dpid: int, tenants: dict[int, int]) -> dict[int, int]:
        links = self._linked.get(dpid)
        return {port: each for port, each in tenants.items() if port not in links} if links else tenants

    def _follow(self, tenants: Tenants, topology: Topology) -> None:
        """Forget what has changed since the last time, and work it out anew."""
        if tenants is self._tenants and topology.revision == self._revision:
            return
        before = self._roles if tenants is self._tenants else {}
        self._tenants, self._revision = tenants, topology.revision
        self._may_link.clear()
        self._roles = {}
        for dpid, switch in topology.switches.items():
            known = before.get(dpid)
            if known is None or known.switch is not switch or known.revision != switch.revision:
                known = _roles(tenants, topology.name(dpid), switch)
            self._roles[dpid] = known
        self._port_tenants = None
        self._trunks = {dpid: roles.trunks for dpid, roles in self._roles.items() if roles.trunks}


def _roles(tenants: Tenants, name: str, switch: Switch) -> _Roles:
    ports = {number: tenants.at(name, port.name, number) for number, port in sorted(switch.ports.items())}
    vids = {number: tenants.trunk(name, port.name, number) for number, port in sorted(switch.ports.items())}
    return _Roles(
        switch,
        switch.revision,
        {number: tenant for number, tenant in ports.items() if tenant != NOBODY},
        {number: dict(sorted(each.items())) for number, each in vids.items() if each},
    )


def _may_link(tenants: Tenants, ends: list[tuple[str, str, int]]) -> bool:
    if any(tenants.is_listed(*end) for end in ends):
        return False
    one, other = (places(*end) for end in ends)
    return tenants.has_link(one, other)


def names_of(port: PortId, topology: Topology) -> tuple[str, str, int]:
    """Return a port's switch, and its name (empty if it is not known) and number there."""
    known = topology.known_ports(port.switch).get(port.port)
    return topology.name(port.switch), known.name if known is not None else "", port.port
