"""Faults of uplinks: black holes, unplugged cables, captive portals, and the recovery from them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from braid_lab.net.topology import Uplink
from braid_lab.process import LabError, Process


def _set_blackhole(uplink: Uplink, on: bool) -> None:
    if uplink.emulator is None:
        raise LabError(f"{uplink.name} is no emulated line")
    uplink.emulator.blackhole(on)


@contextlib.contextmanager
def black_hole(uplink: Uplink) -> Iterator[float]:
    """Make an emulated line a black hole, without a sign of it at the device; yields the start time."""
    began = time.monotonic()
    _set_blackhole(uplink, True)
    try:
        yield began
    finally:
        _set_blackhole(uplink, False)


@contextlib.contextmanager
def unplugged(uplink: Uplink) -> Iterator[float]:
    """Take the carrier from an emulated line's device at the host, with all packets in flight; yields the start."""
    near = uplink.near
    began = time.monotonic()
    near.namespace.ip(f"link set {near.device} carrier off")
    _set_blackhole(uplink, True)
    try:
        yield began
    finally:
        _set_blackhole(uplink, False)
        near.namespace.ip(f"link set {near.device} carrier on")


#: Port of a portal at its uplink's far end.
PORTAL_PORT = 8080


@contextlib.contextmanager
def captive(uplink: Uplink, scratch: Path) -> Iterator[float]:
    """Answer all IPv4 HTTP on an uplink with a captive portal; pings still pass. Yields the start time."""
    isp = uplink.far
    argv = [sys.executable, "-m", "braid_lab.servers.portal", uplink.gateway4, str(PORTAL_PORT)]
    table = f"portal-{uplink.name}"
    ruleset = (
        f"table ip {table} {{\n chain caught {{\n  type nat hook prerouting priority dstnat;\n"
        f'  iifname "{isp.device}" tcp dport 80 redirect to :{PORTAL_PORT}\n }}\n}}\n'
    )
    with Process(argv, log=scratch / f"{isp.namespace.name}-{table}", namespace=isp.namespace.name) as portal:
        portal.wait_output("^ready")
        began = time.monotonic()
        isp.namespace.run(["nft", "-f", "-"], text=ruleset)
        try:
            yield began
        finally:
            isp.namespace.run(["nft", "delete", "table", "ip", table], check=False)


def without_route(uplink: Uplink) -> list[str]:
    """Return the `ip` commands that remove an uplink's default routes."""
    return [f"route del {route}" for route in uplink.defaults()]


def with_route(uplink: Uplink) -> list[str]:
    """Return the commands that restore them."""
    return [f"route replace {route}" for route in uplink.defaults()]


def without_address(uplink: Uplink) -> list[str]:
    """Return the commands that remove an uplink's addresses, and with them its routes."""
    return [f"address del {address} dev {uplink.name}" for address in uplink.addresses()]


def with_address(uplink: Uplink) -> list[str]:
    """Return the commands that set an uplink's addresses, as a DHCP client also does on renewal."""
    given = [f"address replace {address} dev {uplink.name} nodad" for address in uplink.addresses()]
    return given + with_route(uplink)


def without_carrier(uplink: Uplink) -> list[str]:
    """Return the commands that take the carrier from an emulated line."""
    return [f"link set {uplink.near.device} carrier off"]


def with_carrier(uplink: Uplink) -> list[str]:
    """Return the commands that restore it."""
    return [f"link set {uplink.near.device} carrier on"]


def change_address(uplink: Uplink, old: str, new: str) -> None:
    """Give the host another IPv4 address on an uplink, as after a new lease."""
    device = uplink.near.device
    route = f"0.0.0.0/0 via {uplink.gateway4} dev {device} metric {uplink.metric} proto dhcp src {new}"
    uplink.near.namespace.ip(
        f"address add {new}/24 dev {device}",
        f"address delete {old}/24 dev {device}",
        # Removing the old address removed everything that referred to it.
        f"address replace {new}/24 dev {device}",
        f"route replace {route}",
    )
