"""The controller's metrics as OpenMetrics text: base units, counters end in `_total`, few labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from braid_sdn.fabric.api import tenants
from braid_sdn.fabric.api.report import problems
from braid_sdn.fabric.controller import Controller

KIND = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Samples = list[tuple[Mapping[str, str], float]]


def exposition(fabric: Controller, now: float) -> str:
    """Return all metrics."""
    lines = []
    for name, kind, text, samples in _families(fabric, now):
        family = f"braid_fabric_{name}"
        lines += [f"# TYPE {family} {kind}", f"# HELP {family} {text}"]
        suffix = "_total" if kind == "counter" else ""
        lines += [f"{family}{suffix}{_labels(labels)} {value:g}" for labels, value in samples]
    return "\n".join([*lines, "# EOF", ""])


def _families(fabric: Controller, now: float) -> Iterator[tuple[str, str, str, Samples]]:
    found = Counter(problem.code for problem in problems(fabric, now))
    pairs = sorted(fabric.tables.pairs.items())
    names = {key: {"source": key[0], "target": key[1]} for key, _ in pairs}
    edges = {edge.name for edge in fabric.edges}
    answering: Samples = [
        ({"edge": name}, float(name in edges - fabric.path_monitor.silent)) for name in _edge_names(fabric)
    ]
    yield "switches", "gauge", "Connected switches.", [({}, len(fabric.topology.switches))]
    yield "links", "gauge", "Working links, each direction apart.", [({}, len(fabric.topology.links()))]
    yield "hosts", "gauge", "Known hosts.", [({}, len(fabric.hosts.known))]
    rules = sum(len(has) for has in fabric.updater.installed.values())
    yield "rules", "gauge", "Rules of all switches.", [({}, rules)]
    yield "edge_up", "gauge", "1 if an edge is connected and answers probes.", answering
    paths: Samples = [(names[key], len(pair.paths)) for key, pair in pairs]
    yield "pair_paths", "gauge", "Paths that a pair of edges uses.", paths
    free: Samples = [(names[key], pair.selection.capacity / 8) for key, pair in pairs]
    yield "pair_capacity_bytes_per_second", "gauge", "Free capacity of a pair's paths at the last plan.", free
    health: Samples = [({"code": code}, count) for code, count in sorted(found.items())]
    yield "health_problems", "gauge", "Present problems, by their code.", health
    in_tenants: Samples = []
    tags: Samples = []
    for each in tenants.listed(fabric):
        of_tenant = {"tenant": each["name"]}
        in_tenants.append((of_tenant, each["hosts"]))
        tags.append((of_tenant, each["tags_used"]))
    yield "tenant_hosts", "gauge", "Known hosts of a tenant; none without tenants.", in_tenants
    yield "tenant_tags_used", "gauge", "Tags that a tenant's packets take; none without tenants.", tags
    policies: Samples = [
        ({"kind": "drained"}, len(fabric.policies.drained)),
        ({"kind": "forbidden"}, len(fabric.policies.forbidden)),
        ({"kind": "pinned"}, len(fabric.policies.pinned)),
        ({"kind": "host"}, len(fabric.policies.hosts)),
        ({"kind": "capacity"}, len(fabric.policies.capacities)),
    ]
    text = "Switches that are drained, links forbidden, pairs pinned, hosts added, and capacities set."
    yield "policies", "gauge", text, policies
    counted, acl = fabric.acl.counted.packets, fabric.acl.acl
    decided: Samples = [
        ({"entry": entry.name or str(number), "action": entry.action.value}, counted.get(number, 0))
        for number, entry in enumerate(acl.entries, 1)
    ]
    decided.append(({"entry": "default", "action": acl.default.value}, counted.get(0, 0)))
    yield "acl_packets", "counter", "Packets that an entry of the access control list decided.", decided
    refused = sum(count for labels, count in decided if labels["action"] == "deny")
    yield "acl_refused_packets", "counter", "Packets that the access control list refused.", [({}, refused)]
    dropped: Samples = [
        ({"port": fabric.limited_name(*place)}, count) for place, count in sorted(fabric.flood_drops.total.items())
    ]
    yield "flood_dropped_packets", "counter", "Flooded packets above the limit of a port that had any.", dropped
    limited = sum(len({each.port for each in ports}) for ports in fabric.limited.values())
    yield "flood_limited_ports", "gauge", "Ports whose floods are limited.", [({}, limited)]
    refused_rates = sum(len(each) for each in fabric.refused_rates().values())
    yield "flood_refused_limits", "gauge", "Limits on floods that switches refused to change.", [({}, refused_rates)]
    if fabric.cluster is not None:
        yield "leader", "gauge", "1 if this controller leads.", [({}, float(fabric.cluster.leads))]
    planning = (fabric.planning or [0.0])[-1]
    yield "planning_seconds", "gauge", "Processor time that the last plan took.", [({}, planning)]
    yield "rule_updates", "counter", "Updates of switches' rules.", [({}, fabric.updater.changes)]
    yield "packet_ins", "counter", "Packets that switches sent to the controller.", [({}, fabric.packet_ins)]


def _edge_names(fabric: Controller) -> list[str]:
    return sorted(edge.name for edge in fabric.settings.edges)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
