"""Reads the access control list of a configuration: `[[acl]]`, and `acl_default`.

[[acl]]
action = "permit"
from = "10.0.0.0/24"
to = "10.0.1.7"
protocol = "tcp"
port = "8000-8080"

[[acl]]
action = "deny"
from = "beijing"
at = "BEJ:edge0"
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from braid_sdn.fabric.acl import ANYBODY, MAX_ENTRIES, Acl, AclEntry, Action, End, Place, Ports, Protocol
from braid_sdn.fabric.switches.acl import MAX_RULES, most_rules

if TYPE_CHECKING:
    from braid_sdn.fabric.config import Reader
    from braid_sdn.fabric.settings import EdgeSettings

_MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")
_KEYS = {"from": str, "to": str, "at": str, "protocol": str, "action": str, "name": str}
#: A number or a text.
_PORT_KEYS = {"port": object, "from_port": object}
MAX_PORT = 65535


@dataclass(frozen=True)
class Names:
    """Names of the configuration that an entry may use."""

    switches: Mapping[int, str]
    edges: Collection[str]

    def place(self, text: str) -> Place | str:
        """Return the place of a name, or what is wrong with it."""
        kind, space, name = text.partition(" ")
        if space and kind in ("edge", "switch"):
            if kind == "edge":
                return Place(edge=name) if name in self.edges else f"no [[edge]] is called {name!r}"
            switch = self._switch(name)
            return Place(switch=switch) if switch is not None else f"no [[switch]] is called {name!r}"
        switch = self._switch(text)
        if text in self.edges and switch is not None:
            return f'{text!r} is an edge and a switch; write "edge {text}" or "switch {text}"'
        if text in self.edges:
            return Place(edge=text)
        if switch is not None:
            return Place(switch=switch)
        for at in (each.start() for each in re.finditer(":", text)):
            switch = self._switch(text[:at])
            if switch is not None and text[at + 1 :]:
                return Place(switch=switch, port=text[at + 1 :])
        near = difflib.get_close_matches(text, [*self.edges, *self.switches.values()], 1)
        hint = f"; {near[0]!r} is meant?" if near else ""
        return f"{text!r} is no address, prefix, MAC address, edge, switch or SWITCH:PORT{hint}"

    def _switch(self, text: str) -> str | None:
        if text in self.switches.values():
            return text
        if re.fullmatch(r"[0-9a-fA-F]{16}", text):
            return self.switches.get(int(text, 16), text.lower())
        return None


def read_acl(
    reader: Reader, tables: list[Any], default: str, switches: Mapping[int, str], edges: Collection[EdgeSettings]
) -> Acl:
    """Return the list; what is wrong with it is added to the reader's errors."""
    names = Names(switches, {edge.name for edge in edges})
    begun = len(reader.wrong)
    read = [_entry(reader, f"acl {number}", each, names) for number, each in enumerate(tables, 1)]
    entries = tuple(each for each in read if each is not None)
    called = [each.name for each in entries if each.name]
    reader.wrong += [
        f"acl: the name {name!r} is given twice" for name in sorted(set(called)) if called.count(name) > 1
    ]
    if default not in list(Action):
        reader.wrong.append(f'acl_default: must be "permit" or "deny", not {default!r}')
    if len(tables) > MAX_ENTRIES:
        text = f"has {len(tables)} entries, and may have {MAX_ENTRIES}: use prefixes in place of single addresses"
        reader.wrong.append(f"acl: {text}")
    if len(reader.wrong) > begun:
        return Acl()
    made = Acl(entries, Action(default))
    most = max((sum(other.switch == each.switch for other in edges) for each in edges), default=0)
    count = most_rules(made, most)
    if count > MAX_RULES:
        worst = max(range(len(entries)), key=lambda at: most_rules(Acl(entries[at : at + 1]), 0))
        reader.wrong.append(
            f"acl: takes {count} rules at a switch with {most} edges, and may take {MAX_RULES}; most of them are of "
            f"acl {worst + 1}: use ranges of ports that begin and end at powers of two, or only one range in an entry"
        )
    return made


