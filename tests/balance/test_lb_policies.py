"""The choice of uplinks beyond round robin: stickiness, tiers, overflow, load."""

from __future__ import annotations

import pytest

from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.observe import ask_tcp, ask_udp, by_uplink, states
from braid_lab.process import Process, wait_until
from conftest import PLAIN, MakeNetwork, StartBraid, configured, on_datapaths_in_turn, on_every_datapath

both_families = pytest.mark.parametrize("family", [4, 6])


def used(counts: dict[str, int]) -> set[str]:
    return {name for name, count in counts.items() if count}


@on_datapaths_in_turn
@both_families
def test_a_client_keeps_its_uplink_to_a_site(make_network: MakeNetwork, start_braid: StartBraid, family: int) -> None:
    net = make_network(*PLAIN, lan_clients=2)
    start_braid(net, "--config", configured(net, 'policy = "rr"\nsticky = "10 min"\n'))
    for location in (net.host, *net.clients):
        # All servers of the lab are in one /24, or one /48: one site.
        counts = by_uplink(net, ask_tcp(location, 3, *net.servers(family)[:4]))
        assert len(used(counts)) == 1, counts
    # It does not bind other clients: the clients' first flows took turns.
    firsts = [
        used(by_uplink(net, ask_tcp(location, 1, net.server(1, family)))) for location in (net.host, *net.clients)
    ]
    assert {"dsl"} in firsts
    assert {"lte"} in firsts


@on_every_datapath
def test_stickiness_survives_the_daemon_and_gives_way_to_death(net: Topology, start_braid: StartBraid) -> None:
    file = configured(net, 'policy = "rr"\nsticky = "10 min"\n')
    daemon = start_braid(net, "--config", file)
    (kept,) = used(by_uplink(net, ask_tcp(net.host, 3, net.server())))
    daemon.kill9()
    daemon.up("--config", file)
    assert used(by_uplink(net, ask_tcp(net.host, 3, net.server()))) == {kept}
    net.host.ip(f"link set {kept} down")
    wait_until(lambda: states(daemon).get(kept) != "up", what=f"{kept} to be seen down")
    (other,) = used(by_uplink(net, ask_tcp(net.host, 3, net.server())))
    assert other != kept


TIERS = """
[[uplink]]
name = "dsl"
device = "dsl"
capacity = "8 Mbit/s"
{overflow}
[[uplink]]
name = "lte"
device = "lte"
capacity = "40 Mbit/s"
tier = 2
metered = true
"""


@on_datapaths_in_turn
def test_a_backup_takes_flows_only_when_the_first_is_gone(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net, "--config", configured(net, TIERS.format(overflow="")))
    assert by_uplink(net, ask_tcp(net.host, 6, net.server())) == {"dsl": 6, "lte": 0}
    assert states(daemon) == {"dsl": "up", "lte": "standby"}
    net.host.ip("link set dsl down")
    wait_until(lambda: states(daemon).get("lte") == "up", what="the backup to take over")
    assert by_uplink(net, ask_tcp(net.host, 6, net.server())) == {"dsl": 0, "lte": 6}


#: Two lines with the rates of the configurations above.
LINES = (
    UplinkSpec("dsl", LinkSpec(rate="8Mbit/s", delay="5ms", queue="200ms")),
    UplinkSpec("lte", LinkSpec(rate="40Mbit/s", delay="10ms", queue="200ms")),
)


def download(net: Topology, *, rate: str) -> Process:
    """Download from the host, over one connection on its own uplink, until stopped."""
    words = ["curl", "-sSf", "--limit-rate", rate, "-o", "/dev/null", f"http://{net.server(8)}/bytes/200000000"]
    return Process(words, log=net.scratch / "download", namespace=net.host.name)


def test_the_next_tier_joins_when_the_first_is_full(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(*LINES)
    daemon = start_braid(net, "--config", configured(net, TIERS.format(overflow='overflow = "50 %"')))
    assert by_uplink(net, ask_tcp(net.host, 6, net.server())) == {"dsl": 6, "lte": 0}
    with download(net, rate="900K"):
        wait_until(lambda: states(daemon).get("lte") == "up", what="the next tier to join", timeout=20)
        counts = by_uplink(net, ask_tcp(net.host, 12, net.server()))
        assert counts["lte"] > 0, counts
    wait_until(lambda: states(daemon).get("lte") == "standby", what="the next tier to leave again", timeout=20)
    assert by_uplink(net, ask_tcp(net.host, 6, net.server())) == {"dsl": 6, "lte": 0}


LEAST_LOADED = """
policy = "least-loaded"
[[uplink]]
name = "dsl"
device = "dsl"
capacity = "20 Mbit/s"
[[uplink]]
name = "lte"
device = "lte"
capacity = "20 Mbit/s"
"""


def test_new_flows_avoid_the_loaded_line(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    line = LinkSpec(rate="20Mbit/s", delay="5ms", queue="200ms")
    net = make_network(UplinkSpec("dsl", line), UplinkSpec("lte", line))
    daemon = start_braid(net, "--config", configured(net, LEAST_LOADED))
    counts = by_uplink(net, ask_tcp(net.host, 20, net.server()))
    assert min(counts.values()) >= 8, counts
    with download(net, rate="2M"):

        def shares() -> dict[str, float]:
            return {each["name"]: each["share"] for each in daemon.json("uplinks")["uplinks"]}

        wait_until(lambda: min(shares().values()) < 0.3, what="shares to follow the load", timeout=20)
        before = shares()
        loaded = min(before, key=lambda name: before[name])
        counts = by_uplink(net, ask_tcp(net.host, 20, net.server()))
        assert counts[loaded] <= 8, (loaded, counts)


@on_every_datapath
def test_a_mapping_keeps_its_uplink_when_shares_change(net: Topology, start_braid: StartBraid) -> None:
    """A reload moves no existing flow."""
    file = configured(net, 'policy = "wrr"\n')
    daemon = start_braid(net, "--config", file)
    before = ask_udp(net.host, 2, net.server())
    file.write_text('policy = "hash-source"\n')
    daemon.call("reload")

    def flows() -> dict[str, str]:
        told = daemon.json("flows")["flows"]
        return {each["outer"]: each["uplink"] for each in told if each["protocol"] == "udp"}

    # The controller of a switch tells new flows once a second.
    wait_until(lambda: len(flows()) == len(before), what="the flows to be told")
    for ((address, port),) in before:
        assert by_uplink(net, [(address, port)])[flows()[f"{address}:{port}"]] == 1
