"""A gateway with clients behind it."""

from __future__ import annotations

import socket
import struct

import pytest

from braid_lab.fixtures import run_client
from braid_lab.net.topology import Topology, UplinkSpec, lan_address
from braid_lab.observe import ask_tcp, ask_udp, by_uplink, states
from braid_lab.packets.codec import Icmp, Packet, encode
from braid_lab.packets.tap import ETHERNET, ETHERTYPE
from braid_lab.process import Process, wait_until
from braid_lab.servers import catalog
from conftest import PLAIN, ROUND_ROBIN, MakeNetwork, StartBraid, configured

#: The line behind the modem leads nowhere.
BEHIND_THE_MODEM = (
    "table inet line {{\n chain input {{\n  type filter hook input priority -300\n"
    '  iifname "{far}" ip daddr != 100.64.1.0/24 drop\n'
    '  iifname "{far}" ip6 daddr != {{ 2001:db8:1::/64, fe80::/10, ff00::/8 }} drop\n }}\n}}\n'
)

#: curl's exit status for a refused connection; a timeout has another.
CURL_COULD_NOT_CONNECT = 7

both_families = pytest.mark.parametrize("family", [4, 6])


@pytest.fixture
def lan(make_network: MakeNetwork) -> Topology:
    return make_network(*PLAIN, lan_clients=2)


@both_families
def test_clients_take_both_uplinks(lan: Topology, start_braid: StartBraid, family: int) -> None:
    start_braid(lan, *ROUND_ROBIN)
    for client in lan.clients:
        assert by_uplink(lan, ask_tcp(client, 10, lan.server(1, family))) == {"dsl": 5, "lte": 5}
        sockets = ask_udp(client, 10, *lan.servers(family)[:2])
        assert all(len(set(socket)) == 1 for socket in sockets)
        assert by_uplink(lan, [socket[0] for socket in sockets]) == {"dsl": 5, "lte": 5}
        client.run(["ping", "-c", "3", "-i", "0.05", "-W", "2", lan.server(1, family)])


@both_families
def test_the_gateways_own_traffic_works_beside_its_clients(
    lan: Topology, start_braid: StartBraid, family: int
) -> None:
    start_braid(lan, *ROUND_ROBIN)
    assert by_uplink(lan, ask_tcp(lan.host, 10, lan.server(1, family))) == {"dsl": 5, "lte": 5}


@both_families
@pytest.mark.parametrize("alive", [True, False], ids=["alive", "dead"])
def test_clients_reach_what_is_on_an_uplinks_own_link(
    lan: Topology, start_braid: StartBraid, family: int, alive: bool
) -> None:
    """The modem's page, also while the line behind it is dead; and a neighbour that is no gateway."""
    neighbours = {4: ["100.64.1.1", "100.64.1.77"], 6: ["2001:db8:1::1", "2001:db8:1::77"]}[family]
    far = lan.uplinks["dsl"].far.device
    lan.internet.ip(f"address add 100.64.1.77/24 dev {far}", f"address add 2001:db8:1::77/64 dev {far} nodad")
    argv = catalog.argv("http1", neighbours)
    daemon = start_braid(lan, "--config", configured(lan, "[lan]\n"))
    if not alive:
        lan.internet.run(["nft", "-f", "-"], text=BEHIND_THE_MODEM.format(far=far))
        wait_until(lambda: states(daemon)["dsl"] == "dead", what="the line's death", timeout=20)
    with Process(argv, log=lan.scratch / "modem", namespace=lan.internet.name) as page:
        page.wait_output(catalog.READY)
        for client in lan.clients:
            seen = ask_tcp(client, 3, *neighbours)
            assert by_uplink(lan, seen) == {"dsl": 6, "lte": 0}
            # The machine's own sockets, which bypass Braid for these destinations, never have these ports.
            assert all(16384 <= port <= 32767 for _, port in seen)
            client.run(["ping", "-c", "2", "-i", "0.1", "-W", "2", neighbours[1]])
        # The machine itself uses its usual route.
        assert by_uplink(lan, ask_tcp(lan.host, 2, neighbours[1])) == {"dsl": 2, "lte": 0}
    whys = {each["why"] for each in daemon.json("flows")["flows"] if each["uplink"] == "dsl"}
    assert "its destination is on the uplink's own link" in whys
    told = daemon.call("explain", neighbours[1], "--source", lan_address(1, family)).stdout
    assert "on the link of dsl itself" in told


@both_families
def test_clients_speak_http3(make_network: MakeNetwork, start_braid: StartBraid, family: int) -> None:
    net = make_network(*PLAIN, lan_clients=1, serving=("http3",))
    start_braid(net)
    answers = run_client(net.clients[0], "http3", net.server(1, family), "/bytes/300000")["answers"]
    assert answers[0]["bytes"] == 300_000


@both_families
@pytest.mark.parametrize("offload", [False, True])
def test_bulk_passes_both_ways(
    make_network: MakeNetwork, start_braid: StartBraid, family: int, offload: bool
) -> None:
    net = make_network(UplinkSpec("dsl", offload=offload), UplinkSpec("lte", offload=offload), lan_clients=1)
    start_braid(net)
    body = net.scratch / "body"
    body.write_bytes(bytes(2_000_000))
    server = net.server(1, family) if family == 4 else f"[{net.server(1, family)}]"
    for _ in range(2):
        words = ["curl", "-sSf", "--max-time", "20", f"http://{server}/bytes/2000000", "-o", str(net.scratch / "got")]
        net.clients[0].run(words)
        assert (net.scratch / "got").stat().st_size == 2_000_000
        words = ["curl", "-sSf", "--max-time", "20", "--data-binary", f"@{body}", f"http://{server}/sink"]
        assert net.clients[0].run(words).stdout == "2000000\n"


