"""The API's documents: status, paths, explanations and edge tables, as dictionaries for JSON.

Rates are bit/s, times seconds unless a name says otherwise; docs/fabric.md describes the fields.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from braid_sdn.fabric.api import access, policy, tenants
from braid_sdn.fabric.cluster.store import Cluster
from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.model import Arc, Path, PortId, Problem
from braid_sdn.fabric.pieces import at_once
from braid_sdn.fabric.plan import network_state
from braid_sdn.fabric.plan.mdi import buffer_for, imbalance
from braid_sdn.fabric.plan.plan import Host, Pair, PinnedPath, tree_key
from braid_sdn.fabric.plan.policies import Hop
from braid_sdn.fabric.switches.flood_limit import Limited
from braid_sdn.fabric.tenants import NOBODY
from braid_sdn.fabric.view.traffic import graph_of

#: Incremented when a field is removed or changes its meaning, not when one is added.
VERSION = 1

#: Links that are named for one kind of problem; of others their number is told.
MAX_NAMED_LINKS = 32
#: The same of the ports of a switch.
MAX_NAMED_PORTS = 8
#: Hosts that are named with a port.
MAX_NAMED_HOSTS = 3

#: Links, hosts or the like of which the API's document is made in one piece.
MAX_MADE_AT_ONCE = 200

T = TypeVar("T")


def problems(fabric: Controller, now: float) -> list[Problem]:
    """Return all present problems. A controller that follows another one knows of few."""
    of_cluster = fabric.cluster.problems if fabric.cluster is not None else ()
    if fabric.cluster is not None and not fabric.cluster.leads:
        return [*of_cluster, *fabric.problems.current(now)]
    topology, settings = fabric.topology, fabric.settings
    edge_ports = {edge.port: edge.name for edge in fabric.edges}
    found = [
        *topology.problems(now, edge_ports),
        *fabric.hosts.problems(now, topology.port_name),
        *fabric.flapping_ports.problems(now, topology.port_name),
        *fabric.problems.current(now),
        *of_cluster,
    ]
    known = {edge.name for edge in fabric.edges}
    lost = [
        ("edge-unknown", each.name, each.switch, each.port, 0) for each in settings.edges if each.name not in known
    ]
    static = fabric.hosts.static
    lost += [
        ("host-unknown", each.mac, each.switch, each.port, each.vid)
        for each in fabric.static_hosts()
        if each.mac not in static
    ]
    reasons = network_state.why_unplaced(
        (((each[2], each[3]), each[4]) for each in lost), settings, topology, fabric.admission.waiting()
    )
    found += [Problem(code, subject, why) for (code, subject, *_), why in zip(lost, reasons, strict=True)]
    for ends, why in network_state.missing_links(fabric.settings, topology, now) if fabric.planned else ():
        text = "no such link is found: see names and cables, and whether both switches are connected"
        if why:
            text = f"this link is lost: {why}"
        found.append(Problem("link-unknown", f"{ends[0]} - {ends[1]}", text))
    for dpid, foreign in sorted(fabric.foreign.items()):
        if foreign:
            text = (
                f"{len(foreign)} rules of somebody else's stay and may drop or divert packets, such as {foreign[0]}"
            )
            found.append(Problem("foreign-rule", topology.name(dpid), f"{text}; delete them by ovs-ofctl del-flows"))
    for dpid in fabric.second_controllers():
        text = "another controller of this kind controls it too, and each deletes the other's rules: stop one of them"
        found.append(Problem("second-controller", topology.name(dpid), text))
    for name in sorted(fabric.path_monitor.silent):
        text = "answers no probes: its traffic stays on single paths; see whether braid edge runs there"
        found.append(Problem("edge-silent", name, text))
    for dpid in sorted(fabric.updater.slow & topology.switches.keys()):
        text = "leaves barriers unanswered: rules may take effect late; see its load"
        found.append(Problem("slow-switch", topology.name(dpid), text))
    for dpid, count in sorted(fabric.updater.refusals().items()):
        found.append(_refusal(topology.name(dpid), count, fabric.refusals.get(dpid, "")))
    for key in fabric.plan.tagless:
        text = "no tag is left for the single paths to it: packets to its hosts are flooded; use fewer paths or edges"
        found.append(Problem("tags-exhausted", *tenants.tagless(fabric, key, text)))
    found += tenants.problems(fabric, now)
    if fabric.plan.is_flood_old:
        text = "no tag is left for the flood over the present links: some hosts may get no broadcasts"
        found.append(Problem("tags-exhausted", "flood", text))
    found += _of_floods(fabric, now)
    found += policy.problems(fabric)
    found += access.problems(fabric)
    for (source, target), why in fabric.plan.unserved.items():
        found.append(Problem("pair-unserved", f"{source} → {target}", why))
    for hearing in topology.links():
        if hearing.stale:
            link = f"{topology.port_name(hearing.source)} → {topology.port_name(hearing.target)}"
            text = "its switch lost the controller: used only where there is no other way"
            found.append(Problem("stale-link", link, text))
    return [*found, *_of_sizes(fabric)]


def _of_floods(fabric: Controller, now: float) -> Iterator[Problem]:
    """Yield the ports and switches at which floods are not limited as it is configured."""
    waiting = fabric.admission.waiting()
    for place, why in network_state.missing_ports(fabric.settings.flood.ports, fabric.topology, waiting).items():
        yield Problem("flood-port-unknown", ":".join(place), f"is listed in [flood], and {why}")
    for dpid, count in sorted(fabric.unlimited.items()):
        text = "by OpenFlow meters of kilobits with bursts, of which the switch has too few or none"
        yield Problem("flood-unlimited", fabric.topology.name(dpid), f"{count} ports have no limit: {text}")
    for dpid, refused in fabric.refused_rates().items():
        texts: dict[str, str] = {}
        for limited, has, each in refused:
            there = f"has {has.rate:,} kbit/s" if has is not None else "has the one of before, which is not known"
            text = f"refuses a flood limit of {each.wanted.rate:,} kbit/s, and {there}: {each.reason}"
            # One of both meters of a port is enough.
            texts.setdefault(fabric.limited_name(PortId(dpid, limited.port), limited.tenant), text)
        yield from _of_ports(fabric, "refused", dpid, texts, "refuses the flood limits of")
    for dpid, storms in sorted(fabric.flood_drops.storms(now).items()):
        named: dict[str, str] = {}
        for number, storm in sorted(storms.items()):
            whose = fabric.limited_by(dpid, number)
            if whose is not None and storm.place == (PortId(dpid, whose.port), whose.tenant):
                named.setdefault(*_storm(fabric, dpid, whose, number, storm.rate))
        yield from _of_ports(fabric, "flood-limited", dpid, named, "drops what is flooded above the limits of")


def _of_ports(fabric: Controller, code: str, dpid: int, texts: Mapping[str, str], what: str) -> Iterator[Problem]:
    """Yield a problem of each of a switch's ports, and one for those that are too many to be named."""
    for subject, text in islice(texts.items(), MAX_NAMED_PORTS):
        yield Problem(code, subject, text)
    if len(texts) > MAX_NAMED_PORTS:
        more = f"{what} {len(texts) - MAX_NAMED_PORTS} more ports: see braid sdn fabric hosts"
        # The switch alone may be the subject of another problem of this code.
        yield Problem(code, f"{fabric.topology.name(dpid)} (more ports)", more)


