"""`braid measure`: capacity by a transfer over one uplink or by trains of packets, and its use by the daemon."""

from __future__ import annotations

from typing import Any

import pytest

from braid_lab.experiments.measure.capacity import IP_SHARE, TRANSFERS
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.process import wait_until
from braid_lab.product import Braid
from conftest import MakeNetwork, StartBraid, on_every_datapath

FAILED, USAGE, DEGRADED = 1, 2, 4
SLOW = UplinkSpec("dsl", LinkSpec(rate="8Mbit/s", delay="10ms", queue="100ms"))
FAST = UplinkSpec("lte", LinkSpec(rate="20Mbit/s", delay="10ms", queue="100ms"))


@pytest.fixture
def lines(make_network: MakeNetwork) -> Topology:
    return make_network(SLOW, FAST)


def stream(net: Topology) -> str:
    return f"http://{net.server()}/stream"


def uplink(daemon: Braid, name: str) -> dict[str, Any]:
    uplinks: list[dict[str, Any]] = daemon.json("uplinks")["uplinks"]
    return next(each for each in uplinks if each["name"] == name)


def test_a_transfer_tells_each_lines_capacity_and_the_daemon_keeps_it(
    lines: Topology, start_braid: StartBraid
) -> None:
    file = lines.scratch / "capped.toml"
    file.write_text('policy = "wrr"\n[[uplink]]\ndevice = "lte"\n[[uplink]]\ndevice = "dsl"\n')
    daemon = start_braid(lines, "--config", file)
    report = daemon.json("measure", "--all", "--url", stream(lines))
    assert report["failed"] == []
    rates = {each["uplink"]: each["rate_bit_s"] / 1e6 for each in report["measurements"]}
    assert rates["dsl"] == pytest.approx(8 * 1500 / 1514, rel=0.06)
    assert rates["lte"] == pytest.approx(20 * 1500 / 1514, rel=0.06)
    for each in report["measurements"]:
        assert each["saturated"]
        assert each["took_ms"] < 4000
        # No more than the line can have carried, both ways and with headers.
        assert each["spent_bytes"] * 8 / 1e6 < 1.3 * rates[each["uplink"]] * (each["took_ms"] / 1e3 + 0.5)
    for name, rate in rates.items():
        known = uplink(daemon, name)["rx_capacity"]
        assert (known["basis"], known["rate_bit_s"]) == ("transfer", pytest.approx(rate * 1e6, abs=1))
    assert "transfer" in daemon.call("uplinks").stdout
    # Weights follow it within a second or two, since none are configured.
    wait_until(lambda: uplink(daemon, "lte")["share"] > 1.5 * uplink(daemon, "dsl")["share"], what="shares to follow")


