"""Two controllers with a real etcd and real Open vSwitch: one leads, and no change of that loses a packet."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from os_ken.ofproto import ofproto_v1_3 as of  # type: ignore[import-untyped]

from braid_lab.fabric.controller import Fabric, configuration, controller
from braid_lab.fabric.edges import Edge
from braid_lab.fabric.etcd import EtcdServer, etcd
from braid_lab.fabric.ovs import OUTSIDE, OvsNetwork, ovs_network
from braid_lab.fabric.shapes import Station as Place
from braid_lab.fabric.shapes import two_paths
from braid_lab.fabric.tcp_transfer import Transfer, transfer
from braid_lab.process import LabError, wait_until
from braid_lab.product import DEGRADED
from braid_sdn.openflow.messages import AddRule, Match, Role, RoleRequest, Rule
from braid_sdn.openflow.wire import HEADER, Session
from conftest import nothing_lost

BASE = two_paths(mbit=1000, delay_ms=0)
#: Two edges' hosts, and two that have none.
SHAPE = replace(BASE, stations=(*BASE.stations, Place("x", "A"), Place("y", "B")))
#: Rules are audited three times in this, which shows other controllers.
LIFETIME = 'host_lifetime = "12 s"\n'
#: Addresses at which switches find the controllers, and these etcd: one of them can be cut off from it. At 127.0.0.1
#: its gateway asks the server itself.
PLACES = {"alpha": ("127.0.0.1:6653", "127.0.0.2"), "beta": ("127.0.0.1:6654", "127.0.0.3")}
#: Seconds of a leader's lease.
LEASE = 3


@dataclass
class Cluster:
    """A network with two controllers and two edges."""

    net: OvsNetwork
    server: EtcdServer
    members: dict[str, Fabric]
    edges: dict[str, Edge]

    def leading(self) -> Fabric | None:
        """Return the controller that leads now."""
        leaders = [each for each in self.members.values() if said(each).get("leads")]
        # They are not asked at the same moment.
        return leaders[0] if len(leaders) == 1 else None

    def settled(self) -> tuple[Fabric, Fabric]:
        """Return the leader and the other one, once all paths are in place and all edges follow."""

        def ready() -> Fabric | None:
            leader = self.leading()
            if leader is None or any(not said(each).get("leader") for each in self.members.values()):
                return None
            status = leader.api_get("status")
            hosts = all(self.net.stations["x"].reaches(self.net.stations[each]) for each in ("ha", "hb", "y"))
            whole = (
                hosts and len(status["links"]) == 8 and not status["changing"] and not leader.codes() - {"drained"}
            )
            follow = all(edge.status()["generation"] == status["generation"] for edge in self.edges.values())
            healthy = not any(edge.status()["health"] for edge in self.edges.values())
            return leader if whole and follow and healthy else None

        leader = wait_until(ready, what="a leader with all paths", timeout=60)
        return leader, next(each for each in self.members.values() if each is not leader)

    def rules(self) -> dict[str, list[str]]:
        """Return all rules but those that expire without their controller."""
        listed = {switch: self.net.ofctl("dump-flows", switch, "--no-stats") for switch in SHAPE.switches}
        return {
            switch: sorted(line.strip() for line in text.splitlines() if "cookie=" in line and "timeout" not in line)
            for switch, text in listed.items()
        }

    @contextlib.contextmanager
    def cut_off(self, member: str) -> Iterator[None]:
        """Let nothing pass between a controller and etcd for the length of a block."""
        rule = f"ip daddr {PLACES[member][1]} tcp dport {self.server.port} drop"
        chain = f"chain out {{ type filter hook output priority 0; {rule}; }}"
        self.net.place.run(["nft", "-f", "-"], text=f"table ip cut {{\n{chain}\n}}\n")
        try:
            yield
        finally:
            self.net.place.run(["nft", "delete", "table", "ip", "cut"])


def said(fabric: Fabric) -> dict[str, Any]:
    """Return what a controller says of the cluster; nothing if it does not answer."""
    try:
        return dict(fabric.api_get("status")["cluster"])
    except (OSError, LabError):
        return {}


def named(fabric: Fabric) -> set[str]:
    """Return the codes of all problems of this start of a controller."""
    events = fabric.api_get("events")["events"]
    return {each["fields"]["code"] for each in events if each["event"] == "problem"}


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(ovs_network(SHAPE, boxes=True))
        server = stack.enter_context(etcd(net.folder, net.place))
        key = net.folder / "fabric.key"
        key.write_text("a key of this test alone")
        members = {}
        for name, (listen, host) in PLACES.items():
            config = f'key_file = "{key}"\nlisten = "{listen}"\n{LIFETIME}{configuration(SHAPE, probe=True)}\n'
            config += f'[cluster]\nname = "{name}"\nlease = "{LEASE} s"\netcd = ["{server.url(host)}"]\n'
            folder = net.folder / name
            folder.mkdir()
            members[name] = stack.enter_context(controller(net.place, folder, config))
        net.control(*(f"tcp:{listen}" for listen, _ in PLACES.values()))
        edges = {}
        for station in SHAPE.stations:
            box = net.stations[station.name].box
            if box is None:
                continue
            where = [("--controller", f"unix:{each.folder / 'fabric.sock'}") for each in members.values()]
            words = [word for pair in where for word in pair]
            edge = edges[station.name] = Edge(box, net.folder, station.name, "--outside", OUTSIDE, *words)
            stack.callback(edge.stop)
            edge.start()
        yield Cluster(net, server, members, edges)


@pytest.fixture
def cluster(one_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster; a test that failed in the middle leaves none of its changes to the next one."""
    yield one_cluster
    for member in one_cluster.members.values():
        if member.process is None or not member.process.running:
            member.start()
    leader = wait_until(one_cluster.leading, what="a leader", timeout=60)
    if "drained" in leader.codes():
        leader.call("undrain", "P")


