"""`kill -9` of the daemon and its restart cost no packet."""

from __future__ import annotations

import re
import sys

from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import UplinkSpec
from braid_lab.observe import ask_tcp, by_uplink
from braid_lab.process import Process, wait_until
from conftest import PLAIN, ROUND_ROBIN, MakeNetwork, StartBraid, on_datapaths_in_turn, on_every_datapath


def test_downloads_and_pings_survive_the_daemon(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    line = LinkSpec(rate="40Mbit/s", delay="5ms", queue="100ms")
    net = make_network(UplinkSpec("dsl", line), UplinkSpec("lte", line))
    daemon = start_braid(net)
    with (
        Process(
            ["ping", "-i", "0.01", "-c", "400", net.server()], log=net.scratch / "ping", namespace=net.host.name
        ) as ping,
        Process(
            [sys.executable, "-m", "braid_lab.clients.page", "1", "1", *net.servers()],
            log=net.scratch / "page",
            namespace=net.host.name,
        ) as page,
    ):
        ping.wait_output("icmp_seq=50 ")
        daemon.kill9()
        ping.wait_output("icmp_seq=150 ")
        daemon.up()
        ping.wait_output("icmp_seq=250 ")
        daemon.kill9()
        daemon.up()
        loaded = page.wait()
        pinged = ping.wait()
    assert loaded.status == 0, loaded.text
    sent, received = map(int, re.findall(r"(\d+) packets transmitted, (\d+) received", pinged.stdout)[0])
    assert (sent, received) == (400, 400)


@on_datapaths_in_turn
def test_new_flows_open_while_no_daemon_runs(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(*PLAIN, lan_clients=1)
    daemon = start_braid(net, *ROUND_ROBIN)
    daemon.kill9()
    for location in (net.host, net.clients[0]):
        assert by_uplink(net, ask_tcp(location, 10, net.server())) == {"dsl": 5, "lte": 5}


@on_every_datapath
def test_a_slow_download_survives_a_restart(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network()
    daemon = start_braid(net)
    with Process(
        ["curl", "-sSf", "--limit-rate", "200K", "-o", "/dev/null", f"http://{net.server()}/bytes/600000"],
        log=net.scratch / "slow",
        namespace=net.host.name,
    ) as slow:
        wait_until(lambda: daemon.json("flows")["flows"], what="the flow")
        daemon.kill9()
        daemon.up()
        assert slow.wait().status == 0


def test_a_restart_moves_no_source_to_another_uplink(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(UplinkSpec("dsl"), UplinkSpec("lte"), UplinkSpec("sat"))
    daemon = start_braid(net, "--policy", "hash-pair")

    def taken() -> list[dict[str, int]]:
        return [by_uplink(net, ask_tcp(net.host, 1, server)) for server in net.servers()]

    def is_at(state: str) -> bool:
        return any(each["name"] == "dsl" and each["state"] == state for each in daemon.json("uplinks")["uplinks"])

    # After an uplink's failure the table differs from that of a fresh start.
    isp = net.uplinks["dsl"].far
    isp.namespace.ip(f"link set {isp.device} down")
    wait_until(lambda: is_at("down"), what="dsl to be seen down")
    isp.namespace.ip(f"link set {isp.device} up")
    wait_until(lambda: is_at("up"), what="dsl to be seen up again")
    before = taken()
    daemon.kill9()
    daemon.up("--policy", "hash-pair")
    assert taken() == before
