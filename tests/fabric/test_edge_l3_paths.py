"""Layer-3 paths: one TCP flow over two pairs of addresses, with third-party routers between the edges."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from braid_lab.fabric.edges import split_flow
from braid_lab.fabric.routed_sites import RoutedSites, routed
from braid_lab.fabric.shapes import Wire
from braid_lab.fabric.tcp_transfer import Transfer, transfer
from braid_lab.observe import answered_pings
from braid_lab.process import run, wait_until
from braid_lab.product import binary
from conftest import came_in_order

MBIT = (10.0, 10.0)
#: 10 ms apart, so that without reordering nearly every second segment would come too early.
WIRES = [Wire("A", "B", MBIT[0], 10), Wire("A", "B", MBIT[1], 20)]
#: More than either path carries, less than both do.
BETWEEN = "14M"


@pytest.fixture(scope="module")
def sites() -> Iterator[RoutedSites]:
    """Two sites, two routers, two paths of 10 Mbit/s, an edge at each site."""
    with routed(WIRES) as made:
        made.use((1, 2), MBIT)
        yield made


def send(sites: RoutedSites, seconds: float, *options: str) -> Transfer:
    return transfer(sites.stations["ha"], sites.stations["hb"], sites.folder, seconds, *options)


def test_one_flow_gets_what_neither_path_carries_alone_and_in_order(sites: RoutedSites) -> None:
    edges = sites.edges
    flow = functools.partial(send, sites, 6, "-b", BETWEEN)
    came_in_order(sites.measure_undisturbed(lambda: split_flow(edges["ha"], edges["hb"], "hb-4", flow)))


def test_ipv6_and_what_is_no_tcp_arrive_too(sites: RoutedSites) -> None:
    place = sites.stations["ha"].place
    before = sites.edges["ha"].sent_to("hb-6")
    for address in ("10.81.2.7", "fd81:2::7"):
        assert answered_pings(place, 20, 0.01, "-s", "1400", address) == list(range(1, 21))
    counts = sorted(after - before for after, before in zip(sites.edges["ha"].sent_to("hb-6"), before, strict=True))
    assert counts[0] == 0
    assert counts[1] >= 20


def test_routers_on_the_way_can_speak_to_hosts(sites: RoutedSites) -> None:
    # A router's error quotes addresses that the host does not know.
    place = sites.stations["ha"].place
    for router in sites.routers:
        router.ip("link set tohb mtu 1300")
    try:
        for address, least in (("10.81.2.7", 1300), ("fd81:2::7", 1300)):
            words = ["ping", "-M", "do", "-c", "3", "-i", "0.2", "-W", "1", "-s", "1400", address]
            said = place.run(words, check=False)
            assert re.search(rf"(mtu ?= ?|mtu: )({least})", said.text), said.text
    finally:
        for router in sites.routers:
            router.ip("link set tohb mtu 1500")
        place.run(["ip", "route", "flush", "cache"])
        place.run(["ip", "-6", "route", "flush", "cache"])


def test_edges_open_no_packet_sockets(sites: RoutedSites) -> None:
    """Nothing is sent around the kernel's routes."""
    heading, *sockets = sites.box(0).run(["cat", "/proc/net/packet"]).stdout.splitlines()
    assert "Proto" in heading
    assert not sockets


def test_a_path_that_falls_silent_is_left_and_the_flow_goes_on(sites: RoutedSites) -> None:
    found: list[Transfer] = []
    sending = threading.Thread(target=lambda: found.append(send(sites, 8)))
    edge = sites.edges["ha"]
    before = sum(edge.sent_to("hb-4"))
    sending.start()
    try:
        wait_until(lambda: sum(edge.sent_to("hb-4")) > before + 1000, what="traffic")
        sites.lines[0].blackhole(True)
        wait_until(lambda: len(edge.paths_to("hb-4")) == 1, what="one path", timeout=3)
        codes = {each["code"] for each in edge.status()["health"]}
        sending.join()
    finally:
        sites.lines[0].blackhole(False)
        sending.join()
    assert codes == {"path-silent"}
    assert sum(found[0].goodput[-3:]) / 3 > 5
    wait_until(sites.carries, what="both paths to carry again", timeout=10)
    assert len(edge.paths_to("hb-4")) == 2


def test_a_file_that_cannot_be_followed_is_refused_by_name(sites: RoutedSites) -> None:
    file = sites.folder / "bad.toml"
    file.write_text('[[edge]]\nname = "b"\nlocal = "10.0.0.0/24"\nremote = "10.1.0.0/24"\n')
    words: list[str | Path] = ["--inside", "inside", "--outside", "out1", "--hold", "hold1", "--paths", file]
    argv: list[str | Path] = [binary(), "--run-dir", sites.folder, "edge", "run", "--name", "new", *words]
    said = run(argv, namespace=sites.box(0).name, check=False, timeout=20)
    assert said.status == 1
    assert "has 0 paths" in said.stderr
    file.write_text("")
    assert "there is nobody to split packets to" in run(argv, namespace=sites.box(0).name, check=False).stderr
    both = [*argv, "--controller", "unix:/x"]
    assert run(both, namespace=sites.box(0).name, check=False).status == 2
