"""Collects the planner's input from the controller, and resolves names in its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from braid_sdn.fabric.acl import Acl, Place
from braid_sdn.fabric.model import Graph, PortId
from braid_sdn.fabric.plan import planner
from braid_sdn.fabric.plan.plan import Edge, Host, Plan
from braid_sdn.fabric.plan.policies import Hop, Link, LinkEnd, Policies
from braid_sdn.fabric.plan.port_roles import names_of
from braid_sdn.fabric.settings import HostSettings, Settings
from braid_sdn.fabric.switches.acl_placement import Surroundings
from braid_sdn.fabric.tenants import NOBODY, PortName, places
from braid_sdn.fabric.view.topology import Topology

if TYPE_CHECKING:
    from braid_sdn.fabric.controller import Controller

T = TypeVar("T")

#: Seconds a port must be up, and hear no switch, before broadcasts go out of it.
HOST_PORT_SETTLE_TIME = 0.9


def collect(
    now: float, fabric: Controller, review: tuple[int, ...], most_trees: int, keeps_pairs: Callable[[], bool]
) -> planner.NetworkState:
    """Return the planner's input; `review`, `most_trees` and `keeps_pairs` are its own."""
    around = fabric.topology.neighbours()
    # Many hosts may be behind an edge: one that echoes frames must not cost the others their broadcasts.
    looped = fabric.topology.echoed(now) - {edge.port for edge in fabric.edges}
    looped |= fabric.untrusted_links.ports(now)
    outside: dict[int, set[int]] = {}
    for port, since in fabric.topology.up_since.items():
        if port not in around and port not in looped and now - since >= HOST_PORT_SETTLE_TIME:
            outside.setdefault(port.switch, set()).add(port.port)
    tenants = fabric.settings.tenants
    return planner.NetworkState(
        graph=fabric.graph,
        hosts=tuple(fabric.hosts.known.values()),
        edges=tuple(edge for edge in fabric.edges if edge.port not in around),
        tenants=tenants,
        port_tenants=fabric.port_roles.tenants_of_ports(tenants, fabric.topology),
        trunks=fabric.port_roles.trunks_of_switches(tenants, fabric.topology),
        outside={switch: frozenset(ports) for switch, ports in outside.items()},
        tags_in_use=fabric.updater.tags_in_use() | fabric.compiler.tags(),
        dead=frozenset(fabric.path_monitor.dead),
        full=fabric.problems.switches_full(now),
        silent=frozenset(fabric.path_monitor.silent),
        known=fabric.distributor.acknowledged,
        limits=fabric.settings.limits,
        learned=dict(fabric.path_capacity.limits),
        unreachable=fabric.graph.switches - fabric.topology.switches.keys(),
        doubtful=frozenset(fabric.updater.doubtful),
        review=review,
        most_trees=most_trees,
        policies=fabric.policies,
        failover=frozenset(fabric.failover),
        forbidden=forbidden_hops(fabric.policies.forbidden, fabric.topology, fabric.graph),
        stale=frozenset(key for key, hearing in fabric.topology.heard.items() if hearing.stale),
        seen_by=lambda graph, pair: fabric.traffic.without_own(graph, {path.tag: path.steps for path in pair.paths}),
        keeps_pairs=keeps_pairs,
    )


def permitted(graph: Graph, fabric: Controller) -> Graph:
    """Return a graph without links that may not be; those of switches that left are as they were."""
    if not fabric.settings.tenants:
        return graph
    there = fabric.topology.switches.keys()
    kept = [
        arc
        for arc in graph.arcs
        if fabric.may_link(arc.source, arc.target) or arc.source.switch not in there or arc.target.switch not in there
    ]
    return Graph.of(kept, graph.switches) if len(kept) < len(graph.arcs) else graph


def tenant_at(port: PortId, settings: Settings, topology: Topology, vid: int = 0) -> int:
    """Return the tenant of a port; nobody's if the port is not known, or an end of a listed link.

    Of a trunk that of frames under a VID.
    """
    known = topology.known_ports(port.switch).get(port.port) if settings.tenants else None
    if known is None:
        return NOBODY
    return settings.tenants.at(topology.name(port.switch), known.name, port.port, vid)