def test_a_killed_leader_is_replaced_without_loss_and_what_it_acknowledged_stays(cluster: Cluster) -> None:
    net, stations = cluster.net, cluster.net.stations
    leader, other = cluster.settled()
    refused = other.call("drain", "P", check=False)
    assert refused.status == 1
    assert re.search(r"(alpha|beta) leads: ask it there", refused.stderr)
    found: list[Transfer] = []
    flow = threading.Thread(
        target=lambda: found.append(transfer(stations["ha"], stations["hb"], net.folder, 12, "-b", "50M"))
    )
    assert leader.process is not None
    with (
        nothing_lost(net, "x", "y", log="killed"),
        nothing_lost(net, "ha", "hb", log="killed-edges"),
    ):
        flow.start()
        hb = stations["hb"].place
        wait_until(lambda: ":5201" in hb.run(["ss", "-tn"]).stdout, what="the flow", timeout=20)
        # It is written in etcd once the command answers, and killed before much of it is done.
        leader.call("drain", "P")
        leader.process.signal(signal.SIGKILL)
        leader.process.wait()
        before = cluster.rules()
        wait_until(lambda: said(other).get("leads"), what="the other one to lead", timeout=LEASE + 5)
        wait_until(lambda: "drained" in other.codes(), what="the policy to be in force", timeout=30)
        flow.join()
    # Hosts' rules are the same: what the killed one left was taken over.
    after = cluster.rules()
    for switch in ("A", "B"):
        of_hosts = {rule for rule in before[switch] if "dl_dst=02:00:00:00:00" in rule}
        assert len(of_hosts) >= len(SHAPE.stations)
        assert of_hosts <= set(after[switch])
    assert min(found[0].goodput[1:-1]) > 25
    # Segments that were sent again had arrived: other paths have other delays. An acknowledgement names one duplicate
    # only, and a bridge without a processor loses some segments, but 40 ms without a rule would lose 170.
    counters = found[0].counters
    assert counters["TcpRetransSegs"] - counters["TcpExtTCPDSACKRecvSegs"] <= 100
    assert {"leads"} <= {each["event"] for each in other.api_get("events")["events"]}
    leader.start()
    assert cluster.settled() == (other, leader)
    other.call("undrain", "P")
    shown = leader.call("status", check=False)
    assert shown.status == 0, shown.text
    assert re.match(r"(alpha|beta) follows; (alpha|beta) leads: ask it for links, hosts and paths\n", shown.stdout)
    assert "second-controller" not in named(other) | named(leader)


def test_a_stopped_leader_that_wakes_up_changes_nothing(cluster: Cluster) -> None:
    net = cluster.net
    leader, other = cluster.settled()
    assert leader.process is not None
    generation = said(leader)["generation"]
    with nothing_lost(net, "x", "y", log="stopped"):
        leader.process.signal(signal.SIGSTOP)
        try:
            wait_until(lambda: said(other).get("leads"), what="the other one to lead", timeout=LEASE + 5)
            wait_until(lambda: other.api_get("status")["planned"], what="its plan", timeout=30)
            wait_until(lambda: not other.api_get("status")["changing"], what="its rules", timeout=30)
            before = cluster.rules()
        finally:
            leader.process.signal(signal.SIGCONT)
        wait_until(lambda: said(leader).get("leads") is False, what="the old one to stop", timeout=20)
        wait_until(lambda: said(leader)["leader"] == said(other)["leader"], what="it to follow", timeout=20)
        assert said(leader)["generation"] > generation
        assert cluster.rules() == before
    assert not named(leader) & {"second-controller", "stale-generation", "refused"}
    # And if it had sent something: switches know the later generation.
    now = said(other)["generation"]
    for switch in SHAPE.switches:
        assert refusals(net, switch, generation, now) == [
            (of.OFPET_ROLE_REQUEST_FAILED, of.OFPRRFC_STALE),
            (of.OFPET_BAD_REQUEST, of.OFPBRC_IS_SLAVE),
        ]
    cluster.settled()
    assert "second-controller" not in named(other) | named(leader)


