"""One QUIC stream between two stations, as its receiver sees it."""

from __future__ import annotations

import json
from pathlib import Path

from braid_lab.fabric.ovs import Station
from braid_lab.fabric.tcp_transfer import Transfer
from braid_lab.process import Process
from braid_lab.product import binary


def quic_transfer(
    source: Station, target: Station, folder: Path, seconds: float, *, interval: float = 1.0
) -> Transfer:
    """Send as fast as quinn with CUBIC can for `seconds`."""
    program = str(binary("braid-load"))
    log = folder / f"quic-{source.name}-{target.name}"
    with Process([program, "quic-serve", source.address], log=log, namespace=source.place.name) as server:
        server.wait_output('"ready":true', timeout=20)
        argv = [program, "quic-take", source.address, f"{seconds:g}"]
        told = json.loads(target.place.run(argv, timeout=seconds + 60).stdout)
    bins, size = told["bytes"], round(interval / told["bin_s"])
    ends = range(size, round(seconds / told["bin_s"]) + 1, size)
    goodput = [8e-6 * sum(bins[end - size : end]) / interval for end in ends]
    return Transfer(goodput, 0, interval=interval)
