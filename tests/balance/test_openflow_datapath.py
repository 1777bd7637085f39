"""The datapath of Open vSwitch: `[datapath] kind = "openflow"`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from braid_lab.experiments.balance.uplink_failure import Location, ended, held_by
from braid_lab.fixtures import run_client, serve
from braid_lab.net.faults import black_hole
from braid_lab.net.links import set_offload
from braid_lab.net.namespace import Namespace
from braid_lab.net.open_vswitch import OpenVswitch, open_vswitch
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.observe import answered_pings, ask_tcp, ask_udp, by_uplink, differences, kernel_state, states
from braid_lab.process import CommandError, Process, wait_until
from braid_lab.product import Braid
from braid_lab.servers import catalog
from braid_sdn.host.balancer import MAX_UNANSWERED
from conftest import LINES, PLAIN, MakeNetwork, StartBraid, check_transfers, configured

BRIDGE = "braid-ovs"
WEIGHTS = {"dsl": 3, "lte": 1}

StartOpenFlow = Callable[..., Braid]
both_families = pytest.mark.parametrize("family", [4, 6])
#: The number of clients of a gateway.
host_and_gateway = pytest.mark.parametrize("lan_clients", [0, 1], ids=["host", "gateway"], indirect=True)


@pytest.fixture
def ovs(net: Topology) -> Iterator[OpenVswitch]:
    with open_vswitch(net.host, net.scratch / f"ovs-{net.host.name}") as made:
        made.start()
        yield made


@pytest.fixture
def lan_clients(request: pytest.FixtureRequest) -> int:
    clients: int = getattr(request, "param", 0)
    return clients


@pytest.fixture
def uplinks(request: pytest.FixtureRequest) -> tuple[UplinkSpec, ...]:
    """Plain ones, unless a test asks for others."""
    specs: tuple[UplinkSpec, ...] = getattr(request, "param", PLAIN)
    return specs


@pytest.fixture
def net(make_network: MakeNetwork, uplinks: tuple[UplinkSpec, ...], lan_clients: int) -> Topology:
    """A host, or a gateway with clients."""
    return make_network(*uplinks, lan_clients=lan_clients)


@pytest.fixture
def start(net: Topology, ovs: OpenVswitch, start_braid: StartBraid) -> StartOpenFlow:
    """Start a daemon with this datapath and further configuration."""

    def begin(text: str = "") -> Braid:
        kind = '[datapath]\nkind = "openflow"\n'
        config = text if kind in text else f"{text}\n{kind}"
        config = config.replace(kind, f'{kind}ovs_run_dir = "{ovs.folder}"\n')
        return start_braid(net, "--config", configured(net, config))

    return begin


def application(net: Topology) -> Namespace:
    return net.clients[0] if net.clients else net.host


@host_and_gateway
@both_families
@pytest.mark.usefixtures("lan_clients")
def test_flows_take_both_uplinks_by_weight(net: Topology, start: StartOpenFlow, family: int) -> None:
    weights = "".join(f'[[uplink]]\ndevice = "{name}"\nweight = {weight}\n' for name, weight in WEIGHTS.items())
    start(weights)
    seen = ask_tcp(application(net), 40, net.server(1, family))
    assert by_uplink(net, seen) == {"dsl": 30, "lte": 10}
    sockets = ask_udp(application(net), 8, *net.servers(family)[:3])
    # RFC 4787 REQ-1: all remotes see the same address and port of one socket.
    assert all(len(set(socket)) == 1 for socket in sockets)
    assert by_uplink(net, [socket[0] for socket in sockets]) == {"dsl": 6, "lte": 2}


def opened(daemon: Braid) -> dict[str, int]:
    """Return how many flows were opened on each uplink."""
    return {each["name"]: each["flows_opened"] for each in daemon.json("uplinks")["uplinks"]}


@both_families
def test_pings_are_answered_once(net: Topology, start: StartOpenFlow, family: int) -> None:
    daemon = start()
    for _ in range(4):
        assert answered_pings(net.host, 2, 0.1, net.server(1, family)) == [1, 2]
        # The kernel's own pings are not the bridge's.
        assert "1 received" in net.host.run(["ping", "-c", "1", "-I", "lte", "-W", "2", net.server(1, 4)]).stdout
    # The controller reports once a second.
    wait_until(lambda: opened(daemon) == {"dsl": 2, "lte": 2}, what="the pings to be counted")


def test_http3_flows_take_both_uplinks_and_stay_there(net: Topology, start: StartOpenFlow) -> None:
    serve(net, "http3")
    start()
    uplinks = []
    for _ in range(2):
        answers = run_client(net.host, "http3", net.server(), "/address", "/bytes/300000", "/address")["answers"]
        assert answers[1]["bytes"] == 300_000
        assert answers[0]["text"] == answers[2]["text"]
        address, port = answers[0]["text"].split()
        uplinks.append((address, int(port)))
    assert by_uplink(net, uplinks) == {"dsl": 1, "lte": 1}


@both_families
def test_transfers_arrive_whole(net: Topology, start: StartOpenFlow, family: int) -> None:
    daemon = start()
    down, up = check_transfers(net, family)

    def counted() -> bool:
        uplinks = daemon.json("uplinks")["uplinks"]
        return all(each["rx_bytes"] > down and each["tx_bytes"] > up for each in uplinks)

    wait_until(counted, what="the bytes of both uplinks to be counted")


@both_families
def test_servers_on_an_uplinks_address_are_reached(net: Topology, start: StartOpenFlow, family: int) -> None:
    start()
    lte = net.uplinks["lte"]
    address = lte.address4 if family == 4 else lte.address6
    with Process(catalog.argv("http1", [address]), log=net.scratch / "inbound", namespace=net.host.name) as process:
        process.wait_output(catalog.READY)
        assert fetched(net, address, catalog.HTTP_PORT, family) == 2_000_000


@pytest.mark.parametrize("lan_clients", [1], indirect=True)
def test_published_ports_are_reached_and_answered(net: Topology, start: StartOpenFlow) -> None:
    """Connection tracking puts the uplink's address into answers, which leave by that uplink."""
    (client,) = net.clients
    inner = next(each for each in client.run(["hostname", "-I"]).stdout.split() if "." in each)
    net.host.run(["nft", "-f", "-"], text=PUBLISHED.format(inner=inner))
    start()
    argv = catalog.argv("http1", [inner])
    with Process(argv, log=net.scratch / "published", namespace=client.name) as process:
        process.wait_output(catalog.READY)
        for uplink in net.uplinks.values():
            assert fetched(net, uplink.address4, 8080, 4) == 2_000_000