def _storm(fabric: Controller, dpid: int, limited: Limited, meter: int, rate: float) -> tuple[str, str]:
    """Return a place that has more flooded than it may, and what is said of it."""
    port = PortId(dpid, limited.port)
    hosts = [host.mac for host in fabric.hosts.at(port) if limited.tenant in (NOBODY, host.tenant)]
    named = ", ".join(hosts[:MAX_NAMED_HOSTS]) or "nobody known"
    more = f" and {len(hosts) - MAX_NAMED_HOSTS} more" if len(hosts) > MAX_NAMED_HOSTS else ""
    of_addresses = meter == limited.address_meter
    of_what = "requests for addresses" if of_addresses else "broadcasts, multicasts and packets to unknown hosts"
    has = fabric.updater.meter_at(dpid, meter)
    limit = f"{has.rate:,} kbit/s" if has is not None else "its limit"
    text = f"sends more {of_what} than {limit}, of which {math.ceil(rate)} packets a second are dropped"
    mend = "see whether there is a loop or a storm, or raise its limit in [flood]"
    return fabric.limited_name(port, limited.tenant), f"{text}; hosts there: {named}{more}; {mend}"


def _of_sizes(fabric: Controller) -> Iterator[Problem]:
    """Yield the links that carry packets which are smaller than is needed, or than those of a pair's other links.

    Where a switch's way to the controller may be the cause, it is that switch.
    """
    sizes = fabric.frame_sizes
    switches, others = fabric.unlike_sizes()
    mend = "set the MTU of both ports, and of what is between them, so that it carries these and the tag's 4 bytes"
    say = "or say by frame_bytes of [paths] what hosts send, such as 1400 over tunnels"
    small = {
        hop: f"carries packets of at most {sizes.known[hop]} bytes under a tag, and {sizes.need} are needed: larger "
        "ones vanish there without a word, or the way of the switch there to the controller is limited to that; "
        f"{mend}, {say}"
        for hop in sizes.small
        if hop[1].switch not in switches
    }
    yield from _of_switches(fabric, "small-frames", {hop[1].switch for hop in sizes.small} & switches.keys())
    yield from _of_links(fabric, "small-frames", small)
    uneven = {
        hop: f"carries packets of at most {sizes.known[hop]} bytes, and another path of a pair {others[hop]}: larger "
        f"ones vanish there, of a split flow a part; {mend}, {say}"
        for hop in others
        if hop not in sizes.small and hop[1].switch not in switches
    }
    unlike = {hop[1].switch for hop in others if hop not in sizes.small}
    yield from _of_switches(fabric, "uneven-frames", unlike & switches.keys())
    yield from _of_links(fabric, "uneven-frames", uneven)


