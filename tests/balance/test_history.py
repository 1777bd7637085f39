"""`braid history`: an uplink's last day, over restarts, crashes and broken files."""

from __future__ import annotations

from typing import Any

from braid_lab.net.topology import Topology
from braid_lab.process import wait_until
from braid_lab.product import Braid
from conftest import StartBraid

USAGE = 2


def points(daemon: Braid, uplink: str, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.json("history", uplink, "--last", "10 min", *words)["points"]
    return found


def download(net: Topology, size: int) -> None:
    net.host.run(["curl", "--silent", "--fail", "--output", "/dev/null", f"http://{net.server()}/bytes/{size}"])


def test_seconds_are_kept_over_a_restart(net: Topology, start_braid: StartBraid) -> None:
    file = net.scratch / "one.toml"
    file.write_text('[[uplink]]\ndevice = "dsl"\n')
    daemon = start_braid(net, "--config", file)
    wait_until(lambda: points(daemon, "dsl"), what="the first second")
    size = 3_000_000
    download(net, size)

    def carried() -> float:
        found: float = sum(point["rx_bit_s"] for point in points(daemon, "dsl")) / 8
        return found

    # Each second has the mean rate since the one before, so their sum is nearly what was carried.
    wait_until(lambda: carried() > 0.9 * size, what="the download in the history")
    assert carried() < 1.4 * size
    assert points(daemon, "dsl")[-1]["state"] == "up"
    before = points(daemon, "dsl")
    daemon.stop()
    stored = daemon.state_dir / "history" / "dsl.history"
    size_on_disk = stored.stat().st_size
    daemon.up("--config", file)
    assert points(daemon, "dsl")[: len(before)] == before
    wait_until(lambda: len(points(daemon, "dsl")) > len(before), what="the history to go on")
    # A crash costs a minute at most: all that the last daemon has written is there.
    daemon.kill9()
    daemon.up("--config", file)
    assert points(daemon, "dsl")[: len(before)] == before
    assert stored.stat().st_size == size_on_disk
    said = daemon.call("history", "dsl", "--last", "10 min").stdout
    assert said.startswith("down │"), said
    assert "STATE" in said, said
    whole = daemon.json("history", "dsl")
    assert whole["step_s"] == 60
    assert whole["points"], whole


def test_a_broken_file_is_named_and_stops_nothing(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    wait_until(lambda: points(daemon, "dsl"), what="the first second")
    daemon.stop()
    stored = daemon.state_dir / "history" / "dsl.history"
    stored.write_bytes(b"rubbish")
    daemon.up()
    health = daemon.json("status")["health"]
    assert [each["code"] for each in health] == ["history-set-aside"], health
    assert str(stored) in health[0]["fix"]
    wait_until(lambda: points(daemon, "dsl"), what="a new history")
    assert points(daemon, "lte"), "the other one goes on"
    stored.with_name("dsl.history.broken").unlink()
    assert daemon.json("status")["health"] == []


def test_errors_and_states(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    wait_until(lambda: points(daemon, "dsl"), what="the first second")
    answer = daemon.call("history", "vdsl", check=False)
    assert answer.status == USAGE, answer
    assert "there are dsl, lte" in answer.stderr
    assert daemon.call("history", "dsl", "--last", "2 days", check=False).status == USAGE
    net.host.ip("link set lte down")
    wait_until(lambda: points(daemon, "lte")[-1]["state"] == "down", what="the state in the history")
    # A longer step has the worst of its states.
    assert points(daemon, "lte", "--step", "10 min")[-1]["state"] == "down"