PUBLISHED = """
table ip published {{
    chain incoming {{
        type nat hook prerouting priority dstnat
        iifname {{ dsl, lte }} tcp dport 8080 dnat to {inner}:80
    }}
}}
"""


def fetched(net: Topology, address: str, port: int, family: int) -> int:
    """Return how many bytes a server of the host's sends to the internet."""
    # From an address that the host can only answer over its default routes.
    host = address if family == 4 else f"[{address}]"
    words = ["curl", "-sSf", "--max-time", "10", "--interface", net.server(1, family), "-o", str(net.scratch / "got")]
    net.internet.run([*words, f"http://{host}:{port}/bytes/2000000"])
    return (net.scratch / "got").stat().st_size


def test_an_unreachable_port_is_told(net: Topology, start: StartOpenFlow) -> None:
    """An ICMP error about a translated flow reaches its socket."""
    start()
    words = ["python3", "-c", UNREACHABLE, net.server()]
    assert net.host.run(words).stdout.strip() == "ECONNREFUSED"


UNREACHABLE = """
import errno, socket, sys
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.settimeout(3)
one.connect((sys.argv[1], 9))
one.send(b"?")
try:
    one.recv(10)
except OSError as error:
    print(errno.errorcode.get(error.errno, error))
"""


def test_flows_are_shown(net: Topology, start: StartOpenFlow) -> None:
    daemon = start()
    with Location("host", net).start("open_connections", 0, 2, net.server()) as process:
        vias = sorted(held_by(process))

        def shown() -> bool:
            flows = [each for each in daemon.json("flows")["flows"] if each["protocol"] == "tcp"]
            return len(flows) == 2 and all(each["rx_bytes"] > 1000 for each in flows)

        wait_until(shown, what="both connections with their traffic in braid flows")
        flows = [each for each in daemon.json("flows")["flows"] if each["protocol"] == "tcp"]
    assert sorted(each["outer"].split(":")[0] for each in flows) == vias
    assert {each["uplink"] for each in flows} == {"dsl", "lte"}


