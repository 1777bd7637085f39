"""Reads the tenants of a configuration: `[[tenant]]`, and the links that they trust.

[[tenant]]
name = "blue"
tags = "2000-2499"
ports = ["BEJ:eth3", "SHA:eth4"]
trunks = ["SHA:eth9:30"]
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from braid_sdn.fabric.acl_config import Names
from braid_sdn.fabric.tenants import DPID_BITS, MIN_TAGS, TAGS, TRUNK_VIDS, PortName, Tenant, Tenants

if TYPE_CHECKING:
    from braid_sdn.fabric.config import Reader
    from braid_sdn.fabric.settings import EdgeSettings, LinkSettings

#: The default tenant's name.
_RESERVED = "default"
_WIDE = (
    f"its id has more than {DPID_BITS // 4} digits, which leaves no room for a tenant's number: give it another one"
)


def read_tenants(
    reader: Reader,
    tables: list[Any],
    switches: Mapping[int, str],
    links: Collection[LinkSettings],
    edges: Collection[EdgeSettings],
    *,
    discovers_links: bool,
) -> Tenants:
    """Return the tenants; what is wrong with them is added to the reader's errors."""
    names = Names(switches, ())
    begun = len(reader.wrong)
    listed: list[Tenant] = []
    owners: dict[PortName, str] = {}
    for number, each in enumerate(tables, 1):
        made = _tenant(reader, f"tenant {number}", each, names, listed, owners)
        if made is not None:
            listed.append(made)
    for link in links:
        for place in zip(link.between, link.ports, strict=True):
            if place in owners:
                where, port = f"tenant {owners[place]!r}", ":".join(place)
                reader.wrong.append(
                    f"{where}.ports: {port} is an end of a [[link]]: give the tenant another port, or the link"
                )
    _check_trunks(reader, listed, links, edges)
    left = len(TAGS) - sum(each.last - each.first + 1 for each in listed)
    if listed and left < MIN_TAGS:
        text = f"leave {left} tags to the default tenant, which has all ports that are not listed: leave {MIN_TAGS}"
        reader.wrong.append(f"tenant: all ranges together {text} or more")
    wide = [name for dpid, name in switches.items() if dpid >> DPID_BITS]
    if listed and wide:
        reader.wrong += [f"switch {name!r}.id: {_WIDE}" for name in wide]
    for each in listed:
        for switch in dict.fromkeys(switch for switch, _ in (*each.ports, *(place for place, _ in each.trunks))):
            if switch not in switches.values() and int(switch, 16) >> DPID_BITS:
                reader.wrong.append(f"tenant {each.name!r}: switch {switch}: {_WIDE}")
    if not listed or len(reader.wrong) > begun:
        return Tenants()
    ends = (zip(link.between, link.ports, strict=True) for link in links if all(link.ports))
    return Tenants(tuple(listed), frozenset(map(frozenset, ends)), discovers_links)


def _check_trunks(
    reader: Reader, listed: list[Tenant], links: Collection[LinkSettings], edges: Collection[EdgeSettings]
) -> None:
    """Add to the errors where a trunk is something else as well, or a VID there is of two."""
    ports = {place: f"a port of tenant {each.name!r}" for each in listed for place in each.ports}
    ports |= {(each.switch, each.port): f"the place of edge {each.name!r}" for each in edges}
    ports |= {place: "an end of a [[link]]" for link in links for place in zip(link.between, link.ports, strict=True)}
    vids: dict[tuple[PortName, int], str] = {}
    for each in listed:
        where, own = f"tenant {each.name!r}.trunks", set[PortName]()
        for place, vid in each.trunks:
            called = ":".join(place)
            if place in ports:
                reader.wrong.append(f"{where}: {called} is {ports[place]}: a trunk is nothing else")
            if (place, vid) in vids:
                text = f"VID {vid} at {called} is of tenant {vids[place, vid]!r} too: give each another one"
                reader.wrong.append(f"{where}: {text}")
            elif place in own:
                reader.wrong.append(f"{where}: {called} has two VIDs: a tenant has one at each trunk")
            vids[place, vid] = each.name
            own.add(place)


def _trunk(text: Any, names: Names) -> tuple[PortName, int] | str:
    """Return the port and the VID that `SWITCH:PORT:VID` says, or what is wrong with it."""
    port, _, vid = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    place = read_port(port, names)
    if isinstance(place, str) or not vid.isascii() or not vid.isdigit() or int(vid) not in TRUNK_VIDS:
        bounds = f"{TRUNK_VIDS.start} to {TRUNK_VIDS.stop - 1}"
        return f"{text!r} is no port of a known switch with a VID of {bounds}: write SWITCH:PORT:VID"
    return place, int(vid)


def read_port(text: Any, names: Names) -> PortName | str:
    """Return the switch and the port that `SWITCH:PORT` says, or what is wrong with it."""
    place = names.place(text) if isinstance(text, str) else ""
    if isinstance(place, str) or not place.port:
        return f"{text!r} is no port of a known switch: write SWITCH:PORT"
    return place.switch, place.port


def _tenant(
    reader: Reader, where: str, table: Any, names: Names, others: list[Tenant], owners: dict[PortName, str]
) -> Tenant | None:
    begun = len(reader.wrong)
    found = reader.table(table, where, name=str, tags=str, ports=list, trunks=list)
    if not reader.need(found, where, "name", "tags"):
        return None
    name = found["name"]
    if not name or name == _RESERVED or re.search(r"[\s/]", name):
        reader.wrong.append(f"{where}.name: must be a word other than {_RESERVED!r}, without / in it, not {name!r}")
    if any(other.name == name for other in others):
        reader.wrong.append(f"{where}.name: {name!r} is given twice")
    match = re.fullmatch(r"(\d{1,4})-(\d{1,4})", found["tags"])
    first, last = (int(match[1]), int(match[2])) if match is not None else (0, 0)
    if match is None or not TAGS.start <= first <= last < TAGS.stop:
        text = f'must be a range such as "2000-2499", of {TAGS.start} to {TAGS.stop - 1}, not {found["tags"]!r}'
        reader.wrong.append(f"{where}.tags: {text}")
    elif last - first + 1 < MIN_TAGS:
        reader.wrong.append(f"{where}.tags: has {last - first + 1} tags, and {MIN_TAGS} are needed at least")
    for other in others:
        if first <= other.last and other.first <= last:
            both = f"{max(first, other.first)}-{min(last, other.last)}"
            reader.wrong.append(
                f"{where}.tags: {both} is of tenant {other.name!r} too: give them ranges of their own"
            )
    ports = []
    for text in found.get("ports", []):
        here = read_port(text, names)
        if isinstance(here, str):
            reader.wrong.append(f"{where}.ports: {here}")
            continue
        if here in owners:
            reader.wrong.append(f"{where}.ports: {text} is listed twice (tenant {owners[here]!r}): list it once")
        owners[here] = name
        ports.append(here)
    trunks = []
    for text in found.get("trunks", []):
        trunk = _trunk(text, names)
        if isinstance(trunk, str):
            reader.wrong.append(f"{where}.trunks: {trunk}")
            continue
        trunks.append(trunk)
    return Tenant(name, first, last, tuple(ports), tuple(trunks)) if len(reader.wrong) == begun else None