def is_served(port: PortId, settings: Settings, topology: Topology, vid: int = 0) -> bool:
    """Return true if frames at a port, with this VID at a trunk, are a tenant's, or there are no tenants."""
    return not settings.tenants or tenant_at(port, settings, topology, vid) != NOBODY


def missing_ports(listed: Iterable[PortName], topology: Topology, waiting: Mapping[int, str]) -> dict[PortName, str]:
    """Return those of ports that do not exist, each with why.

    A switch that is in `waiting` is connected, but is no part of the network before that has happened.
    """
    dpids, awaited = _dpids(topology), _by_names(topology, waiting)
    return {
        (switch, port): _why_missing(switch, dpids, awaited)
        for switch, port in listed
        if _port(topology, dpids, switch, port) is None
    }


def _why_missing(switch: str, dpids: dict[str, int], awaited: dict[str, str]) -> str:
    if switch in awaited:
        return f"its switch {_why_absent(switch, awaited)}"
    why = "has no such port" if switch in dpids else _why_absent(switch, awaited)
    return f"its switch {why}: see names and cables"


def _why_absent(switch: str, awaited: dict[str, str]) -> str:
    return f"is not part of the network before its {awaited[switch]}" if switch in awaited else "is not connected"


def why_unplaced(
    listed: Iterable[tuple[PortName, int]], settings: Settings, topology: Topology, waiting: Mapping[int, str]
) -> list[str]:
    """Return for each of these ports, and VIDs of frames there, why no edge or host of the configuration is there."""
    dpids, awaited = _dpids(topology), _by_names(topology, waiting)
    return [
        _why_unplaced(place, vid, dpids, settings, topology)
        if place[0] in dpids
        else f"switch {place[0]} {_why_absent(place[0], awaited)}"
        for place, vid in listed
    ]


def _why_unplaced(place: PortName, vid: int, dpids: dict[str, int], settings: Settings, topology: Topology) -> str:
    switch, name = place
    port = _port(topology, dpids, switch, name)
    if port is None:
        return f"switch {switch} has no port {name}: see names and cables"
    tenants, words = settings.tenants, names_of(port, topology)
    if tenants.is_end(*words):
        return f"port {name} of switch {switch} is an end of a [[link]], where nobody else can be"
    if is_served(port, settings, topology, vid):
        return f"port {name} of switch {switch} has just come, and is looked at"
    if tenants.trunk(*words):
        return f"at the trunk {switch}:{name} no tenant has frames {f'under VID {vid}' if vid else 'without a vid'}"
    why = f"is no trunk, so it has no VID {vid}" if vid else "has one tenant by its name, and another by its number"
    return f"port {name} of switch {switch} {why}"


def next_settled(now: float, topology: Topology) -> float | None:
    """Return the seconds until broadcasts may go out of a port that came up lately; None if there is none."""
    newest = [since for since in topology.up_since.values() if now - since < HOST_PORT_SETTLE_TIME]
    # Not by a rounding error too early.
    return min(newest) + HOST_PORT_SETTLE_TIME + 0.001 - now if newest else None


def flood_limits(
    fabric: Controller, plan: Plan, switch: int, rates: Mapping[int, float]
) -> dict[tuple[int, int], float]:
    """Return what each port may have flooded if hosts are there, bit/s, by the port and, at a trunk, the tenant.

    Ports that are down are among them, and those at which a loop is: a storm begins with the first packet.
    """
    configured = fabric.settings.flood.ports
    tenants, trunks = plan.port_tenants.get(switch, {}), plan.trunks.get(switch, {})
    made = {
        (port, tenant): rates.get(tenant or tenants.get(port, NOBODY), math.inf)
        for port in sorted(fabric.topology.switches[switch].ports)
        for tenant in (sorted(set(trunks[port].values())) if port in trunks else (NOBODY,))
    }
    for port, tenant in made if configured else ():
        at = places(*names_of(PortId(switch, port), fabric.topology))
        made[port, tenant] = next((configured[place] for place in at if place in configured), made[port, tenant])
    return made


