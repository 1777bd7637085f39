"""Policies of an operator, for people and programs: what is set, how far it is in force, and requests that set it.

To undo what is not set succeeds and changes nothing; a name that nobody knows is refused.
"""

from __future__ import annotations

import ipaddress
import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.model import Problem
from braid_sdn.fabric.plan import network_state
from braid_sdn.fabric.plan.network_state import forbidden_hops, switch_called
from braid_sdn.fabric.plan.policies import (
    Link,
    LinkEnd,
    PlacedHost,
    Policies,
    along,
    cut_off,
    link_of,
    parts,
    through,
)
from braid_sdn.fabric.settings import HostSettings, is_host_mac
from braid_sdn.fabric.tenants import TRUNK_VIDS
from braid_sdn.fabric.view.hosts import MAX_ADDRESSES_PER_HOST


class PolicyError(Exception):
    """A request that cannot be followed, with the status of its answer."""

    def __init__(self, status: int, text: str) -> None:
        """Keep the status."""
        super().__init__(text)
        self.status = status


# State.


def problems(fabric: Controller) -> list[Problem]:
    """Return what policies have the network do, so that nobody wonders, and those that are not in force."""
    names = fabric.topology.name
    found = []
    if fabric.policies_unread:
        then = "those of before are followed" if fabric.policies != Policies() else "none is followed"
        text = f"{fabric.policies_unread}: {then}; mend it and restart, or set them again"
        found.append(Problem("policies-unread", "policies", text))
    for switch in sorted(fabric.policies.drained):
        is_done, text = _draining(fabric, switch)
        undo = f"undo it by braid sdn fabric undrain {names(switch)}"
        found.append(Problem("drained" if is_done else "draining", names(switch), f"{text}; {undo}"))
    for link in sorted(fabric.policies.forbidden):
        text = f"is forbidden: it carries nothing; undo it by braid sdn fabric permit {_ends(fabric, link, ' ')}"
        found.append(Problem("link-forbidden", _ends(fabric, link), text))
    for (source, target), switches in sorted(fabric.policies.pinned.items()):
        if not _is_pinned(fabric, source, target, switches):
            text = "a link of it is lost or forbidden, a switch drained, or an end moved: other paths are used"
            way = " → ".join(names(switch) for switch in switches)
            found.append(Problem("pin-unused", f"{source} – {target}", f"{way} cannot be used: {text}"))
    for link in sorted(fabric.policies.capacities) if fabric.planned else ():
        if not _links(fabric, link):
            text = "no such link is found, whose capacity was set; undo it by braid sdn fabric unset-capacity"
            found.append(Problem("link-unknown", _ends(fabric, link), f"{text} {_ends(fabric, link, ' ')}"))
    return found


def _draining(fabric: Controller, switch: int) -> tuple[bool, str]:
    """Return whether a drained switch carries nothing for others any more, and a text."""
    if not fabric.policies_in_place:
        return False, "is being drained: wait until it is said to be drained"
    left = through(fabric.plan, fabric.graph, switch)
    if left:
        return False, f"{left} paths of others lead through it for want of another way: taking it down cuts them"
    own = sum(host.port.switch == switch for host in fabric.hosts.known.values())
    hosts = f"; {own} hosts are at it, and go with it" if own else ""
    return True, f"is drained: nothing between other switches leads through it, and it may be taken down{hosts}"


def _is_pinned(fabric: Controller, source: str, target: str, switches: tuple[int, ...]) -> bool:
    if (source, target) in fabric.plan.pinned:
        return True
    pair = fabric.plan.pairs.get((source, target))
    return pair is not None and [path.switches for path in pair.selection.paths] == [switches]


def _ends(fabric: Controller, link: Link, between: str = " – ") -> str:
    names = (fabric.topology.name(end.switch) + (f":{end.port}" if end.port else "") for end in link)
    return between.join(names)


