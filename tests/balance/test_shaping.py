"""`[shape]`: bulk transfers leave the queue of a line short, and nothing of it stays when it is off."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from braid_lab.fixtures import serve
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid
from conftest import MakeNetwork, StartBraid, configured

#: A queue of 300 ms, as in a modem.
LINE = UplinkSpec("line", LinkSpec(rate="10Mbit/s", delay="10ms", queue="300ms"))
OFF, ON = "", "[shape]\nenabled = true\n"


@pytest.fixture
def net(make_network: MakeNetwork) -> Topology:
    return make_network(LINE)


def shaping(daemon: Braid, direction: str = "rx") -> dict[str, Any] | None:
    (uplink,) = daemon.json("uplinks")["uplinks"]
    found: dict[str, Any] | None = uplink.get(f"{direction}_shaping")
    return found


def download(net: Topology) -> Process:
    argv = ["iperf3", "--client", net.server(), "--time", "60", "--parallel", "4", "--reverse"]
    return Process(argv, log=net.scratch / "download", namespace=net.host.name)


def pings(net: Topology, count: int) -> float:
    """Return the median round trip of pings, ms."""
    out = net.host.run(["ping", "-i", "0.05", "-c", str(count), net.server(2)], timeout=30).stdout
    return statistics.median(float(line.split("time=")[1].split()[0]) for line in out.splitlines() if "time=" in line)


def test_a_download_leaves_pings_alone_and_a_reload_switches_it(net: Topology, start_braid: StartBraid) -> None:
    serve(net, "iperf3")
    file = configured(net, OFF)
    daemon = start_braid(net, "--config", file)
    assert shaping(daemon) is None
    with download(net):
        wait_until(lambda: pings(net, 5) > 100, what="a queue", timeout=20)
        file.write_text(ON)
        daemon.call("reload")
        assert shaping(daemon) is not None
        wait_until(lambda: (shaping(daemon) or {}).get("rate_bit_s"), what="a rate", timeout=20)
        wait_until(lambda: pings(net, 20) < 60, what="a short queue", timeout=30)
        found = shaping(daemon)
        assert found and found["dropped_packets"] > 0
        assert 5e6 < found["rate_bit_s"] < 10.5e6
        assert "shaped to: down" in daemon.call("uplinks").stdout
        file.write_text(OFF)
        daemon.call("reload")
        assert shaping(daemon) is None
        wait_until(lambda: pings(net, 5) > 100, what="the queue again", timeout=30)


def test_a_configured_capacity_is_a_ceiling(net: Topology, start_braid: StartBraid) -> None:
    (name,) = net.uplinks
    file = configured(net, f'{ON}[[uplink]]\ndevice = "{name}"\ncapacity = "4 Mbit/s"\n')
    daemon = start_braid(net, "--config", file)
    wait_until(lambda: (shaping(daemon, "tx") or {}).get("rate_bit_s"), what="a rate", timeout=10)
    found = shaping(daemon, "tx")
    assert found and found["rate_bit_s"] == pytest.approx(0.97 * 4e6, rel=0.001)


def test_down_leaves_nothing(net: Topology, start_braid: StartBraid) -> None:
    before = net.host.run(["tc", "qdisc", "show"]).stdout
    daemon = start_braid(net, "--config", configured(net, ON))
    pins = daemon.run_dir / "bpf" / "balance" / "datapath" / "links"
    assert [each.name for each in pins.iterdir() if each.name.startswith("braid_shape-")]
    daemon.down()
    assert not pins.exists()
    assert net.host.run(["tc", "qdisc", "show"]).stdout == before


def test_an_upload_leaves_pings_alone_and_takes_the_line(net: Topology, start_braid: StartBraid) -> None:
    """Small packets overtake those that wait on the device, so no queue stands in the line."""
    (name,) = net.uplinks
    serve(net, "iperf3")
    before = net.host.run(["tc", "qdisc", "show"]).stdout
    daemon = start_braid(net, "--config", configured(net, ON))
    argv = ["iperf3", "--client", net.server(), "--time", "60", "--parallel", "4"]
    with Process(argv, log=net.scratch / "upload", namespace=net.host.name):
        wait_until(lambda: (shaping(daemon, "tx") or {}).get("rate_bit_s", 0) > 8e6, what="the rate", timeout=30)
        assert "htb" in net.host.run(["tc", "qdisc", "show", "dev", name]).stdout
        wait_until(lambda: pings(net, 20) < 35, what="a short queue", timeout=30)
    daemon.down()
    assert net.host.run(["tc", "qdisc", "show"]).stdout == before