def forbidden_hops(links: Iterable[Link], topology: Topology, graph: Graph) -> frozenset[Hop]:
    """Return the directions of forbidden links that are there."""
    found = set[Hop]()
    for one, other in links:
        for arc in graph.arcs:
            if _is_end(topology, one, arc.source) and _is_end(topology, other, arc.target):
                found |= {(arc.source, arc.target), (arc.target, arc.source)}
    return frozenset(found)


def is_link(topology: Topology, link: Link, source: PortId, target: PortId) -> bool:
    """Return true if a direction of a link is one of those that an operator means."""
    one, other = link
    return any(
        _is_end(topology, here, source) and _is_end(topology, there, target)
        for here, there in ((one, other), (other, one))
    )


def _is_end(topology: Topology, end: LinkEnd, port: PortId) -> bool:
    if port.switch != end.switch:
        return False
    switch = topology.switches.get(port.switch)
    known = switch.ports.get(port.port) if switch is not None else None
    # Of a switch that lost the controller no name is known: none of its links to there is used.
    return not end.port or known is None or end.port in (known.name, str(port.port))


def switch_called(word: str, settings: Settings, topology: Topology) -> int | None:
    """Return the switch with this name or datapath id in hex, whether it is connected or not."""
    return _known_dpids(settings, topology).get(word)


def _known_dpids(settings: Settings, topology: Topology) -> dict[str, int]:
    known = {name: dpid for dpid, name in settings.names.items()}
    known |= {f"{dpid:016x}": dpid for dpid in (*settings.names, *topology.lost_switches)}
    return known | _dpids(topology)


def _dpids(topology: Topology) -> dict[str, int]:
    return _by_names(topology, {dpid: dpid for dpid in topology.switches})


def _by_names(topology: Topology, known: Mapping[int, T]) -> dict[str, T]:
    """Return what is known of switches by their names and numbers."""
    named = {topology.name(dpid): each for dpid, each in known.items()}
    return named | {f"{dpid:016x}": each for dpid, each in known.items()}


def _port(topology: Topology, dpids: dict[str, int], switch: str, name: str) -> PortId | None:
    """Return the port of one of these switches by its name or number."""
    dpid = dpids.get(switch)
    ports = topology.known_ports(dpid).values() if dpid is not None else ()
    numbers = [port.number for port in ports if name in (port.name, str(port.number))]
    return PortId(dpid, numbers[0]) if dpid is not None and numbers else None


def resolve_edges(settings: Settings, topology: Topology) -> tuple[Edge, ...]:
    """Return the configured edges whose switch and port are connected."""
    found = []
    dpids = _dpids(topology)
    for edge in settings.edges:
        port = _port(topology, dpids, edge.switch, edge.port)
        if port is not None and is_served(port, settings, topology):
            found.append(Edge(edge.name, port, tenant_at(port, settings, topology)))
    return tuple(found)


def static_hosts(settings: Settings, policies: Policies, topology: Topology) -> list[HostSettings]:
    """Return the hosts that stay where they are: an operator's, and the configuration's other ones."""
    return [
        *(host for host in settings.hosts if host.mac not in policies.hosts),
        *(
            HostSettings(mac, topology.name(host.switch), host.port, host.addresses, host.vid)
            for mac, host in sorted(policies.hosts.items())
        ),
    ]


def tenant_of_host(host: HostSettings, settings: Settings, topology: Topology) -> int:
    """Return the tenant of a static host, whether its switch is connected or not."""
    port = _port(topology, _dpids(topology), host.switch, host.port)
    if port is None:
        return settings.tenants.at(host.switch, host.port, -1, host.vid)
    return tenant_at(port, settings, topology, host.vid)


def port_called(switch: int, word: str, topology: Topology) -> PortId | None:
    """Return the port of a switch with this name or number, also of one that lost the controller."""
    return _port(topology, {"": switch}, "", word)


def resolve_hosts(hosts: Iterable[HostSettings], settings: Settings, topology: Topology) -> list[Host]:
    """Return the hosts whose switch and port are connected."""
    dpids = _dpids(topology)
    places = ((host, _port(topology, dpids, host.switch, host.port)) for host in hosts)
    return [
        Host(host.mac, port, host.addresses, vid=host.vid)
        for host, port in places
        if port is not None and is_served(port, settings, topology, host.vid)
    ]