def test_uploads_are_measured_too(lines: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(lines)
    url = f"http://{lines.server()}/sink"
    (found,) = daemon.json("measure", "dsl", "--url", url, "--direction", "up")["measurements"]
    assert found["rate_bit_s"] / 1e6 == pytest.approx(8 * 1500 / 1514, rel=0.06)
    assert uplink(daemon, "dsl")["tx_capacity"]["basis"] == "transfer"
    assert "rx_capacity" not in uplink(daemon, "lte")


def test_trains_of_packets_tell_each_direction_for_little(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    line = LinkSpec(rate_down="8Mbit/s", rate_up="2Mbit/s", delay="10ms", queue="100ms")
    net = make_network(UplinkSpec("dsl", line))
    daemon = start_braid(net)
    expected = {"down": 8 * IP_SHARE, "up": 2 * IP_SHARE}
    for direction, path, capacity in (("down", "stream", "rx_capacity"), ("up", "sink", "tx_capacity")):
        words = ("--method", "dispersion", "--direction", direction)
        url = f"http://{net.server()}/{path}"
        (found,) = daemon.json("measure", "dsl", *words, "--url", url)["measurements"]
        assert found["rate_bit_s"] / 1e6 == pytest.approx(expected[direction], rel=0.15), found
        assert found["method"] == "dispersion"
        assert found["spent_bytes"] < 300_000
        if found["saturated"]:
            known = uplink(daemon, "dsl")[capacity]
            assert (known["basis"], known["rate_bit_s"]) == ("dispersion", found["rate_bit_s"])
            assert "dispersion" in daemon.call("uplinks").stdout
    # Echo replies come as far apart as the slower direction lets the requests through.
    for direction, is_known in (("up", True), ("down", False)):
        words = ("--method", "dispersion", "--direction", direction)
        (found,) = daemon.json("measure", "dsl", *words)["measurements"]
        assert found["rate_bit_s"] / 1e6 == pytest.approx(expected["up"], rel=0.15), found
        assert is_known or not found["saturated"], "the other direction is faster"
    # Round trips grow by the time that both directions need for a byte.
    (found,) = daemon.json("measure", "dsl", "--method", "variable-packet-size")["measurements"]
    mean = 2 / sum(1 / rate for rate in expected.values())
    assert found["rate_bit_s"] / 1e6 == pytest.approx(mean, rel=0.2), found
    assert uplink(daemon, "dsl")["rx_capacity"]["rate_bit_s"] != found["rate_bit_s"]


def test_errors_say_what_to_do_next(lines: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(lines)
    server = lines.server()
    for words, status, said in (
        (("dsl",), USAGE, "--url names a file"),
        (("dsl", "--method", "dispersion", "--target", "192.0.2.77"), FAILED, "name another --target"),
        (("dsl", "--method", "dispersion", "--url", f"http://{server}/nothing"), FAILED, "status 404"),
        (("dsl", "--method", "dispersion", "--url", f"http://{server}/bytes/500"), FAILED, "too small"),
        (("vdsl", "--url", stream(lines)), USAGE, "there are"),
        (("dsl", "--url", "ftp://example.org"), USAGE, "http://"),
        (("dsl", "--url", f"http://{server}/nothing"), FAILED, "status 404"),
        (("dsl", "--url", f"http://{server}/bytes/1000"), FAILED, "1000 bytes"),
        (("dsl", "--url", f"http://{server}:81/"), FAILED, "cannot connect to"),
        ((), USAGE, "UPLINK"),
    ):
        answer = daemon.call("measure", *words, check=False)
        assert answer.status == status, (words, answer)
        assert said in answer.stderr, (words, answer)
    lines.host.ip("link set dsl down")
    wait_until(lambda: uplink(daemon, "dsl")["state"] == "down", what="the lost carrier")
    answer = daemon.call("measure", "--all", "--url", stream(lines), check=False)
    assert answer.status == DEGRADED, answer
    assert "dsl is down" in answer.stdout


def test_a_configured_capacity_stays_a_ceiling(lines: Topology, start_braid: StartBraid) -> None:
    file = lines.scratch / "ceiling.toml"
    file.write_text(
        'policy = "wrr"\n[[uplink]]\ndevice = "lte"\ncapacity = "8 Mbit/s"\n'
        '[[uplink]]\ndevice = "dsl"\ncapacity = "8 Mbit/s"\n'
    )
    daemon = start_braid(lines, "--config", file)
    daemon.json("measure", "--all", "--url", stream(lines))
    assert uplink(daemon, "lte")["rx_capacity"]["rate_bit_s"] > 18e6
    assert uplink(daemon, "lte")["share"] == pytest.approx(0.5, abs=0.03)


#: Without offloads, as Open vSwitch needs it.
ONLY = UplinkSpec("lte", LinkSpec(rate="20Mbit/s", delay="20ms", queue="200ms"), offload=False)


@on_every_datapath
@pytest.mark.parametrize("direction", ["down", "up"])
def test_transfers_of_programs_show_what_a_line_carries(
    make_network: MakeNetwork, start_braid: StartBraid, direction: str
) -> None:
    net = make_network(ONLY, serving=("iperf3",))
    daemon = start_braid(net)
    words = ["iperf3", "--client", net.server(), "--time", "8", "--parallel", str(TRANSFERS)]
    net.host.run([*words, *(["--reverse"] if direction == "down" else [])])
    found = uplink(daemon, "lte")["rx_capacity" if direction == "down" else "tx_capacity"]
    assert found["basis"] == "saturated", found
    assert found["rate_bit_s"] == pytest.approx(20e6 * IP_SHARE, rel=0.1)
