"""Rules by name on a bridge of Open vSwitch: no client has an address before the bridge knows it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from braid_lab.fixtures import run_client
from braid_lab.net.namespace import Namespace
from braid_lab.net.open_vswitch import appctl
from braid_lab.net.topology import Topology
from braid_lab.observe import ask_tcp, by_uplink
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid
from braid_sdn.host.held_answers import HOLD_TIME
from conftest import MakeNetwork, StartBraid, configured

on_both_modes = pytest.mark.parametrize("datapath", ["packet-in", "group"], indirect=True)

#: A connection takes lte by its name alone.
RULES = """
name_servers = ["198.51.100.1", "2001:db8:ffff::1"]
[[rule]]
domain = "*.bank.example"
use = "lte"
[[rule]]
port = 80
use = "dsl"
"""
#: The name server maps names to its eight servers; these take all of them.
NAMES = [f"n{number}.bank.example" for number in range(0, 42, 2)]


@pytest.fixture
def net(make_network: MakeNetwork) -> Topology:
    """A gateway, with a client behind it."""
    return make_network(lan_clients=1)


@pytest.fixture
def daemon(net: Topology, start_braid: StartBraid) -> Braid:
    return start_braid(net, "--config", configured(net, RULES))


def look_up(location: Namespace, net: Topology, family: int, *names: str) -> list[dict[str, Any]]:
    """Look names up and connect at once; check that each connection takes the rule's uplink."""
    found: list[dict[str, Any]] = run_client(location, "look_up", net.server(1, family), family, *names)
    for each in found:
        assert by_uplink(net, [tuple(each["seen"])]) == {"dsl": 0, "lte": 1}, each
    return found


@on_both_modes
@pytest.mark.parametrize("place", ["host", "client"])
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.usefixtures("daemon")
def test_a_connection_in_the_moment_of_the_answer_is_one_to_the_name(net: Topology, place: str, family: int) -> None:
    location = net.host if place == "host" else net.clients[0]
    # The switch remembers how it has decided on connections to all of the servers.
    before = ask_tcp(location, 4, *net.servers(family))
    assert by_uplink(net, before) == {"dsl": len(before), "lte": 0}
    found = look_up(location, net, family, *NAMES)
    assert {each["address"] for each in found} == set(net.servers(family))


@pytest.mark.parametrize("datapath", ["group"], indirect=True)
def test_an_answer_waits_for_the_switchs_cache(net: Topology, daemon: Braid) -> None:
    """A connection would begin by it although the rules are there. Nothing waits for it that changes no rule."""
    folder = net.scratch / f"braid-{net.host.name}-ovs"
    first = look_up(net.host, net, 4, NAMES[0])[0]["address"]
    appctl(net.host, folder, "revalidator/pause")
    try:
        same, other = run_client(net.host, "look_up", net.server(1), 4, NAMES[0], NAMES[1])
    finally:
        appctl(net.host, folder, "revalidator/resume")
    assert same["address"] == first
    assert other["address"] != first
    assert same["seconds"] < HOLD_TIME <= other["seconds"]
    # The daemon was in time.
    assert daemon.json("status")["reasons"]["names_late"] == 0


def controller(daemon: Braid) -> int:
    """Return the process id of the controller."""
    return int((daemon.run_dir / "openflow.lock").read_text())


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that hangs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@on_both_modes
def test_answers_arrive_while_the_daemon_hangs(net: Topology, daemon: Braid) -> None:
    client = net.clients[0]
    with stopped(daemon.pid):
        words = [sys.executable, "-m", "braid_lab.clients.look_up", "--every", "0.05", net.server(1), "4", NAMES[0]]
        with Process(words, log=net.scratch / "asking", namespace=client.name) as asking:
            wait_until(lambda: asking.stdout().count("\n") >= 4, what="four answers")
            told = [json.loads(line) for line in asking.stdout().splitlines()[:4]]
        # The first was held for as long as the daemon had time. The others are not held at all.
        first, *others = [each["seconds"] for each in told]
        assert min(others) < first
    address = told[0]["address"]
    wait_until(
        lambda: daemon.json("explain", address)["answers"][0]["uplink"] == "lte", what="the daemon to judge again"
    )
    look_up(client, net, 4, *NAMES[1:])
    # The controller reports its counts once a second.
    wait_until(lambda: daemon.json("status")["reasons"]["names_late"] > 0, what="the late answer to be counted")


@on_both_modes
def test_answers_arrive_while_the_controller_hangs(net: Topology, daemon: Braid) -> None:
    client = net.clients[0]
    words = [sys.executable, "-m", "braid_lab.clients.look_up", "--every", "0.1", net.server(1), "4", NAMES[0]]
    with Process(words, log=net.scratch / "asking", namespace=client.name) as asking:

        def answers() -> int:
            return asking.stdout().count("\n")

        wait_until(lambda: answers() >= 2, what="two answers")
        with stopped(controller(daemon)):
            before = answers()
            # One may have been on its way.
            wait_until(lambda: answers() >= before + 5, what="answers without a controller", timeout=20)
        before = answers()
        wait_until(lambda: answers() >= before + 5, what="answers by the controller")
    look_up(client, net, 4, *NAMES[1:])
