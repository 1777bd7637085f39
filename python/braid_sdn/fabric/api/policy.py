"""Policies of an operator, for people and programs: what is set, how far it is in force, and requests that set it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.model import Problem
from braid_sdn.fabric.plan.network_state import forbidden_hops, switch_called
from braid_sdn.fabric.plan.policies import Link, LinkEnd, Policies, along, cut_off, link_of, parts, through


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
    if wanted == fabric.policies:
        raise PolicyError(404, f"{called} is not forbidden; see braid sdn fabric policies")
    return wanted, f"{called} may be used again"


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
        raise PolicyError(404, f"{source} – {target} is not pinned; see braid sdn fabric policies")
    return fabric.policies.with_pin(one, other, None), f"{source} – {target} is not pinned any more"


def _pinned_end(fabric: Controller, word: str) -> str:
    """Return an edge's name or a host's MAC; either may be gone."""
    host = fabric.find_host(word)
    if host is not None:
        return host.mac
    return word.lower() if ":" in word else word