def _of_links(fabric: Controller, code: str, texts: Mapping[Hop, str]) -> Iterator[Problem]:
    """Yield a problem of each link, and one for those that are too many to be named."""
    name = fabric.topology.port_name
    for source, target in heapq.nsmallest(MAX_NAMED_LINKS, texts):
        yield Problem(code, f"{name(source)} → {name(target)}", texts[source, target])
    if len(texts) > MAX_NAMED_LINKS:
        yield Problem(code, "further links", f"{len(texts) - MAX_NAMED_LINKS} more: see braid sdn fabric status")


def _of_switches(fabric: Controller, code: str, switches: Collection[int]) -> Iterator[Problem]:
    """Yield a problem of each switch that seems to have a limit of its own."""
    limits = fabric.unlike_sizes()[0]
    for dpid in sorted(switches):
        text = (
            f"hands on discovery frames with packets of at most {limits[dpid]} bytes, from whichever link, and its "
            "links carry more the other way: its way to the controller may be limited and its links not; "
            "send a large packet through it, and set the MTU of its ports if that does not arrive"
        )
        yield Problem(code, fabric.topology.name(dpid), text)


def _refusal(name: str, count: int, reason: str) -> Problem:
    if reason == "table-full":
        text = "a table is full: no more paths are led through it; give it larger tables or fewer hosts"
        return Problem("table-full", name, f"{text} ({count} rules are missing)")
    text = f"{count} rules that it is told are missing there, because it refuses them: {reason}"
    return Problem("refused", name, f"{text}; tried again ever less often")


