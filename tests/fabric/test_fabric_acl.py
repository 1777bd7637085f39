"""The access control list with real Open vSwitch: alone and behind edges, over restarts, kills and reloads."""

from __future__ import annotations

import functools
import itertools
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from braid_lab.fabric.controller import configuration
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.ovs import Station
from braid_lab.fabric.shapes import Station as Place
from braid_lab.fabric.shapes import two_paths
from braid_lab.process import Process, wait_until

BOTH = two_paths(mbit=1000, delay_ms=0)
#: Two hosts behind edges, and one without at each of their switches.
SHAPE = replace(BOTH, stations=(*BOTH.stations, Place("hc", "A"), Place("hd", "B")))

#: Ports: refused by all lists, permitted by all, and refused by one list alone.
REFUSED, PERMITTED, FLIPPED = 2222, 2223, 2224
#: Datagrams that are sent to each port; and of them those that may be missing, since a busy machine drops some.
SENT, MAX_MISSING = 5000, 50
#: Entries of all sorts, that concern none of the packets here: switches have to list their rules as they were told.
#: None has a place as its target: its rules would be others whenever a host is learned there.
OTHERS = """
[[acl]]
action = "deny"
from = "2001:db8::/33"
protocol = "udp"
port = "8001-8080"
from_port = "1000-1999"
[[acl]]
action = "deny"
from = "192.0.2.0/25"
at = "A:ha"
to = "198.51.100.1"
[[acl]]
action = "permit"
from = "2001:db8::1"
protocol = "icmp"
[[acl]]
action = "deny"
from = "02:00:00:00:00:99"
to = "02:00:00:00:00:98"
"""
LISTEN = """
import selectors, socket, sys
chosen = selectors.DefaultSelector()
for port in sys.argv[1:]:
    door = socket.create_server(("", int(port)), backlog=64)
    chosen.register(door, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in chosen.select():
        key.fileobj.accept()[0].close()
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1.0).close()
except OSError:
    sys.exit(1)
"""
#: Sends a datagram with its number to each port every 2 ms, and no more at once after it has stood still: a switch
#: would drop these.
SEND = """
import socket, sys, time
address, number, *ports = sys.argv[1:]
door = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print("ready", flush=True)
for each in range(int(number)):
    time.sleep(0.002)
    for port in ports:
        door.sendto(str(each).encode(), (address, int(port)))
"""
#: Prints which numbers came to each port, once none has come for 2 s.
COUNT = """
import json, selectors, socket, sys
chosen = selectors.DefaultSelector()
seen = {}
for port in sys.argv[1:]:
    door = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    door.bind(("", int(port)))
    chosen.register(door, selectors.EVENT_READ, port)
    seen[port] = []
print("ready", flush=True)
patience = 20.0
while ready := chosen.select(patience):
    patience = 2.0
    for key, _ in ready:
        seen[key.data].append(int(key.fileobj.recv(100)))
print(json.dumps(seen), flush=True)
"""


def entries(*ports: int) -> str:
    made = "".join(
        f'[[acl]]\nname = "{protocol}-{port}"\naction = "deny"\nprotocol = "{protocol}"\nport = {port}\n'
        for port in ports
        for protocol in ("tcp", "udp")
    )
    return f"{made}\n{OTHERS}"


@pytest.fixture(scope="module")
def network() -> Iterator[EdgedNetwork]:
    """Two paths between two edges, and two hosts without; tcp and udp to one port are refused."""
    with edged_network(SHAPE, more=entries(REFUSED)) as made:
        made.settle("ha", "hb", 2)
        # Without a controller ARP waits for 15 s, so hosts that are to reach each other then have done so before.
        for source, target in pairs(made):
            wait_until(functools.partial(source.reaches, target), what="a ping", timeout=30)
        yield made


@pytest.fixture(scope="module")
def listening(network: EdgedNetwork) -> Iterator[None]:
    """Servers at hb and hd."""
    ports = [str(port) for port in (REFUSED, PERMITTED, FLIPPED)]
    argv = [sys.executable, "-c", LISTEN, *ports]
    stations, folder = network.net.stations, network.net.folder
    with (
        Process(argv, log=folder / "listen-hb", namespace=stations["hb"].place.name) as one,
        Process(argv, log=folder / "listen-hd", namespace=stations["hd"].place.name) as other,
    ):
        for each in (one, other):
            each.wait_output("^ready", timeout=20)
        yield


def connects(source: Station, target: Station, port: int) -> bool:
    argv = [sys.executable, "-c", CONNECT, target.address, str(port)]
    return source.place.run(argv, check=False).status == 0


def is_decided(source: Station, target: Station, *, passes: bool) -> bool:
    return connects(source, target, FLIPPED) is passes


def pairs(network: EdgedNetwork) -> list[tuple[Station, Station]]:
    at = network.net.stations
    return [(at["ha"], at["hb"]), (at["hc"], at["hd"]), (at["ha"], at["hd"]), (at["hc"], at["hb"])]


def in_force(network: EdgedNetwork) -> None:
    """Refused packets pass nowhere, and permitted ones everywhere."""
    for source, target in pairs(network):
        assert connects(source, target, PERMITTED)
        assert not connects(source, target, REFUSED)


def entry(network: EdgedNetwork, name: str) -> dict[str, Any]:
    found = [each for each in network.fabric.api_get("acl")["entries"] if each["name"] == name]
    return found[0] if found else {}


