"""The configuration file of a fabric: TOML, all keys optional; unknown keys and bad values are reported together.

[[switch]]
id = "0000000000000001"
name = "BEJ"

[[link]]
between = ["BEJ", "SHA"]
capacity = "10 Mbit/s"

[[edge]]
name = "beijing"
switch = "BEJ"
port = "edge0"

[[host]]
mac = "02:00:00:00:00:07"
switch = "SHA"
port = "eth7"
addresses = ["10.0.0.7"]

[[acl]]
action = "deny"
from = "10.0.0.0/24"
to = "beijing"
protocol = "tcp"
port = 22

[[tenant]]
name = "blue"
tags = "2000-2499"
ports = ["BEJ:eth3", "SHA:eth4"]

[flood]
limit = "20 Mbit/s"
ports = {"BEJ:eth3" = "off"}

[paths]
leave_out_skew = "200 ms"
scheduler = "earliest-arrival"
frame_bytes = 9000

[web]
listen = "192.168.1.1:8444"
names = ["fabric.home.arpa"]

[cluster]
name = "alpha"
etcd = ["http://192.168.1.11:2379", "http://192.168.1.12:2379", "http://192.168.1.13:2379"]
"""

from __future__ import annotations

import difflib
import hmac
import ipaddress
import math
import re
import secrets
import tomllib
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from braid_sdn.fabric import units
from braid_sdn.fabric.acl_config import Names, read_acl
from braid_sdn.fabric.cluster.etcd import Endpoint
from braid_sdn.fabric.cluster.etcd_store import LEASE_TIME, PREFIX, ClusterSettings
from braid_sdn.fabric.cluster.store import Member
from braid_sdn.fabric.monitor.frame_sizes import MAX_PACKET
from braid_sdn.fabric.plan.forecast import Scheduler
from braid_sdn.fabric.plan.mdi import Thresholds
from braid_sdn.fabric.settings import (
    EdgeSettings,
    FloodSettings,
    HostSettings,
    LinkSettings,
    Settings,
    is_host_mac,
)
from braid_sdn.fabric.switches.flood_limit import MIN_LIMIT, NO_LIMIT
from braid_sdn.fabric.tenant_config import read_port, read_tenants
from braid_sdn.fabric.tenants import NOBODY, TRUNK_VIDS, PortName, Tenants
from braid_sdn.fabric.view.hosts import HOST_LIFETIME
from braid_sdn.openflow.tls import TlsFiles
from braid_sdn.web.access import WebSettings

#: The shortest lifetime of hosts, seconds: silent ones are asked three times in a quarter of it.
MIN_HOST_LIFETIME = 10.0

#: Seconds that a leader's lease may hold: etcd grants no shorter one, and a longer one holds up the next leader.
MIN_LEASE, MAX_LEASE = 2, 60

#: A name of a machine (RFC 1123 §2.1).
_HOST_NAME = re.compile(r"(?!-)[a-zA-Z0-9-]{1,63}(?:\.(?!-)[a-zA-Z0-9-]{1,63})*\.?")

#: The least that links can be asked to carry: every packet of IPv6 may be so large (RFC 8200 §5), bytes.
LEAST_PACKET = 1280

#: Bytes of a generated key.
KEY_BYTES = 32


class ConfigError(Exception):
    """The errors of a configuration, one line each, with their position."""


@dataclass(frozen=True)
class Config:
    """A configuration with defaults filled in."""

    settings: Settings
    #: Address on which switches connect.
    host: str = "127.0.0.1"
    port: int = 6653
    tls: TlsFiles | None = None
    #: Address at which everybody may read metrics.
    metrics: tuple[str, int] | None = None
    #: The page for browsers; None: no port is opened for it.
    web: WebSettings | None = None
    #: The other controllers; None: there are none.
    cluster: ClusterSettings | None = None
    #: True if the key is that of a file: else each reading makes another one.
    has_key_file: bool = False


