"""Lines that lose packets: the first ones of a flow go twice there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from braid_lab.experiments.race.trial import Amount, fetch
from braid_lab.net.links import LinkSpec
from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.process import wait_until
from braid_lab.product import Braid
from conftest import MakeNetwork, StartBraid, configured

#: Of 100 packets in either direction 10 are lost: of 100 SYNs 19 get no answer at once, and if they go twice 4.
LOSSY = UplinkSpec("lte", LinkSpec(rate="40Mbit/s", delay="10ms", queue="200ms", loss="10%"))
CLEAN = UplinkSpec("dsl", LinkSpec(rate="40Mbit/s", delay="10ms", queue="200ms"))
#: Connections, and a limit for those that wait for a second: 57 and 11 are expected (standard deviations 7 and 3).
CONNECTIONS = 300
FEW = 30
#: Every connection is raced.
RACES = """
policy = "race"
[race]
explore_one_in = 1
per_destination = "10000 /s"
total = "10000 /s"
"""
#: A SYN is repeated after a second (RFC 6298 §2).
LATE_S = 0.9


def late(place: Namespace, address: str) -> int:
    """Return how many of many connections were late to open."""
    done = fetch(place, [address] * CONNECTIONS, Amount(0, 1.0, spacing=0.005))
    return sum(each.error is not None or each.connect_s > LATE_S for each in done)


def twice(daemon: Braid) -> dict[str, bool]:
    return {uplink["name"]: uplink["sends_twice"] for uplink in daemon.json("status")["uplinks"]}


@pytest.mark.parametrize("family", [4, 6])
def test_connections_open_at_once_over_a_line_that_loses_packets(
    make_network: MakeNetwork, start_braid: StartBraid, family: int
) -> None:
    net = make_network(LOSSY)
    file = configured(net, "")
    daemon = start_braid(net, "--config", file)
    learn(net, daemon, family)
    assert late(net.host, net.server(1, family)) < FEW
    assert daemon.json("status")["reasons"]["out_second_copy"] >= CONNECTIONS
    file.write_text('first_packets = "once"\n')
    daemon.call("reload")
    assert twice(daemon) == {"lte": False}
    assert late(net.host, net.server(1, family)) > FEW


def test_only_the_line_that_loses_packets_is_found(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(LOSSY, CLEAN)
    daemon = start_braid(net, "--policy", "rr")
    learn(net, daemon, 4)
    assert twice(daemon) == {"lte": True, "dsl": False}


def test_a_raced_syn_goes_twice_by_each_line_that_loses_packets(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    """By one it is a copy that goes twice, by the other the packet itself."""
    net = make_network(LOSSY, replace(LOSSY, name="dsl"))
    daemon = start_braid(net, "--config", configured(net, RACES))
    learn(net, daemon, 4)
    before = counted(daemon)
    late(net.host, net.server())
    races, second_copies = (now - then for now, then in zip(counted(daemon), before, strict=True))
    assert races >= CONNECTIONS
    assert second_copies == 2 * races


def counted(daemon: Braid) -> tuple[int, int]:
    """Return how many raced SYNs there were, repetitions included, and how many second copies."""
    reasons = daemon.json("status")["reasons"]
    return reasons["race_begun"] + reasons["race_repeated"], reasons["out_second_copy"]


def learn(net: Topology, daemon: Braid, family: int) -> None:
    """Load the lines until those that lose packets are known to."""
    lossy = {name for name, uplink in net.uplinks.items() if uplink.spec.line and uplink.spec.line.loss}

    def is_known() -> bool:
        fetch(net.host, [net.server(1, family)] * 8, Amount(50_000, 2.0))
        return lossy <= {name for name, sends in twice(daemon).items() if sends}

    wait_until(is_known, what="the losses to be known", timeout=60)
