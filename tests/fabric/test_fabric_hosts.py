"""Hosts of a real fabric that go, change and storm, and switches that somebody else meddles with."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from braid_lab.fabric.controller import Fabric, configuration, controller
from braid_lab.fabric.ovs import OvsNetwork, Station, ovs_network
from braid_lab.fabric.shapes import Station as Place
from braid_lab.fabric.shapes import two_paths
from braid_lab.process import Process, wait_until

BASE = two_paths(mbit=1000, delay_ms=0)
SHAPE = replace(BASE, stations=(*BASE.stations, Place("x", "A"), Place("y", "B")))
STATIC = '\nhost_lifetime = "10 s"\n'
PINNED = '\n[[host]]\nmac = "02:00:00:00:77:77"\nswitch = "B"\nport = "y"\naddresses = ["10.77.9.9"]\n'

#: Sends frames from and to made-up addresses, at most some 2,000 a second, until it is stopped: a minute at most.
STORM = """
import os, socket, time
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind(("eth0", 0))
end = time.monotonic() + 60
while time.monotonic() < end:
    for _ in range(4):
        sender.send(b"\\x02" + os.urandom(5) + b"\\x02" + os.urandom(5) + b"\\x08\\x00" + bytes(50))
    time.sleep(0.002)
"""


@pytest.fixture(scope="module")
def net() -> Iterator[OvsNetwork]:
    """Four bridges in a ring; two edges' hosts and two others."""
    with ovs_network(SHAPE) as made:
        yield made


@pytest.fixture(scope="module")
def fabric(net: OvsNetwork) -> Iterator[Fabric]:
    with controller(net.place, net.folder, STATIC + configuration(SHAPE) + PINNED) as made:
        wait_until(lambda: net.stations["x"].reaches(net.stations["y"]), what="a ping", timeout=60)
        yield made


def lost(source: Station, address: str, count: int = 10) -> int:
    """Pings that were not answered."""
    said = source.place.run(["ping", "-c", str(count), "-i", "0.2", "-W", "1", address], check=False).stdout
    found = re.search(r"(\d+) packets transmitted, (\d+) received", said)
    assert found, said
    return int(found[1]) - int(found[2])


def hosts(fabric: Fabric) -> dict[str, dict[str, object]]:
    return {host["mac"]: host for host in fabric.api_get("hosts")["hosts"]}


def test_a_quiet_host_stays_known_and_one_that_is_gone_does_not(net: OvsNetwork, fabric: Fabric) -> None:
    x, y = net.stations["x"], net.stations["y"]
    assert lost(x, y.address, 1) == 0
    # The controller asks from 7.5 s of silence on; looks once a second may make that 8.5 s, but never less.
    wait_until(lambda: hosts(fabric)[y.mac]["silent_ms"] > 7000 or None, what="silence", timeout=30)  # type: ignore[operator]
    # It was asked, and answered.
    wait_until(lambda: hosts(fabric)[y.mac]["silent_ms"] < 3000 or None, what="an answer", timeout=10)  # type: ignore[operator]
    y.place.ip("link set eth0 down")
    wait_until(lambda: y.mac not in hosts(fabric), what="the host to be forgotten", timeout=40)
    wait_until(lambda: y.mac not in net.ofctl("dump-flows", "A"), what="its rules to go", timeout=10)
    y.place.ip("link set eth0 up")
    wait_until(functools.partial(x.reaches, y), what="a ping", timeout=20)


def test_a_changed_mac_is_followed(net: OvsNetwork, fabric: Fabric) -> None:
    x, y = net.stations["x"], net.stations["y"]
    assert lost(x, y.address, 1) == 0
    y.place.ip("link set eth0 address 02:00:00:00:99:99")
    x.place.ip("neigh flush dev eth0")
    try:
        # A busy machine may take a second for the first one; it was 40 of 40.
        assert lost(x, y.address) <= 1
        assert hosts(fabric)["02:00:00:00:99:99"]["addresses"] == [y.address]
    finally:
        y.place.ip(f"link set eth0 address {y.mac}")
        x.place.ip("neigh flush dev eth0")
    assert lost(x, y.address) <= 1


