"""Changes that an operator wants to know of: switches, links, hosts, edges, paths and problems that come and go.

Pure: two snapshots in, events out, with the reason where there is one. Events have a constant name and facts as
fields. The journal keeps the last ones.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from braid_sdn.fabric.api.report import problems
from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.model import Path, PortId
from braid_sdn.fabric.pieces import at_once
from braid_sdn.fabric.plan.network_state import forbidden_hops
from braid_sdn.fabric.plan.policies import Link
from braid_sdn.fabric.view.topology import LinkDirection, Topology

Fields = Mapping[str, object]
Hops = tuple[tuple[PortId, PortId], ...]

#: Events that the journal keeps.
MAX_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """One change."""

    name: str
    fields: Fields
    #: True if somebody should look.
    warning: bool = False

    @property
    def level(self) -> str:
        """Its level in a log."""
        return "warn" if self.warning else "info"

    def text(self, when: str) -> str:
        """Return the line of a log for people: `logfmt`."""
        words = [f"{name}={_word(value)}" for name, value in self.fields.items()]
        return " ".join([when, self.level, self.name, *words])

    def json(self, when: str) -> str:
        """Return the line of a log for programs."""
        return json.dumps({"time": when, "level": self.level, "event": self.name, **self.fields}, ensure_ascii=False)


def _word(value: object) -> str:
    text = str(value)
    plain = text and not any(letter.isspace() or letter in '"=' for letter in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


@dataclass
class Journal:
    """The last events, each with its number and time."""

    #: Number of the last event.
    last: int = 0
    _kept: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))

    def add(self, unix_ms: int, event: Event) -> None:
        """Keep an event."""
        self.last += 1
        self._kept.append(
            {
                "number": self.last,
                "unix_ms": unix_ms,
                "level": event.level,
                "event": event.name,
                "fields": dict(event.fields),
            }
        )

    def after(self, number: int) -> list[dict[str, Any]]:
        """Return the events after one, by its number."""
        return [event for event in self._kept if event["number"] > number]


def event_number(text: str) -> int | None:
    """Return the number of an event that somebody names; None if it cannot be one."""
    return int(text) if re.fullmatch(r"[0-9]{1,16}", text) else None


@dataclass(frozen=True)
class PathUse:
    """A pair's paths, and those that it leaves out."""

    #: The switches of each path, as text.
    ways: Mapping[Hops, str] = field(default_factory=dict)
    #: Reasons of paths that are left out.
    left_out: Mapping[Hops, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The state of a fabric, as far as its changes are told. Each maps an identity to its facts."""

    switches: Mapping[str, Fields] = field(default_factory=dict)
    links: Mapping[str, Fields] = field(default_factory=dict)
    hosts: Mapping[str, Fields] = field(default_factory=dict)
    pairs: Mapping[str, Fields] = field(default_factory=dict)
    problems: Mapping[str, Fields] = field(default_factory=dict)
    #: Paths by pair; paths that are dead.
    uses: Mapping[str, PathUse] = field(default_factory=dict)
    dead: frozenset[Hops] = frozenset()
    #: Hosts and capacities that an operator set.
    set_hosts: Mapping[str, Fields] = field(default_factory=dict)
    set_capacities: Mapping[str, Fields] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    forbidden: frozenset[tuple[PortId, PortId]] = frozenset()
    #: Reasons of what is lost, by the identity of a switch or of a link.
    lost: Mapping[str, str] = field(default_factory=dict)
    #: Number of changes of hosts until then.
    host_changes: int = -1
    #: The topology's list of links, which is another one after each change.
    directions: Sequence[LinkDirection] = ()

    @classmethod
    def of(cls, fabric: Controller, now: float, before: Snapshot | None = None) -> Snapshot:
        """Take one."""
        return at_once(cls.pieces(fabric, now, before))

    @classmethod
    def pieces(
        cls, fabric: Controller, now: float, before: Snapshot | None = None
    ) -> Generator[None, None, Snapshot]:
        """Take one piece by piece; hosts and links are those of the one before if none has changed since.

        All that is a reason of something else is in the last piece with it.
        """
        topology = fabric.topology
        host_changes = fabric.hosts.changes
        hosts: Mapping[str, Fields]
        if before is not None and before.host_changes == host_changes:
            hosts = before.hosts
        else:
            known = fabric.hosts.known
            hosts = {mac: {"mac": mac, "port": topology.port_name(host.port)} for mac, host in known.items()}
        yield
        found = {
            f"{each.code} {each.subject}": {"code": each.code, "subject": each.subject, "text": each.text}
            for each in problems(fabric, now)
        }
        yield
        directions = topology.links()
        links: Mapping[str, Fields]
        if before is not None and before.directions is directions:
            links = before.links
        else:
            links = {
                _link(link.source, link.target): {
                    "source": topology.port_name(link.source),
                    "target": topology.port_name(link.target),
                }
                for link in directions
            }

        def way(path: Path) -> str:
            return ">".join(topology.name(each) for each in path.switches)

        pairs, uses = {}, {}
        for (source, target), pair in fabric.tables.pairs.items():
            key, chosen = f"{source} {target}", pair.selection
            pairs[key] = {"source": source, "target": target, "paths": " ".join(way(path) for path in chosen.paths)}
            uses[key] = PathUse(
                {path.hops: way(path) for path in chosen.paths},
                {left.path.hops: left.reason for left in chosen.left_out},
            )
        lost_links, lost_switches = topology.missing(now)
        return cls(
            {
                str(dpid): {"switch": topology.name(dpid), "id": f"{dpid:016x}", "address": switch.address}
                for dpid, switch in topology.switches.items()
            },
            links,
            hosts,
            pairs,
            found,
            uses,
            frozenset(fabric.path_monitor.dead),
            {
                mac: {"mac": mac, "port": f"{topology.name(host.switch)}:{host.port}", **_addresses(host.addresses)}
                for mac, host in fabric.policies.hosts.items()
            },
            {
                str(link): {"between": _between(topology, link), "capacity_bit_s": capacity}
                for link, capacity in fabric.policies.capacities.items()
            },
            frozenset(str(dpid) for dpid in fabric.policies.drained),
            forbidden_hops(fabric.policies.forbidden, topology, fabric.graph),
            {
                **{_link(*key): loss.why for key, loss in lost_links.items()},
                **{str(dpid): loss.why for dpid, loss in lost_switches.items()},
            },
            host_changes,
            directions,
        )

    def why_lost(self, key: str) -> str:
        """Return why a switch or a direction of a link is not there any more."""
        back = " ".join(reversed(key.split(" ")))
        return self.lost.get(key) or self.lost.get(back) or "it does not work in both directions any more"


def _addresses(addresses: Iterable[str]) -> Fields:
    return {"addresses": " ".join(sorted(addresses))} if addresses else {}


def _between(topology: Topology, link: Link) -> str:
    return " ".join(topology.name(end.switch) + (f":{end.port}" if end.port else "") for end in link)


def _link(source: PortId, target: PortId) -> str:
    return f"{source} {target}"


def changes(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    """Yield the events that lead from one snapshot to another."""
    for was, now, gone, come, warning in (
        (before.switches, after.switches, "switch-disconnected", "switch-connected", True),
        (before.links, after.links, "link-lost", "link-found", True),
        (before.hosts, after.hosts, "host-forgotten", "host-learned", False),
        (before.pairs, after.pairs, "paths-withdrawn", "paths-used", False),
        (before.set_hosts, after.set_hosts, "host-removed", "host-added", False),
        (before.set_capacities, after.set_capacities, "capacity-unset", "capacity-set", False),
    ):
        if was is now:
            continue
        for key in sorted(was.keys() - now.keys()):
            yield Event(gone, {**was[key], **_why(after.why_lost(key) if warning else "")}, warning)
        for key in sorted(now):
            if now[key] != was.get(key):
                why = _why_used(before, after, key) if come == "paths-used" else ""
                yield Event(come, {**now[key], **_why(why)})
    for key in sorted(before.problems.keys() - after.problems.keys()):
        yield Event("problem-over", {name: before.problems[key][name] for name in ("code", "subject")})
    for key in sorted(after.problems.keys() - before.problems.keys()):
        yield Event("problem", after.problems[key], warning=True)


def _why(why: str) -> Fields:
    return {"why": why} if why else {}


def _why_used(before: Snapshot, after: Snapshot, key: str) -> str:
    """Return why a pair's paths are other ones than before."""
    was, now = before.uses.get(key, PathUse()), after.uses[key]
    left = [f"{way} is left: {_why_left(after, now, hops)}" for hops, way in was.ways.items() if hops not in now.ways]
    new = [
        f"{way} {_why_new(before, after, hops)}"
        for hops, way in now.ways.items()
        if was.ways and hops not in was.ways
    ]
    return "; ".join([*left, *new])


def _why_left(after: Snapshot, now: PathUse, hops: Hops) -> str:
    for hop in hops:
        if _link(*hop) not in after.links:
            source, target = hop
            return f"a link of it is lost ({after.why_lost(_link(source, target))})"
    for switch in _switches(hops):
        if switch not in after.switches:
            return f"a switch of it is not connected ({after.why_lost(switch)})"
    if hops in after.dead:
        return "its probes do not arrive"
    if after.forbidden.intersection(hops):
        return "a link of it is forbidden by the operator"
    if after.drained.intersection(list(_switches(hops))[1:-1]):
        return "a switch of it is drained by the operator"
    return now.left_out.get(hops, "other paths carry more or are quicker")


def _why_new(before: Snapshot, after: Snapshot, hops: Hops) -> str:
    if any(_link(*hop) not in before.links for hop in hops):
        return "is new: a link of it was found"
    return "works again" if hops in before.dead and hops not in after.dead else "carries more or is quicker"


def _switches(hops: Hops) -> Iterable[str]:
    return dict.fromkeys(str(port.switch) for hop in hops for port in hop)