@dataclass
class Reader:
    """Reads tables and collects errors."""

    wrong: list[str] = field(default_factory=list)
    #: Keys whose value has the wrong type, with their table's position: they are not missing.
    ill_typed: set[str] = field(default_factory=set)

    def table(self, table: Any, where: str, **known: type) -> dict[str, Any]:
        """Return the keys that are known and have the right type."""
        if not isinstance(table, dict):
            self.wrong.append(f"{where or 'the file'}: must be a table")
            return {}
        prefix = f"{where}." if where else ""
        for key in table.keys() - known.keys():
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; {near[0]!r} is meant?" if near else ""
            self.wrong.append(f"{prefix}{key}: is not known here; there are {', '.join(sorted(known))}{hint}")
        good = {}
        for key, kind in known.items():
            if key not in table:
                continue
            # TOML's 0 is a number as 0.0 is.
            kinds = (int, float) if kind is float else (kind,)
            if isinstance(table[key], kinds) and not (int in kinds and isinstance(table[key], bool)):
                good[key] = table[key]
            else:
                self.ill_typed.add(f"{prefix}{key}")
                self.wrong.append(f"{prefix}{key}: must be {_KINDS[kind]}")
        return good

    def need(self, table: dict[str, Any], where: str, *keys: str) -> bool:
        """Return true if all of these keys are present."""
        missing = [key for key in keys if key not in table]
        missing_places = [f"{where}.{key}" for key in missing]
        self.wrong += [f"{place}: is missing" for place in missing_places if place not in self.ill_typed]
        return not missing

    def amount(self, text: Any, where: str, known: dict[str, float]) -> float:
        """Return a number with its unit, such as `10 Mbit/s`, in the unit's base."""
        found = units.amount(text, known)
        if found is None:
            example, words = ("10 Mbit/s" if known is units.RATE else "10 s"), ", ".join(known)
            self.wrong.append(f'{where}: must be a text such as "{example}" above 0, not {text!r}; units are {words}')
            return 1.0
        return found


_KINDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
    bool: "true or false",
}


def read(path: Path | None) -> Config:
    """Return the configuration of a file, or the one of no file; raises ConfigError with all that is wrong."""
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name a file that can be read by --config FILE") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: must be text in UTF-8: {error}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}: {error}") from error
        except RecursionError as error:
            raise ConfigError(f"{path}: has lists or tables within one another, too many to be read") from error
    reader = Reader()
    config = _config(reader, table, path.parent if path else Path())
    if reader.wrong:
        raise ConfigError("\n".join(f"{path}: {line}" for line in reader.wrong))
    return config


def _config(reader: Reader, table: dict[str, Any], folder: Path) -> Config:
    top = reader.table(
        table,
        "",
        listen=str,
        key_file=str,
        host_lifetime=str,
        acl_default=str,
        failover=bool,
        discovered_links=bool,
        tenant=list,
        switch=list,
        link=list,
        edge=list,
        host=list,
        acl=list,
        flood=dict,
        paths=dict,
        tls=dict,
        metrics=dict,
        web=dict,
        cluster=dict,
    )
    names = _switches(reader, top.get("switch", []))
    limits, scheduler, frame_bytes = _paths(reader, top.get("paths", {}))
    edges = _edges(reader, top.get("edge", []), folder, names)
    links = _links(reader, top.get("link", []), names)
    discovers = top.get("discovered_links", False)
    tenants = read_tenants(reader, top.get("tenant", []), names, links, edges, discovers_links=discovers)
    if "discovered_links" in top and "tenant" not in top:
        reader.wrong.append("discovered_links: is about tenants, and there is no [[tenant]]")
    settings = Settings(
        # A restarted controller need not accept its predecessor's frames.
        key=_key(reader, "", top["key_file"], folder) if "key_file" in top else secrets.token_bytes(KEY_BYTES),
        names=names,
        edges=edges,
        links=links,
        tenants=tenants,
        hosts=_hosts(reader, top.get("host", []), names, tenants),
        acl=read_acl(reader, top.get("acl", []), top.get("acl_default", "permit"), names, edges),
        host_lifetime=_lifetime(reader, top["host_lifetime"]) if "host_lifetime" in top else HOST_LIFETIME,
        failover=top.get("failover", True),
        flood=_flood(reader, top.get("flood", {}), names),
        limits=limits,
        scheduler=scheduler,
        frame_bytes=frame_bytes,
    )
    host, port = _address(reader, "listen", top.get("listen", "127.0.0.1:6653"))
    scraped = reader.table(top.get("metrics", {}), "metrics", listen=str)
    metrics = _address(reader, "metrics.listen", scraped["listen"]) if "listen" in scraped else None
    tls = None
    if "tls" in top:
        files = reader.table(top["tls"], "tls", certificate=str, key=str, authority=str)
        if reader.need(files, "tls", "certificate", "key", "authority"):
            tls = TlsFiles(folder / files["certificate"], folder / files["key"], folder / files["authority"])
    cluster = None
    if "cluster" in top:
        if "key_file" not in top:
            reader.wrong.append("cluster: needs key_file, the same for all controllers: they share their probes")
        cluster = _cluster(reader, top["cluster"], folder, digest(settings))
    web = _web(reader, top.get("web", {}), folder)
    return Config(settings, host, port, tls, metrics, web, cluster, "key_file" in top)


