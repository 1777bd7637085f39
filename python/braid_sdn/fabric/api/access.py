"""The access control list in the API's documents: its entries, what they do to two hosts, and its problems."""

from __future__ import annotations

from typing import Any

from braid_sdn.fabric.acl import Action, End, HostEnd, KnownHosts, Place, explained
from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.model import PortId, Problem
from braid_sdn.fabric.plan import network_state
from braid_sdn.fabric.plan.plan import Host
from braid_sdn.fabric.switches.acl import MAX_RULES


def listed(fabric: Controller) -> dict[str, Any]:
    """Return the list with counters, and the rules that it takes."""
    placement = fabric.acl
    acl, packets = placement.acl, placement.counted.packets
    hosts = KnownHosts(_host_end(fabric, host.port, host) for host in fabric.hosts.known.values())
    return {
        "default": acl.default.value,
        "default_packets": packets.get(0, 0),
        "entries": [
            {
                "number": number,
                "name": entry.name,
                "action": entry.action.value,
                "text": str(entry),
                "packets": packets.get(number, 0),
                "known": all(_may_be_host(end, hosts) for end in (entry.source, entry.target)),
            }
            for number, entry in enumerate(acl.entries, 1)
        ],
        "switches": [
            {"switch": fabric.topology.name(dpid), "rules": placement.rules_at(dpid)}
            for dpid in sorted(placement.switches)
        ],
    }


def _may_be_host(end: End, hosts: KnownHosts) -> bool:
    # A group is no host.
    return (end.mac is not None and bool(int(end.mac[:2], 16) & 1)) or hosts.has(end)


def problems(fabric: Controller) -> list[Problem]:
    """Return why the list is not in force as it is written."""
    acl = fabric.acl.acl
    found = []
    if fabric.reload_refused:
        text = f"could not be read anew, and the one before is followed: {fabric.reload_refused}"
        found.append(Problem("reload-refused", "configuration", text))
    if fabric.restart_needed:
        text = f"{fabric.restart_needed}: the file says something else than is followed; systemctl restart braid-sdn"
        found.append(Problem("restart-needed", "configuration", text))
    known = network_state.resolve_places(acl, fabric.settings, fabric.topology) if fabric.planned else {}
    for number, entry in enumerate(acl.entries, 1) if fabric.planned else ():
        for place in (entry.source.place, entry.target.place):
            # A switch that was never there may have a name all the same.
            if place is not None and (place not in known or not fabric.topology.known_ports(known[place][0])):
                text = f"{place} is not known: it matches nothing; see the names of its switch and port"
                found.append(Problem("acl-place-unknown", acl.called(number), text))
    for dpid, count in sorted(fabric.acl.crowded.items()):
        hosts = fabric.acl.shortened.get(dpid)
        text = "the one before is in force there, and without one hosts' packets are refused; name fewer places in to"
        if hosts is not None:
            text = f"each place in to means the {hosts} hosts there that were learned first; see who forges MACs"
        text = f"the access control list takes {count} rules, and may take {MAX_RULES}: {text}"
        found.append(Problem("acl-too-long", fabric.topology.name(dpid), text))
    return found


def findings(fabric: Controller, source: HostEnd, target: HostEnd) -> list[dict[str, Any]]:
    """Return the entries that decide packets between two ends."""
    return [
        {"number": each.number, "action": each.action.value, "concerns": each.concerns}
        for each in explained(fabric.acl.acl, source, target)
    ]


def steps(fabric: Controller, told: list[dict[str, Any]]) -> list[str]:
    """Return lines for people of these findings."""
    if fabric.acl.acl.permits_all:
        return []
    made = []
    before = False
    for each in told:
        verb = "permits" if each["action"] == Action.PERMIT else "refuses"
        what = each["concerns"] or ("all else" if before else "all")
        before = True
        made.append(f"access control: {fabric.acl.acl.called(each['number'])} {verb} {what}")
    return made


def end_of(fabric: Controller, word: str, port: PortId) -> HostEnd:
    """Return a host, or any host behind an edge, as the list sees it."""
    return _host_end(fabric, port, fabric.find_host(word))


def _host_end(fabric: Controller, port: PortId, host: Host | None) -> HostEnd:
    topology = fabric.topology
    name = topology.name(port.switch)
    switch = topology.switches.get(port.switch)
    known = switch.ports.get(port.port) if switch is not None else None
    names = {name, f"{port.switch:016x}"}
    ports = {str(port.port), *([known.name] if known is not None else [])}
    places = {Place(switch=each) for each in names}
    places |= {Place(switch=each, port=number) for each in names for number in ports}
    places |= {Place(edge=edge.name) for edge in fabric.edges if edge.port == port}
    if host is None:
        return HostEnd(None, frozenset(), frozenset(places))
    return HostEnd(host.mac, host.addresses, frozenset(places))
