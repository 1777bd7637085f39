"""The fabric controller with real Open vSwitch: hosts and tagged packets end to end, under changes."""

from __future__ import annotations

import functools
import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braid_lab.fabric.controller import Fabric, configuration, controller
from braid_lab.fabric.ovs import OvsNetwork, Station, ovs_network
from braid_lab.fabric.shapes import two_paths
from braid_lab.observe import answered_pings
from braid_lab.process import Process, run, wait_until
from braid_lab.product import binary
from braid_sdn.fabric.switches.rules import PATHS, TREES

SHAPE = two_paths(mbit=1000, delay_ms=0)
FRAMES = [sys.executable, "-m", "braid_lab.fabric.raw_frames"]


@pytest.fixture(scope="module")
def net() -> Iterator[OvsNetwork]:
    """Four bridges in a ring, a host at two of them."""
    with ovs_network(SHAPE) as made:
        yield made


@pytest.fixture(scope="module")
def fabric(net: OvsNetwork) -> Iterator[Fabric]:
    """Their controller, once everything is discovered."""
    with controller(net.place, net.folder, configuration(SHAPE)) as made:
        whole(made)
        yield made


def pair(fabric: Fabric) -> dict[str, Any] | None:
    found = [each for each in fabric.api_get("paths")["pairs"] if (each["source"], each["target"]) == ("ha", "hb")]
    return found[0] if found else None


def whole(fabric: Fabric) -> dict[str, Any]:
    """Wait until both paths are installed and no change is in progress; return the pair."""

    def ready() -> dict[str, Any] | None:
        status, found = fabric.api_get("status"), pair(fabric)
        settled = len(status["links"]) == 8 and not status["changing"] and not status["health"]
        return found if settled and found and len(found["paths"]) == 2 else None

    return wait_until(ready, what="both paths", timeout=60)


def pinged(station: Station, address: str) -> bool:
    return station.place.run(["ping", "-c", "1", "-W", "1", address], check=False).status == 0


def count(station: Station, folder: Path, seconds: float = 1.0) -> Process:
    process = Process([*FRAMES, "count", "eth0", str(seconds)], log=folder / "count", namespace=station.place.name)
    process.wait_output("^ready", timeout=20)
    return process


def send(target: Station, number: int, per_second: float, *tags: int) -> list[str]:
    return [*FRAMES, "send", "eth0", target.mac, str(number), str(per_second), *map(str, tags)]


def counted(process: Process) -> tuple[dict[int, list[int]], float]:
    told = json.loads(process.wait().stdout.splitlines()[-1])
    return {int(tag): numbers for tag, numbers in told["seen"].items()}, told["longest_gap_s"]


def test_hosts_reach_one_another_by_ipv4_and_ipv6_and_tcp(net: OvsNetwork, fabric: Fabric) -> None:
    ha, hb = net.stations["ha"], net.stations["hb"]
    for address in (hb.address, "fd77::2"):
        # The first ping also resolves the address, and the host is still unknown.
        wait_until(functools.partial(pinged, ha, address), what="a ping", timeout=30)
        assert answered_pings(ha.place, 3, 0.1, address) == [1, 2, 3]
    server = Process(["iperf3", "-s", "-1"], log=net.folder / "iperf3", namespace=hb.place.name)
    with server:
        wait_until(lambda: "5201" in hb.place.run(["ss", "-ltn"]).stdout, what="iperf3 to listen")
        told = json.loads(ha.place.run(["iperf3", "-c", hb.address, "-n", "20M", "-J"]).stdout)
    # The receiver counts until the sender ends, so the last window may be missing.
    assert told["end"]["sum_received"]["bytes"] >= 10_000_000
    known = {host["mac"]: host for host in fabric.api_get("status")["hosts"]}
    assert {ha.address, "fd77::1"} <= set(known[ha.mac]["addresses"])
    assert known[hb.mac]["switch"] == "B"


def test_tagged_packets_take_their_paths_in_proportion(net: OvsNetwork, fabric: Fabric, tmp_path: Path) -> None:
    """One flow split packet by packet by rules alone, which no select group of Open vSwitch does."""
    ha, hb = net.stations["ha"], net.stations["hb"]
    found = whole(fabric)
    tags = [path["tag"] for path in found["paths"]]
    table = next(each for each in fabric.api_get("edges/ha")["egress"] if each["target"] == "hb")
    assert sorted(set(table["slots"])) == sorted(tags)
    with count(hb, tmp_path) as counting:
        ha.place.run(send(hb, 400, 400, tags[0], tags[0], tags[0], tags[1]))
        seen, _ = counted(counting)
    sent = {tags[0]: {n for n in range(400) if n % 4 < 3}, tags[1]: set(range(3, 400, 4))}
    assert seen.keys() == sent.keys()
    for tag, numbers in seen.items():
        # Each arrived over the path that it was sent on; a busy machine may drop some of them.
        assert set(numbers) <= sent[tag]
        assert len(numbers) >= 0.9 * len(sent[tag])
    # Each path by itself keeps order.
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_a_path_costs_one_rule_a_switch(net: OvsNetwork, fabric: Fabric) -> None:
    found = whole(fabric)
    for path in found["paths"]:
        for switch in path["switches"]:
            matching = net.ofctl("dump-flows", switch, f"table={PATHS},dl_vlan={path['tag']}").count("cookie=")
            # The last switch's rule also tells the path's probes from its packets.
            assert matching == (2 if switch == path["switches"][-1] else 1)


