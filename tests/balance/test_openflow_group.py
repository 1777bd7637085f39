"""The mode of the OpenFlow datapath without packet-in: `openflow_mode = "group"`."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from braid_lab.experiments.balance.uplink_failure import Location, ended, held_by
from braid_lab.fixtures import run_client, serve
from braid_lab.net.namespace import Namespace
from braid_lab.net.open_vswitch import appctl
from braid_lab.net.topology import Topology
from braid_lab.observe import ask_tcp, ask_udp, by_uplink, differences, kernel_state, states
from braid_lab.process import CommandError, wait_until
from braid_lab.product import Braid
from conftest import MakeNetwork, StartBraid, check_transfers, configured

#: A gateway has clients. Each place and each IP version once.
somewhere = pytest.mark.parametrize("lan_clients, family", [(0, 6), (1, 4)], indirect=["lan_clients"])
pytestmark = pytest.mark.parametrize("datapath", ["group"], indirect=True)


@pytest.fixture
def lan_clients(request: pytest.FixtureRequest) -> int:
    clients: int = getattr(request, "param", 0)
    return clients


@pytest.fixture
def net(make_network: MakeNetwork, lan_clients: int) -> Topology:
    return make_network(lan_clients=lan_clients)


def application(net: Topology) -> Namespace:
    return net.clients[0] if net.clients else net.host


WEIGHTED = '[[uplink]]\ndevice = "dsl"\nweight = 3\n[[uplink]]\ndevice = "lte"\nweight = 1\n'


@somewhere
@pytest.mark.usefixtures("lan_clients")
def test_connections_take_both_uplinks_by_weight(net: Topology, start_braid: StartBraid, family: int) -> None:
    daemon = start_braid(net, "--config", configured(net, WEIGHTED))
    # A hash spreads them, so their number is binomial with a mean of 1500: by chance it is outside of these bounds
    # once in 2.5 million runs. With weights of 2 to 1, 43 of 64 buckets, it is outside in 997 of 1000.
    seen = ask_tcp(application(net), 2000, net.server(1, family))
    assert 1402 <= by_uplink(net, seen)["dsl"] <= 1598
    ports = {port for _, port in seen}
    # The upper half of an uplink's ports is for these.
    assert min(ports) >= 24576
    assert max(ports) <= 32767
    # None of them came up: only connections of no uplink would.
    assert packet_ins(net) < 10
    sockets = ask_udp(application(net), 8, *net.servers(family)[:3])
    # RFC 4787 REQ-1 holds for other UDP: all remotes see the same address and port of one socket.
    assert all(len(set(socket)) == 1 for socket in sockets)
    assert by_uplink(net, [socket[0] for socket in sockets]) == {"dsl": 6, "lte": 2}
    wait_until(lambda: sum(opened(daemon).values()) >= 2000, what="the connections to be counted")


def opened(daemon: Braid) -> dict[str, int]:
    return {each["name"]: each["flows_opened"] for each in daemon.json("uplinks")["uplinks"]}


def packet_ins(net: Topology) -> int:
    """Return how many packets of new flows went to the controller."""
    return int(ofctl(net, "meter-stats", "meter=1").partition("packet_in_count:")[2].split()[0])


def ofctl(net: Topology, command: str, *words: str) -> str:
    """Run ovs-ofctl on the bridge."""
    bridge = f"unix:{net.scratch}/braid-{net.host.name}-ovs/braid-ovs.mgmt"
    return net.host.run(["ovs-ofctl", "-O", "OpenFlow13", command, bridge, *words]).stdout


def connections(daemon: Braid, address: str) -> list[dict[str, object]]:
    """Return the TCP connections to a server, by `braid flows`."""
    flows = daemon.json("flows")["flows"]
    return [each for each in flows if each["protocol"] == "tcp" and each["remote"].startswith(address)]


def test_flows_are_shown_and_uplinks_count_their_traffic(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    with Location("host", net).start("open_connections", 0, 4, net.server()) as process:
        vias = sorted(held_by(process))
        wait_until(lambda: len(connections(daemon, net.server())) == 4, what="the connections in braid flows")
        told = connections(daemon, net.server())
        assert sorted(str(each["outer"]).split(":")[0] for each in told) == vias
        assert {each["why"] for each in told} == {"hash of both ends in the switch"}
        assert {each["state"] for each in told} == {"established"}
        numbers = {each["inner"] for each in told}
        # A reading later they are the same ones.
        age = max(int(str(each["age_ms"])) for each in told)
        wait_until(
            lambda: all(int(str(each["age_ms"])) > age + 1000 for each in connections(daemon, net.server())),
            what="another reading",
        )
        assert {each["inner"] for each in connections(daemon, net.server())} == numbers
    down, up = check_transfers(net, 4)
    check_transfers(net, 6)

    def counted() -> bool:
        uplinks = daemon.json("uplinks")["uplinks"]
        received, sent = (sum(each[name] for each in uplinks) for name in ("rx_bytes", "tx_bytes"))
        return bool(received > 2 * down and sent > 2 * up)

    wait_until(counted, what="the bytes to be counted")


def test_http3_flows_stay_on_their_uplink(net: Topology, start_braid: StartBraid) -> None:
    serve(net, "http3")
    daemon = start_braid(net)
    for _ in range(3):
        answers = run_client(net.host, "http3", net.server(), "/address", "/bytes/300000", "/address")["answers"]
        assert answers[1]["bytes"] == 300_000
        assert answers[0]["text"] == answers[2]["text"]
    wait_until(lambda: len(daemon.json("flows")["flows"]) >= 3, what="the connections in braid flows")
    assert {each["why"] for each in daemon.json("flows")["flows"]} == {"hash of both ends in the switch"}


@somewhere
def test_a_dead_uplink_gets_no_new_connections_and_tells_its_own(
    net: Topology, start_braid: StartBraid, lan_clients: int, family: int
) -> None:
    daemon = start_braid(net)
    location = Location("gateway" if lan_clients else "host", net)
    lte = net.uplinks["lte"]
    address = location.address(lte, family)
    with location.start("open_connections", 12, 12, net.server(1, family)) as process:
        held = held_by(process)
        on_lte = held.count(address)
        # By chance all take one of the uplinks once in 8 million runs.
        assert 1 <= on_lte < len(held)
        # Those that only receive, too: nothing of theirs would ever be answered.
        net.host.ip("link set lte down")
        wait_until(lambda: len(ended(process)) >= on_lte, what="the connections to be told")
        assert Counter((each.via, each.error) for each in ended(process)) == {(address, "ECONNRESET"): on_lte}
    assert by_uplink(net, ask_tcp(application(net), 12, net.server(1, family))) == {"dsl": 12, "lte": 0}
    assert states(daemon)["lte"] == "down"


def test_other_weights_move_no_connection(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    # Connections of an uplink that counts as down, as after a test in which it was, would be reset.
    wait_until(lambda: set(states(daemon).values()) == {"up"}, what="all uplinks to be up")
    with Location("host", net).start("open_connections", 12, 12, net.server()) as process:
        before = Counter(held_by(process))
        assert len(before) == 2
        configured(net, WEIGHTED.replace("weight = 3", "weight = 63"))
        daemon = start_again(daemon, net)
        wait_until(
            lambda: by_uplink(net, ask_tcp(net.host, 60, net.server(2)))["dsl"] >= 55,
            what="the weights to be followed",
        )
        wait_until(lambda: len(connections(daemon, net.server())) == 24, what="all connections in braid flows")
        assert Counter(str(each["outer"]).split(":")[0] for each in connections(daemon, net.server())) == before
        assert ended(process) == []


def start_again(daemon: Braid, net: Topology) -> Braid:
    """Kill the daemon; the next one has the weights."""
    daemon.kill9()
    daemon.up("--config", net.scratch / f"{net.host.name}.toml")
    return daemon


@pytest.mark.parametrize("lan_clients", [1], indirect=True)
def test_new_connections_are_balanced_without_the_controller(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    with Location("gateway", net).start("open_connections", 2, 2, net.server()) as process:
        held_by(process)
        controller = int((daemon.run_dir / "openflow.lock").read_text())
        # The daemon would start it again.
        daemon.kill9()
        os.kill(controller, signal.SIGKILL)
        # By chance an uplink has less than a quarter once in 200 million runs.
        seen = by_uplink(net, ask_tcp(application(net), 128, net.server()))
        assert min(seen.values()) >= 32
        # The switch itself leaves an uplink without a carrier.
        lte = net.uplinks["lte"].far
        lte.namespace.ip(f"link set {lte.device} down")
        wait_until(lambda: is_down(net, "lte"), what="the switch to notice")
        # A connection that still goes by what its datapath has cached keeps that uplink, and fails.
        wait_until(lambda: leaves_lte(net), what="lte to be left", timeout=30)
        lte.namespace.ip(f"link set {lte.device} up")
        assert ended(process) == []
        daemon.up("--config", configured(net, ""))
        wait_until(
            lambda: by_uplink(net, ask_tcp(application(net), 16, net.server(2)))["lte"] > 0,
            what="lte to be taken again",
        )
        assert ended(process) == []


def leaves_lte(net: Topology) -> bool:
    """Return True if sixteen new connections all take dsl."""
    try:
        return by_uplink(net, ask_tcp(application(net), 16, net.server(2))) == {"dsl": 16, "lte": 0}
    except CommandError:
        return False


def is_down(net: Topology, port: str) -> bool:
    """Return True if the switch knows that a port has no carrier."""
    return "LINK_DOWN" in ofctl(net, "dump-ports-desc", port)


def test_rules_and_other_policies_decide(net: Topology, start_braid: StartBraid) -> None:
    """A rule by addresses and ports is the switch's; classes that do not take turns are the controller's."""
    rules = (
        f'[[rule]]\ndestination = "{net.server(1)}"\nprotocol = "tcp"\nport = 80\nuse = "lte"\n'
        f'[[rule]]\ndestination = "{net.server(3)}/32"\nuse = "hash-source"\n'
        f'[[rule]]\ndestination = "{net.server(4)}"\nport = [79, "81-99"]\nuse = "lte"\n'
    )
    start_braid(net, "--config", configured(net, rules))
    assert by_uplink(net, ask_tcp(net.host, 16, net.server(1))) == {"dsl": 0, "lte": 16}
    # By chance an uplink has an eighth at most once in a billion runs.
    assert min(by_uplink(net, ask_tcp(net.host, 64, net.server(2))).values()) > 8
    assert min(by_uplink(net, ask_tcp(net.host, 64, net.server(4))).values()) > 8
    assert packet_ins(net) < 4
    assert sorted(by_uplink(net, ask_tcp(net.host, 6, net.server(3))).values()) == [0, 6]


def test_errors_reach_the_connections_that_they_are_about(net: Topology, start_braid: StartBraid) -> None:
    """An ICMP error is translated by the tracker: a closed port's, which ends the attempt at once."""
    start_braid(net)
    net.internet.run(["nft", "-f", "-"], text=REJECTING)
    for family in (4, 6):
        said = net.host.run(["python3", "-c", CONNECTING, net.server(1, family), "81"]).stdout
        assert said.strip() == "ECONNREFUSED", family


