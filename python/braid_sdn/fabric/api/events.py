"""Changes that an operator wants in the log: switches, links, hosts, edges, paths and problems that come and go.

Pure: two snapshots in, events out. Events have a constant name and facts as fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.api.report import problems
from braid_sdn.fabric.controller import Controller

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Event:
    """One change."""

    name: str
    fields: Fields
    #: True if somebody should look.
    warning: bool = False

    def text(self, when: str) -> str:
        """Return the line of a log for people: `logfmt`."""
        words = [f"{name}={_word(value)}" for name, value in self.fields.items()]
        return " ".join([when, "warn" if self.warning else "info", self.name, *words])

    def json(self, when: str) -> str:
        """Return the line of a log for programs."""
        level = "warn" if self.warning else "info"
        return json.dumps({"time": when, "level": level, "event": self.name, **self.fields}, ensure_ascii=False)


def _word(value: object) -> str:
    text = str(value)
    plain = text and not any(letter.isspace() or letter in '"=' for letter in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class Snapshot:
    """The state of a fabric, as far as its changes are logged. Each maps an identity to its facts."""

    switches: Mapping[str, Fields] = field(default_factory=dict)
    links: Mapping[str, Fields] = field(default_factory=dict)
    hosts: Mapping[str, Fields] = field(default_factory=dict)
    pairs: Mapping[str, Fields] = field(default_factory=dict)
    problems: Mapping[str, Fields] = field(default_factory=dict)

    @classmethod
    def of(cls, fabric: Controller, now: float) -> Snapshot:
        """Take one."""
        topology = fabric.topology
        links = {}
        for link in topology.links():
            ends = {"source": topology.port_name(link.source), "target": topology.port_name(link.target)}
            links[f"{link.source} {link.target}"] = ends
        pairs = {}
        for (source, target), pair in fabric.tables.pairs.items():
            ways = [">".join(topology.name(each) for each in path.switches) for path in pair.selection.paths]
            pairs[f"{source} {target}"] = {"source": source, "target": target, "paths": " ".join(ways)}
        return cls(
            {
                str(dpid): {"switch": topology.name(dpid), "id": f"{dpid:016x}", "address": switch.address}
                for dpid, switch in topology.switches.items()
            },
            links,
            {mac: {"mac": mac, "port": topology.port_name(host.port)} for mac, host in fabric.hosts.known.items()},
            pairs,
            {
                f"{each.code} {each.subject}": {"code": each.code, "subject": each.subject, "text": each.text}
                for each in problems(fabric, now)
            },
        )


def changes(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    """Yield the events that lead from one snapshot to another."""
    for was, now, gone, come, warning in (
        (before.switches, after.switches, "switch-disconnected", "switch-connected", True),
        (before.links, after.links, "link-lost", "link-found", True),
        (before.hosts, after.hosts, "host-forgotten", "host-learned", False),
        (before.pairs, after.pairs, "paths-withdrawn", "paths-used", False),
    ):
        for key in sorted(was.keys() - now.keys()):
            yield Event(gone, was[key], warning)
        for key in sorted(now):
            if now[key] != was.get(key):
                yield Event(come, now[key])
    for key in sorted(before.problems.keys() - after.problems.keys()):
        yield Event("problem-over", {name: before.problems[key][name] for name in ("code", "subject")})
    for key in sorted(after.problems.keys() - before.problems.keys()):
        yield Event("problem", after.problems[key], warning=True)
