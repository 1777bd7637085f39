"""What most setups forget: ICMP errors that name a translated flow, and packets in pieces."""

from __future__ import annotations

import sys

import pytest

from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import Topology
from conftest import PLAIN, MakeNetwork, StartBraid

both_families = pytest.mark.parametrize("family", [4, 6])
places = pytest.mark.parametrize("place", ["host", "client"])

#: Asks a port that nobody listens on, from a connected socket: only an ICMP error that was translated back to
#: exactly this socket makes the second call fail.
ASK_A_CLOSED_PORT = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as asker:
    asker.settimeout(3)
    asker.connect((sys.argv[1], 4))
    asker.send(b"anyone?")
    try:
        asker.recv(1)
    except ConnectionRefusedError:
        print("refused")
"""


@pytest.fixture
def lan(make_network: MakeNetwork) -> Topology:
    return make_network(*PLAIN, lan_clients=1)


def at(net: Topology, place: str) -> Namespace:
    return net.host if place == "host" else net.clients[0]


@both_families
@places
def test_a_closed_udp_port_is_reported(lan: Topology, start_braid: StartBraid, family: int, place: str) -> None:
    start_braid(lan)
    for _ in range(2):
        words = [sys.executable, "-c", ASK_A_CLOSED_PORT, lan.server(1, family)]
        assert at(lan, place).run(words).stdout == "refused\n"


@both_families
@places
def test_large_pings_pass_in_fragments(lan: Topology, start_braid: StartBraid, family: int, place: str) -> None:
    start_braid(lan)
    for _ in range(2):
        words = ["ping", "-c", "2", "-i", "0.05", "-W", "2", "-s", "4000", lan.server(1, family)]
        assert " 0% packet loss" in at(lan, place).run(words).stdout