@host_and_gateway
def test_a_dead_uplink_gets_no_new_flows_and_its_connections_are_told(
    net: Topology, start: StartOpenFlow, lan_clients: int
) -> None:
    daemon = start()
    location = Location("gateway" if lan_clients else "host", net)
    with location.start("open_connections", 3, 3, net.server()) as process:
        on_lte = held_by(process).count(net.uplinks["lte"].address4)
        assert on_lte == 3
        net.host.ip("link set lte down")
        wait_until(lambda: len(ended(process)) >= on_lte, what="the connections to be told")
        assert {each.error for each in ended(process)} == {"ECONNRESET"}
        assert {each.via for each in ended(process)} == {net.uplinks["lte"].address4}
    assert by_uplink(net, ask_tcp(application(net), 6, net.server())) == {"dsl": 6, "lte": 0}
    assert states(daemon)["lte"] == "down"


@pytest.mark.parametrize("uplinks", [LINES], ids=["lines"], indirect=True)
def test_a_silent_line_is_left_and_taken_again(net: Topology, start: StartOpenFlow) -> None:
    for uplink in net.uplinks.values():
        set_offload(uplink.near, on=False)
    daemon = start()
    location = Location("host", net)
    lte = net.uplinks["lte"]
    with location.start("open_connections", 3, 3, net.server()) as process:
        on_lte = held_by(process).count(lte.address4)
        assert on_lte == 3
        with black_hole(lte):
            wait_until(lambda: states(daemon)["lte"] == "dead", what="lte to be found dead")
            assert by_uplink(net, ask_tcp(net.host, 6, net.server())) == {"dsl": 6, "lte": 0}
            wait_until(lambda: len(ended(process)) >= on_lte, what="the connections to be told")
            assert [(each.via, each.error) for each in ended(process)] == [(lte.address4, "ECONNRESET")] * on_lte
        wait_until(lambda: states(daemon)["lte"] == "up", what="lte to be back", timeout=20)
        assert by_uplink(net, ask_tcp(net.host, 6, net.server())) == {"dsl": 3, "lte": 3}
        assert len(ended(process)) == on_lte


def test_an_uplink_that_merges_packets_is_refused(net: Topology, start: StartOpenFlow) -> None:
    net.host.run(["ethtool", "-K", "lte", "gro", "on"])
    with pytest.raises(CommandError, match="ethtool -K lte gro off"):
        start()


def test_an_uplink_that_is_back_takes_flows_again(net: Topology, start: StartOpenFlow) -> None:
    start()
    routes = [route for route in net.host.run(["ip", "route"]).stdout.splitlines() if "dev lte" in route]
    net.host.ip("link set lte down")
    wait_until(lambda: by_uplink(net, ask_tcp(net.host, 2, net.server()))["lte"] == 0, what="lte to be left")
    net.host.ip("link set lte up")
    net.host.ip(*(f"route replace {route}" for route in routes if "default" in route))
    wait_until(lambda: by_uplink(net, ask_tcp(net.host, 2, net.server()))["lte"] == 1, what="lte to be taken again")


