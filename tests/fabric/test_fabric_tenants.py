"""Tenants with real Open vSwitch: the same addresses in two of them, frames of all sorts, restart and reload."""

from __future__ import annotations

import functools
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from braid_lab.fabric.controller import configuration
from braid_lab.fabric.edges import EdgedNetwork, edged_network
from braid_lab.fabric.ovs import Station
from braid_lab.fabric.shapes import Station as Place
from braid_lab.fabric.shapes import two_paths
from braid_lab.process import Process, wait_until

BOTH = two_paths(mbit=1000, delay_ms=0)
#: Blue has the hosts behind both edges, and one without; red has two without.
SHAPE = replace(BOTH, stations=(*BOTH.stations, Place("blue", "A"), Place("red1", "A"), Place("red2", "B")))
BLUE = ["A:ha", "B:hb", "A:blue"]
RED = ["A:red1", "B:red2"]
#: Of hosts of both tenants.
HERE, THERE = "10.99.0.1", "10.99.0.2"
#: EtherType of the frames that the tests count.
KIND = 0x88B7

#: Sends frames to a MAC and to all: plain, under each VID, under two, and under one of a provider's bridge outside.
SEND = f"""
import socket, sys, time
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind(("eth0", 0))
own = sender.getsockname()[4]
tail = ({KIND}).to_bytes(2, "big") + bytes(46)
for number, vid in enumerate([None, *range(4096)]):
    tag = b"" if vid is None else b"\\x81\\x00" + vid.to_bytes(2, "big")
    for target in (bytes.fromhex(sys.argv[1].replace(":", "")), b"\\xff" * 6):
        for header in {{tag, tag + tag, b"\\x88\\xa8" + tag[2:] + tag if tag else tag}}:
            sender.send(target + own + header + tail)
    if number % 16 == 0:
        time.sleep(0.005)
"""
#: Prints the number of frames of that kind that came, with a tag or without, once it is told to stop.
COUNT = f"""
import signal, socket, sys
receiver = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
receiver.bind(("eth0", 0))
receiver.settimeout(0.2)
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
seen = 0
print("ready", flush=True)
while not ended:
    try:
        data, place = receiver.recvfrom(2000)
    except TimeoutError:
        continue
    seen += place[2] != socket.PACKET_OUTGOING and ({KIND}).to_bytes(2, "big") in data[12:24]
print(seen, flush=True)
"""


def tables(blue: list[str], red: list[str]) -> str:
    links = [
        f'[[link]]\nbetween = ["{wire.one}:{one}", "{wire.other}:{other}"]\ncapacity = "{wire.mbit:g} Mbit/s"\n'
        for wire, (one, other) in zip(SHAPE.wires, SHAPE.ports(), strict=True)
    ]
    tenants = [
        f'[[tenant]]\nname = "{name}"\ntags = "{tags}"\nports = {json.dumps(ports)}\n'
        for name, tags, ports in (("blue", "2000-2499", blue), ("red", "3000-3099", red))
    ]
    return "\n".join([*links, *tenants])


@pytest.fixture(scope="module")
def network() -> Iterator[EdgedNetwork]:
    with edged_network(SHAPE, capacities=False, more=tables(BLUE, RED)) as made:
        stations = made.net.stations
        for name, address in (("blue", HERE), ("hb", THERE), ("red1", HERE), ("red2", THERE)):
            stations[name].place.ip(f"address add {address}/24 dev eth0")
        made.settle("ha", "hb", 2)
        yield made


def pinged(source: Station, address: str) -> bool:
    return source.place.run(["ping", "-c", "1", "-W", "1", address], check=False).status == 0


def neighbour(source: Station, address: str) -> str:
    """The MAC from which a host had an answer for an address."""
    found = json.loads(source.place.run(["ip", "-json", "neighbour", "show", address]).stdout)
    return "".join(each.get("lladdr", "") for each in found)


def counted(network: EdgedNetwork, sender: str, target: str, *receivers: str) -> dict[str, int]:
    """Return how many frames came to each of these stations while one sent some of all sorts."""
    stations, folder = network.net.stations, network.net.folder
    running = {
        name: Process(
            [sys.executable, "-c", COUNT], log=folder / f"count-{name}", namespace=stations[name].place.name
        )
        for name in receivers
    }
    try:
        for each in running.values():
            each.wait_output("^ready", timeout=20)
        stations[sender].place.run([sys.executable, "-c", SEND, stations[target].mac])
        # A packet that comes after this on the same way came after all of it.
        wait_until(lambda: pinged(stations["ha"], stations["hb"].address), what="a ping", timeout=20)
    finally:
        for each in running.values():
            each.stop()
    return {name: int(each.wait().stdout.split()[-1]) for name, each in running.items()}