def _links(fabric: Controller, link: Link) -> int:
    """Return the number of links that are there of those that an operator means."""
    topology = fabric.topology
    ends = {
        frozenset((each.source, each.target))
        for each in topology.links()
        if network_state.is_link(topology, link, each.source, each.target)
    }
    return len(ends)


def listed(fabric: Controller) -> dict[str, Any]:
    """Return all policies for JSON."""
    name = fabric.topology.name
    drained = []
    for switch in sorted(fabric.policies.drained):
        is_done, text = _draining(fabric, switch)
        drained.append({"switch": name(switch), "id": f"{switch:016x}", "done": is_done, "why": text})
    return {
        "drained": drained,
        "forbidden": [
            {"between": [_ends(fabric, (end,)) for end in link]}  # type: ignore[arg-type]
            for link in sorted(fabric.policies.forbidden)
        ],
        "pinned": [
            {
                "source": source,
                "target": target,
                "switches": [name(switch) for switch in switches],
                "used": _is_pinned(fabric, source, target, switches),
            }
            for (source, target), switches in sorted(fabric.policies.pinned.items())
        ],
        "hosts": [
            {
                "mac": mac,
                "switch": name(host.switch),
                "port": host.port,
                "addresses": sorted(host.addresses),
                "vid": host.vid or None,
                "used": mac in fabric.hosts.static,
            }
            for mac, host in sorted(fabric.policies.hosts.items())
        ],
        "capacities": [
            {
                "between": [_ends(fabric, (end,)) for end in link],  # type: ignore[arg-type]
                "capacity_bit_s": capacity,
                "links": _links(fabric, link),
            }
            for link, capacity in sorted(fabric.policies.capacities.items())
        ],
    }


def steps(fabric: Controller) -> list[str]:
    """Return lines that explain what paths avoid."""
    lines = [
        f"{fabric.topology.name(switch)} is drained: paths avoid it" for switch in sorted(fabric.policies.drained)
    ]
    return [*lines, *(f"the link {_ends(fabric, link)} is forbidden" for link in sorted(fabric.policies.forbidden))]


# Requests.


def wanted(fabric: Controller, path: list[str], query: dict[str, str]) -> tuple[Policies, str] | None:
    """Return the policies that a request asks for, and a text; None if it is no such request. Raises PolicyError."""
    force = query.get("force") == "1"
    match path:
        case ["switches", word, "drain"]:
            return _drain(fabric, word, force=force)
        case ["switches", word, "undrain"]:
            switch = _switch(fabric, word)
            others = replace(fabric.policies, drained=fabric.policies.drained - {switch})
            return others, f"{word} is used again" if others != fabric.policies else f"{word} is not drained"
        case ["links", one, other, "forbid"]:
            return _forbid(fabric, _link(fabric, one, other), force=force)
        case ["links", one, other, "permit"]:
            return _permit(fabric, _link(fabric, one, other))
        case ["hosts", word, "add"]:
            return _add_host(fabric, word, query)
        case ["hosts", word, "remove"]:
            return _remove_host(fabric, word)
        case ["links", one, other, "set-capacity"]:
            return _set_capacity(fabric, _link(fabric, one, other), query.get("capacity_bit_s", ""), force=force)
        case ["links", one, other, "unset-capacity"]:
            return _unset_capacity(fabric, _link(fabric, one, other))
        case ["pairs", source, target, "pin"]:
            return _pin(fabric, source, target, query.get("via", ""))
        case ["pairs", source, target, "unpin"]:
            return _unpin(fabric, source, target)
    return None


def _switch(fabric: Controller, word: str) -> int:
    found = switch_called(word, fabric.settings, fabric.topology)
    if found is None:
        raise PolicyError(404, f"{word}: no switch is known by that name or id; see braid sdn fabric status")
    return found


def _named(fabric: Controller, switches: Iterable[int]) -> str:
    return ", ".join(fabric.topology.name(switch) for switch in sorted(switches))


