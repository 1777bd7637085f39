"""A host's own traffic over two uplinks, by every protocol and both IP versions."""

from __future__ import annotations

import contextlib
import socket

import pytest

from braid_lab.fixtures import run_client
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.observe import ask_tcp, ask_udp, by_uplink
from braid_lab.product import Braid
from conftest import (
    PLAIN,
    ROUND_ROBIN,
    MakeNetwork,
    StartBraid,
    check_transfers,
    on_datapaths_in_turn,
    on_every_datapath,
)

both_families = pytest.mark.parametrize("family", [4, 6])


def opened(daemon: Braid) -> dict[str, int]:
    """Return how many flows were opened on each uplink."""
    return {each["name"]: each["flows_opened"] for each in daemon.json("uplinks")["uplinks"]}


@both_families
def test_tcp_takes_both_uplinks_in_turn(net: Topology, start_braid: StartBraid, family: int) -> None:
    start_braid(net, *ROUND_ROBIN)
    seen = ask_tcp(net.host, 10, net.server(1, family))
    assert by_uplink(net, seen) == {"dsl": 5, "lte": 5}


@both_families
def test_udp_takes_both_uplinks_and_keeps_one_mapping_per_socket(
    net: Topology, start_braid: StartBraid, family: int
) -> None:
    start_braid(net, *ROUND_ROBIN)
    sockets = ask_udp(net.host, 10, *net.servers(family)[:3])
    # RFC 4787 REQ-1: all remotes see the same address and port of one socket.
    assert all(len(set(socket)) == 1 for socket in sockets)
    assert by_uplink(net, [socket[0] for socket in sockets]) == {"dsl": 5, "lte": 5}


@both_families
@pytest.mark.parametrize("policy", ["rr", "fastest"])
def test_a_traceroute_follows_one_way(net: Topology, start_braid: StartBraid, family: int, policy: str) -> None:
    """Each probe comes from a socket of its own and goes to a port of its own."""
    daemon = start_braid(net, "--policy", policy)
    # All stay open until the end: a reused port has its old mapping, and opens no flow.
    with contextlib.ExitStack() as stack:
        for server in net.servers(family)[:4]:
            before = opened(daemon)
            with net.host.inside():
                for port in range(33434, 33444):
                    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
                    stack.enter_context(socket.socket(kind, socket.SOCK_DGRAM)).sendto(b"probe", (server, port))
            assert sorted(after - before[name] for name, after in opened(daemon).items()) == [0, 10]


@both_families
def test_ping_takes_both_uplinks(net: Topology, start_braid: StartBraid, family: int) -> None:
    daemon = start_braid(net, *ROUND_ROBIN)
    for _ in range(4):
        net.host.run(["ping", "-c", "1", "-W", "2", net.server(1, family)])
    assert opened(daemon) == {"dsl": 2, "lte": 2}


@both_families
def test_http3_flows_take_both_uplinks_and_stay_there(
    make_network: MakeNetwork, start_braid: StartBraid, family: int
) -> None:
    net = make_network(serving=("http3",))
    start_braid(net, *ROUND_ROBIN)
    uplinks = []
    for _ in range(2):
        answers = run_client(net.host, "http3", net.server(1, family), "/address", "/bytes/300000", "/address")[
            "answers"
        ]
        assert answers[1]["bytes"] == 300_000
        assert answers[0]["text"] == answers[2]["text"]
        address, port = answers[0]["text"].split()
        uplinks.append((address, int(port)))
    assert by_uplink(net, uplinks) == {"dsl": 1, "lte": 1}


@both_families
def test_weights_are_kept_exactly(net: Topology, start_braid: StartBraid, family: int) -> None:
    start_braid(net, "--policy", "wrr", "--weight", "dsl=5", "--weight", "lte=3")
    # 1024 slots hold 5:3 exactly, and any 8 neighbouring ones do, too.
    seen = ask_tcp(net.host, 80, net.server(1, family))
    assert by_uplink(net, seen) == {"dsl": 50, "lte": 30}


