"""A line that carries QUIC alone shows its capacity by the spin bit."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import UplinkSpec
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid
from conftest import MakeNetwork, StartBraid

RATE = 6.0
LINE = UplinkSpec("lte", LinkSpec(rate=f"{RATE}Mbit/s", delay="10ms", queue="100ms"))


def capacity(daemon: Braid) -> dict[str, Any]:
    [uplink] = daemon.json("uplinks")["uplinks"]
    found: dict[str, Any] = uplink.get("rx_capacity", {})
    return found


def test_a_download_over_quic_shows_the_capacity(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    """Both ends are aioquic's, which has the spin bit."""
    net = make_network(LINE, serving=("http3",))
    daemon = start_braid(net)
    words = [sys.executable, "-m", "braid_lab.clients.http3_download", net.server(), str(60_000_000)]
    with Process(words, log=net.scratch / "download", namespace=net.host.name) as download:
        download.wait_output("from ")
        wait_until(lambda: capacity(daemon).get("basis") == "saturated", what="an estimate", timeout=20)
        found = capacity(daemon)
    assert found["rate_bit_s"] / 1e6 == pytest.approx(RATE, rel=0.1)