def refusals(net: OvsNetwork, switch: str, generation: int, now: int) -> list[tuple[int, int]]:
    """Return the errors that a switch answers to a master of an old generation, and to a slave's rule."""
    session = Session()
    hello = HEADER.pack(4, of.OFPT_HELLO, HEADER.size, 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(20)
        peer.connect(f"{net.folder}/{switch}.mgmt")
        peer.sendall(hello + session.encode(RoleRequest(Role.MASTER, generation)))
        peer.sendall(session.encode(RoleRequest(Role.SLAVE, now)))
        peer.sendall(session.encode(AddRule(Rule(0, 1, Match(in_port=77)))))
        peer.sendall(HEADER.pack(4, of.OFPT_BARRIER_REQUEST, HEADER.size, 99))
        errors = []
        while True:
            head = peer.recv(HEADER.size, socket.MSG_WAITALL)
            _, kind, length, _ = HEADER.unpack(head)
            body = peer.recv(length - HEADER.size, socket.MSG_WAITALL) if length > HEADER.size else b""
            if kind == of.OFPT_ERROR:
                errors.append(struct.unpack_from("!HH", body))
            if kind == of.OFPT_BARRIER_REPLY:
                return errors


def test_a_leader_that_is_cut_off_from_etcd_steps_down(cluster: Cluster) -> None:
    net = cluster.net
    leader, other = cluster.settled()
    name = said(leader)["name"]
    with nothing_lost(net, "x", "y", log="cut"), cluster.cut_off(name):
        wait_until(lambda: cluster.leading() is other, what="the other one to lead", timeout=LEASE + 10)
        assert "etcd-silent" in leader.codes()
        refused = leader.call("drain", "P", check=False)
        assert refused.status == 1
        assert "no controller leads at this moment" in refused.stderr
        assert leader.call("status", check=False).status == DEGRADED
        other.call("drain", "P")
        wait_until(lambda: "drained" in other.codes(), what="the policy to be in force", timeout=30)
        other.call("undrain", "P")
    assert cluster.settled() == (other, leader)
    assert not leader.codes()
    assert "second-controller" not in named(other) | named(leader)


def test_without_etcd_packets_go_on_and_nothing_is_changed(cluster: Cluster) -> None:
    net = cluster.net
    leader, other = cluster.settled()
    with (
        nothing_lost(net, "x", "y", log="etcd"),
        nothing_lost(net, "ha", "hb", log="etcd-edges"),
    ):
        with cluster.server.paused():
            wait_until(lambda: said(leader)["leads"] is False, what="the leader to stop", timeout=LEASE + 5)
            assert "etcd-silent" in leader.codes() & other.codes()
            refused = leader.call("drain", "P", check=False)
            assert "no controller leads at this moment" in refused.stderr
            edge = cluster.edges["ha"]
            wait_until(
                lambda: {each["code"] for each in edge.status()["health"]} == {"no-leader"},
                what="the edge to say that nobody leads",
                timeout=30,
            )
        cluster.settled()
    assert "second-controller" not in named(other) | named(leader)


def test_a_leader_that_ends_hands_over_within_a_second(cluster: Cluster) -> None:
    net = cluster.net
    leader, other = cluster.settled()
    with nothing_lost(net, "x", "y", log="ended"):
        leader.stop()
        # Its lease of 3 s would not be over.
        wait_until(lambda: said(other).get("leads"), what="the other one to lead", timeout=LEASE / 2)
        leader.start()
        assert cluster.settled() == (other, leader)


def test_a_stranger_is_still_a_second_controller(cluster: Cluster) -> None:
    leader, _ = cluster.settled()
    net = cluster.net
    folder = net.folder / "stranger"
    folder.mkdir()
    own = [f"tcp:{listen}" for listen, _ in PLACES.values()]
    with controller(net.place, folder, configuration(SHAPE), "--listen", "127.0.0.1:6655"):
        net.control(*own, "tcp:127.0.0.1:6655", switches=["P"])
        wait_until(lambda: "second-controller" in leader.codes(), what="it to be named", timeout=60)
    net.control(*own, switches=["P"])