def test_the_network_forwards_on_without_its_controller_which_then_takes_over(
    net: OvsNetwork, fabric: Fabric, tmp_path: Path
) -> None:
    ha, hb = net.stations["ha"], net.stations["hb"]
    whole(fabric)
    wait_until(functools.partial(pinged, hb, ha.address), what="a ping", timeout=30)
    assert fabric.process is not None
    with count(hb, tmp_path, 2.0) as counting:
        # Packets of hosts: after a takeover tags are new, and edges would follow their new table.
        argv = send(hb, 2500, 250, 0)
        with Process(argv, log=tmp_path / "send", namespace=ha.place.name) as sending:
            fabric.process.signal(signal.SIGKILL)
            fabric.process.wait()
            wait_until(lambda: not net.connected("A"), what="the switch to notice", timeout=20)
            fabric.start()
            sending.wait()
        seen, _ = counted(counting)
    # A switch may drop some on a busy machine; without rules it would drop nearly all.
    assert sum(len(numbers) for numbers in seen.values()) >= 2475
    after = whole(fabric)
    assert [path["switches"] for path in after["paths"]]
    # The controller relearns hosts from their rules alone.
    assert {host["mac"] for host in fabric.api_get("status")["hosts"]} == {ha.mac, hb.mac}


def test_a_cable_that_is_pulled_costs_at_most_200_ms(net: OvsNetwork, fabric: Fabric) -> None:
    whole(fabric)
    net.place.ip("link set A-P down")
    try:
        # From the port's link-down to the new table; the experiment measures how long packets were lost.
        wait_until(lambda: (found := pair(fabric)) and len(found["paths"]) == 1, what="one path", timeout=5)
        (left,) = pair(fabric)["paths"]  # type: ignore[index]
        assert left["switches"] == ["A", "Q", "B"]
        assert (
            " 0% packet loss" in net.stations["ha"].place.run(["ping", "-c", "2", net.stations["hb"].address]).stdout
        )
    finally:
        net.place.ip("link set A-P up")
    whole(fabric)


def test_switches_that_restart_are_given_their_rules_again(net: OvsNetwork, fabric: Fabric) -> None:
    whole(fabric)
    net.stop(how=signal.SIGKILL)
    net.start()
    whole(fabric)
    ping = ["ping", "-c", "1", "-W", "1", net.stations["hb"].address]
    wait_until(lambda: net.stations["ha"].place.run(ping, check=False).status == 0, what="a ping", timeout=20)


def tags_known(net: OvsNetwork, switch: str) -> set[int]:
    """Return the tags by which a switch forwards."""
    return {int(tag) for tag in re.findall(r"dl_vlan=(\d+)", net.ofctl("dump-flows", switch, f"table={PATHS}"))}


def tags_due(net: OvsNetwork, fabric: Fabric, switch: str) -> set[int]:
    """Return the tags that a switch receives: those of paths through it, and those that switches add."""
    paths = {
        path["tag"]
        for each in fabric.api_get("paths")["pairs"]
        for path in each["paths"]
        if switch in path["switches"]
    }
    tables = "".join(net.ofctl("dump-flows", each, f"table={TREES}") for each in SHAPE.switches)
    # 4096 is the flag that the tag is present.
    return paths | {int(field) - 4096 for field in re.findall(r"set_field:(\d+)->vlan_vid", tables)}


def test_rules_that_somebody_deletes_are_healed(net: OvsNetwork, fabric: Fabric, tmp_path: Path) -> None:
    """The path may fail before the audit, and hosts may appear: the current plan repairs both."""
    ha, hb = net.stations["ha"], net.stations["hb"]
    whole(fabric)
    wait_until(lambda: tags_known(net, "P") == tags_due(net, fabric, "P"), what="the plan to be in place", timeout=20)
    net.ofctl("del-flows", "P", f"table={PATHS}")
    deleted = time.monotonic()
    wait_until(lambda: tags_known(net, "P") == tags_due(net, fabric, "P") != set(), what="the audit", timeout=60)
    # An audit may come in the same moment, but no rule is older than that.
    ages = [float(age) for age in re.findall(r"duration=([\d.]+)s", net.ofctl("dump-flows", "P", f"table={PATHS}"))]
    assert max(ages) <= time.monotonic() - deleted
    found = whole(fabric)
    assert {path["switches"][1] for path in found["paths"]} == {"P", "Q"}
    tags = [path["tag"] for path in found["paths"]]
    with count(hb, tmp_path) as counting:
        ha.place.run(send(hb, 100, 200, *tags))
        seen, _ = counted(counting)
    assert seen.keys() == set(tags)


def test_the_command_line_shows_it(net: OvsNetwork, fabric: Fabric, tmp_path: Path) -> None:
    whole(fabric)
    # The controller knows hosts by their packets, and their addresses by ARP; after a restart it waits for both.
    ha, hb = net.stations["ha"], net.stations["hb"]
    for one, other in ((ha, hb), (hb, ha)):
        one.place.ip("neigh flush dev eth0")
        wait_until(functools.partial(pinged, one, other.address), what="a ping", timeout=30)
    place = Path(sys.executable).parent
    path = {"PATH": f"{place}:/usr/sbin:/usr/bin:/sbin:/bin", "BRAID_RUN_DIR": str(fabric.folder)}
    # Through the binary, as a person would.
    said = run([binary(), "sdn", "fabric", "status"], env=path)
    assert "A:A-P" in said.stdout
    assert "ha → hb" in fabric.call("paths").stdout
    hosts = [ha.address, hb.address]
    story = fabric.call("explain", *hosts).stdout
    assert "% of packets" in story
    assert fabric.call("explain", "192.0.2.1", hosts[0], check=False).status == 2
    drawing = fabric.call("svg").stdout
    assert drawing.startswith("<svg")
    assert ">A<" in drawing
    nowhere: list[str | Path] = [*FRAMES[:2], "braid_sdn.cli", "fabric", "status", "--run-dir", tmp_path]
    assert run(nowhere, check=False).status == 3
