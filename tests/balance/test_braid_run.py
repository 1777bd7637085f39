"""`braid run`, a program on one uplink: its settings are removed however the program ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from braid_lab.control_groups import hierarchy
from braid_lab.net.topology import Topology
from braid_lab.observe import by_uplink
from braid_lab.process import Process, run, wait_until
from braid_lab.product import Braid, binary
from conftest import StartBraid, on_every_datapath

#: Prints that it is ready, and which signal it received.
PATIENT = "trap 'echo got; exit 5' TERM INT HUP USR1; echo ready; while :; do sleep 0.05; done"


def groups() -> list[str]:
    return [str(group) for group in hierarchy().rglob("braid-run-*")]


def runs(daemon: Braid) -> list[dict[str, object]]:
    said = run(["curl", "-sSf", "--unix-socket", daemon.run_dir / "braid.sock", "http://braid/v1/runs"])
    listed: list[dict[str, object]] = json.loads(said.stdout)["runs"]
    return listed


def on_lte(daemon: Braid, *command: str) -> Process:
    argv: list[str | Path] = [binary(), "--run-dir", daemon.run_dir, "run", "--uplink", "lte", "--", *command]
    return Process(argv, log=daemon.run_dir.parent / "run", namespace=daemon.namespace.name)


def whoami(net: Topology, count: int) -> list[str]:
    return [sys.executable, "-m", "braid_lab.clients.whoami", "tcp", str(count), net.server()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on_and_nothing_stays(
    net: Topology, start_braid: StartBraid, number: signal.Signals
) -> None:
    daemon = start_braid(net)
    with on_lte(daemon, "sh", "-c", PATIENT) as program:
        program.wait_output("ready")
        [known] = runs(daemon)
        assert known["uplink"] == "lte"
        assert len(groups()) == 1
        program.signal(number)
        ended = program.wait(timeout=10)
    assert (ended.status, "got" in ended.stdout) == (5, True), ended.text
    assert runs(daemon) == []
    assert groups() == []
    kinds = [each["kind"] for each in daemon.json("events")["events"]]
    assert kinds[-2:] == ["run-began", "run-ended"]


def test_a_program_that_a_signal_ends_has_a_shells_exit_code(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    for command, status in (("kill -9 $$", 137), ("exit 255", 255), ("true", 0)):
        assert daemon.call("run", "--uplink", "lte", "--", "sh", "-c", command, check=False).status == status
    assert daemon.call("run", "--uplink", "lte", "--", "/no/such/program", check=False).status == 127
    assert daemon.call("run", "--uplink", "lte", "--", "/etc/passwd", check=False).status == 126
    assert (runs(daemon), groups()) == ([], [])


def test_what_goes_on_in_the_background_is_put_back_and_said(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    said = daemon.call("run", "--uplink", "lte", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
    try:
        assert "1 of its processes go on" in said.stderr, said.text
        assert (runs(daemon), groups()) == ([], [])
    finally:
        os.kill(int(said.stdout), signal.SIGKILL)


@on_every_datapath
def test_a_killed_run_keeps_to_its_uplink_and_is_forgotten_when_it_is_over(
    net: Topology, start_braid: StartBraid, tmp_path: Path
) -> None:
    daemon = start_braid(net)
    asks = " ".join(whoami(net, 4))
    door = tmp_path / "door"
    run(["mkfifo", door])
    with on_lte(daemon, "sh", "-c", f"echo ready; read _ < {door}; {asks} > {door}.seen") as program:
        program.wait_output("ready")
        program.signal(signal.SIGKILL)
        program.wait(timeout=10)
    # Neither the kill nor a new daemon lets it use another uplink.
    daemon.kill9()
    daemon.up()
    assert len(runs(daemon)) == 1
    door.write_text("go\n")
    seen = Path(f"{door}.seen")
    wait_until(lambda: seen.exists() and seen.read_text().endswith("]"), what="the program to be done")
    assert by_uplink(net, [tuple(each) for each in json.loads(seen.read_text())]) == {"dsl": 0, "lte": 4}
    wait_until(lambda: runs(daemon) == [], what="the daemon to notice that it is over", timeout=30)
    assert groups() == []


def test_a_run_without_room_for_its_rule_starts_nothing(net: Topology, start_braid: StartBraid) -> None:
    """Otherwise the program would run without the rule, and appear on the other uplink."""
    file = net.scratch / "full.toml"
    kinds = "".join(f'[[rule]]\nport = {n}\nuse = "rr"\nsticky = "{n} s"\n' for n in range(1, 64))
    ports = list(range(1000, 1255))
    for text, what in ((kinds, "63 kinds"), (f'[[rule]]\nport = {ports}\nuse = "lte"\n', "255 rules")):
        file.write_text(text)
        daemon = start_braid(net, "--config", file)
        said = daemon.call("run", "--uplink", "lte", "--", "sh", "-c", "echo started", check=False)
        assert (said.status, said.stdout) == (1, ""), said.text
        assert f"room for {what}" in said.stderr, said.text
        assert (runs(daemon), groups()) == ([], [])
        daemon.down()


def test_rules_and_runs_that_are_too_many_together_are_refused_at_a_reload(
    net: Topology, start_braid: StartBraid
) -> None:
    file = net.scratch / "growing.toml"
    file.write_text("")
    daemon = start_braid(net, "--config", file)
    with on_lte(daemon, "sh", "-c", PATIENT) as program:
        program.wait_output("ready")
        file.write_text(f'[[rule]]\nport = {list(range(1000, 1255))}\nuse = "block"\n')
        refused = daemon.call("reload", check=False)
        assert refused.status == 1, refused.text
        assert "255" in refused.stderr, refused.text
        assert len(runs(daemon)) == 1
        program.signal(signal.SIGTERM)
        program.wait(timeout=10)
    daemon.call("reload")


@pytest.mark.parametrize("datapath", ["packet-in"], indirect=True)
def test_a_run_that_the_bridge_does_not_follow_starts_nothing(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    controller = int((daemon.run_dir / "openflow.lock").read_text())
    os.kill(controller, signal.SIGSTOP)
    try:
        said = daemon.call("run", "--uplink", "lte", "--", "sh", "-c", "echo started", check=False)
    finally:
        os.kill(controller, signal.SIGCONT)
    assert (said.status, said.stdout) == (1, ""), said.text
    assert "does not follow" in said.stderr, said.text
    assert (runs(daemon), groups()) == ([], [])


def test_a_run_without_a_daemon_starts_nothing(net: Topology) -> None:
    daemon = Braid(net.host, net.scratch / "nobody")
    said = daemon.call("run", "--uplink", "lte", "--", "sh", "-c", "echo started", check=False)
    assert (said.status, said.stdout) == (3, ""), said.text
    assert groups() == []