REJECTING = """
table inet rejecting {
    chain incoming {
        type filter hook input priority filter
        tcp dport 81 reject with icmpx type port-unreachable
    }
}
"""

CONNECTING = """
import errno, socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3)
except OSError as error:
    print(errno.errorcode.get(error.errno, error))
"""


@pytest.mark.parametrize("crashed", [False, True])
def test_down_leaves_the_machine_as_found(net: Topology, start_braid: StartBraid, crashed: bool) -> None:
    before = kernel_state(net.host)
    daemon = start_braid(net)
    assert len(ask_tcp(application(net), 4, net.server())) == 4
    assert "mark=" in tracked(net)
    if crashed:
        daemon.kill9()
        os.kill(int((daemon.run_dir / "openflow.lock").read_text()), signal.SIGKILL)
    daemon.down()
    assert tracked(net) == ""
    database = f"--db=unix:{net.scratch}/braid-{net.host.name}-ovs/db.sock"
    assert net.host.run(["ovs-vsctl", database, "list-br"]).stdout == ""
    assert net.host.run(["ovs-vsctl", database, "get", "Open_vSwitch", ".", "datapaths"]).stdout.strip() == "{}"
    daemon.end()
    assert differences(before, kernel_state(net.host)) == []


def tracked(net: Topology) -> str:
    """Return the connections of the tracker, which outlive a bridge as long as another one has the datapath."""
    folder = net.scratch / f"braid-{net.host.name}-ovs"
    return appctl(net.host, folder, "dpctl/dump-conntrack", "netdev@ovs-netdev", "zone=45520", check=False)


@pytest.mark.parametrize("policy", ["race", "hash-source"])
def test_connections_of_other_policies_go_by_the_controller(
    net: Topology, start_braid: StartBraid, policy: str
) -> None:
    start_braid(net, "--config", configured(net, f'policy = "{policy}"\n'))
    seen = ask_tcp(net.host, 6, net.server())
    # The lower half of an uplink's ports is the controller's.
    assert all(16384 <= port < 24576 for _, port in seen), seen
