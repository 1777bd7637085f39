"""The daemon's reports on races and on the path cache, and what the cache keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from braid_lab.datapath import Datapath
from braid_lab.net.faults import unplugged
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.observe import ask_tcp, ask_udp, by_uplink, states
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid
from conftest import MakeNetwork, StartBraid, configured

#: A near path and a far one, with round trips of 15 ms and 60 ms.
NEAR = UplinkSpec("dsl", LinkSpec(rate="40Mbit/s", delay="7500us", queue="100ms"))
FAR = UplinkSpec("lte", LinkSpec(rate="40Mbit/s", delay="30ms", queue="100ms"))

CONFIGURATION = """
policy = "{policy}"
[race]
explore_one_in = 0
metered = {asked}
[[uplink]]
name = "dsl"
device = "dsl"
{capacity}
[[uplink]]
name = "lte"
device = "lte"
metered = {metered}
{capacity}
"""
CAPACITY = 'capacity = "40 Mbit/s"'


both_datapaths = pytest.mark.parametrize("datapath", ["ebpf", "packet-in"], indirect=True)


def racing(
    net: Topology,
    policy: str = "race",
    *,
    metered: bool = False,
    asked: bool = False,
    capacity: str = "",
) -> Path:
    words = {True: "true", False: "false"}
    text = CONFIGURATION.format(policy=policy, metered=words[metered], asked=words[asked], capacity=capacity)
    return configured(net, text)


def explained(daemon: Braid, net: Topology, family: int, *words: str) -> dict[str, Any]:
    (answer,) = daemon.json("explain", net.server(1, family), *words)["answers"]
    return dict(answer)


def ways(daemon: Braid, net: Topology, family: int) -> dict[str, dict[str, Any]]:
    """Return the path cache's entry for the servers' network, by uplink; empty if there is none."""
    path = explained(daemon, net, family)["path_cache"] or {"paths": []}
    return {way["uplink"]: way for way in path["paths"]}


def both_count(daemon: Braid, net: Topology, family: int) -> bool:
    found = ways(daemon, net, family)
    return set(found) == {"dsl", "lte"} and all(way["valid"] for way in found.values())


def learn_both(daemon: Braid, net: Topology) -> None:
    """Open a connection, which teaches the round trips by both uplinks."""
    ask_tcp(net.host, 1, net.server())
    wait_until(lambda: both_count(daemon, net, 4), what="both round trips to be remembered")


@both_datapaths
def test_a_race_is_told_and_remembered(make_network: MakeNetwork, start_braid: StartBraid, family: int) -> None:
    net = make_network(NEAR, FAR)
    daemon = start_braid(net, "--config", racing(net))
    before = explained(daemon, net, family)
    assert before["outcome"] == "raced", before
    assert [(each["uplink"], each["share"]) for each in before["candidates"]] == [("dsl", None), ("lte", None)]
    assert explained(daemon, net, family, "--protocol", "udp")["outcome"] == "shared"

    assert by_uplink(net, ask_tcp(net.host, 1, net.server(1, family))) == {"dsl": 1, "lte": 0}
    wait_until(lambda: both_count(daemon, net, family), what="both round trips to be remembered")
    found = ways(daemon, net, family)
    # The first packet on a line may have to resolve its gateway's address first.
    assert 14 < found["dsl"]["rtt_ms"] < 55, found
    assert 59 < found["lte"]["rtt_ms"] < 150, found
    listed = daemon.json("paths")["destinations"]
    assert {way["uplink"] for path in listed for way in path["paths"]} == {"dsl", "lte"}

    after = explained(daemon, net, family)
    assert (after["outcome"], after["uplink"]) == ("uplink", "dsl"), after
    assert any(step["stage"] == "race" and step["text"].startswith("remembered: dsl") for step in after["steps"]), (
        after
    )
    assert explained(daemon, net, family, "--protocol", "udp")["uplink"] == "dsl"
    # The prediction matches the actual choice.
    assert by_uplink(net, ask_tcp(net.host, 3, net.server(1, family))) == {"dsl": 3, "lte": 0}
    for seen in ask_udp(net.host, 3, net.server(1, family)):
        assert by_uplink(net, seen) == {"dsl": 1, "lte": 0}

    def counted() -> bool:
        reasons = daemon.json("status")["reasons"]
        return (reasons["race_begun"], reasons["race_won"]) == (1, 1) and reasons["path_remembered"] >= 6

    wait_until(counted, what="one race, and six flows by the cache")


@both_datapaths
def test_the_memory_outlives_daemon_and_datapath(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(NEAR, FAR)
    daemon = start_braid(net, "--config", racing(net))
    learn_both(daemon, net)
    first = ways(daemon, net, 4)

    daemon.kill9()
    daemon.up("--config", racing(net))
    assert both_count(daemon, net, 4), "the datapath went on remembering"

    daemon.call("down")
    kept = daemon.run_dir / "path-cache.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    daemon.up("--config", racing(net))
    assert not kept.exists(), "read once"
    wait_until(lambda: both_count(daemon, net, 4), what="both round trips to be known again")
    again = ways(daemon, net, 4)
    assert {name: way["rtt_ms"] for name, way in again.items()} == {
        name: way["rtt_ms"] for name, way in first.items()
    }
    assert all(again[name]["age_ms"] >= first[name]["age_ms"] for name in again), (first, again)

    # Without races nothing is kept, and earlier entries are removed.
    daemon.call("down")
    assert kept.exists()
    daemon.call("down")
    assert not daemon.run_dir.exists()
    daemon.up("--config", racing(net, "rr"))
    ask_tcp(net.host, 2, net.server())
    daemon.call("down")
    assert not daemon.run_dir.exists()


def test_losses_by_the_load_of_earlier_flows_are_left_out_from_the_start(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    """`race` fills the near line until it loses packets; the first flows under `fastest` may follow at once."""
    net = make_network(NEAR, FAR)
    daemon = start_braid(net, "--config", racing(net))
    learn_both(daemon, net)
    daemon.call("down")
    kept = daemon.run_dir / "path-cache.json"
    saved = json.loads(kept.read_text())
    (near,) = [way for path in saved["paths"] for way in path["uplinks"] if way["device"] == "dsl"]
    near |= {"packets": 10_000, "lost": 1_000}
    kept.write_text(json.dumps(saved))
    daemon.up("--config", racing(net, "fastest"))
    found = explained(daemon, net, 4)
    assert ways(daemon, net, 4)["dsl"]["lost_packets"] >= 1_000
    assert found["uplink"] == "dsl", found


@both_datapaths
def test_what_was_learned_is_void_when_an_uplink_has_failed(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    net = make_network(NEAR, FAR)
    daemon = start_braid(net, "--config", racing(net))
    learn_both(daemon, net)
    with unplugged(net.uplinks["dsl"]):
        wait_until(lambda: states(daemon).get("dsl") == "down", what="dsl to be seen down")
    wait_until(lambda: states(daemon).get("dsl") == "up", what="dsl to be back", timeout=20)

    def only_the_other_counts() -> bool:
        counts = {name: way["valid"] for name, way in ways(daemon, net, 4).items()}
        return counts == {"dsl": False, "lte": True}

    wait_until(only_the_other_counts, what="the round trip by dsl to be void")
    assert explained(daemon, net, 4)["outcome"] == "raced"


def test_metered_uplinks_race_when_asked(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(NEAR, FAR)
    daemon = start_braid(net, "--config", racing(net, metered=True))
    assert explained(daemon, net, 4)["outcome"] == "shared"
    racing(net, metered=True, asked=True)
    daemon.call("reload")
    assert explained(daemon, net, 4)["outcome"] == "raced"


@both_datapaths
def test_the_fastest_is_predicted_by_what_is_left(
    make_network: MakeNetwork, start_braid: StartBraid, datapath: Datapath
) -> None:
    near, far = (LinkSpec(rate="40Mbit/s", delay=delay, queue="100ms") for delay in ("5ms", "15ms"))
    net = make_network(UplinkSpec("dsl", near), UplinkSpec("lte", far))
    # The counters of a switch come once a second, so a rate seen in them exceeds the line's by up to a fifth.
    capacity = CAPACITY if datapath != "ebpf" else ""
    daemon = start_braid(net, "--config", racing(net, "fastest", capacity=capacity))
    learn_both(daemon, net)

    def predicted() -> dict[str, float]:
        return {name: way["predicted_ms"] or 0 for name, way in ways(daemon, net, 4).items()}

    wait_until(lambda: 0 < predicted()["dsl"] < predicted()["lte"] < 2000, what="the near line to be predicted")
    assert explained(daemon, net, 4)["uplink"] == "dsl"
    # A download also takes the near line, and fills it.
    words = ["curl", "-sSf", "-o", "/dev/null", f"http://{net.server(8)}/bytes/200000000"]
    with Process(words, log=net.scratch / "download", namespace=net.host.name):
        wait_until(lambda: explained(daemon, net, 4)["uplink"] == "lte", what="the far line to be better", timeout=20)
        assert by_uplink(net, ask_tcp(net.host, 3, net.server()))["lte"] >= 2