def _refuse_to_cut(fabric: Controller, wanted: Policies, what: str) -> None:
    """Raise PolicyError if switches would not reach one another any more."""
    graph, topology, policies = fabric.graph, fabric.topology, fabric.policies
    before = forbidden_hops(policies.forbidden, topology, graph)
    after = forbidden_hops(wanted.forbidden, topology, graph)
    lost = cut_off(
        parts(graph, forbidden=before, drained=policies.drained),
        parts(graph, forbidden=after, drained=wanted.drained),
    ) or cut_off(parts(graph, forbidden=before), parts(graph, forbidden=after))
    if lost:
        groups = " and ".join(_named(fabric, part) for part in lost)
        text = f"{what} would cut {groups} off from the other switches; --force does it all the same"
        raise PolicyError(409, text)


def _drain(fabric: Controller, word: str, *, force: bool) -> tuple[Policies, str]:
    switch = _switch(fabric, word)
    wanted = replace(fabric.policies, drained=fabric.policies.drained | {switch})
    if wanted == fabric.policies:
        return wanted, f"{word} is drained already"
    if not force:
        _refuse_to_cut(fabric, wanted, f"draining {word}")
    return wanted, f"{word} is being drained: braid sdn fabric policies says when it may be taken down"


def _link(fabric: Controller, one: str, other: str) -> Link:
    ends = []
    for word in (one, other):
        switch = switch_called(word, fabric.settings, fabric.topology)
        name, colon, port = word.partition(":")
        if switch is None and colon:
            ends.append(LinkEnd(_switch(fabric, name), port))
        else:
            ends.append(LinkEnd(_switch(fabric, word)))
    return link_of(*ends)


def _forbid(fabric: Controller, link: Link, *, force: bool) -> tuple[Policies, str]:
    called = _ends(fabric, link)
    wanted = replace(fabric.policies, forbidden=fabric.policies.forbidden | {link})
    if wanted == fabric.policies:
        return wanted, f"{called} is forbidden already"
    count = len(forbidden_hops([link], fabric.topology, fabric.graph)) // 2
    if not count and not force:
        raise PolicyError(404, f"{called}: no such link is there; --force forbids it all the same, for when it comes")
    if not force:
        _refuse_to_cut(fabric, wanted, f"forbidding {called}")
    return wanted, f"{called} is forbidden: {count} link{'s' if count != 1 else ''}, in both directions"


def _permit(fabric: Controller, link: Link) -> tuple[Policies, str]:
    wanted = replace(fabric.policies, forbidden=fabric.policies.forbidden - {link})
    called = _ends(fabric, link)
    return wanted, f"{called} may be used again" if wanted != fabric.policies else f"{called} is not forbidden"


# Hosts and capacities.


def _add_host(fabric: Controller, word: str, query: dict[str, str]) -> tuple[Policies, str]:
    mac = _mac(word)
    missing = [name for name in ("switch", "port") if not query.get(name)]
    if missing:
        raise PolicyError(400, f"the query needs {' and '.join(missing)}")
    switch, port = _switch(fabric, query["switch"]), query["port"]
    host = PlacedHost(switch, port, _addresses(query.get("addresses", "")), _vid(fabric, query.get("vid", "")))
    wanted = replace(fabric.policies, hosts={**fabric.policies.hosts, mac: host})
    at = f"{fabric.topology.name(switch)}:{port}"
    if wanted == fabric.policies:
        return wanted, f"{mac} stays at {at} already"
    _refuse_place(fabric, mac, host)
    instead = ", not where the configuration has it" if _is_configured(fabric, mac) else ""
    return wanted, f"{mac} stays at {at}{instead}"


def _mac(word: str) -> str:
    mac = word.lower()
    if not is_host_mac(mac):
        raise PolicyError(400, f"{word}: must be the MAC address of one host such as 02:00:00:00:00:07")
    return mac


