"""The controller's process: its log, its metrics, its run directory, and its end."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.request
from pathlib import Path

from braid_lab.fabric.controller import Fabric
from braid_lab.process import run, wait_until
from braid_lab.product import DEGRADED, binary

CONFIG = """
listen = "127.0.0.1:0"
[metrics]
listen = "127.0.0.1:{port}"
[[switch]]
id = "1"
name = "A"
[[edge]]
name = "ha"
switch = "A"
port = "x"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_it_logs_serves_metrics_and_ends_without_a_complaint(tmp_path: Path) -> None:
    port = free_port()
    fabric = Fabric(None, tmp_path, CONFIG.format(port=port), "--log", "json")
    host, _, number = fabric.start().rpartition(":")
    process = fabric.process
    assert process is not None
    try:
        revision = fabric.api_get("edges/ha")["revision"]
        poll = socket.socket(socket.AF_UNIX)
        poll.connect(str(tmp_path / "fabric.sock"))
        poll.sendall(f"POST /v1/fabric/edges/ha/report?revision={revision}&wait=60 HTTP/1.1\r\n\r\n".encode())
        half_open = socket.create_connection((host, int(number)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as told:
            assert told.headers["Content-Type"].startswith("application/openmetrics-text")
            assert b'braid_fabric_health_problems{code="edge-unknown"} 1' in told.read()
        # As a flag of `braid` itself.
        status = run([binary(), "--run-dir", tmp_path, "sdn", "fabric", "status"], check=False)
        assert status.status == DEGRADED
        assert "(edge-unknown)" in status.stdout
        wait_until(lambda: "edge-unknown" in process.stderr(), what="the log")
    finally:
        process.signal(signal.SIGTERM)
        ended = process.wait()
    poll.close()
    half_open.close()
    assert ended.status == 0
    first, *lines = ended.stderr.splitlines()
    assert re.fullmatch(r"ready: switches at .*", first)
    events = [json.loads(line) for line in lines]
    assert [event["event"] for event in events] == ["problem", "stopped"]
    assert (events[0]["level"], events[0]["code"], events[0]["subject"]) == ("warn", "edge-unknown", "ha")
