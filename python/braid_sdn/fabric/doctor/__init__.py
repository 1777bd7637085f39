"""Obstacles to a fabric on this machine, each with the command that mends it. Nothing is changed."""

from __future__ import annotations

import socket
from collections.abc import Collection
from pathlib import Path
from typing import Any

from braid_sdn.fabric import listen_address
from braid_sdn.fabric.config import Config, ConfigError, read
from braid_sdn.fabric.doctor import open_vswitch
from braid_sdn.fabric.doctor.findings import Finding, Level, of_bridges, of_controller

__all__ = ["Finding", "Level", "examine"]


def examine(config: Path | None, database: str | None, api: Path, status: dict[str, Any] | None) -> list[Finding]:
    """Return what is found: of the configuration, the controller with its `status`, and Open vSwitch's bridges.

    `api` is the controller's socket, and `status` what it answered, None if it does not run.
    """
    found, settings = _configuration(config)
    address = listen_address.written(settings.host, settings.port)
    refused = "" if status is not None else _why_not(settings.host, settings.port)
    found += of_controller(status, address, str(api), refused)
    served = [each["id"] for each in status["switches"]] if status is not None else []
    return found + _switches(settings, database, served)


def _configuration(path: Path | None) -> tuple[list[Finding], Config]:
    if path is None:
        return [], read(None)
    try:
        config = read(path)
    except ConfigError as error:
        text = "mend it; until then no controller starts with it, and one that runs goes on with what it read"
        return [Finding("configuration", Level.FAIL, line, text) for line in str(error).splitlines()], read(None)
    return [Finding("configuration", Level.OK, f"{path} can be followed")], config


def _why_not(host: str, port: int) -> str:
    """Return why nothing can listen at an address, or ""."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _switches(settings: Config, database: str | None, served: Collection[str]) -> list[Finding]:
    if not open_vswitch.installed():
        text = "no Open vSwitch on this machine: ask where the switches are, with the same --config"
        return [Finding("open-vswitch", Level.OK, text)]
    try:
        bridges = open_vswitch.bridges(database)
    except open_vswitch.SilentError as error:
        text = f"Open vSwitch is installed and does not answer: {error}"
        return [Finding("open-vswitch", Level.WARN, text, "systemctl start openvswitch-switch")]
    if not bridges:
        return [Finding("open-vswitch", Level.OK, "Open vSwitch answers, and has no bridge")]
    return list(of_bridges(bridges, settings.port, cluster=settings.cluster is not None, served=served))
