"""Connections from outside to the host's own addresses, as SSH to a router's WAN address."""

from __future__ import annotations

import sys

import pytest

from braid_lab.net.topology import Topology
from braid_lab.observe import ask_tcp, by_uplink
from braid_lab.process import Process
from braid_lab.servers import catalog
from conftest import ROUND_ROBIN, StartBraid, on_every_datapath


@pytest.mark.parametrize("family", [4, 6])
def test_servers_on_every_uplinks_address_are_reached(net: Topology, start_braid: StartBraid, family: int) -> None:
    start_braid(net)
    for uplink in net.uplinks.values():
        address = uplink.address4 if family == 4 else uplink.address6
        argv = catalog.argv("http1", [address])
        log = net.scratch / f"inbound-{uplink.name}"
        with Process(argv, log=log, namespace=net.host.name) as process:
            process.wait_output(catalog.READY)
            # From an address that the host can only answer over its default routes.
            source = net.server(1, family)
            host = address if family == 4 else f"[{address}]"
            words = ["curl", "-sSf", "--max-time", "10", "--interface", source, "-o", str(net.scratch / "got")]
            net.internet.run([*words, f"http://{host}/bytes/2000000"])
            assert (net.scratch / "got").stat().st_size == 2_000_000


def test_inbound_and_outbound_share_an_uplink(net: Topology, start_braid: StartBraid) -> None:
    start_braid(net, *ROUND_ROBIN)
    address = net.uplinks["lte"].address4
    with Process(catalog.argv("http1", [address]), log=net.scratch / "inbound", namespace=net.host.name) as process:
        process.wait_output(catalog.READY)
        assert by_uplink(net, ask_tcp(net.host, 10, net.server())) == {"dsl": 5, "lte": 5}
        words = [sys.executable, "-m", "braid_lab.clients.whoami", "tcp", "5", address]
        assert net.internet.run(words).status == 0


@pytest.mark.parametrize("family", [4, 6])
@on_every_datapath
def test_every_uplinks_address_answers_pings(net: Topology, start_braid: StartBraid, family: int) -> None:
    start_braid(net)
    for uplink in net.uplinks.values():
        address = uplink.address4 if family == 4 else uplink.address6
        net.internet.run(["ping", "-c", "2", "-i", "0.05", "-W", "2", "-I", net.server(1, family), address])
