"""An edge that connects to its controller over TCP: both sides must have its key, or nothing is accepted."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braid_lab.fabric.controller import Fabric, controller
from braid_lab.fabric.etcd import etcd
from braid_lab.net.namespace import Namespace, namespace
from braid_lab.process import CommandError, Process, run, wait_until
from braid_lab.product import DEGRADED, binary

WHERE = "127.0.0.1:8653"

CONFIG = """
[[edge]]
name = "far away"
switch = "A"
port = "far"
key_file = "edge.key"
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Namespace]:
    """A machine with the two devices that an edge joins."""
    with namespace("key") as made:
        for device in ("in0", "out0"):
            made.ip(
                f"link add {device} type veth peer name {device}p", f"link set {device} up", f"link set {device}p up"
            )
        yield made


def command(folder: Path) -> list[str | Path]:
    words = ["edge", "run", "--name", "far away", "--inside", "in0", "--outside", "out0"]
    return [binary(), "--run-dir", folder, *words, "--controller", f"http://{WHERE}"]


@contextlib.contextmanager
def edge(place: Namespace, folder: Path, *options: str | Path) -> Iterator[Process]:
    """Run the edge for the length of a block."""
    with Process([*command(folder), *options], log=folder / "edge", namespace=place.name) as process:
        process.wait_output("ready", timeout=20)
        yield process


def status(folder: Path) -> dict[str, Any]:
    said = run([binary(), "--run-dir", folder, "edge", "status", "far away", "--json"], check=False)
    assert said.status in (0, DEGRADED)
    told: dict[str, Any] = json.loads(said.stdout)
    return told


def codes(folder: Path) -> list[str]:
    return [each["code"] for each in status(folder)["health"]]


def test_an_edge_follows_over_tcp_with_its_key_and_with_no_other(place: Namespace, tmp_path: Path) -> None:
    (tmp_path / "edge.key").write_text("the key that both sides have\n")
    other = tmp_path / "other.key"
    other.write_text("the key of somebody else\n")
    with controller(place, tmp_path, CONFIG, "--listen", "127.0.0.1:6653", "--http", WHERE) as fabric:
        with edge(place, tmp_path, "--key-file", tmp_path / "edge.key"):
            wait_until(lambda: status(tmp_path)["generation"] is not None, what="a table", timeout=20)
            assert codes(tmp_path) == []
        with edge(place, tmp_path, "--key-file", other):
            wait_until(lambda: codes(tmp_path), what="to be told why", timeout=20)
            assert codes(tmp_path) == ["key-refused"]
            assert status(tmp_path)["generation"] is None
        # Other clients get neither an answer nor any information.
        told = place.run(["curl", "-sS", "--max-time", "5", f"http://{WHERE}/v1/fabric/status"]).stdout
        assert "error" in json.loads(told)
        assert "switches" not in json.loads(told)
        assert fabric.process is not None
        assert fabric.process.running


def test_an_edge_follows_the_one_that_leads_over_tcp(place: Namespace, tmp_path: Path) -> None:
    key = tmp_path / "edge.key"
    key.write_text("the key that both sides have\n")
    members = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(etcd(tmp_path, place))
        for number in (3, 4):
            folder = tmp_path / str(number)
            folder.mkdir()
            config = f'key_file = "{key}"\n{CONFIG.replace("edge.key", str(key))}'
            config += f'[cluster]\nname = "{number}"\netcd = ["{server.url()}"]\n'
            ports = ("--listen", f"127.0.0.1:665{number}", "--http", f"127.0.0.1:865{number}")
            members.append(stack.enter_context(controller(place, folder, config, *ports)))
        options = ("--controller", "http://127.0.0.1:8654", "--key-file", key)
        with edge(place, tmp_path, *options) as running:
            # The one that does not lead proves that it has the key as well, when it says so.
            running.wait_stderr("waiting until it leads.*does not lead: [34] leads", timeout=30)
            wait_until(lambda: status(tmp_path)["generation"] is not None, what="a table", timeout=20)
            assert codes(tmp_path) == []
            leader, other = sorted(members, key=lambda each: not each.api_get("status")["cluster"]["leads"])
            assert leader.process is not None
            leader.process.signal(signal.SIGKILL)
            leader.process.wait()
            wait_until(lambda: other.api_get("status")["cluster"]["leads"], what="the other one to lead")
            wait_until(lambda: codes(tmp_path) == ["controller-silent"], what="it to be followed", timeout=20)
            assert running.stderr().count(" following") >= 2


def test_an_edge_without_a_key_follows_nobody_over_tcp(place: Namespace, tmp_path: Path) -> None:
    said = run(command(tmp_path), namespace=place.name, check=False, timeout=20)
    assert said.status == 2
    assert "--key-file" in said.stderr


def test_a_controller_that_does_not_know_the_key_is_not_followed(place: Namespace, tmp_path: Path) -> None:
    (tmp_path / "edge.key").write_text("the key that this edge has\n")
    table = {"version": 1, "revision": "1", "generation": 7, "egress": [], "ingress": []}
    body = json.dumps(table)
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    script = (
        "import socket, sys\n"
        "with socket.create_server(('127.0.0.1', 8653)) as server:\n"
        "    print('ready', flush=True)\n"
        "    while True:\n"
        "        peer, _ = server.accept()\n"
        "        with peer:\n"
        "            peer.recv(65536)\n"
        "            peer.sendall(sys.argv[1].encode())\n"
    )
    with Process(["python3", "-c", script, answer], log=tmp_path / "stranger", namespace=place.name) as stranger:
        stranger.wait_output("ready", timeout=20)
        with edge(place, tmp_path, "--key-file", tmp_path / "edge.key"):
            wait_until(lambda: codes(tmp_path), what="to be told why", timeout=20)
            assert codes(tmp_path) == ["controller-refuses"]
            assert status(tmp_path)["generation"] is None


def test_http_without_any_key_is_refused(tmp_path: Path) -> None:
    fabric = Fabric(None, tmp_path, CONFIG.replace('key_file = "edge.key"', ""), "--http", WHERE)
    with pytest.raises(CommandError, match="key_file"):
        fabric.start()
