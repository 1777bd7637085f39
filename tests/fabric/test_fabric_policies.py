"""Policies of an operator with real Open vSwitch: of a thousand pings a second none is lost."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from braid_lab.fabric.controller import Fabric, configuration, controller
from braid_lab.fabric.ovs import OvsNetwork, ovs_network
from braid_lab.fabric.shapes import Station as Place
from braid_lab.fabric.shapes import two_paths
from braid_lab.process import wait_until
from braid_lab.product import DEGRADED
from conftest import nothing_lost

BASE = two_paths(mbit=1000, delay_ms=0)
#: Two edges' hosts, and two that have none.
SHAPE = replace(BASE, stations=(*BASE.stations, Place("x", "A"), Place("y", "B")))


@pytest.fixture(scope="module")
def net() -> Iterator[OvsNetwork]:
    with ovs_network(SHAPE) as made:
        yield made


@pytest.fixture(scope="module")
def fabric(net: OvsNetwork) -> Iterator[Fabric]:
    with controller(net.place, net.folder, configuration(SHAPE)) as made:
        wait_until(functools.partial(net.stations["x"].reaches, net.stations["y"]), what="a ping", timeout=60)
        wait_until(lambda: len(ways(made)) == 2 and not made.codes(), what="both paths", timeout=60)
        yield made


def ways(fabric: Fabric, source: str = "ha", target: str = "hb") -> list[list[str]]:
    """Return the switches of each path between two edges, once no change is in progress."""
    pairs = fabric.api_get("paths")["pairs"]
    found = [each["paths"] for each in pairs if (each["source"], each["target"]) == (source, target)]
    return [path["switches"] for paths in found for path in paths]


def passing(net: OvsNetwork, switch: str) -> int:
    """Return the number of packets that a switch has sent on by tags, discovery and probes aside."""
    listed = net.ofctl("dump-flows", switch, "table=4")
    return sum(int(count) for count in re.findall(r"n_packets=(\d+)", listed))


def in_force(fabric: Fabric, code: str) -> None:
    wait_until(lambda: code in fabric.codes(), what=f"{code} to be said", timeout=30)


def told(fabric: Fabric) -> set[tuple[str, str]]:
    """Return the problems among the events: their codes and subjects."""
    problems = [each["fields"] for each in fabric.api_get("events")["events"] if each["event"] == "problem"]
    return {(each["code"], each["subject"]) for each in problems}


def used(fabric: Fabric) -> list[dict[str, Any]]:
    """Return the events about the paths from ha to hb, the latest last."""
    pairs = [each["fields"] for each in fabric.api_get("events")["events"] if each["event"] == "paths-used"]
    return [each for each in pairs if each["source"] == "ha"]


def test_a_switch_is_drained_and_taken_down_and_comes_back_without_loss(net: OvsNetwork, fabric: Fabric) -> None:
    # Its trees lead by either switch: both are drained in turn.
    for number, (switch, other) in enumerate((("P", "Q"), ("Q", "P"))):
        with nothing_lost(net, "x", "y", log=f"drain{number}"):
            # The journal compares states a second apart, and misses one that ends sooner.
            wait_until(
                lambda: used(fabric)[-1:] and used(fabric)[-1]["paths"].count(">") == 4,
                what="the event of both paths",
                timeout=20,
            )
            said = fabric.call("drain", switch).stdout
            assert said == f"{switch} is being drained: braid sdn fabric policies says when it may be taken down\n"
            in_force(fabric, "drained")
            wait_until(lambda: ("drained", switch) in told(fabric), what="the event", timeout=20)  # noqa: B023
            assert ways(fabric) == [["A", other, "B"]]
            shown = fabric.call("policies", check=False)
            assert shown.status == DEGRADED
            assert re.search(rf"drained +{switch} +yes +is drained: .* may be taken down", shown.stdout)
            before = passing(net, switch)
            net.place.ip(f"link set A-{switch} down")
            net.place.ip(f"link set B-{switch} down")
            assert passing(net, switch) <= before + 5
            wait_until(lambda: len(fabric.api_get("status")["lost_links"]) == 4, what="the loss", timeout=20)
            net.place.ip(f"link set A-{switch} up")
            net.place.ip(f"link set B-{switch} up")
            wait_until(lambda: len(fabric.api_get("status")["links"]) == 8, what="its links", timeout=30)
            assert fabric.call("undrain", switch).stdout == f"{switch} is used again\n"
            wait_until(lambda: len(ways(fabric)) == 2 and not fabric.codes(), what="both paths", timeout=30)
    assert {("drained", "P"), ("drained", "Q")} <= told(fabric)
    reasons = {each.get("why") for each in used(fabric)}
    assert "A>P>B is left: a switch of it is drained by the operator" in reasons


def test_a_link_is_forbidden_and_permitted_without_loss(net: OvsNetwork, fabric: Fabric) -> None:
    for number, (switch, other) in enumerate((("P", "Q"), ("Q", "P"))):
        with nothing_lost(net, "x", "y", log=f"forbid{number}"):
            said = fabric.call("forbid", "A", switch).stdout
            assert said == f"A – {switch} is forbidden: 1 link, in both directions\n"
            in_force(fabric, "link-forbidden")
            wait_until(lambda: ways(fabric) == [["A", other, "B"]], what="the other path", timeout=20)  # noqa: B023
            cut = fabric.call("forbid", "A", other, check=False)
            assert cut.status == 1
            assert "would cut A off from the other switches; --force does it all the same" in cut.stderr
            fabric.call("permit", "A", switch)
            wait_until(lambda: len(ways(fabric)) == 2 and not fabric.codes(), what="both paths", timeout=30)


def test_edges_and_hosts_are_pinned_without_loss(net: OvsNetwork, fabric: Fabric) -> None:
    x, y = net.stations["x"], net.stations["y"]
    for number, switch in enumerate(("P", "Q")):
        with nothing_lost(net, "x", "y", log=f"pin{number}"):
            fabric.call("pin", "ha", "hb", "A", switch, "B")
            said = fabric.call("pin", x.mac, y.mac, "A", switch, "B").stdout
            assert said == f"{x.mac} – {y.mac} is pinned to A → {switch} → B, in both directions\n"
            wait_until(lambda: ways(fabric) == [["A", switch, "B"]], what="the path", timeout=20)  # noqa: B023
            wait_until(
                lambda: all(each["used"] for each in fabric.api_get("policies")["pinned"]), what="both", timeout=20
            )
            wait_until(lambda: not fabric.api_get("status")["changing"], what="the rules", timeout=20)
            before = passing(net, switch)
            wait_until(lambda: passing(net, switch) > before + 200, what="pings by it", timeout=20)  # noqa: B023
            story = fabric.call("explain", x.mac, y.mac).stdout
            assert f"A → {switch} → B, to which the operator pinned them" in story
            fabric.call("unpin", y.mac, x.mac)
            fabric.call("unpin", "hb", "ha")
            wait_until(lambda: len(ways(fabric)) == 2 and not fabric.codes(), what="both paths", timeout=30)


def test_a_policy_outlives_the_controller_and_loses_nothing(net: OvsNetwork, fabric: Fabric) -> None:
    fabric.call("drain", "P")
    in_force(fabric, "drained")
    assert fabric.process is not None
    with nothing_lost(net, "x", "y", log="restart"):
        fabric.process.signal(signal.SIGKILL)
        fabric.process.wait()
        wait_until(lambda: not net.connected("A"), what="the switch to notice", timeout=20)
        fabric.start()
        in_force(fabric, "drained")
        assert ways(fabric) == [["A", "Q", "B"]]
    unknown = fabric.call("drain", "Z", check=False)
    assert (unknown.status, "Z: no switch is known" in unknown.stderr) == (2, True)
    refused = fabric.call("drain", "Q", check=False)
    assert refused.status == 1
    assert "draining Q would cut B off" in refused.stderr
    fabric.call("undrain", "P")
    wait_until(lambda: len(ways(fabric)) == 2 and not fabric.codes(), what="both paths", timeout=30)