def _address(reader: Reader, where: str, text: str) -> tuple[str, int]:
    match = re.fullmatch(r"\[?([0-9a-fA-F.:]+?)\]?:(\d{1,5})", text)
    if match and int(match[2]) < 65536:
        return match[1], int(match[2])
    reader.wrong.append(f'{where}: must be an address and a port such as "127.0.0.1:6653", not {text!r}')
    return "", 0


def _cluster(reader: Reader, table: Any, folder: Path, told: str) -> ClusterSettings | None:
    files = ("certificate", "key", "authority")
    found = reader.table(
        table, "cluster", name=str, etcd=list, prefix=str, address=str, lease=str, **dict.fromkeys(files, str)
    )
    if not reader.need(found, "cluster", "name", "etcd"):
        return None
    endpoints = [_endpoint(reader, each) for each in found["etcd"]]
    if not endpoints:
        reader.wrong.append('cluster.etcd: must name a server such as "http://192.168.1.11:2379"')
    tls = None
    if any(key in found for key in files) and reader.need(found, "cluster", *files):
        tls = TlsFiles(*(folder / found[key] for key in files))
    if any(each.is_tls for each in endpoints) != (tls is not None):
        reader.wrong.append("cluster: https:// and the files certificate, key and authority come together")
    prefix = found.get("prefix", PREFIX)
    if not re.fullmatch(r"(/[^/]+)+", prefix):
        reader.wrong.append(f'cluster.prefix: must be keys such as "{PREFIX}", not {prefix!r}')
    begun = len(reader.wrong)
    lease = reader.amount(found["lease"], "cluster.lease", units.TIME) if "lease" in found else LEASE_TIME
    if len(reader.wrong) == begun and not (MIN_LEASE <= lease <= MAX_LEASE and lease.is_integer()):
        reader.wrong.append(f"cluster.lease: must be whole seconds from {MIN_LEASE} to {MAX_LEASE}")
    me = Member(found["name"], found.get("address", ""))
    return ClusterSettings(me, tuple(endpoints), prefix, lease, tls, told)


def _endpoint(reader: Reader, text: Any) -> Endpoint:
    match = (
        re.fullmatch(r"(https?)://(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]@]+):(\d{1,5})/?", text)
        if isinstance(text, str)
        else None
    )
    if match is None or not 0 < int(match[3]) < 65536:
        reader.wrong.append(f'cluster.etcd: must be addresses such as "http://192.168.1.11:2379", not {text!r}')
        return Endpoint("", 0)
    return Endpoint(match[2].strip("[]"), int(match[3]), match[1] == "https")