def health(fabric: Controller, now: float) -> list[dict[str, str]]:
    """Return all present problems, for JSON."""
    return [{"code": each.code, "subject": each.subject, "text": each.text} for each in problems(fabric, now)]


def _each(made: Iterable[T]) -> Generator[None, None, list[T]]:
    """Make a list piece by piece."""
    found: list[T] = []
    for each in made:
        found.append(each)
        if not len(found) % MAX_MADE_AT_ONCE:
            yield
    return found


def status(fabric: Controller, now: float) -> dict[str, Any]:
    """Return switches, links, hosts, edges and health."""
    return at_once(status_pieces(fabric, now))


def status_pieces(fabric: Controller, now: float) -> Generator[None, None, dict[str, Any]]:
    """Make the same piece by piece: a change meanwhile may show in the parts that are made after it alone."""
    topology, plan = fabric.topology, fabric.plan
    # The plan's own graph is as old as the plan.
    graph = graph_of((yield from _each(fabric.traffic.arcs(now, topology))), topology)
    stale = {hearing.source for hearing in topology.links() if hearing.stale}
    lost_links, lost_switches = topology.missing(now)
    forbidden = network_state.forbidden_hops(fabric.policies.forbidden, topology, graph)
    rules = {dpid: len(has) for dpid, has in fabric.updater.installed.items()}
    switches = yield from _each(
        {
            "name": topology.name(dpid),
            "id": f"{dpid:016x}",
            "address": switch.address,
            "ports_up": len(list(switch.up())),
            "rules": rules.get(dpid, 0),
            "echo_ms": _ms(switch.echo.get(now)),
            "drained": dpid in fabric.policies.drained,
            "flood_unlimited_ports": fabric.unlimited.get(dpid, 0),
        }
        for dpid, switch in sorted(topology.switches.items())
    )
    links = yield from _each(
        {
            **_link(fabric, arc),
            "frame_bytes": fabric.frame_sizes.known.get((arc.source, arc.target)),
            "stale": arc.source in stale,
            "forbidden": (arc.source, arc.target) in forbidden,
        }
        for arc in graph.arcs
    )
    known = fabric.hosts.known
    hosts = yield from _each(_host(fabric, now, host) for mac, host in sorted(known.items()) if mac in known)
    yield
    return {
        "version": VERSION,
        "switches": switches,
        "links": links,
        "lost_switches": [
            {"name": topology.name(dpid), "id": f"{dpid:016x}", "lost_ms": _ms(now - loss.at), "why": loss.why}
            for dpid, loss in sorted(lost_switches.items())
        ],
        "lost_links": [
            {**_ends(fabric, *key), "lost_ms": _ms(now - loss.at), "why": loss.why}
            for key, loss in sorted(lost_links.items())
        ],
        "hosts": hosts,
        "edges": [
            {
                "name": edge.name,
                "port": topology.port_name(edge.port),
                "switch": topology.name(edge.port.switch),
                "answers": edge.name not in fabric.path_monitor.silent,
            }
            for edge in fabric.edges
        ],
        "generation": fabric.tables.generation,
        "tags_used": len(plan.trees)
        + sum(len(pair.paths) for pair in plan.pairs.values())
        + len(plan.pinned)
        + len(plan.floods),
        "changing": not fabric.updater.idle,
        "planned": fabric.planned,
        **_cluster(fabric),
        "health": health(fabric, now),
    }


def _cluster(fabric: Controller) -> dict[str, Any]:
    """Return who leads, where there are several controllers."""
    cluster = fabric.cluster
    if cluster is None:
        return {}
    return {
        "cluster": {
            "name": cluster.me.name,
            "leads": cluster.leads,
            "leader": leader(cluster),
            "generation": cluster.generation,
        }
    }


def leader(cluster: Cluster) -> dict[str, str] | None:
    """Return the controller that leads; None if nobody does, or nobody knows."""
    return {"name": cluster.leader.name, "address": cluster.leader.address} if cluster.leader is not None else None