def reload(network: EdgedNetwork, more: str) -> None:
    fabric = network.fabric
    fabric.config.write_text(f"{configuration(SHAPE, probe=True)}\n{more}")
    assert fabric.process is not None
    fabric.process.signal(signal.SIGHUP)


def list_rules(network: EdgedNetwork, switch: str) -> set[str]:
    """The rules of the list at a switch, without their counters."""
    lines = network.net.ofctl("dump-flows", switch, "table=0").splitlines()
    return {line.split("n_bytes=")[1].split(",", 1)[1] for line in lines if "cookie=0x42524402800000" in line}


@pytest.mark.usefixtures("listening")
def test_refused_tcp_does_not_pass_and_permitted_does(network: EdgedNetwork) -> None:
    in_force(network)
    # Both edges' packets have tags, which the paths' counters show.
    assert network.edges["ha"].paths_to("hb")
    wait_until(lambda: entry(network, f"tcp-{REFUSED}")["packets"] >= 4, what="the refused to be counted")
    told = network.fabric.json("explain", "ha", "hb")
    assert told["acl"][0] == {"number": 1, "action": "deny", "concerns": f"tcp to port {REFUSED}"}
    assert f"access control: entry 1 (tcp-{REFUSED}) refuses tcp to port {REFUSED}" in told["steps"]


def test_entries_are_at_switches_with_hosts_alone_and_others_refuse_hosts_packets(network: EdgedNetwork) -> None:
    assert {each["switch"] for each in network.fabric.api_get("acl")["switches"]} == {"A", "B"}
    assert len(list_rules(network, "A")) > 1
    (refusal,) = list_rules(network, "P")
    assert refusal.endswith("actions=drop")


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_list_stays_while_there_is_no_controller_and_after_it(
    network: EdgedNetwork, how: signal.Signals, tmp_path: Path
) -> None:
    fabric, before = network.fabric, list_rules(network, "A")
    assert fabric.process is not None
    source, target = pairs(network)[1]
    words = [str(port) for port in (REFUSED, PERMITTED)]
    with counting(target, tmp_path, *words) as counted, sending(source, target, tmp_path, SENT, *words) as sent:
        fabric.process.signal(how)
        fabric.process.wait()
        try:
            in_force(network)
        finally:
            fabric.start()
        network.settle("ha", "hb", 2)
        sent.wait()
        seen = json.loads(counted.wait().stdout.splitlines()[-1])
    assert seen[str(REFUSED)] == []
    assert missing(seen[str(PERMITTED)]) <= MAX_MISSING, gaps(seen[str(PERMITTED)])
    in_force(network)
    # The same list is where it was.
    assert list_rules(network, "A") == before


def missing(seen: list[int]) -> int:
    return SENT - len(set(seen))


def gaps(seen: list[int]) -> list[tuple[int, int]]:
    """The first and the last number of those that are missing, for each row of them."""
    ends = [-1, *sorted(set(seen)), SENT]
    return [(one + 1, other - 1) for one, other in itertools.pairwise(ends) if other > one + 1]


def counting(target: Station, folder: Path, *ports: str) -> Process:
    process = Process([sys.executable, "-c", COUNT, *ports], log=folder / "count", namespace=target.place.name)
    process.wait_output("^ready", timeout=20)
    return process


def sending(source: Station, target: Station, folder: Path, number: int, *ports: str) -> Process:
    argv = [sys.executable, "-c", SEND, target.address, str(number), *ports]
    return Process(argv, log=folder / "send", namespace=source.place.name)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("pair", [0, 1], ids=["edges", "alone"])
def test_a_reload_flips_an_entry_and_no_refused_packet_passes(
    network: EdgedNetwork, tmp_path: Path, pair: int
) -> None:
    source, target = pairs(network)[pair]
    words = [str(port) for port in (REFUSED, PERMITTED)]
    flips = 6
    with counting(target, tmp_path, *words) as counted, sending(source, target, tmp_path, SENT, *words) as sent:
        for flip in range(flips):
            ports = (FLIPPED, REFUSED) if flip % 2 == 0 else (REFUSED,)
            reload(network, entries(*ports))
            flipped = functools.partial(is_decided, source, target, passes=flip % 2 == 1)
            wait_until(flipped, what="the other list", timeout=20)
        sent.wait()
        seen = json.loads(counted.wait().stdout.splitlines()[-1])
    assert seen[str(REFUSED)] == []
    assert missing(seen[str(PERMITTED)]) <= MAX_MISSING, gaps(seen[str(PERMITTED)])
    events = [each["fields"] for each in network.fabric.api_get("events")["events"] if each["event"] == "reloaded"]
    assert len(events) >= flips
    assert events[-1] == {"taken": "acl", "acl": "entries 6, default permit"}


@pytest.mark.usefixtures("listening")
def test_a_bad_list_is_refused_and_the_one_before_stays(network: EdgedNetwork) -> None:
    reload(network, entries(REFUSED) + '[[acl]]\naction = "denny"\n')
    wait_until(lambda: "reload-refused" in network.fabric.codes(), what="the refusal", timeout=20)
    in_force(network)
    reload(network, entries(REFUSED))
    wait_until(lambda: "reload-refused" not in network.fabric.codes(), what="the good one", timeout=20)
    in_force(network)