def _entry(reader: Reader, where: str, table: Any, names: Names) -> AclEntry | None:
    begun = len(reader.wrong)
    found = reader.table(table, where, **_KEYS, **_PORT_KEYS)
    ports = {key: _ports(reader, f"{where}.{key}", found[key]) for key in _PORT_KEYS if key in found}
    if not reader.need(found, where, "action"):
        return None
    action, protocol = found["action"], found.get("protocol", "any")
    for key, value, kind in (("action", action, Action), ("protocol", protocol, Protocol)):
        if value not in list(kind):
            near = difflib.get_close_matches(value, list(kind), 1)
            hint = f"; {near[0].value!r} is meant?" if near else ""
            known = ", ".join(each.value for each in kind)
            reader.wrong.append(f"{where}.{key}: {value!r} is not known; there are {known}{hint}")
    source = _end(reader, f"{where}.from", found["from"], names) if "from" in found else ANYBODY
    target = _end(reader, f"{where}.to", found["to"], names) if "to" in found else ANYBODY
    if "at" in found:
        place = names.place(found["at"])
        if isinstance(place, str):
            reader.wrong.append(f"{where}.at: {place}")
        elif source.place is not None:
            reader.wrong.append(f"{where}.at: from names a place already: write one of the two")
        else:
            source = replace(source, place=place)
    versions = {end.network.version for end in (source, target) if end.network is not None}
    if len(versions) > 1:
        reader.wrong.append(f"{where}: from and to are of IPv4 and IPv6: no packet is of both; write two entries")
    if re.fullmatch(r"\d+|default", found.get("name", "")):
        text = f"{found['name']!r} would be taken for an entry's number or the default; choose another name"
        reader.wrong.append(f"{where}.name: {text}")
    for key in ports:
        if protocol not in ("tcp", "udp"):
            reader.wrong.append(f'{where}.{key}: needs protocol = "tcp" or "udp"')
    if len(reader.wrong) > begun:
        return None
    return AclEntry(
        Action(action),
        source,
        target,
        Protocol(protocol),
        ports.get("port"),
        ports.get("from_port"),
        found.get("name", ""),
    )


def _end(reader: Reader, where: str, text: str, names: Names) -> End:
    if text == "any":
        return ANYBODY
    if _MAC.fullmatch(text.lower()):
        if where.endswith(".from") and int(text[:2], 16) & 1:
            reader.wrong.append(f"{where}: {text} is the address of a group, which sends nothing")
        return End(mac=text.lower())
    address, zone, _ = text.partition("%")
    if zone and re.fullmatch(r"([0-9a-fA-F]*:){2,}[0-9a-fA-F.]*", address):
        reader.wrong.append(f"{where}: {text!r} has a zone, which packets do not: write {address}, and a place in at")
        return ANYBODY
    try:
        return End(network=ipaddress.ip_network(text))
    except ValueError:
        pass
    try:
        wider = ipaddress.ip_network(text, strict=False)
    except ValueError:
        if re.fullmatch(r"[0-9.]+(/.*)?", text):
            reader.wrong.append(f"{where}: {text!r} is no IP address or prefix")
            return ANYBODY
    else:
        reader.wrong.append(f'{where}: {text} has bits behind its prefix: write "{wider}", or a single address')
        return ANYBODY
    place = names.place(text)
    if isinstance(place, str):
        reader.wrong.append(f"{where}: {place}")
        return ANYBODY
    return End(place=place)


def _ports(reader: Reader, where: str, value: Any) -> Ports | None:
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", str(value)) if not isinstance(value, bool) else None
    if match is not None and isinstance(value, int | str):
        low, high = int(match[1]), int(match[2] or match[1])
        if 1 <= low <= high <= MAX_PORT:
            return low, high
    reader.wrong.append(f'{where}: must be a port such as 80, or a range such as "8000-8080", of 1 to {MAX_PORT}')
    return None
