"""The lag of estimates behind a line's rate, and the count of what leaves by a line."""

from __future__ import annotations

import socket

import pytest

from braid_lab.experiments.measure.capacity import lag_s
from braid_lab.experiments.measure.walks import campus, cellular
from braid_lab.net.egress import Egress, counted_egress
from braid_lab.net.topology import UplinkSpec
from conftest import MakeNetwork


@pytest.mark.parametrize("lag", [0, 1, 2, 7, 15])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_lag_is_found_however_long_it_is(lag: int, seed: int) -> None:
    for walk in (cellular(40, seed), campus(seed, seconds=60).wifi):
        rows = [
            {"s": second, "mbit": rate, "estimate": 1.01 * walk[max(0, second - lag)]}
            for second, rate in enumerate(walk)
        ]
        # Seconds without an estimate are missing.
        assert lag_s([row for row in rows if row["s"] % 5]) == lag


def test_what_leaves_beside_the_expected_is_counted(make_network: MakeNetwork) -> None:
    net = make_network(UplinkSpec("line"))
    far = net.uplinks["line"].far
    server = net.server()

    with net.host.inside():
        udp_socket = socket.socket(type=socket.SOCK_DGRAM)

    # The neighbour is known by then.
    net.host.run(["ping", "-c", "1", "-W", "5", server])
    with udp_socket, counted_egress(far, server, (7001, 7002)) as found:
        for port, length in ((7001, 1000), (7002, 100), (7003, 10)):
            udp_socket.sendto(bytes(length), (server, port))
        net.host.run(["ping", "-c", "1", "-W", "5", "-s", "56", server])
    ip, udp = 20, 8
    sent = Egress(expected=1100 + 2 * (ip + udp), reachability=56 + 8 + ip, other=10 + ip + udp)
    assert (found.expected, found.other) == (sent.expected, sent.other)
    # ARP and IPv6's neighbour discovery come when they please.
    assert found.reachability >= sent.reachability
