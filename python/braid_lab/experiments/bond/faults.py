"""Faults of links, hub and host while the bond carries packets, each for the length of a block."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator

from braid_lab import remote_hub
from braid_lab.experiments.bond.site import Site
from braid_lab.net.faults import black_hole, change_address, unplugged
from braid_lab.net.topology import Uplink
from braid_lab.process import LabError

#: Source port of a link's packets once its NAT has lost the old mapping.
REBOUND_PORT = 40001

#: Sleep of a suspended host, s: longer than the bond's own timeout for a silent link.
SUSPENDED_SECONDS = 3.0


@contextlib.contextmanager
def link_black_hole(place: Site, name: str) -> Iterator[float]:
    """Drop everything on a link, without a sign of it; yields the start time."""
    with black_hole(place.net.uplinks[name]) as began:
        yield began


@contextlib.contextmanager
def without_carrier(place: Site, name: str) -> Iterator[float]:
    """Take the carrier from a link's device at the host; yields the start time."""
    with unplugged(place.net.uplinks[name]) as began:
        yield began


@contextlib.contextmanager
def renumbered(place: Site, name: str) -> Iterator[float]:
    """Give the host another address on a link, as after a new lease, and then the old one again."""
    uplink = place.net.uplinks[name]
    other = uplink.address4.rpartition(".")[0] + ".77"
    began = time.monotonic()
    change_address(uplink, uplink.address4, other)
    try:
        yield began
    finally:
        change_address(uplink, other, uplink.address4)


@contextlib.contextmanager
def rebound(place: Site, name: str) -> Iterator[float]:
    """Make a NAT on the path give a link's packets another port, and forget the old one."""
    uplink = place.net.uplinks[name]
    port = _outer_port(place, uplink)
    device, hub = uplink.far.device, remote_hub.PORT
    ruleset = (
        "table ip rebound {\n"
        " chain towards {\n  type filter hook prerouting priority raw\n"
        f'  iifname "{device}" udp sport {port} udp dport {hub} udp sport set {REBOUND_PORT}\n }}\n'
        " chain back {\n  type filter hook postrouting priority 300\n"
        f'  oifname "{device}" udp sport {hub} udp dport {port} drop\n'
        f'  oifname "{device}" udp sport {hub} udp dport {REBOUND_PORT} udp dport set {port}\n }}\n}}\n'
    )
    began = time.monotonic()
    place.net.internet.run(["nft", "-f", "-"], text=ruleset)
    try:
        yield began
    finally:
        place.net.internet.run(["nft", "delete", "table", "ip", "rebound"])


def _outer_port(place: Site, uplink: Uplink) -> int:
    """Return the port that the bond sends from on a link."""
    sockets = place.net.host.run(["ss", "-H", "-u", "-a", "-n"]).stdout
    found: list[str] = re.findall(rf"{re.escape(uplink.address4)}(?:%\S+?)?:(\d+)\s", sockets)
    if len(set(found)) != 1:
        raise LabError(f"no one UDP socket of the bond on {uplink.name}:\n{sockets}")
    return int(found[0])


@contextlib.contextmanager
def hub_restarted(place: Site, _: str) -> Iterator[float]:
    """Kill the hub and restart it at once; yields the time of the kill."""
    began = time.monotonic()
    place.hub.kill9()
    place.hub.start()
    yield began


@contextlib.contextmanager
def suspended(place: Site, _: str) -> Iterator[float]:
    """Stop the daemon, as on a host that sleeps; yields the time of waking up."""
    stop_for(place.daemon.pid, SUSPENDED_SECONDS)
    yield time.monotonic()


def stop_for(pid: int, seconds: float) -> None:
    """Stop a process for some time, as if it waited for a processor; returns when it runs again."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