def tenants_of(fabric: Controller, now: float) -> dict[str, Any]:
    """Return the tenants, with their ports, hosts and tags."""
    return {"version": VERSION, "tenants": tenants.listed(fabric), "health": health(fabric, now)}


def policies(fabric: Controller, now: float) -> dict[str, Any]:
    """Return what an operator has set, and whether it is in force."""
    return {"version": VERSION, **policy.listed(fabric), "health": health(fabric, now)}


def acl(fabric: Controller, now: float) -> dict[str, Any]:
    """Return the access control list, and what it has decided."""
    return {"version": VERSION, **access.listed(fabric), "health": health(fabric, now)}


def hosts(fabric: Controller, now: float) -> dict[str, Any]:
    """Return all hosts."""
    return {
        "version": VERSION,
        "hosts": [_host(fabric, now, host) for _, host in sorted(fabric.hosts.known.items())],
        "health": health(fabric, now),
    }


def paths(fabric: Controller, now: float) -> dict[str, Any]:
    """Return the paths of every pair of edges."""
    return {
        "version": VERSION,
        "generation": fabric.tables.generation,
        "pairs": [_pair(fabric, now, pair) for _, pair in sorted(fabric.tables.pairs.items())],
        "unserved": _unserved(fabric),
        "health": health(fabric, now),
    }


def _unserved(fabric: Controller) -> list[dict[str, str]]:
    return [
        {"source": source, "target": target, "why": why} for (source, target), why in fabric.plan.unserved.items()
    ]


def snapshot_pieces(fabric: Controller, now: float) -> Generator[None, None, dict[str, Any]]:
    """Make all that the page shows, piece by piece: the status, the paths of every pair of edges, and tenants."""
    known = yield from status_pieces(fabric, now)
    yield
    pairs = yield from _each(_pair(fabric, now, pair) for _, pair in sorted(fabric.tables.pairs.items()))
    return {**known, "pairs": pairs, "unserved": _unserved(fabric), "tenants": tenants.listed(fabric)}


def edge_revision(fabric: Controller, name: str) -> str:
    """Return the revision of an edge's table, which differs for different tables. Cheap: it is compared often."""
    targets = [pair.target for pair in fabric.tables.egress.values() if pair.source.name == name]
    words = [host.mac for target in targets for host in fabric.hosts.at(target.port)]
    words += [target.name for target in targets if target.name in fabric.distributor.shims]
    words.append(str(fabric.forecasts.versions.get(name, 0)))
    words += [] if fabric.distributor.has_plan else ["pending"]
    return f"{fabric.nonce:x}.{fabric.tables.generation}.{zlib.crc32(' '.join(words).encode()):x}"


def is_own_revision(fabric: Controller, revision: str) -> bool:
    """Return true if a revision was issued by this start of the controller."""
    return revision.startswith(f"{fabric.nonce:x}.")


def edge_table(fabric: Controller, name: str) -> dict[str, Any] | None:
    """Return an edge's table: slot tables towards other edges, and the parameters of their resequencers."""
    if not fabric.serves_edge(name):
        return None
    egress, ingress = [], []
    for pair in fabric.tables.egress.values():
        if pair.source.name == name:
            egress.append(
                {
                    "target": pair.target.name,
                    "hosts": [host.mac for host in fabric.hosts.at(pair.target.port)],
                    "slots": list(pair.slots),
                    "shim": pair.target.name in fabric.distributor.shims,
                    "max_rate_bit_s": round(pair.ceiling) if math.isfinite(pair.ceiling) else 0,
                    "paths": _egress_paths(fabric, pair),
                }
            )
    for pair in fabric.tables.pairs.values():
        if pair.target.name == name:
            buffer = buffer_for(pair.selection)
            ingress.append(
                {
                    "source": pair.source.name,
                    "order": pair.selection.order.value,
                    "threshold_packets": buffer.threshold,
                    "size_packets": buffer.size,
                    "path_withdrawn": pair.path_withdrawn,
                    "paths": [
                        {"tag": tagged.tag, "latency_ms": _ms(path.latency), "capacity_bit_s": round(path.capacity)}
                        for tagged, path in zip(pair.paths, pair.selection.paths, strict=True)
                    ],
                }
            )
    return {
        "version": VERSION,
        "revision": edge_revision(fabric, name),
        "generation": fabric.tables.generation,
        "leadership": fabric.cluster.generation if fabric.cluster is not None else 0,
        "edge": name,
        "pending": not fabric.distributor.has_plan,
        "egress": egress,
        "ingress": ingress,
    }


