"""Reads the configuration of Open vSwitch's bridges on this machine, by `ovs-vsctl`."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

#: Seconds for one question.
TIMEOUT = 5


class SilentError(Exception):
    """Open vSwitch is installed, and does not answer."""


@dataclass(frozen=True)
class Connection:
    """A bridge's connection to a controller."""

    target: str
    connected: bool
    #: Why it last failed; empty if it did not.
    error: str = ""
    #: False if a bridge may lead it over its own ports.
    in_band: bool = True


@dataclass(frozen=True)
class Bridge:
    """A bridge, as it is configured."""

    name: str
    #: Sixteen hexadecimal digits; empty before the bridge is there.
    datapath_id: str
    secure: bool
    #: Versions that it is restricted to; empty for all.
    protocols: frozenset[str]
    #: Options by which ports are blocked: `stp_enable`, `rstp_enable`.
    spanning_tree: tuple[str, ...]
    controllers: tuple[Connection, ...]
    #: Largest packet of each port that has a device of its own, bytes.
    mtu: dict[str, int]
    #: Open vSwitch's errors of its ports.
    errors: dict[str, str]


def installed() -> bool:
    """Return true if there is a program to ask."""
    return shutil.which("ovs-vsctl") is not None


def bridges(database: str | None) -> list[Bridge]:
    """Return all bridges; raises SilentError. `database` is its address, None the usual one."""
    found = _list(database, "bridge", _BRIDGE)
    controllers = {each["_uuid"]: each for each in _list(database, "controller", _CONTROLLER)}
    ports = {each["_uuid"]: each["interfaces"] for each in _list(database, "port", ("_uuid", "interfaces"))}
    interfaces = {each["_uuid"]: each for each in _list(database, "interface", _INTERFACE)}
    made = []
    for each in sorted(found, key=lambda each: str(each["name"])):
        own = [interfaces[one] for port in each["ports"] for one in ports.get(port, ()) if one in interfaces]
        bridge_leads = each["other_config"].get("disable-in-band") != "true"
        made.append(
            Bridge(
                each["name"],
                _first(each["datapath_id"], ""),
                _first(each["fail_mode"], "standalone") == "secure",
                frozenset(each["protocols"]),
                tuple(option for option in ("stp_enable", "rstp_enable") if each[option] is True),
                tuple(
                    _connection(controllers[one], bridge_leads=bridge_leads)
                    for one in each["controller"]
                    if one in controllers
                ),
                # A bridge's own device follows the smallest of the others.
                {one["name"]: one["mtu"][0] for one in own if one["mtu"] and one["type"] != "internal"},
                {one["name"]: one["error"][0] for one in own if one["error"]},
            )
        )
    return made


_BRIDGE = (
    "name",
    "datapath_id",
    "fail_mode",
    "protocols",
    "stp_enable",
    "rstp_enable",
    "controller",
    "ports",
    "other_config",
)
_CONTROLLER = ("_uuid", "target", "is_connected", "status", "connection_mode")
_INTERFACE = ("_uuid", "name", "type", "mtu", "error")
#: Columns that hold one value always; others are sets, of one value often.
_SINGLE = frozenset({"_uuid", "name", "target", "is_connected", "type", "stp_enable", "rstp_enable"})
_MAPS = frozenset({"status", "other_config"})


def _connection(row: dict[str, Any], *, bridge_leads: bool) -> Connection:
    in_band = bridge_leads and _first(row["connection_mode"], "in-band") != "out-of-band"
    error = "" if row["is_connected"] else row["status"].get("last_error", "")
    return Connection(row["target"], row["is_connected"], error, in_band)


def _list(database: str | None, table: str, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    argv = ["ovs-vsctl", *([f"--db={database}"] if database else []), f"--timeout={TIMEOUT}", "--format=json"]
    argv += [f"--columns={','.join(columns)}", "list", table]
    try:
        said = subprocess.run(argv, capture_output=True, text=True, timeout=2 * TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise SilentError(f"no answer for {2 * TIMEOUT} s") from error
    if said.returncode != 0:
        lines = said.stderr.strip().splitlines() or [f"exit code {said.returncode}"]
        raise SilentError(lines[-1].removeprefix("ovs-vsctl: "))
    told = json.loads(said.stdout)
    rows = [dict(zip(told["headings"], row, strict=True)) for row in told["data"]]
    return [{name: _value(name, row[name]) for name in columns} for row in rows]


def _value(column: str, told: Any) -> Any:
    """Return a value of OVSDB's notation (RFC 7047 §5.1): one of its own, a tuple, or a dictionary."""
    if column in _MAPS:
        return dict(told[1])
    if column in _SINGLE:
        return _atom(told)
    is_set = isinstance(told, list) and told[0] == "set"
    return tuple(_atom(each) for each in (told[1] if is_set else [told]))


def _atom(told: Any) -> Any:
    # A reference is ["uuid", "…"].
    return told[1] if isinstance(told, list) else told


def _first(values: tuple[Any, ...], default: Any) -> Any:
    return values[0] if values else default