def _addresses(text: str) -> frozenset[str]:
    found = set()
    for word in text.split(",") if text else ():
        try:
            found.add(str(ipaddress.ip_address(word)))
        except ValueError as error:
            raise PolicyError(400, f"{word!r} is no IP address") from error
    if len(found) > MAX_ADDRESSES_PER_HOST:
        raise PolicyError(400, f"{len(found)} addresses: a host has {MAX_ADDRESSES_PER_HOST} at most")
    return frozenset(found)


def _vid(fabric: Controller, text: str) -> int:
    if not text:
        return 0
    if not fabric.settings.tenants:
        raise PolicyError(400, "a vid is for a trunk of a [[tenant]], and there is none: leave it out")
    if not (text.isascii() and text.isdigit() and int(text) in TRUNK_VIDS):
        raise PolicyError(400, f"vid must be {TRUNK_VIDS.start} to {TRUNK_VIDS.stop - 1}, not {text!r}")
    return int(text)


def _refuse_place(fabric: Controller, mac: str, host: PlacedHost) -> None:
    """Raise PolicyError if a host cannot be where it is to be, or another one has one of its addresses."""
    topology, settings = fabric.topology, fabric.settings
    name = topology.name(host.switch)
    at = f"{name}:{host.port}"
    port = network_state.port_called(host.switch, host.port, topology)
    # Of a switch that was never there no port is known.
    if port is None and topology.known_ports(host.switch):
        raise PolicyError(404, f"{at}: the switch has no such port; see braid sdn fabric status")
    if port is not None and topology.is_heard(port):
        raise PolicyError(409, f"{at} is an end of a link, where no host can be")
    made = HostSettings(mac, name, host.port, host.addresses, host.vid)
    if port is not None and not network_state.is_served(port, settings, topology, host.vid):
        places = [((name, host.port), host.vid)]
        (why,) = network_state.why_unplaced(places, settings, topology, fabric.admission.waiting())
        raise PolicyError(409, f"{at}: {why}")
    tenant = network_state.tenant_of_host(made, settings, topology)
    for other in fabric.static_hosts():
        taken = sorted(other.addresses & host.addresses) if other.mac != mac else ()
        if taken and network_state.tenant_of_host(other, settings, topology) == tenant:
            raise PolicyError(409, f"{taken[0]} is the address of {other.mac} at {other.switch}:{other.port}")


def _is_configured(fabric: Controller, mac: str) -> bool:
    return any(host.mac == mac for host in fabric.settings.hosts)


def _remove_host(fabric: Controller, word: str) -> tuple[Policies, str]:
    known = fabric.find_host(word)
    mac = known.mac if known is not None else _mac(word)
    others = {each: host for each, host in fabric.policies.hosts.items() if each != mac}
    if len(others) < len(fabric.policies.hosts):
        again = "is where the configuration has it" if _is_configured(fabric, mac) else "ages as others do"
        return replace(fabric.policies, hosts=others), f"{mac} {again} from now on"
    if _is_configured(fabric, mac):
        raise PolicyError(409, f"{mac} is a [[host]] of the configuration; take it out there and reload")
    return fabric.policies, f"{mac} was not added"


def _set_capacity(fabric: Controller, link: Link, text: str, *, force: bool) -> tuple[Policies, str]:
    called = _ends(fabric, link)
    try:
        capacity = float(text)
    except ValueError:
        capacity = math.nan
    if not 0 < capacity < math.inf:
        raise PolicyError(400, f"capacity_bit_s must be a number of bit/s above 0, not {text!r}")
    wanted = replace(fabric.policies, capacities={**fabric.policies.capacities, link: capacity})
    rate = f"{capacity / 1e6:g} Mbit/s"
    if wanted == fabric.policies:
        return wanted, f"{called} has {rate} already"
    count = _links(fabric, link)
    if not count and not force:
        raise PolicyError(404, f"{called}: no such link is there; --force sets it all the same, for when it comes")
    return wanted, f"{called} has {rate} in each direction: {count} link{'s' if count != 1 else ''}"