def resolve_places(acl: Acl, settings: Settings, topology: Topology) -> dict[Place, tuple[int, int | None]]:
    """Return switch and port of the places of a list, as far as they are known; no port is all of the switch.

    A switch that lost the controller still brings packets to its hosts, so its places stay where they were.
    """
    edges = {edge.name: (edge.switch, edge.port) for edge in settings.edges}
    dpids = _known_dpids(settings, topology)
    found: dict[Place, tuple[int, int | None]] = {}
    for place in acl.places():
        switch, port = edges.get(place.edge, ("", "")) if place.edge else (place.switch, place.port)
        known = _port(topology, dpids, switch, port) if port else None
        if known is not None:
            found[place] = known
        elif not port and switch in dpids:
            found[place] = (dpids[switch], None)
    return found


def surroundings(fabric: Controller) -> Surroundings:
    """Return what the rules of the access control list depend on besides the list."""
    topology, known = fabric.topology, fabric.hosts.known
    # Also those whose switch has lost the controller.
    static = {host.mac for host in fabric.static_hosts()} | fabric.hosts.static.keys()
    # In the order in which they were learned.
    learned = [host for mac, host in known.items() if mac not in static]
    # The list reads packets behind a trunk's header as those behind an edge's tag.
    trunks = [Edge("", PortId(dpid, port)) for dpid, ports in fabric.plan.trunks.items() for port in ports]
    return Surroundings(
        links=fabric.plan.internal,
        ports={dpid: switch.ports.keys() for dpid, switch in topology.switches.items()},
        edges=(*fabric.edges, *trunks),
        hosts=[*(known[mac] for mac in sorted(static & known.keys())), *learned],
        places=resolve_places(fabric.acl.acl, fabric.settings, topology),
    )


def missing_links(settings: Settings, topology: Topology, now: float) -> list[tuple[tuple[str, str], str]]:
    """Return the ends of configured links that do not exist, each with why it was lost, or "" if it was never there.

    Losses are forgotten in time, as those in the API's list are.
    """
    # A switch that lost the controller has links all the same.
    dpids = {name: dpid for dpid, name in settings.names.items()} | _dpids(topology)
    found = {frozenset((link.source.switch, link.target.switch)) for link in topology.links()}
    links, _ = topology.missing(now)
    lost: dict[frozenset[int | None], str] = {
        frozenset((source.switch, target.switch)): loss.why for (source, target), loss in links.items()
    }
    missing = []
    for link in settings.links:
        ends = frozenset(dpids.get(name) for name in link.between)
        if ends not in found:
            missing.append((link.between, lost.get(ends, "")))
    return missing


def configured_capacities(settings: Settings, policies: Policies, topology: Topology) -> dict[PortId, float]:
    """Return the capacity of each known link by its source port, bit/s: that which an operator set, or configured."""
    dpids = _dpids(topology)
    configured: dict[frozenset[object], float] = {}
    for each in settings.links:
        if math.isinf(each.capacity):
            continue
        if any(each.ports):
            configured[frozenset(zip(each.between, each.ports, strict=True))] = each.capacity
        else:
            configured[frozenset(dpids.get(name) for name in each.between)] = each.capacity
    # Those of single links first.
    own: dict[frozenset[int], list[Link]] = {}
    for each_set in sorted(policies.capacities, key=lambda link: (-sum(bool(end.port) for end in link), link)):
        own.setdefault(frozenset(end.switch for end in each_set), []).append(each_set)
    capacities = {}
    for link in topology.links() if configured or own else ():
        here = own.get(frozenset((link.source.switch, link.target.switch)), ())
        known = next((each_set for each_set in here if is_link(topology, each_set, link.source, link.target)), None)
        if known is not None:
            capacities[link.source] = policies.capacities[known]
            continue
        keys: list[frozenset[object]] = [
            frozenset((one, other))
            for one in places(*names_of(link.source, topology))
            for other in places(*names_of(link.target, topology))
        ]
        keys.append(frozenset((link.source.switch, link.target.switch)))
        capacity = next((configured[key] for key in keys if key in configured), None)
        if capacity is not None:
            capacities[link.source] = capacity
    return capacities