def digest(settings: Settings) -> str:
    """Return what is the same where settings are, and tells nobody their keys."""
    return hmac.digest(settings.key, repr(_in_order(settings)).encode(), "sha256").hex()


def _in_order(value: Any) -> Any:
    """Return a value without its types, whose representation does not depend on the process: that of a set does."""
    if is_dataclass(value):
        return [[each.name, _in_order(getattr(value, each.name))] for each in fields(value)]
    if isinstance(value, dict):
        return sorted(([_in_order(key), _in_order(each)] for key, each in value.items()), key=repr)
    if isinstance(value, (set, frozenset)):
        return sorted((_in_order(each) for each in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [_in_order(each) for each in value]
    return value


def _web(reader: Reader, table: Any, folder: Path) -> WebSettings | None:
    found = reader.table(table, "web", listen=str, names=list, certificate=str, key=str)
    names = [name for name in found.get("names", []) if isinstance(name, str) and _HOST_NAME.fullmatch(name)]
    if len(names) < len(found.get("names", [])):
        reader.wrong.append('web.names: must be names such as "fabric.home.arpa", without a port')
    if len({name.lower() for name in names}) < len(names):
        reader.wrong.append("web.names: a name is given twice")
    if ("certificate" in found) != ("key" in found):
        reader.wrong.append("web: a certificate and its key come together: write both, or neither to have one made")
    if "listen" not in found:
        return None
    host, port = _address(reader, "web.listen", found["listen"])
    try:
        listen = ipaddress.ip_address(host or "127.0.0.1")
    except ValueError:
        reader.wrong.append(f"web.listen: {host!r} is no IP address")
        return None
    if host and not port:
        reader.wrong.append("web.listen: cannot have port 0: nobody would find it")
    files = [folder / found[key] if key in found else None for key in ("certificate", "key")]
    return WebSettings((listen, port), tuple(names), *files)


def _key(reader: Reader, where: str, name: str, folder: Path) -> bytes:
    try:
        key = (folder / name).read_bytes().strip()
    except OSError as error:
        reader.wrong.append(f"{where}key_file: {folder / name}: {error.strerror}")
        return b""
    if len(key) < 16:
        reader.wrong.append(f"{where}key_file: {name} holds {len(key)} bytes; at least 16 are needed")
    return key


def _switches(reader: Reader, tables: list[Any]) -> dict[int, str]:
    names: dict[int, str] = {}
    for number, each in enumerate(tables, 1):
        where = f"switch {number}"
        found = reader.table(each, where, id=str, name=str)
        if not reader.need(found, where, "id", "name"):
            continue
        if not re.fullmatch(r"[0-9a-fA-F]{1,16}", found["id"]):
            reader.wrong.append(f"{where}.id: must be a datapath id of up to 16 hex digits, not {found['id']!r}")
        elif int(found["id"], 16) in names or found["name"] in names.values():
            reader.wrong.append(f"{where}: its id or name is given twice")
        else:
            names[int(found["id"], 16)] = found["name"]
    return names


def _switch(reader: Reader, where: str, text: str, names: dict[int, str]) -> str:
    """Return a switch as the controller names it; a name that no [[switch]] has must be a datapath id."""
    if text in names.values():
        return text
    if re.fullmatch(r"[0-9a-fA-F]{1,16}", text):
        return names.get(int(text, 16), f"{int(text, 16):016x}")
    near = difflib.get_close_matches(text, names.values(), 1)
    hint = f"; {near[0]!r} is meant?" if near else ""
    reader.wrong.append(f"{where}: no [[switch]] is called {text!r}, and it is no datapath id (hex digits){hint}")
    return text


def _hosts(reader: Reader, tables: list[Any], names: dict[int, str], tenants: Tenants) -> tuple[HostSettings, ...]:
    hosts: list[HostSettings] = []
    # Tenants with errors are not there.
    is_wrong = bool(reader.wrong)
    for number, each in enumerate(tables, 1):
        where = f"host {number}"
        found = reader.table(each, where, mac=str, switch=str, port=str, addresses=list, vid=int)
        if not reader.need(found, where, "mac", "switch", "port"):
            continue
        mac = found["mac"].lower()
        if not is_host_mac(mac):
            reader.wrong.append(
                f'{where}.mac: must be the address of one host such as "02:00:00:00:00:07", not {mac!r}'
            )
        if any(other.mac == mac for other in hosts):
            reader.wrong.append(f"{where}.mac: {mac} is given twice")
        addresses = set()
        for text in found.get("addresses", []):
            try:
                addresses.add(str(ipaddress.ip_address(text)))
            except ValueError:
                reader.wrong.append(f"{where}.addresses: {text!r} is no IP address")
        switch, vid = _switch(reader, f"{where}.switch", found["switch"], names), found.get("vid", 0)
        if vid and not tenants and not is_wrong:
            reader.wrong.append(f"{where}.vid: is for a trunk of a [[tenant]], and there is none: leave it out")
        elif "vid" in found and vid not in TRUNK_VIDS:
            reader.wrong.append(f"{where}.vid: must be {TRUNK_VIDS.start} to {TRUNK_VIDS.stop - 1}, not {vid}")
            continue
        made = HostSettings(mac, switch, found["port"], frozenset(addresses), vid)
        of_tenant = tenants.at(switch, made.port, -1, vid)
        if tenants and of_tenant == NOBODY:
            at = f"{switch}:{made.port}"
            text = "an end of a [[link]], or a trunk, of which vid must say one that a tenant has there"
            reader.wrong.append(f"{where}.port: {at} is {text}")
        taken = addresses & {
            address
            for other in hosts
            if tenants.at(other.switch, other.port, -1, other.vid) == of_tenant
            for address in other.addresses
        }
        reader.wrong += [f"{where}.addresses: {address} is given twice" for address in sorted(taken)]
        hosts.append(made)
    return tuple(hosts)


def _lifetime(reader: Reader, text: str) -> float:
    begun = len(reader.wrong)
    seconds = reader.amount(text, "host_lifetime", units.TIME)
    if seconds < MIN_HOST_LIFETIME and len(reader.wrong) == begun:
        reader.wrong.append(f"host_lifetime: must be at least {MIN_HOST_LIFETIME:g} s, not {text!r}")
    return seconds


def _edges(reader: Reader, tables: list[Any], folder: Path, names: dict[int, str]) -> tuple[EdgeSettings, ...]:
    edges: list[EdgeSettings] = []
    for number, each in enumerate(tables, 1):
        where = f"edge {number}"
        found = reader.table(each, where, name=str, switch=str, port=str, probe=bool, key_file=str)
        if not reader.need(found, where, "name", "switch", "port"):
            continue
        if any(other.name == found["name"] for other in edges):
            reader.wrong.append(f"{where}.name: {found['name']!r} is given twice")
        key = _key(reader, f"{where}.", found["key_file"], folder) if "key_file" in found else None
        # Whoever has an edge's key can act as that edge.
        owner = next((other.name for other in edges if key and other.key == key), None)
        if owner is not None:
            text = f"{found['name']!r} has the key of {owner!r}; each edge needs one of its own"
            reader.wrong.append(f"{where}.key_file: {text}")
        probe = found.get("probe", True)
        switch = _switch(reader, f"{where}.switch", found["switch"], names)
        edges.append(EdgeSettings(found["name"], switch, found["port"], probe, key))
    return tuple(edges)


def _links(reader: Reader, tables: list[Any], names: dict[int, str]) -> tuple[LinkSettings, ...]:
    links = []
    for number, each in enumerate(tables, 1):
        where = f"link {number}"
        found = reader.table(each, where, between=list, capacity=str)
        if not reader.need(found, where, "between"):
            continue
        capacity = math.inf
        if "capacity" in found:
            capacity = reader.amount(found["capacity"], f"{where}.capacity", units.RATE)
        ends = found["between"]
        if not (len(ends) == 2 and all(isinstance(end, str) for end in ends) and ends[0] != ends[1]):
            reader.wrong.append(f"{where}.between: must name two switches, or a port of each as SWITCH:PORT")
            continue
        one, other = (_end(reader, f"{where}.between", end, names) for end in ends)
        if bool(one[1]) != bool(other[1]):
            reader.wrong.append(f"{where}.between: names a port of one switch alone: write SWITCH:PORT for both")
        elif one[0] == other[0]:
            reader.wrong.append(f"{where}.between: must name two switches, or a port of each as SWITCH:PORT")
        if not one[1]:
            reader.need(found, where, "capacity")
        links.append(LinkSettings((one[0], other[0]), capacity, (one[1], other[1])))
    return tuple(links)


def _end(reader: Reader, where: str, text: str, names: dict[int, str]) -> tuple[str, str]:
    """Return the switch and the port, if it is named, of a link's end."""
    if ":" not in text or text in names.values():
        return _switch(reader, where, text, names), ""
    place = read_port(text, Names(names, ()))
    if isinstance(place, str):
        reader.wrong.append(f"{where}: {place}")
        return text, ""
    return place


def _flood(reader: Reader, table: Any, names: dict[int, str]) -> FloodSettings:
    found = reader.table(table, "flood", limit=object, ports=dict)
    ports: dict[PortName, float] = {}
    for text, each in found.get("ports", {}).items():
        where = f'flood.ports."{text}"'
        place = read_port(text, Names(names, ()))
        if isinstance(place, str):
            reader.wrong.append(f"{where}: {place}")
            continue
        if place in ports:
            reader.wrong.append(f"{where}: is given twice")
        ports[place] = _flood_limit(reader, each, where)
    limit = found.get("limit", "off")
    return FloodSettings(None if limit == "auto" else _flood_limit(reader, limit, "flood.limit"), ports)


def _flood_limit(reader: Reader, text: Any, where: str) -> float:
    if text == "off" or (text == 0 and not isinstance(text, bool)):
        return NO_LIMIT
    begun = len(reader.wrong)
    limit = reader.amount(text, where, units.RATE)
    if limit < MIN_LIMIT and len(reader.wrong) == begun:
        reader.wrong.append(f'{where}: must be at least {MIN_LIMIT / 1000:g} kbit/s, or "off", not {text!r}')
    return limit


def _paths(reader: Reader, table: Any) -> tuple[Thresholds, Scheduler, int | None]:
    known: dict[str, type] = {each.name: str if each.name.endswith("skew") else float for each in fields(Thresholds)}
    found = reader.table(table, "paths", scheduler=str, frame_bytes=int, **known)
    scheduler = _scheduler(reader, found.pop("scheduler", Scheduler.EARLIEST_ARRIVAL.value))
    frame_bytes = found.pop("frame_bytes", None)
    if frame_bytes is not None and not LEAST_PACKET <= frame_bytes <= MAX_PACKET:
        reader.wrong.append(f"paths.frame_bytes: must be from {LEAST_PACKET} to {MAX_PACKET}, not {frame_bytes}")
    for name, value in found.items():
        if name.endswith("skew"):
            found[name] = reader.amount(value, f"paths.{name}", units.TIME)
        elif not 0 <= value <= 0.5:
            reader.wrong.append(f"paths.{name}: must be from 0 to 0.5, the range of MDI, not {value}")
    return Thresholds(**found), scheduler, frame_bytes


def _scheduler(reader: Reader, text: str) -> Scheduler:
    known = [each.value for each in Scheduler]
    if text in known:
        return Scheduler(text)
    near = difflib.get_close_matches(text, known, 1)
    hint = f"; {near[0]!r} is meant?" if near else ""
    reader.wrong.append(f"paths.scheduler: {text!r} is not known; there are {', '.join(sorted(known))}{hint}")
    return Scheduler.EARLIEST_ARRIVAL
