"""A stream of numbered frames from one host to another, while a cable is pulled."""

from __future__ import annotations

import json
import sys

from braid_lab.fabric.controller import Fabric
from braid_lab.fabric.ovs import OvsNetwork, Station
from braid_lab.process import Process, wait_until

_FRAMES = [sys.executable, "-m", "braid_lab.fabric.raw_frames"]
#: Frames that arrive before the cable is pulled.
_BEFORE = 300


def way(fabric: Fabric, source: Station, target: Station) -> list[str]:
    """Return the switches by which packets go from one host without an edge to another."""
    told = fabric.json("explain", source.mac, target.mac)
    return list(told["single"]["switches"])


def lost_frames(net: OvsNetwork, source: Station, target: Station, device: str, *, count: int) -> list[int]:
    """Send `count` frames, one a millisecond, and take a port down meanwhile; return those that do not arrive."""
    argv = [*_FRAMES, "count", "eth0", "2"]
    with Process(argv, log=net.folder / f"count-{target.name}", namespace=target.place.name) as counting:
        counting.wait_output("^ready", timeout=20)
        argv = [*_FRAMES, "send", "eth0", target.mac, str(count), "1000", "0"]
        with Process(argv, log=net.folder / f"send-{source.name}", namespace=source.place.name) as sending:
            before = _received(target)
            wait_until(lambda: _received(target) > before + _BEFORE, what="frames", timeout=20)
            net.place.ip(f"link set {device} down")
            sending.wait()
        told = json.loads(counting.wait().stdout.splitlines()[-1])
    return sorted(set(range(count)) - {number for numbers in told["seen"].values() for number in numbers})


def _received(station: Station) -> int:
    return station.place.counters("eth0")["rx"]["packets"]