def test_three_uplinks_share_by_weight(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(UplinkSpec("dsl"), UplinkSpec("lte"), UplinkSpec("sat"))
    weights = {"dsl": 5, "lte": 3, "sat": 1}
    start_braid(net, "--policy", "wrr", *(f"--weight={name}={weight}" for name, weight in weights.items()))
    counts = by_uplink(net, ask_tcp(net.host, 180, net.server()))
    assert all(abs(counts[name] / 180 - weight / 9) <= 0.01 for name, weight in weights.items()), counts


@on_every_datapath
def test_hash_by_source_keeps_a_host_on_one_uplink(net: Topology, start_braid: StartBraid) -> None:
    start_braid(net, "--policy", "hash-source")
    seen = ask_tcp(net.host, 3, *net.servers())
    assert sorted(by_uplink(net, seen).values()) == [0, 24]


def test_hash_by_pair_keeps_a_server_on_one_uplink(net: Topology, start_braid: StartBraid) -> None:
    start_braid(net, "--policy", "hash-pair")
    used = {}
    for server in net.servers():
        counts = by_uplink(net, ask_tcp(net.host, 4, server))
        assert sorted(counts.values()) == [0, 4]
        used[server] = max(counts, key=lambda name: counts[name])
    assert len(set(used.values())) == 2, used


@both_families
@pytest.mark.parametrize("offload", [False, True])
def test_downloads_and_uploads_arrive_whole(
    make_network: MakeNetwork, start_braid: StartBraid, family: int, offload: bool
) -> None:
    net = make_network(UplinkSpec("dsl", offload=offload), UplinkSpec("lte", offload=offload))
    daemon = start_braid(net)
    down, up = check_transfers(net, family)
    uplinks = {each["name"]: each for each in daemon.json("uplinks")["uplinks"]}
    assert all(each["rx_bytes"] > down for each in uplinks.values()), uplinks
    assert all(each["tx_bytes"] > up for each in uplinks.values()), uplinks


def test_links_without_ethernet_take_part(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(UplinkSpec("dsl"), UplinkSpec("wwan0", layer="l3"))
    daemon = start_braid(net, *ROUND_ROBIN)
    layers = {each["name"]: each["layer"] for each in daemon.json("uplinks")["uplinks"]}
    assert layers == {"dsl": "l2", "wwan0": "l3"}
    for family in (4, 6):
        assert by_uplink(net, ask_tcp(net.host, 10, net.server(1, family))) == {"dsl": 5, "wwan0": 5}
    assert by_uplink(net, [one for (one,) in ask_udp(net.host, 10, net.server())]) == {"dsl": 5, "wwan0": 5}


@on_datapaths_in_turn
def test_an_uplink_with_one_family_carries_only_that(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(UplinkSpec("dsl"), UplinkSpec("lte", families=frozenset({4})))
    start_braid(net, *ROUND_ROBIN)
    assert by_uplink(net, ask_tcp(net.host, 10, net.server(1, 4))) == {"dsl": 5, "lte": 5}
    assert by_uplink(net, ask_tcp(net.host, 10, net.server(1, 6))) == {"dsl": 10, "lte": 0}


@on_every_datapath
def test_specific_routes_win(net: Topology, start_braid: StartBraid) -> None:
    start_braid(net, *ROUND_ROBIN)
    lte = net.uplinks["lte"]
    net.host.ip(f"route add {net.server(5)}/32 via {lte.gateway4} dev lte")
    assert by_uplink(net, ask_tcp(net.host, 6, net.server(5))) == {"dsl": 0, "lte": 6}
    # A group chooses by a hash, so shares differ; each takes some.
    assert all(by_uplink(net, ask_tcp(net.host, 20, net.server(4))).values())


@both_families
def test_a_program_that_binds_an_uplinks_address_leaves_by_it(
    net: Topology, start_braid: StartBraid, family: int
) -> None:
    start_braid(net)
    server = net.server(1, family) if family == 4 else f"[{net.server(1, family)}]"
    for uplink in net.uplinks.values():
        address = uplink.address4 if family == 4 else uplink.address6
        for _ in range(2):
            words = ["curl", "-sSf", "--max-time", "5", "--interface", address, f"http://{server}/address"]
            assert net.host.run(words).stdout.split()[0] == address


def test_the_clients_port_is_kept_where_it_is_free(net: Topology, start_braid: StartBraid) -> None:
    start_braid(net)
    kept = []
    for wanted in range(40000, 40010):
        words = ["curl", "-sSf", "--local-port", str(wanted), f"http://{net.server()}/address"]
        kept.append(int(net.host.run(words).stdout.split()[1]) == wanted)
    assert all(kept)


def test_flows_are_listed_with_their_uplink(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    seen = ask_udp(net.host, 2, net.server())
    flows = {flow["outer"]: flow for flow in daemon.json("flows")["flows"] if flow["protocol"] == "udp"}
    for ((address, port),) in seen:
        flow = flows[f"{address}:{port}"]
        assert by_uplink(net, [(address, port)])[flow["uplink"]] == 1
        assert flow["tx_packets"] >= 1
        assert flow["rx_packets"] >= 1


def test_groups_and_broadcasts_go_where_they_always_went(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(*PLAIN)
    daemon = start_braid(net)
    dsl = net.uplinks["dsl"]
    ssdp = "239.255.255.250"
    with (
        dsl.far.namespace.inside(),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener,
    ):
        listener.bind(("", 1900))
        group = socket.inet_aton(ssdp) + socket.inet_aton(dsl.gateway4)
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        listener.settimeout(10)
        for target in (ssdp, "255.255.255.255"):
            with net.host.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker:
                speaker.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                speaker.sendto(target.encode(), (target, 1900))
            said, (source, _) = listener.recvfrom(100)
            assert (said.decode(), source) == (target, dsl.address4)
    explained = daemon.call("explain", f"{ssdp}:1900", "--protocol", "udp", check=False)
    assert "past Braid" in explained.text, explained.text