def test_hosts_are_shown_and_forgotten_by_command_and_static_ones_stay(net: OvsNetwork, fabric: Fabric) -> None:
    x, y = net.stations["x"], net.stations["y"]
    x.place.ip("neigh flush dev eth0")
    assert lost(x, y.address, 3) <= 1
    wait_until(lambda: hosts(fabric)[x.mac]["addresses"], what="its address", timeout=30)
    shown = fabric.call("hosts", check=False).stdout
    assert re.search(rf"{x.mac} +A:x +\d+ +in \d+ s +{x.address}", shown), shown
    assert re.search(r"02:00:00:00:77:77 +B:y +\d+ +never: configured +10\.77\.9\.9", shown), shown
    assert fabric.call("forget", x.address).stdout == f"{x.mac} at A:x is forgotten\n"
    again = fabric.call("forget", "10.77.9.9", check=False)
    assert again.status == 1
    assert "[[host]] of the configuration" in again.stderr
    assert "no host is known by that" in fabric.call("forget", "1.2.3.4", check=False).stderr
    assert lost(x, y.address, 3) <= 1
    assert json.loads(fabric.call("hosts", "--json", check=False).stdout)["hosts"]


def test_a_storm_of_made_up_hosts_costs_others_nothing_and_passes(net: OvsNetwork, fabric: Fabric) -> None:
    x, y, ha = (net.stations[name] for name in ("x", "y", "ha"))
    assert lost(ha, y.address, 1) == 0
    storm = Process([sys.executable, "-c", STORM], log=net.folder / "storm", namespace=x.place.name)
    with storm:
        # Those of its flood limit have no timeout.
        muted = re.compile(r"hard_timeout=10,.*meter:")
        wait_until(lambda: muted.search(net.ofctl("dump-flows", "A")), what="the port's meter", timeout=15)
        assert lost(ha, y.address, 15) == 0
        wait_until(lambda: {"crowded-port", "packet-in-flood"} <= fabric.codes(), what="it to be named", timeout=10)
    # Its hosts are forgotten, and real ones learned again.
    wait_until(lambda: len(hosts(fabric)) < 10, what="its hosts to be forgotten", timeout=60)
    wait_until(functools.partial(x.reaches, y), what="a ping", timeout=20)


def test_a_rule_of_others_is_named(net: OvsNetwork, fabric: Fabric) -> None:
    net.ofctl("add-flow", "A", "priority=300,ip,nw_dst=10.99.9.9,actions=drop")
    wait_until(lambda: "foreign-rule" in fabric.codes(), what="it to be named", timeout=45)
    (told,) = [each for each in fabric.api_get("status")["health"] if each["code"] == "foreign-rule"]
    assert "priority=300,eth_type=0x800,ipv4_dst=10.99.9.9" in told["text"]
    net.place.run(["ovs-ofctl", "-O", "OpenFlow13", "del-flows", f"unix:{net.folder}/A.mgmt", "ip,nw_dst=10.99.9.9"])
    wait_until(lambda: "foreign-rule" not in fabric.codes(), what="it to be gone", timeout=100)


def test_a_switch_that_fails_open_is_named_and_makes_no_copies(net: OvsNetwork, fabric: Fabric) -> None:
    x, y = net.stations["x"], net.stations["y"]
    net.vsctl("set-fail-mode", "P", "standalone", "--", "set-controller", "P", "tcp:127.0.0.1:1")
    try:
        counted = Process([sys.executable, "-c", COUNT], log=net.folder / "copies", namespace=y.place.name)
        with counted:
            counted.wait_output("^ready", timeout=20)
            sent = 0

            def named() -> bool:
                nonlocal sent
                sent += 1
                x.place.run([sys.executable, "-c", BROADCAST])
                return "fail-open" in fabric.codes()

            wait_until(named, what="the switch to fail open", timeout=60)
            for _ in range(3):
                named()
            x.place.run([sys.executable, "-c", BROADCAST.replace("b'x'", "b'end'")])
            counted.wait()
        assert int(counted.stdout().splitlines()[-1]) <= sent
    finally:
        net.vsctl("set-fail-mode", "P", "secure", "--", "set-controller", "P", "tcp:127.0.0.1:6653")


BROADCAST = """
import socket
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
sender.sendto(b'x', ("10.77.255.255", 9999))
"""
COUNT = """
import socket
taker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taker.bind(("0.0.0.0", 9999))
taker.settimeout(60)
print("ready", flush=True)
copies = 0
while (got := taker.recv(16)) != b"end":
    copies += 1
print(copies)
"""
