"""ICMP errors that name a translated flow, and fragments."""

from __future__ import annotations

import sys

import pytest

from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import Topology
from braid_lab.observe import answered_pings
from conftest import PLAIN, MakeNetwork, StartBraid

both_families = pytest.mark.parametrize("family", [4, 6])
locations = pytest.mark.parametrize("location", ["host", "client"])

#: Sends to a closed port from a connected socket: the second call fails only if an ICMP error was translated back to
#: exactly this socket.
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


def at(net: Topology, location: str) -> Namespace:
    return net.host if location == "host" else net.clients[0]


@both_families
@locations
def test_a_closed_udp_port_is_reported(lan: Topology, start_braid: StartBraid, family: int, location: str) -> None:
    start_braid(lan)
    for _ in range(2):
        words = [sys.executable, "-c", ASK_A_CLOSED_PORT, lan.server(1, family)]
        assert at(lan, location).run(words).stdout == "refused\n"


@both_families
@locations
def test_large_pings_pass_in_fragments(lan: Topology, start_braid: StartBraid, family: int, location: str) -> None:
    start_braid(lan)
    for _ in range(2):
        assert answered_pings(at(lan, location), 2, 0.05, "-s", "4000", lan.server(1, family)) == [1, 2]


#: Sends a protocol without ports from a connected socket, and prints the second call's error. Host unreachable does
#: not end a socket by default, so the script requests it.
SEND_WITHOUT_PORTS = """
import errno, socket, sys
IP_RECVERR = 11
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_RAW, int(sys.argv[2])) as asker:
    asker.settimeout(2)
    if family == socket.AF_INET:
        asker.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    asker.connect((sys.argv[1], 0))
    try:
        asker.send(b"anyone?" * 20)
    except OSError as error:
        # Some kernels say so when a program on the device drops the packet.
        assert error.errno == errno.ENOBUFS
    try:
        asker.recv(1)
    except TimeoutError:
        print("nothing")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


@both_families
@locations
def test_a_protocol_that_cannot_be_translated_is_reported(
    lan: Topology, start_braid: StartBraid, family: int, location: str
) -> None:
    daemon = start_braid(lan)
    # UDP-Lite, AH, DCCP and L2TP; the kernel's IPv6 does not treat IPsec's own headers as a protocol.
    for protocol in (136, 51, 33, 115) if family == 4 else (136, 33, 115):
        server = lan.server(1, family)
        words = [sys.executable, "-c", SEND_WITHOUT_PORTS, server, str(protocol)]
        expected = "EHOSTUNREACH\n" if family == 4 else "EACCES\n"
        assert at(lan, location).run(words).stdout == expected
        said = daemon.call("explain", "--protocol", str(protocol), server)
        assert "new flow: is dropped" in said.stdout, said.text
        assert "administratively prohibited" in said.stdout, said.text
    # Protocols between routers on one link: nobody on the path answers.
    words = [sys.executable, "-c", SEND_WITHOUT_PORTS, lan.server(1, family), "89"]
    assert at(lan, location).run(words).stdout == "nothing\n"


def test_a_further_client_of_one_remote_hears_that_it_is_taken(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    net = make_network(*PLAIN, lan_clients=3)
    daemon = start_braid(net)
    heard = []
    for client in net.clients:
        words = [sys.executable, "-c", SEND_WITHOUT_PORTS, net.server(), "47"]
        heard.append(client.run(words).stdout)
    # The first two reach the server, which does not support GRE.
    assert heard == ["ENOPROTOOPT\n", "ENOPROTOOPT\n", "EHOSTUNREACH\n"]
    said = daemon.call("explain", "--protocol", "gre", net.server())
    assert "nat_address_taken" in said.stdout, said.text
    assert "new flow: is dropped" in said.stdout, said.text