def _unset_capacity(fabric: Controller, link: Link) -> tuple[Policies, str]:
    others = {each: capacity for each, capacity in fabric.policies.capacities.items() if each != link}
    wanted, called = replace(fabric.policies, capacities=others), _ends(fabric, link)
    if wanted == fabric.policies:
        return wanted, f"no capacity was set for {called}"
    return wanted, f"{called} has the capacity again that is configured, or that its ports' speed says"


# Pins.


def _pair(fabric: Controller, source: str, target: str) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return the names of two edges, or the MACs of two hosts without an edge, and their switches."""
    edges = {edge.name: edge for edge in fabric.edges}
    found, tenants = [], set[int]()
    for word in (source, target):
        if word in edges:
            tenants.add(edges[word].tenant)
            found.append((word, edges[word].port.switch, True))
            continue
        host = fabric.find_host(word)
        if host is None:
            text = f"{word}: no edge or host is known by that; see braid sdn fabric status"
            raise PolicyError(404, text)
        behind = [edge.name for edge in fabric.edges if edge.port == host.port]
        if behind:
            raise PolicyError(409, f"{word} is behind the edge {behind[0]}: pin the edge")
        tenants.add(host.tenant)
        found.append((host.mac, host.port.switch, False))
    (one, here, is_edge), (other, there, is_other_edge) = found
    if is_edge != is_other_edge:
        raise PolicyError(409, f"{source} and {target}: two edges can be pinned, or two hosts without one")
    if len(tenants) > 1:
        raise PolicyError(409, f"{source} and {target} are of two tenants: no packet passes between them")
    if here == there:
        raise PolicyError(409, f"{source} and {target} are at one switch: nothing between them leaves it")
    return (one, here), (other, there)


def _pin(fabric: Controller, source: str, target: str, via: str) -> tuple[Policies, str]:
    (one, here), (other, there) = _pair(fabric, source, target)
    switches = tuple(_switch(fabric, word) for word in via.split(",") if word)
    way = " → ".join(fabric.topology.name(switch) for switch in switches)
    if len(switches) < 2 or (switches[0], switches[-1]) != (here, there):
        ends = f"from {fabric.topology.name(here)} to {fabric.topology.name(there)}"
        raise PolicyError(409, f"a path between {source} and {target} leads {ends}: name all its switches")
    if len(set(switches)) < len(switches):
        raise PolicyError(409, f"{way}: a switch comes twice")
    for step in itertools.pairwise(switches):
        if along(fabric.graph, step) is None:
            raise PolicyError(404, f"no link leads from {_named(fabric, step[:1])} to {_named(fabric, step[1:])}")
    drained = fabric.policies.drained.intersection(switches[1:-1])
    if drained:
        raise PolicyError(409, f"{way}: {_named(fabric, drained)} is drained")
    wanted = fabric.policies.with_pin(one, other, switches)
    return wanted, f"{source} – {target} is pinned to {way}, in both directions"


def _unpin(fabric: Controller, source: str, target: str) -> tuple[Policies, str]:
    one, other = (_pinned_end(fabric, word) for word in (source, target))
    if fabric.policies.pin_of(one, other) is None:
        return fabric.policies, f"{source} – {target} is not pinned"
    return fabric.policies.with_pin(one, other, None), f"{source} – {target} is not pinned any more"


def _pinned_end(fabric: Controller, word: str) -> str:
    """Return an edge's name or a host's MAC; either may be gone. Raises PolicyError if nobody knows it."""
    host = fabric.find_host(word)
    if host is not None:
        return host.mac
    name = word.lower() if ":" in word else word
    pinned = {end for pair in fabric.policies.pinned for end in pair}
    if name not in pinned and not is_host_mac(name) and not any(edge.name == name for edge in fabric.settings.edges):
        raise PolicyError(404, f"{word}: no edge or host is known by that; see braid sdn fabric status")
    return name
