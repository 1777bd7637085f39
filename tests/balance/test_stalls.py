"""Lines that carry nothing for seconds, and the servers that wait meanwhile."""

from __future__ import annotations

import contextlib
import re
import sys
import time

from braid_lab.clients.tcp_stream import PORT
from braid_lab.net.faults import black_hole
from braid_lab.net.links import LinkSpec
from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.process import Process, wait_until
from conftest import MakeNetwork, StartBraid

LINE = UplinkSpec("lte", LinkSpec(rate="20Mbit/s", delay="20ms", queue="100ms"))

#: Doublings of the server's timeout, 0.2 s at least, after which the line works again: 3.2 s would pass.
DOUBLINGS = 4


def test_a_server_goes_on_soon_after_a_stall(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(LINE)
    start_braid(net)
    with contextlib.ExitStack() as stack:
        stream(stack, net, net.internet, "serve", net.server()).wait_output("ready")
        stream(stack, net, net.host, "take", net.server(), "60")
        wait_until(lambda: of_download(net.internet, "bytes_acked") > 1_000_000, what="the download", timeout=30)
        # Only flows that have something to send show that the line stalls.
        stream(stack, net, net.host, "give", net.server(), "60", "--flows", "3")
        received = of_download(net.internet, "bytes_acked")
        wait_until(lambda: of_download(net.internet, "bytes_acked") > received + 1_000_000, what="more", timeout=30)
        with black_hole(net.uplinks["lte"]):
            wait_until(
                lambda: of_download(net.internet, "backoff") >= DOUBLINGS, what="the server's timeouts", timeout=30
            )
            received = of_download(net.internet, "bytes_acked")
            timeout_s = of_download(net.internet, "rto") / 1e3
        began = time.monotonic()
        wait_until(
            lambda: of_download(net.internet, "bytes_acked") > received, what="the server to go on", timeout=60
        )
        took = time.monotonic() - began
    assert timeout_s > 3
    assert took < 0.7 * timeout_s, f"{took:.1f} s, after {timeout_s:.1f} s the server goes on by itself"


def stream(stack: contextlib.ExitStack, net: Topology, place: Namespace, verb: str, *words: str) -> Process:
    """Start a part of a TCP stream."""
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", verb, *words]
    return stack.enter_context(Process(argv, log=net.scratch / verb, namespace=place.name))


def of_download(internet: Namespace, name: str) -> int:
    """Return a figure of the server's socket; 0 where it does not say."""
    said = internet.run(["ss", "-tinH", "state", "established", f"( sport = :{PORT} )"]).stdout
    found = re.search(rf"\b{name}:(\d+)", said)
    return int(found.group(1)) if found else 0