def test_an_uplink_that_is_not_set_up_is_not_called_up(net: Topology, start: StartOpenFlow) -> None:
    daemon = start()

    def lte() -> dict[str, Any]:
        told: list[dict[str, Any]] = daemon.json("uplinks")["uplinks"]
        return next(each for each in told if each["name"] == "lte")

    net.host.ip("link set lte down")
    wait_until(lambda: lte()["state"] == "down", what="lte to be left")
    net.host.run(["ethtool", "-K", "lte", "gro", "on"])
    net.host.ip("link set lte up", f"route replace {net.uplinks['lte'].defaults()[0]}")
    wait_until(lambda: lte()["state"] not in ("down", "dead"), what="lte to work")
    assert (lte()["state"], lte()["share"]) == ("standby", 0)
    assert re.match("works, and is not set up yet: .*merges received packets", lte()["why"])
    assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 4, "lte": 0}
    net.host.run(["ethtool", "-K", "lte", "gro", "off"])
    wait_until(lambda: lte()["state"] == "up", what="lte to be set up")
    # The controller has to find the gateway.
    wait_until(lambda: by_uplink(net, ask_tcp(net.host, 2, net.server()))["lte"] == 1, what="lte to be taken")


@host_and_gateway
@pytest.mark.usefixtures("lan_clients")
@pytest.mark.parametrize("crashed", [False, True])
def test_down_leaves_the_machine_as_found(
    net: Topology, ovs: OpenVswitch, start: StartOpenFlow, crashed: bool
) -> None:
    before = kernel_state(net.host)
    ovs.vsctl("add-br", "other", "--", "set", "bridge", "other", "datapath_type=netdev")
    with_other = kernel_state(net.host)
    # Further tables of nftables tell the bridge users and clients.
    daemon = start('[[rule]]\nuid = 4711\nuse = "lte"\n[[rule]]\nmac = "02:00:00:00:08:02"\nuse = "lte"\n')
    assert by_uplink(net, ask_tcp(application(net), 4, net.server())) == {"dsl": 2, "lte": 2}
    if crashed:
        daemon.kill9()
        os.kill(controller(daemon), signal.SIGKILL)
    daemon.down()
    assert ovs.vsctl("list-br").split() == ["other"]
    assert differences(with_other, kernel_state(net.host)) == []
    assert not daemon.run_dir.exists()
    ovs.vsctl("del-br", "other")
    assert differences(before, kernel_state(net.host)) == []


def controller(daemon: Braid) -> int:
    """Return the controller's process id."""
    return int((daemon.run_dir / "openflow.lock").read_text())


def test_flows_go_on_without_the_controller_which_returns_and_knows_them(net: Topology, start: StartOpenFlow) -> None:
    daemon = start()
    location = Location("host", net)
    with location.start("open_connections", 2, 4, net.server()) as process:
        held_by(process)
        first = controller(daemon)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: controller(daemon) != first, what="another controller")
        # New flows get uplinks again, beside the old ones.
        wait_until(lambda: not problems(daemon), what="the controller to be at work")
        assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 2, "lte": 2}

        def known() -> bool:
            flows = daemon.json("flows")["flows"]
            return [each["rx_bytes"] > 1000 for each in flows].count(True) >= 4

        wait_until(known, what="the old connections in braid flows")
        assert ended(process) == []


def problems(daemon: Braid) -> list[str]:
    return [each["code"] for each in daemon.json("status")["health"] if each["code"].startswith("openflow")]


def test_another_daemon_takes_over(net: Topology, start: StartOpenFlow) -> None:
    daemon = start()
    location = Location("host", net)
    with location.start("open_connections", 2, 4, net.server()) as process:
        held_by(process)
        first = controller(daemon)
        daemon.kill9()
        # The controller needs no daemon for new flows.
        assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 2, "lte": 2}
        daemon.up("--config", net.scratch / f"{net.host.name}.toml")
        wait_until(lambda: not problems(daemon), what="the daemon to have found the controller")
        assert controller(daemon) == first
        assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 2, "lte": 2}
        assert ended(process) == []


