"""The dashboard and the alert rules in packaging/, before a real Prometheus that scrapes a real daemon."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from braid_lab.net.topology import Topology
from braid_lab.process import Process, run, wait_until
from braid_lab.product import repository
from conftest import PLAIN, MakeNetwork, StartBraid, configured

PACKAGING = repository() / "packaging"
#: The package's own, of which only the programs are used.
PROGRAMS = repository() / ".tools/prometheus/usr/bin"
METRIC = re.compile(r"\bbraid_[a-z_0-9]+")
#: Address of the server, and of the daemon's metrics.
SERVER, METRICS = "127.0.0.1:9090", "127.0.0.1:9494"


def dashboard_expressions() -> list[str]:
    """Return the queries of the dashboard, with its variables replaced."""
    dashboard = json.loads((PACKAGING / "grafana/braid.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", [])]
    expressions = [target["expr"] for target in targets]
    expressions += [each["expr"] for each in dashboard["annotations"]["list"]]
    return [each.replace("$instance", ".*").replace("$__rate_interval", "10s") for each in expressions]


def known_metrics() -> set[str]:
    """Return the names of all samples, from the daemon's own test."""
    text = (repository() / "crates/braid-daemon/src/metrics/tests.txt").read_text()
    return {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line.startswith("braid_")}


@pytest.mark.parametrize("file", ["grafana/braid.json", "prometheus/braid.rules.yml", "prometheus/tests.yml"])
def test_every_metric_that_they_name_exists(file: str) -> None:
    named = set(METRIC.findall((PACKAGING / file).read_text()))
    assert named
    assert named <= known_metrics()


def test_alerts_are_raised_when_they_should_be() -> None:
    promtool = PROGRAMS / "promtool"
    run([promtool, "check", "rules", PACKAGING / "prometheus/braid.rules.yml"])
    run([promtool, "test", "rules", PACKAGING / "prometheus/tests.yml"])


@contextlib.contextmanager
def prometheus(net: Topology, folder: Path) -> Iterator[None]:
    """Run a server beside the daemon, which it scrapes each second."""
    configuration = folder / "prometheus.yml"
    rules = PACKAGING / "prometheus/braid.rules.yml"
    configuration.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{rules}']\n"
        f"scrape_configs: [{{job_name: braid, static_configs: [{{targets: ['{METRICS}']}}]}}]\n"
    )
    argv: list[str | Path] = [
        PROGRAMS / "prometheus",
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={SERVER}",
    ]
    with Process(argv, log=folder / "prometheus", namespace=net.host.name):
        yield


def query(net: Topology, expression: str) -> list[dict[str, Any]]:
    """Return the samples of a query; none while the server is starting."""
    url = f"http://{SERVER}/api/v1/query?query={quote(expression)}"
    answer = json.loads(net.host.run(["curl", "-sf", url], check=False).stdout or '{"status": "starting"}')
    if answer["status"] == "starting":
        return []
    assert answer["status"] == "success", (expression, answer)
    samples: list[dict[str, Any]] = answer["data"]["result"]
    return samples


def test_a_real_prometheus_sees_a_dead_uplink(
    make_network: MakeNetwork, start_braid: StartBraid, tmp_path: Path
) -> None:
    net = make_network(*PLAIN)
    uplinks = "".join(
        f'[[uplink]]\nname = "{name}"\ndevice = "{name}"\nquota = "50 GB/month"\n' for name in net.uplinks
    )
    start_braid(net, "--config", configured(net, f'{uplinks}[metrics]\nlisten = "{METRICS}"\n'))
    with prometheus(net, tmp_path):
        wait_until(lambda: len(query(net, "braid_uplink_up == 1")) == 2, what="both uplinks", timeout=30)
        # Rates want two samples.
        wait_until(lambda: query(net, "rate(braid_uplink_bytes_total[10s])"), what="rates", timeout=30)
        empty = {each for each in dashboard_expressions() if not query(net, each)}
        # This machine has no bond, raced nothing, and nothing happened for a while.
        allowed = ("braid_bond", "braid_uplink_capacity", "lost_packets", "braid_events")
        assert not [each for each in empty if not any(word in each for word in allowed)]
        net.host.ip("link set lte down")
        alerts = 'ALERTS{alertname="BraidUplinkDown",uplink="lte"}'
        wait_until(lambda: query(net, alerts), what="the alert", timeout=30)
        assert query(net, 'ALERTS{alertname="BraidUplinkDown",uplink="dsl"}') == []