def _egress_paths(fabric: Controller, pair: Pair) -> list[dict[str, Any]]:
    """Return rate and delay of a pair's paths, for an edge's choice among them."""
    told = [(path.tag, fabric.forecasts.known.get(path.tag)) for path in pair.paths]
    return [
        {"tag": tag, "rate_bit_s": round(each.rate), "delay_ms": _ms(each.delay), "latency_ms": _ms(each.latency)}
        for tag, each in told
        if each is not None
    ]


def figures(fabric: Controller) -> dict[str, Any]:
    """Return what tells how the controller itself does; times are its clock's, seconds."""
    firsts = [hearing.first for hearing in fabric.topology.links()]
    return {
        "version": VERSION,
        "switches": len(fabric.topology.switches),
        "links": len(firsts),
        "hosts": len(fabric.hosts.known),
        "first_switch_s": fabric.first_switch,
        "last_link_s": max(firsts, default=None),
        "planning_s": fabric.planning,
        "longest_turn_s": fabric.longest_turn,
        "changes": fabric.updater.changes,
        "changing": not fabric.updater.idle,
    }


class UnknownEndError(Exception):
    """No host or edge has this name."""


def explain(fabric: Controller, now: float, source: str, target: str) -> dict[str, Any]:
    """Explain the route of traffic between two hosts or edges; raises UnknownEndError."""
    ends = [_end(fabric, word) for word in (source, target)]
    here, there = (end[1].switch for end in ends)
    steps = [
        f"{word} is at {fabric.topology.port_name(port)} ({kind})"
        for word, (kind, port, _) in zip((source, target), ends, strict=True)
    ]
    answer: dict[str, Any] = {"version": VERSION, "source": source, "target": target, "steps": steps}
    macs = [kind.removeprefix("host ") for kind, _, _ in ends]
    pinned = fabric.plan.pinned.get((macs[0], macs[1]))
    owners = [_tenant(fabric, *each) for each in zip((source, target), ends, strict=True)]
    single = None
    if owners[0] == owners[1]:
        single = _single(fabric, here, there, owners[0]) if pinned is None else _way_of(fabric, pinned)
    answer["single"] = single
    names_of = [fabric.settings.tenants.name(each) for each in owners]
    answer["tenants"] = names_of
    if fabric.settings.tenants and owners[0] == owners[1]:
        steps.append(f"both are of tenant {names_of[0]}")
    if owners[0] != owners[1]:
        steps.append(f"they are of two tenants, {names_of[0]} and {names_of[1]}: no packet passes between them")
    elif here == there:
        steps.append("both are on one switch: nothing leaves it")
    elif single is None:
        steps.append("no single path leads there")
    else:
        why = "" if pinned is None else ", to which the operator pinned them"
        steps.append(f"without an edge: one path, tag {single['tag']}, {' → '.join(single['switches'])}{why}")
    names = [end[2] for end in ends]
    pair = fabric.tables.pairs.get((names[0] or "", names[1] or ""))
    if pair is not None:
        answer["pair"] = _pair(fabric, now, pair)
        steps += _pair_steps(fabric, pair)
    elif names[0] and names[1] and here != there and owners[0] == owners[1]:
        why = fabric.plan.unserved.get((names[0], names[1]), "its paths are not in place yet")
        steps.append(f"from edge {names[0]} to edge {names[1]}: {why}")
    decided = access.findings(fabric, *(access.end_of(fabric, *each) for each in _named(source, target, ends)))
    answer["acl"] = decided
    steps += access.steps(fabric, decided)
    steps += policy.steps(fabric)
    answer["health"] = health(fabric, now)
    return answer