def test_the_same_addresses_are_of_two_hosts_each(network: EdgedNetwork) -> None:
    stations = network.net.stations
    for source, target in (("blue", "hb"), ("red1", "red2")):
        reached = functools.partial(pinged, stations[source], THERE)
        wait_until(reached, what=f"a ping from {source}", timeout=30)
        assert neighbour(stations[source], THERE) == stations[target].mac
    # An edge of the tenant, over both of its paths.
    assert pinged(stations["ha"], stations["hb"].address)
    assert pinged(stations["ha"], stations["blue"].address)


def test_nothing_is_answered_across(network: EdgedNetwork) -> None:
    stations = network.net.stations
    for one, other in (("blue", "red1"), ("red1", "ha"), ("red2", "hb"), ("ha", "red2")):
        assert not pinged(stations[one], stations[other].address)
        assert neighbour(stations[one], stations[other].address) == ""
    told = network.fabric.json("explain", stations["blue"].mac, stations["red1"].mac)
    assert told["tenants"] == ["blue", "red"]
    shown = network.fabric.call("tenants", check=False).stdout
    assert [line.split()[0] for line in shown.splitlines()[:4]] == ["TENANT", "default", "blue", "red"]


def test_frames_under_all_tags_stay_in_their_tenant(network: EdgedNetwork) -> None:
    # From a host without an edge, and from one behind an edge, which bridges what it does not know.
    for sender, target, own, others in (
        ("red1", "hb", "red2", ("ha", "hb", "blue")),
        ("ha", "red2", "blue", ("red1", "red2")),
    ):
        seen = counted(network, sender, target, own, *others)
        assert {name: seen[name] for name in others} == dict.fromkeys(others, 0)
        # The one to all that has no tag, and the one to a host that nobody in its tenant knows.
        assert seen[own] >= 1


def test_the_network_keeps_tenants_apart_without_a_controller_and_with_the_next_one(network: EdgedNetwork) -> None:
    stations, fabric = network.net.stations, network.fabric
    fabric.stop()
    assert pinged(stations["red1"], THERE)
    assert not pinged(stations["red1"], stations["hb"].address)
    fabric.start()
    network.settle("ha", "hb", 2)
    assert pinged(stations["red1"], THERE)
    assert not pinged(stations["red1"], stations["hb"].address)


def reload(network: EdgedNetwork, more: str) -> None:
    fabric = network.fabric
    fabric.config.write_text(f"{configuration(SHAPE, probe=True, capacities=False)}\n{more}")
    assert fabric.process is not None
    fabric.process.signal(signal.SIGHUP)


def test_a_reload_gives_a_port_to_another_tenant_and_a_bad_one_changes_nothing(network: EdgedNetwork) -> None:
    stations, fabric = network.net.stations, network.fabric
    red1, red2, blue = (stations[name] for name in ("red1", "red2", "blue"))
    reload(network, tables([*BLUE, "A:red1"], RED))
    wait_until(lambda: "reload-refused" in fabric.codes(), what="a refusal", timeout=20)
    (text,) = [each["text"] for each in fabric.api_get("status")["health"] if each["code"] == "reload-refused"]
    assert "tenant 2.ports: A:red1 is listed twice (tenant 'blue')" in text
    assert pinged(red1, THERE)
    reload(network, tables([*BLUE, "A:red1"], ["B:red2"]))
    wait_until(lambda: "reload-refused" not in fabric.codes(), what="the tenants", timeout=20)
    wait_until(functools.partial(red1.reaches, blue), what="a ping in the other tenant", timeout=30)
    red1.place.ip("neigh flush dev eth0")
    assert not pinged(red1, red2.address)
    assert "tenants-changed" in {each["event"] for each in fabric.api_get("events")["events"]}
    reload(network, tables(BLUE, RED))
    blue.place.ip("neigh flush dev eth0")
    wait_until(functools.partial(red1.reaches, red2), what="a ping where it was", timeout=30)
    assert not pinged(blue, red1.address)
