"""Tenants in the API's documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.model import Problem
from braid_sdn.fabric.plan import network_state
from braid_sdn.fabric.tenants import DPID_BITS, Tenant, runs


def listed(fabric: Controller) -> list[dict[str, Any]]:
    """Return each tenant, the default one first; none without any in the configuration."""
    tenants = fabric.settings.tenants
    if not tenants:
        return []
    hosts = Counter(host.tenant for host in fabric.hosts.known.values())
    plan = fabric.plan
    used = [flood.tag for flood in plan.floods.values()] + [tree.tag for tree in plan.trees.values()]
    used += [path.tag for pair in plan.pairs.values() for path in pair.paths]
    used += [path.tag for path in plan.pinned.values()]
    tags = Counter(map(tenants.of_tag, used))
    return [
        {
            "name": "default" if tenant is None else tenant.name,
            "tags": " ".join(f"{first}-{last}" for first, last in runs(vids)),
            "tags_available": len(vids),
            "tags_used": tags[number],
            "hosts": hosts[number],
            "ports": [] if tenant is None else list(_ports(tenant)),
        }
        for number, tenant in zip(tenants.numbers, (None, *tenants.listed), strict=True)
        for vids in [tenants.tags(number) if tenant is None else range(tenant.first, tenant.last + 1)]
    ]


def _ports(tenant: Tenant) -> Iterator[str]:
    yield from (":".join(place) for place in tenant.ports)
    yield from (f"{':'.join(place)}:{vid}" for place, vid in tenant.trunks)


def tagless(fabric: Controller, key: int, text: str) -> tuple[str, str]:
    """Return the subject and the text of a problem: no tag is left for a tree."""
    tenants = fabric.settings.tenants
    if not tenants:
        return fabric.topology.name(key), text
    name = tenants.name(key >> DPID_BITS)
    switch = fabric.topology.name(key & (1 << DPID_BITS) - 1)
    return f"{switch} (tenant {name})", f"{text}, or give {name} a wider range of tags"


def problems(fabric: Controller, now: float) -> Iterator[Problem]:
    """Yield what is wrong with tenants' ports, and with links between them."""
    yield from fabric.untrusted_links.problems(now, fabric.topology.port_name)
    places = [(tenant.name, place) for tenant in fabric.settings.tenants.listed for place in tenant.places]
    waiting = fabric.admission.waiting()
    missing = network_state.missing_ports((place for _, place in places), fabric.topology, waiting)
    for name, place in places if missing else ():
        if place in missing:
            text = f"is listed in tenant {name}, and {missing[place]}"
            yield Problem("tenant-port-unknown", ":".join(place), text)
    for dpid in sorted(fabric.wide):
        text = f"is not served: with tenants a datapath id has at most {DPID_BITS // 4} hex digits"
        yield Problem("wide-id", fabric.topology.name(dpid), text)
    # One that follows another controller asks switches for nothing.
    leads = fabric.cluster is None or fabric.cluster.leads
    for dpid, what in fabric.admission.waiting_for_long(now).items() if leads else ():
        text = f"is not part of the network before its {what}; see its load, and whether it can be reached"
        yield Problem("switch-waits", fabric.topology.name(dpid), text)


def among(fabric: Controller, word: str) -> list[str]:
    """Return how to name the hosts of several tenants that have one address."""
    tenants = fabric.settings.tenants
    found = [number for number in tenants.numbers if fabric.hosts.by_address(word.lower(), number) is not None]
    return [f"{tenants.name(number)}/{word}" for number in found] if tenants else []
