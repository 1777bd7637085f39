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

[paths]
leave_out_skew = "200 ms"
"""

from __future__ import annotations

import re
import secrets
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from braid_sdn.fabric.plan.mdi import Thresholds
from braid_sdn.fabric.settings import EdgeSettings, LinkSettings, Settings
from braid_sdn.openflow.tls import TlsFiles

_RATE = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
_TIME = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

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


@dataclass
class _Reader:
    """Reads tables and collects errors."""

    wrong: list[str] = field(default_factory=list)

    def table(self, table: Any, where: str, **known: type) -> dict[str, Any]:
        """Return the keys that are known and have the right type."""
        if not isinstance(table, dict):
            self.wrong.append(f"{where or 'the file'}: must be a table")
            return {}
        prefix = f"{where}." if where else ""
        for key in table.keys() - known.keys():
            self.wrong.append(f"{prefix}{key}: is not known here; there are {', '.join(sorted(known))}")
        good = {}
        for key, kind in known.items():
            if key not in table:
                continue
            if isinstance(table[key], kind) and not (kind is int and isinstance(table[key], bool)):
                good[key] = table[key]
            else:
                self.wrong.append(f"{prefix}{key}: must be {_KINDS[kind]}")
        return good

    def need(self, table: dict[str, Any], where: str, *keys: str) -> bool:
        """Return true if all of these keys are present."""
        missing = [key for key in keys if key not in table]
        self.wrong += [f"{where}.{key}: is missing" for key in missing]
        return not missing

    def amount(self, text: Any, where: str, units: dict[str, float]) -> float:
        """Return a number with its unit, such as `10 Mbit/s`, in the unit's base."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(\S+)", text) if isinstance(text, str) else None
        if match is None or match[2] not in units or not float(match[1]):
            self.wrong.append(f'{where}: must be a text such as "10 {list(units)[-2]}" above 0, not {text!r}')
            return 1.0
        return float(match[1]) * units[match[2]]


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
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}: {error}") from error
    reader = _Reader()
    config = _config(reader, table, path.parent if path else Path())
    if reader.wrong:
        raise ConfigError("\n".join(f"{path}: {line}" for line in reader.wrong))
    return config


def _config(reader: _Reader, table: dict[str, Any], folder: Path) -> Config:
    top = reader.table(table, "", listen=str, key_file=str, switch=list, link=list, edge=list, paths=dict, tls=dict)
    settings = Settings(
        # A restarted controller need not accept its predecessor's frames.
        key=_key(reader, "", top["key_file"], folder) if "key_file" in top else secrets.token_bytes(KEY_BYTES),
        names=_switches(reader, top.get("switch", [])),
        edges=_edges(reader, top.get("edge", []), folder),
        links=_links(reader, top.get("link", [])),
        limits=_limits(reader, top.get("paths", {})),
    )
    host, port = "127.0.0.1", 6653
    if "listen" in top:
        match = re.fullmatch(r"\[?([0-9a-fA-F.:]+?)\]?:(\d{1,5})", top["listen"])
        if match and int(match[2]) < 65536:
            host, port = match[1], int(match[2])
        else:
            reader.wrong.append(
                f'listen: must be an address and a port such as "127.0.0.1:6653", not {top["listen"]!r}'
            )
    tls = None
    if "tls" in top:
        files = reader.table(top["tls"], "tls", certificate=str, key=str, authority=str)
        if reader.need(files, "tls", "certificate", "key", "authority"):
            tls = TlsFiles(folder / files["certificate"], folder / files["key"], folder / files["authority"])
    return Config(settings, host, port, tls)


def _key(reader: _Reader, where: str, name: str, folder: Path) -> bytes:
    try:
        key = (folder / name).read_bytes().strip()
    except OSError as error:
        reader.wrong.append(f"{where}key_file: {error}")
        return b""
    if len(key) < 16:
        reader.wrong.append(f"{where}key_file: {name} holds {len(key)} bytes; at least 16 are needed")
    return key


def _switches(reader: _Reader, tables: list[Any]) -> dict[int, str]:
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


def _edges(reader: _Reader, tables: list[Any], folder: Path) -> tuple[EdgeSettings, ...]:
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
        edges.append(EdgeSettings(found["name"], found["switch"], found["port"], probe, key))
    return tuple(edges)


def _links(reader: _Reader, tables: list[Any]) -> tuple[LinkSettings, ...]:
    links = []
    for number, each in enumerate(tables, 1):
        where = f"link {number}"
        found = reader.table(each, where, between=list, capacity=str)
        if not reader.need(found, where, "between", "capacity"):
            continue
        capacity = reader.amount(found["capacity"], f"{where}.capacity", _RATE)
        ends = found["between"]
        if len(ends) == 2 and all(isinstance(end, str) for end in ends) and ends[0] != ends[1]:
            links.append(LinkSettings((ends[0], ends[1]), capacity))
        else:
            reader.wrong.append(f"{where}.between: must name two switches")
    return tuple(links)


def _limits(reader: _Reader, table: Any) -> Thresholds:
    known: dict[str, type] = {each.name: str if each.name.endswith("skew") else float for each in fields(Thresholds)}
    found = reader.table(table, "paths", **known)
    for name, value in found.items():
        if name.endswith("skew"):
            found[name] = reader.amount(value, f"paths.{name}", _TIME)
        elif not 0 <= value <= 0.5:
            reader.wrong.append(f"paths.{name}: must be from 0 to 0.5, the range of MDI, not {value}")
    return Thresholds(**found)
