"""Alarms: who is told what, and when."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braid_lab.net.faults import unplugged
from braid_lab.net.topology import Topology
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid
from braid_lab.servers.catalog import READY
from braid_lab.servers.certificate import Certificate
from conftest import LINES, MakeNetwork, StartBraid, configured


class Inbox:
    """The messages that a server has taken."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def messages(self, kind: str) -> list[dict[str, Any]]:
        """Return those of one kind, oldest first."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        messages = [json.loads(line) for line in lines]
        return [message for message in messages if message["kind"] == kind]

    def changes(self) -> list[tuple[str, str, str]]:
        """Return alarm, subject and state of each change that came by webhook."""
        bodies = [message["body"] for message in self.messages("webhook")]
        return [(one["alarm"], one["subject"], one["state"]) for body in bodies for one in body["changes"]]


@pytest.fixture
def net(make_network: MakeNetwork) -> Topology:
    """Two lines, and no web server where the messages go."""
    return make_network(*LINES, serving=("dns",))


@pytest.fixture
def inbox(net: Topology, tmp_path: Path) -> Iterator[Inbox]:
    """A server of messages in the internet. The authority that vouches for it is in `authority.pem`."""
    path, authority = tmp_path / "messages.jsonl", Certificate.authority()
    authority.write(tmp_path / "authority.pem")
    authority.issue(net.server(1), authority.key).write(tmp_path / "server.pem")
    argv = [
        sys.executable,
        "-m",
        "braid_lab.servers.messages",
        net.server(1),
        str(path),
        str(tmp_path / "server.pem"),
    ]
    with Process(argv, log=tmp_path / "messages", namespace=net.internet.name) as server:
        server.wait_output(READY)
        yield Inbox(path)


def alarms(net: Topology, script: Path) -> str:
    """Return a configuration that tells of a dead line after a second, in every way."""
    return f"""
        policy = "rr"
        [[alarm]]
        name = "line"
        when = "uplink-dead"
        for = "1 s"
        webhook = "http://{net.server(1)}/hook/secret"
        mail = "me@lab.invalid"
        command = ["{script}", "with", "words"]

        [[alarm]]
        name = "internet"
        when = "no-uplink"
        for = "0 s"
        webhook = "http://{net.server(1)}/hook/secret"

        [mail]
        server = "{net.server(1)}"
        encryption = "none"
        from = "braid@lab.invalid"
    """


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A command that keeps its words and its input."""
    path = tmp_path / "told.sh"
    path.write_text(f'#!/bin/sh\n{{ echo "$@"; cat; echo; }} >>{tmp_path}/told\n')
    path.chmod(0o755)
    return path


def test_a_dead_line_is_told_in_every_way_and_its_return_too(
    net: Topology, inbox: Inbox, start_braid: StartBraid, script: Path
) -> None:
    daemon = start_braid(net, "--config", configured(net, alarms(net, script)))
    assert daemon.json("alarm", "list")["alarms"][0]["raised"] == []
    with unplugged(net.uplinks["lte"]):
        wait_until(lambda: ("line", "lte", "raised") in inbox.changes(), what="the alarm", timeout=10)
        wait_until(lambda: inbox.messages("mail") != [], what="the e-mail", timeout=10)
        shown = daemon.call("alarm", "list", check=False)
        assert shown.status == 4
        assert "RAISED" in shown.stdout
        assert "secret" not in shown.stdout
    assert inbox.changes() == [("line", "lte", "raised")]
    [mail] = inbox.messages("mail")
    assert mail["to"] == "me@lab.invalid"
    assert "ALARM: line, lte: down" in mail["subject"]
    assert "ALARM: line, lte: down" in mail["text"]
    words, message = (script.parent / "told").read_text().splitlines()[:2]
    assert words == "with words"
    assert json.loads(message)["changes"][0]["subject"] == "lte"


def _saved(daemon: Braid) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((daemon.run_dir / "alarms.json").read_text())
    return saved


def test_the_end_of_an_alarm_is_told_by_the_next_daemon(
    net: Topology, inbox: Inbox, start_braid: StartBraid, script: Path
) -> None:
    config = configured(net, alarms(net, script))
    daemon = start_braid(net, "--config", config)
    with unplugged(net.uplinks["lte"]):
        wait_until(lambda: ("line", "lte", "raised") in inbox.changes(), what="the alarm", timeout=10)
        # A message that was taken within the last second may come twice after a crash.
        wait_until(lambda: _saved(daemon)["waiting"] == [], what="the state to be saved")
        daemon.kill9()
        daemon.up("--config", config)
    wait_until(lambda: ("line", "lte", "cleared") in inbox.changes(), what="the all-clear", timeout=30)
    assert inbox.changes() == [("line", "lte", "raised"), ("line", "lte", "cleared")]


def test_what_cannot_be_told_is_told_later(
    net: Topology, inbox: Inbox, start_braid: StartBraid, script: Path
) -> None:
    daemon = start_braid(net, "--config", configured(net, alarms(net, script)))
    with unplugged(net.uplinks["lte"]), unplugged(net.uplinks["dsl"]):

        def failing() -> list[str]:
            return [each["destination"] for each in daemon.json("alarm", "list")["failing"]]

        wait_until(lambda: len(failing()) == 2, what="failed attempts", timeout=40)
        assert f"webhook http://{net.server(1)}" in failing()
        codes = [each["code"] for each in daemon.json("status")["health"]]
        assert codes.count("alarm-undelivered") == 2
        assert inbox.messages("webhook") == []
    wait_until(lambda: ("internet", "all uplinks", "cleared") in inbox.changes(), what="the messages", timeout=60)
    assert ("internet", "all uplinks", "raised") in inbox.changes()


def test_a_trial_says_which_destination_fails(
    net: Topology, inbox: Inbox, start_braid: StartBraid, script: Path
) -> None:
    daemon = start_braid(net, "--config", configured(net, alarms(net, script)))
    trial = daemon.json("alarm", "test")
    assert [result.get("error") for result in trial["results"]] == [None, None, None]
    [body] = [message["body"] for message in inbox.messages("webhook")]
    assert body["test"]
    assert body["changes"] == []
    script.write_text("#!/bin/sh\necho no such room >&2\nexit 3\n")
    failed = daemon.call("alarm", "test", "line", check=False)
    assert failed.status == 4
    assert "no such room" in failed.text
    unknown = daemon.call("alarm", "test", "lime", check=False)
    assert unknown.status == 2
    assert "no alarm is called" in unknown.text


@pytest.mark.parametrize(("encryption", "port"), [("tls", 465), ("starttls", 587)])
def test_messages_are_encrypted_for_servers_that_the_machine_trusts_and_for_no_other(
    net: Topology,
    inbox: Inbox,
    start_braid: StartBraid,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encryption: str,
    port: int,
) -> None:
    text = f"""
        [[alarm]]
        name = "line"
        when = "uplink-dead"
        webhook = "https://{net.server(1)}/hook"
        mail = "me@lab.invalid"

        [mail]
        server = "{net.server(1)}"
        encryption = "{encryption}"
        from = "braid@lab.invalid"
    """
    daemon = start_braid(net, "--config", configured(net, text))
    refused = [result["error"] for result in daemon.json("alarm", "test")["results"]]
    assert ["certificate" in error for error in refused] == [True, True]
    daemon.down()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    daemon.up("--config", configured(net, text))
    trial = daemon.json("alarm", "test")
    assert [result.get("error") for result in trial["results"]] == [None, None]
    assert [message["port"] for message in inbox.messages("webhook")] == [443]
    assert [message["port"] for message in inbox.messages("mail")] == [port]