def test_a_controller_that_hangs_holds_up_neither_daemon_nor_flows(net: Topology, start: StartOpenFlow) -> None:
    daemon = start()
    with Location("host", net).start("open_connections", 2, 4, net.server()) as process:
        held_by(process)
        os.kill(controller(daemon), signal.SIGSTOP)
        try:
            net.host.ip("link set lte down")
            wait_until(lambda: states(daemon)["lte"] == "down", what="the verdict")
            net.host.ip("link set lte up")
            # The switch notices a silent controller after some seconds.
            wait_until(lambda: "false" in connected(net), what="the bridge to give up", timeout=20)
            wait_until(lambda: problems(daemon), what="the problem to be named", timeout=20)
        finally:
            os.kill(controller(daemon), signal.SIGCONT)
        wait_until(lambda: "true" in connected(net) and not problems(daemon), what="the controller to be back")
        assert ended(process) == []


@contextlib.contextmanager
def hung(daemon: Braid) -> Iterator[None]:
    """A controller that hangs is not started again."""
    os.kill(controller(daemon), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(controller(daemon), signal.SIGCONT)


@host_and_gateway
def test_new_flows_take_the_best_uplink_while_there_is_no_controller(
    net: Topology, start: StartOpenFlow, ovs: OpenVswitch, lan_clients: int
) -> None:
    """OpenFlow 1.3 §6.4: "fail standalone mode". They outlive the controller's return."""
    daemon = start(STANDALONE)
    location = Location("gateway" if lan_clients else "host", net)
    with location.start("open_connections", 1, 2, net.server()) as before:
        held_by(before)
        with contextlib.ExitStack() as stack:
            with hung(daemon):
                wait_until(lambda: "table=20" not in leases(ovs), what="the leases to end", timeout=20)
                for family in (4, 6):
                    seen = ask_tcp(application(net), 4, net.server(1, family))
                    assert by_uplink(net, seen) == {"dsl": 0, "lte": 4}
                    sockets = ask_udp(application(net), 2, net.server(1, family))
                    assert by_uplink(net, [socket[0] for socket in sockets]) == {"dsl": 0, "lte": 2}
                    ping = ["ping", "-c", "1", "-W", "2", net.server(1, family)]
                    assert "1 received" in application(net).run(ping).stdout
                process = stack.enter_context(location.start("open_connections", 2, 2, net.server()))
                assert set(held_by(process)) == {net.uplinks["lte"].address4}
            wait_until(lambda: "true" in connected(net) and not problems(daemon), what="the controller to be back")
            wait_until(lambda: "table=20" in leases(ovs), what="the leases")
            seen = ask_tcp(application(net), 4, net.server())
            assert by_uplink(net, seen) == {"dsl": 1, "lte": 3}
            assert ended(process) == []
        assert ended(before) == []


def test_connections_begun_without_a_controller_outlive_a_new_ones_start(
    net: Topology, start: StartOpenFlow, ovs: OpenVswitch
) -> None:
    daemon = start(STANDALONE)
    assert sum(by_uplink(net, ask_tcp(net.host, 1, net.server())).values()) == 1
    daemon.kill9()
    os.kill(controller(daemon), signal.SIGKILL)
    wait_until(lambda: "table=20" not in leases(ovs), what="the leases to end", timeout=20)
    with Location("host", net).start("open_connections", 2, 2, net.server()) as process:
        assert set(held_by(process)) == {net.uplinks["lte"].address4}
        daemon.up("--config", net.scratch / f"{net.host.name}.toml")
        wait_until(lambda: "table=20" in leases(ovs) and not problems(daemon), what="the controller to be at work")
        assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 1, "lte": 3}
        assert ended(process) == []


#: The best uplink is that with the most slots.
STANDALONE = """
[datapath]
kind = "openflow"
fail_mode = "standalone"
[[uplink]]
device = "dsl"
weight = 1
[[uplink]]
device = "lte"
weight = 3
"""