def test_the_firewall_sees_every_new_connection(lan: Topology, start_braid: StartBraid) -> None:
    start_braid(lan)
    lan.host.run(
        ["nft", "-f", "-"],
        text="table inet firewall {\n chain forward {\n  type filter hook forward priority 0\n"
        f"  ip daddr {lan.server(2)} tcp dport 80 reject with tcp reset\n }}\n}}\n",
    )
    refused = lan.clients[0].run(["curl", "-sS", "--max-time", "5", f"http://{lan.server(2)}/address"], check=False)
    assert refused.status == CURL_COULD_NOT_CONNECT, refused.text
    assert by_uplink(lan, ask_tcp(lan.clients[0], 4, lan.server(1))) == {"dsl": 2, "lte": 2}


def test_smaller_uplink_mtu_is_found_out(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(UplinkSpec("dsl", offload=False, mtu=1400), UplinkSpec("lte", offload=False), lan_clients=1)
    start_braid(net)
    body = net.scratch / "body"
    body.write_bytes(bytes(300_000))
    for family in (4, 6):
        server = net.server(1, family) if family == 4 else f"[{net.server(1, family)}]"
        for _ in range(4):
            words = ["curl", "-sSf", "--max-time", "10", "--data-binary", f"@{body}", f"http://{server}/sink"]
            assert net.clients[0].run(words).stdout == "300000\n"


def test_the_hop_count_goes_down_by_one(lan: Topology, start_braid: StartBraid) -> None:
    start_braid(lan)
    client = lan.clients[0]
    # One hop ends at the gateway itself, which must report it; two reach the server.
    short = client.run(["ping", "-c", "1", "-W", "2", "-t", "1", lan.server()], check=False)
    assert "exceeded" in short.stdout, short.text
    client.run(["ping", "-c", "1", "-W", "2", "-t", "2", lan.server()])


def router_advertisement(source: str) -> bytes:
    """Return a frame by which a host of the LAN claims to be everybody's router (RFC 4861 §4.2)."""
    lifetime = struct.pack("!BBH", 64, 0, 1800)
    claim = Packet(source, "ff02::1", Icmp(134, rest=lifetime, data=bytes(8)), hops=255)
    return ETHERNET.pack(bytes.fromhex("333300000001"), bytes.fromhex("020000000066"), ETHERTYPE[6]) + encode(claim)


@pytest.mark.parametrize("started_before", [True, False])
def test_a_client_that_claims_to_be_the_router_is_not_the_gateways(
    lan: Topology, start_braid: StartBraid, started_before: bool
) -> None:
    router = "fe80::66"
    hostile, host = lan.clients
    if started_before:
        start_braid(lan)
    with hostile.inside():
        peer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with peer:
        peer.bind(("eth0", 0))
        for _ in range(3):
            peer.send(router_advertisement(router))

        def believed() -> bool:
            return router in host.run(["ip", "-6", "route", "show", "default"]).stdout

        wait_until(believed, what="another client, which does not forward, to believe it")
    if not started_before:
        start_braid(lan)
    assert router not in lan.host.run(["ip", "-6", "route", "show", "table", "all"]).stdout


@both_families
@pytest.mark.parametrize("lan_named", [False, True], ids=["any-lan", "named-lan"])
def test_a_stranger_on_an_uplinks_segment_is_not_served(
    lan: Topology, start_braid: StartBraid, family: int, lan_named: bool
) -> None:
    text = '[lan]\ndevices = ["lan0"]\n' if lan_named else ""
    daemon = start_braid(lan, "--config", configured(lan, text))
    dsl = lan.uplinks["dsl"]
    stranger, remote = {4: ("100.64.1.77", "203.0.113.9"), 6: ("2001:db8:1::77", "2001:db8:99::9")}[family]
    gateway = dsl.address4 if family == 4 else dsl.address6
    length = 24 if family == 4 else 64
    lan.internet.ip(
        f"address add {stranger}/{length} dev {dsl.far.device}{' nodad' if family == 6 else ''}",
        f"route add {remote} via {gateway} src {stranger}",
    )
    protocol = "ip" if family == 4 else "ip6"
    lan.internet.run(
        ["nft", "-f", "-"],
        text="table inet seen {\n chain seen {\n  type filter hook prerouting priority raw\n"
        f"  {protocol} daddr {remote} counter\n }}\n}}\n",
    )
    lan.internet.run(["ping", "-c", "3", "-i", "0.05", "-W", "0.2", remote], check=False)
    lan.internet.run(["bash", "-c", f"echo > /dev/udp/{remote}/53"])
    lan.internet.run(
        ["curl", "-s", "--max-time", "0.3", f"http://{remote if family == 4 else f'[{remote}]'}/"], check=False
    )
    wait_until(
        lambda: daemon.json("status")["reasons"].get("out_from_uplink", 0) >= 5,
        what="three pings, a datagram and a SYN to be refused",
    )
    assert "packets 0 bytes 0" in lan.internet.run(["nft", "list", "table", "inet", "seen"]).stdout
    assert daemon.json("flows")["flows"] == []