def _named(source: str, target: str, ends: Sequence[tuple[str, PortId, str | None]]) -> list[tuple[str, PortId]]:
    return [(word, end[1]) for word, end in zip((source, target), ends, strict=True)]


def _pair_steps(fabric: Controller, pair: Pair) -> list[str]:
    chosen = pair.selection
    if [path.switches for path in chosen.paths] == [fabric.policies.pin_of(*pair.key)]:
        both = f"from edge {pair.source.name} to edge {pair.target.name}"
        return [f"{both}: {_way(fabric, chosen.paths[0])}, to which the operator pinned them"]
    steps = [
        f"from edge {pair.source.name} to edge {pair.target.name}: "
        f"{len(pair.paths)} of the paths of a maximum flow of {pair.max_flow / 1e6:.1f} Mbit/s beside others' load"
    ]
    for tagged, path in zip(pair.paths, chosen.paths, strict=True):
        steps.append(
            f"tag {tagged.tag}: {_way(fabric, path)}, {1e3 * path.latency:.1f} ms, "
            f"{path.capacity / 1e6:.1f} Mbit/s free, {100 * pair.share(tagged.tag):.1f} % of packets"
        )
    steps += [f"left out: {_way(fabric, each.path)}: {each.reason}" for each in chosen.left_out]
    return [*steps, f"order at {pair.target.name}: {chosen.order.value}, because {chosen.reason}"]


def _end(fabric: Controller, word: str) -> tuple[str, PortId, str | None]:
    """Resolve a host or edge: what it is, its port, and the edge at that port."""
    for edge in fabric.edges:
        if edge.name == word:
            return "edge", edge.port, edge.name
    host = fabric.find_host(word)
    if host is None:
        among = tenants.among(fabric, word)
        if among:
            raise UnknownEndError(f"{word}: is a host of several tenants: write {' or '.join(among)}")
        raise UnknownEndError(f"{word}: no host or edge is known by that; see braid sdn fabric status")
    names = [edge.name for edge in fabric.edges if edge.port == host.port]
    return f"host {host.mac}", host.port, names[0] if names else None


def _tenant(fabric: Controller, word: str, end: tuple[str, PortId, str | None]) -> int:
    """Return the tenant of a host or an edge."""
    kind, port, _ = end
    host = fabric.find_host(word) if kind != "edge" else None
    return host.tenant if host is not None else fabric.tenant_of(port)


def _single(fabric: Controller, here: int, there: int, tenant: int) -> dict[str, Any] | None:
    tree = fabric.plan.trees.get(tree_key(there, tenant))
    if tree is None or here == there:
        return None
    by_port = {arc.source: arc for arc in fabric.graph.arcs}
    arcs: list[Arc] = []
    switch = here
    while switch != there:
        arc = by_port.get(PortId(switch, tree.onward.get(switch, 0)))
        if arc is None or len(arcs) > len(tree.onward):
            return None
        arcs.append(arc)
        switch = arc.target.switch
    return _way_by(fabric, tree.tag, arcs)


def _way_of(fabric: Controller, pinned: PinnedPath) -> dict[str, Any] | None:
    by_port = {arc.source: arc for arc in fabric.graph.arcs}
    arcs = [by_port[step] for step in pinned.steps if step in by_port]
    return _way_by(fabric, pinned.tag, arcs) if len(arcs) == len(pinned.steps) else None


