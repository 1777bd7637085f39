"""Two emulated lines, Braid on the host behind them, and one line that falls silent.

Run as root, after `make build`: `.venv/bin/python python/examples/two_lines.py`. Everything is in network namespaces
of its own and gone at the end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from braid_lab.fixtures import serve
from braid_lab.net.faults import black_hole
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import UplinkSpec, network
from braid_lab.observe import ask_tcp, by_uplink
from braid_lab.process import wait_until
from braid_lab.product import braid

UPLINKS = (
    UplinkSpec("dsl", LinkSpec(rate="20Mbit/s", delay="15ms")),
    UplinkSpec("lte", LinkSpec(rate="30Mbit/s", delay="40ms")),
)


def main() -> None:
    """Open connections over both lines, then over the one that is left."""
    with (
        tempfile.TemporaryDirectory() as folder,
        network(UPLINKS) as net,
        braid(net.host, Path(folder) / "braid", "--policy", "rr") as daemon,
    ):
        serve(net, "http1")
        print("ten connections by uplink:", by_uplink(net, ask_tcp(net.host, 10, net.server())))
        with black_hole(net.uplinks["dsl"]):

            def dsl_is_down() -> bool:
                (dsl,) = (each for each in daemon.json("uplinks")["uplinks"] if each["name"] == "dsl")
                return bool(dsl["state"] != "up")

            wait_until(dsl_is_down, what="the silent line to be noticed", timeout=30)
            print("ten more while dsl is silent:", by_uplink(net, ask_tcp(net.host, 10, net.server())))
        print(daemon.call("events").stdout)


if __name__ == "__main__":
    main()