def leases(ovs: OpenVswitch) -> str:
    """Return the rules that the controller has to renew."""
    return "".join(line for line in ovs.ofctl("dump-flows", BRIDGE).splitlines() if "hard_timeout=6" in line)


def test_a_controller_of_another_version_is_replaced_and_flows_go_on(net: Topology, start: StartOpenFlow) -> None:
    daemon = start()
    with Location("host", net).start("open_connections", 2, 4, net.server()) as process:
        held_by(process)
        daemon.kill9()
        os.kill(controller(daemon), signal.SIGKILL)
        switch = f"{net.scratch}/ovs-{net.host.name}/{BRIDGE}.controller"
        words = [sys.executable, "-c", OLDER, "host", "run", "--run-dir", str(daemon.run_dir), "--switch", switch]
        with Process(words, log=net.scratch / "older", namespace=net.host.name) as older:
            older.wait_stderr("ready")
            daemon.up("--config", net.scratch / f"{net.host.name}.toml")
            assert older.wait().status == 0
        wait_until(lambda: not problems(daemon), what="this version's controller")
        assert controller(daemon) != older.pid
        assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 2, "lte": 2}
        assert ended(process) == []


OLDER = """
import sys
from braid_sdn.host import balancer, desired
desired.VERSION = balancer.VERSION = 1
from braid_sdn.cli import main
sys.exit(main())
"""


def test_rules_of_somebody_else_are_named_and_ours_are_written_again(
    net: Topology, start: StartOpenFlow, ovs: OpenVswitch
) -> None:
    daemon = start()
    with Location("host", net).start("open_connections", 2, 4, net.server()) as process:
        held_by(process)
        ovs.ofctl("add-flow", BRIDGE, "cookie=0x77,table=1,priority=1,udp,actions=drop")
        wait_until(lambda: problems(daemon) == ["openflow-foreign-rules"], what="the foreign rule to be named")
        # As a second controller does that takes the bridge for its own.
        ovs.ofctl("del-flows", BRIDGE)
        wait_until(lambda: not problems(daemon), what="no foreign rule")
        wait_until(lambda: by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 2, "lte": 2}, what="flows")
        wait_until(lambda: daemon.json("status")["reasons"]["rule_restored"] >= 4, what="the rules of flows")
        assert ended(process) == []


def test_a_full_table_is_named_and_its_flows_go_on(net: Topology, start: StartOpenFlow, ovs: OpenVswitch) -> None:
    daemon = start()
    with Location("host", net).start("open_connections", 2, 4, net.server()) as process:
        held_by(process)
        full = ("--id=@full", "create", "Flow_Table", "flow_limit=1", "overflow_policy=refuse")
        ovs.vsctl("--", *full, "--", "set", "bridge", BRIDGE, "flow_tables:1=@full")
        net.host.run(["python3", "-c", SEND_MANY, net.server(), "4"])
        wait_until(lambda: "openflow-table-full" in problems(daemon), what="the full table to be named")
        ovs.vsctl("clear", "bridge", BRIDGE, "flow_tables")
        wait_until(lambda: not problems(daemon), what="the table to have room", timeout=20)
        assert by_uplink(net, ask_tcp(net.host, 4, net.server())) == {"dsl": 2, "lte": 2}
        assert ended(process) == []


SEND_MANY = """
import socket, sys
for _ in range(int(sys.argv[2])):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"?", (sys.argv[1], 9))
"""