def _way_by(fabric: Controller, tag: int, arcs: Sequence[Arc]) -> dict[str, Any]:
    way = Path(tuple(arcs), min(arc.free for arc in arcs))
    return {
        "tag": tag,
        "switches": [fabric.topology.name(each) for each in way.switches],
        "latency_ms": _ms(way.latency),
        "latency_uncertainty_ms": _uncertainty_ms(way.uncertainty),
        "free_bit_s": round(way.capacity),
    }


def _pair(fabric: Controller, now: float, pair: Pair) -> dict[str, Any]:
    chosen = pair.selection
    buffer = buffer_for(chosen)
    return {
        "source": pair.source.name,
        "target": pair.target.name,
        "capacity_bit_s": round(chosen.capacity),
        "order": chosen.order.value,
        "why": chosen.reason,
        "mdi": round(chosen.mdi, 4),
        "skew_ms": _ms(chosen.skew),
        "threshold_packets": buffer.threshold,
        "size_packets": buffer.size,
        "paths": [
            {
                "tag": tagged.tag,
                "switches": [fabric.topology.name(each) for each in path.switches],
                "latency_ms": _ms(path.latency),
                "latency_uncertainty_ms": _uncertainty_ms(path.uncertainty),
                "capacity_bit_s": round(path.capacity),
                "share": pair.share(tagged.tag),
                "probe_ms": _ms(watched.trip.get(now))
                if (watched := fabric.path_monitor.paths.get(tagged.tag))
                else None,
                "edge_probed": fabric.path_monitor.is_watched(now, tagged.tag),
                "rate_bit_s": round(fabric.traffic.tagged.get((tagged.last, tagged.tag), 0.0)),
            }
            for tagged, path in zip(pair.paths, chosen.paths, strict=True)
        ],
        "left_out": [
            {
                "switches": [fabric.topology.name(each) for each in left.path.switches],
                "latency_ms": _ms(left.path.latency),
                "latency_uncertainty_ms": _uncertainty_ms(left.path.uncertainty),
                "mdi": round(imbalance(chosen.paths[0].latency, left.path.latency), 4),
                "why": left.reason,
            }
            for left in chosen.left_out
        ],
    }


def _ends(fabric: Controller, source: PortId, target: PortId) -> dict[str, str]:
    return {
        "source": fabric.topology.port_name(source),
        "target": fabric.topology.port_name(target),
        "source_switch": fabric.topology.name(source.switch),
        "target_switch": fabric.topology.name(target.switch),
    }


def _link(fabric: Controller, arc: Arc) -> dict[str, Any]:
    return {
        **_ends(fabric, arc.source, arc.target),
        "capacity_bit_s": round(arc.capacity),
        "used_bit_s": round(arc.used),
        "latency_ms": _ms(arc.latency),
        "latency_uncertainty_ms": _uncertainty_ms(arc.uncertainty),
    }


def _host(fabric: Controller, now: float, host: Host) -> dict[str, Any]:
    silent, left = fabric.hosts.silence(now, host.mac)
    limited = fabric.limit_of(host)
    meter = fabric.updater.meter_at(host.port.switch, limited.meter) if limited is not None else None
    return {
        "mac": host.mac,
        "port": fabric.topology.port_name(host.port),
        "switch": fabric.topology.name(host.port.switch),
        "addresses": sorted(host.addresses),
        "tenant": fabric.settings.tenants.name(host.tenant),
        "static": host.mac in fabric.hosts.static,
        "silent_ms": _ms(silent),
        "forgotten_in_ms": _ms(left),
        "flood_limit_bit_s": 1000 * meter.rate if meter is not None else None,
        "flood_limit_wanted_bit_s": 1000 * limited.rate if limited is not None else None,
        "flood_dropped_packets_s": round(fabric.flood_drops.rate((host.port, limited.tenant)), 1) if limited else 0,
    }


def _way(fabric: Controller, path: Path) -> str:
    return " → ".join(fabric.topology.name(each) for each in path.switches)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _uncertainty_ms(seconds: float) -> float | None:
    return None if math.isinf(seconds) else _ms(seconds)
