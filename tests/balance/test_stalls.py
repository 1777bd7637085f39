"""Lines that carry nothing for seconds, and the servers that wait meanwhile."""

from __future__ import annotations

import contextlib
import re
import sys
import time

from braid_lab.clients.tcp_stream import DRAIN_PORT, PORT
from braid_lab.net.faults import black_hole
from braid_lab.net.links import LinkSpec
from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.process import Process, wait_until
from conftest import MakeNetwork, StartBraid

LINE = UplinkSpec("lte", LinkSpec(rate="20Mbit/s", delay="20ms", queue="100ms"))

#: Doublings of the server's timeout, 0.2 s at least, after which the line works again: 3.2 s would pass.
DOUBLINGS = 4
#: Flows that send: three segments sent again within a second are a stall.
UPLOADS = 3


def test_a_server_goes_on_soon_after_a_stall(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(LINE)
    start_braid(net)
    with contextlib.ExitStack() as stack:
        stream(stack, net, net.internet, "serve", net.server()).wait_output("ready")
        stream(stack, net, net.host, "take", net.server(), "60")
        wait_until(lambda: of_download(net.internet, "bytes_acked") > 1_000_000, what="the download", timeout=30)
        # Only flows that have something to send show that the line stalls.
        stream(stack, net, net.host, "give", net.server(), "60", "--flows", str(UPLOADS))
        wait_until(lambda: uploads_that_run(net.host) == UPLOADS, what="the uploads", timeout=30)
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
    found = figures(internet, f"sport = :{PORT}", name)
    return found[0] if found else 0


def uploads_that_run(host: Namespace) -> int:
    """Return how many flows of the host have sent 50 kB that came."""
    return sum(acked >= 50_000 for acked in figures(host, f"dport = :{DRAIN_PORT}", "bytes_acked"))


def figures(place: Namespace, which: str, name: str) -> list[int]:
    """Return a figure of each connection that `ss` finds, as far as they say it."""
    said = place.run(["ss", "-tinH", "state", "established", f"( {which} )"]).stdout
    return [int(found) for found in re.findall(rf"\b{name}:(\d+)", said)]
