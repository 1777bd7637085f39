"""What happens to uplinks in the field: they fall silent, are unplugged, get a captive portal, and come back."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from braid_lab.net.topology import Uplink
from braid_lab.process import LabError, Process


def _swallow(uplink: Uplink, on: bool) -> None:
    if uplink.emulator is None:
        raise LabError(f"{uplink.name} is no emulated line")
    uplink.emulator.blackhole(on)


@contextlib.contextmanager
def black_hole(uplink: Uplink) -> Iterator[float]:
    """Swallow everything on an emulated line, without a sign of it at the device; yields when it began."""
    began = time.monotonic()
    _swallow(uplink, True)
    try:
        yield began
    finally:
        _swallow(uplink, False)


@contextlib.contextmanager
def unplugged(uplink: Uplink) -> Iterator[float]:
    """Take the carrier from an emulated line's device at the host, and what is under way; yields when it began."""
    near = uplink.near
    began = time.monotonic()
    near.namespace.ip(f"link set {near.device} carrier off")
    _swallow(uplink, True)
    try:
        yield began
    finally:
        _swallow(uplink, False)
        near.namespace.ip(f"link set {near.device} carrier on")


#: Where a portal listens on its uplink's far side.
PORTAL_PORT = 8080


@contextlib.contextmanager
def captive(uplink: Uplink, scratch: Path) -> Iterator[float]:
    """Answer all IPv4 HTTP on an uplink by a captive portal, pings passing as before; yields when it began."""
    isp = uplink.far
    argv = [sys.executable, "-m", "braid_lab.serve.portal", uplink.gateway4, str(PORTAL_PORT)]
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