@pytest.mark.parametrize("lan_clients", [2], indirect=True)
def test_a_client_that_opens_many_flows_leaves_ports_to_others(net: Topology, start: StartOpenFlow) -> None:
    """An uplink has as many mappings as ports: 1,200 here."""
    daemon = start("".join(f'[[uplink]]\ndevice = "{name}"\nports = "20000-21199"\n' for name in net.uplinks))
    net.internet.run(["nft", "-f", "-"], text=DISCARDED)

    def too_many() -> bool:
        # A burst that the switch passes on whole.
        net.clients[0].run(["python3", "-c", SEND_MANY, net.server(), "100"])
        return bool(daemon.json("status")["reasons"]["client_unanswered"] > 100)

    wait_until(too_many, what="the client's oldest flows to end", timeout=60)
    wait_until(lambda: len(daemon.json("flows")["flows"]) <= MAX_UNANSWERED, what="no more than that")
    sockets = ask_udp(net.clients[1], 8, net.server())
    assert by_uplink(net, [socket[0] for socket in sockets]) == {"dsl": 4, "lte": 4}


DISCARDED = """
table ip discarded {
    chain incoming {
        type filter hook input priority 0
        udp dport 9 drop
    }
}
"""


def test_a_flushed_ruleset_is_written_again_by_a_reload(net: Topology, start: StartOpenFlow) -> None:
    daemon = start()
    net.host.run(["nft", "flush", "ruleset"])
    daemon.call("reload")
    assert "table inet braid_openflow" in net.host.run(["nft", "list", "ruleset"]).stdout
    assert by_uplink(net, ask_tcp(net.host, 2, net.server())) == {"dsl": 1, "lte": 1}


def connected(net: Topology) -> str:
    database = f"--db=unix:{net.scratch}/ovs-{net.host.name}/db.sock"
    return net.host.run(["ovs-vsctl", database, "get", "controller", BRIDGE, "is_connected"]).stdout


def test_open_vswitch_may_crash(net: Topology, ovs: OpenVswitch, start: StartOpenFlow) -> None:
    """Flows are lost with their rules, and told; what is bound to an uplink goes on; new flows work afterwards."""
    start()
    with Location("host", net).start("open_connections", 2, 2, net.server()) as process:
        held_by(process)
        ovs.stop(how=signal.SIGKILL)
        for uplink in net.uplinks:
            assert "1 received" in net.host.run(["ping", "-c", "1", "-W", "2", "-I", uplink, net.server()]).stdout
        ovs.start()
        wait_until(lambda: by_uplink(net, ask_tcp(net.host, 2, net.server())) == {"dsl": 1, "lte": 1}, what="flows")
        # Those that only wait have sent nothing yet that could be answered.
        wait_until(lambda: len(ended(process)) >= 2, what="the sending connections to be told")
        assert {each.error for each in ended(process)} == {"ECONNRESET"}


def test_a_bridge_of_somebody_else_is_refused(net: Topology, ovs: OpenVswitch, start: StartOpenFlow) -> None:
    ovs.vsctl("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev")
    before = kernel_state(net.host)
    with pytest.raises(CommandError, match="not Braid's"):
        start()
    assert ovs.vsctl("list-br").split() == [BRIDGE]
    assert differences(before, kernel_state(net.host)) == []


def test_open_vswitch_that_does_not_run_is_named(net: Topology, start_braid: StartBraid) -> None:
    before = kernel_state(net.host)
    config = configured(net, '[datapath]\nkind = "openflow"\novs_run_dir = "/nonexistent"\n')
    with pytest.raises(CommandError, match="ovs_run_dir"):
        start_braid(net, "--config", config)
    assert differences(before, kernel_state(net.host)) == []


def test_what_the_bridge_cannot_do_is_refused(start: StartOpenFlow) -> None:
    with pytest.raises(CommandError, match="needs the eBPF datapath"):
        start("[shape]\nenabled = true\n")


def test_rules_decide(net: Topology, start: StartOpenFlow) -> None:
    rule = f'[[rule]]\ndestination = "{net.server(1)}"\nprotocol = "tcp"\nport = 80\nuse = "lte"\n'
    start(rule)
    assert by_uplink(net, ask_tcp(net.host, 4, net.server(1))) == {"dsl": 0, "lte": 4}
    assert by_uplink(net, ask_tcp(net.host, 4, net.server(2))) == {"dsl": 2, "lte": 2}
