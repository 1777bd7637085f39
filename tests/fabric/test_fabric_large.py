"""A real fabric with more hosts than every switch is to know."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from braid_lab.fabric.controller import Fabric, configuration, controller
from braid_lab.fabric.ovs import OvsNetwork, Station, ovs_network
from braid_lab.fabric.shapes import Station as Place
from braid_lab.fabric.shapes import two_paths
from braid_lab.observe import answered_pings
from braid_lab.process import wait_until
from braid_sdn.fabric.switches.compiler import MAX_HOSTS_EVERYWHERE

BASE = two_paths(mbit=1000, delay_ms=0)
SHAPE = replace(BASE, stations=(*BASE.stations, Place("x", "A"), Place("y", "B")))

#: Sends frames, given in hex.
SEND = """
import socket, sys
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind(("eth0", 0))
for frame in sys.argv[1:]:
    sender.send(bytes.fromhex(frame))
"""


@pytest.fixture(scope="module")
def net() -> Iterator[OvsNetwork]:
    """Four bridges in a ring, with two hosts behind no edge."""
    with ovs_network(SHAPE) as made:
        yield made


@pytest.fixture(scope="module")
def fabric(net: OvsNetwork) -> Iterator[Fabric]:
    """The controller, with as many hosts at x as a port may have, less some."""
    with controller(net.place, net.folder, configuration(SHAPE)) as made:
        wait_until(lambda: net.stations["x"].reaches(net.stations["y"]), what="a ping", timeout=60)
        appear(net.stations["x"], (made_up("a", number) for number in range(MAX_HOSTS_EVERYWHERE - 6)))
        appear(net.stations["y"], (made_up("b", number) for number in range(20)))
        wait_until(
            lambda: made.api_get("figures")["hosts"] > MAX_HOSTS_EVERYWHERE or None, what="all hosts", timeout=30
        )
        wait_until(lambda: UNANSWERED in net.ofctl("dump-flows", "A"), what="the rule for all others", timeout=30)
        yield made


#: Of the rule that copies packets to hosts without a rule to the controller.
UNANSWERED = "dl_dst=00:00:00:00:00:00/01:00:00:00:00:00"


def made_up(place: str, number: int) -> str:
    return f"02:0{place}:00:00:00:{number:02x}"


def send(station: Station, frames: Iterable[tuple[str, str]]) -> None:
    """Send a frame for each source and target."""
    raw = ((target + source).replace(":", "") + "0800" + 46 * "00" for source, target in frames)
    station.place.run([sys.executable, "-c", SEND, *raw])


def appear(station: Station, macs: Iterable[str]) -> None:
    send(station, [(each, "ff:ff:ff:ff:ff:ff") for each in macs])


def test_a_switch_gets_the_rule_of_a_host_elsewhere_once_its_own_hosts_send_to_it(
    net: OvsNetwork, fabric: Fabric
) -> None:
    x, y = net.stations["x"], net.stations["y"]
    late = made_up("b", 99)
    appear(y, [late])
    wait_until(lambda: late in net.ofctl("dump-flows", "B"), what="its rules at its own switch", timeout=10)
    wait_until(lambda: not fabric.api_get("figures")["changing"] or None, what="the last change", timeout=10)
    assert late not in net.ofctl("dump-flows", "A")
    send(x, [(x.mac, late)])
    wait_until(lambda: late in net.ofctl("dump-flows", "A"), what="its rule at the sender's switch", timeout=10)
    assert late not in net.ofctl("dump-flows", "P")
    assert fabric.codes() <= {"edge-silent", "pair-unserved"}


@pytest.mark.usefixtures("fabric")
def test_ping_and_a_new_neighbour_entry_lose_nothing(net: OvsNetwork) -> None:
    x, y = net.stations["x"], net.stations["y"]
    for station in (x, y):
        station.place.ip("neigh flush all")
    assert answered_pings(x.place, 20, 0.05, y.address) == list(range(1, 21))
