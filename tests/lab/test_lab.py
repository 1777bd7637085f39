"""The lab itself: it leaves nothing behind, and its workloads match their descriptions."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
from pathlib import Path

import pytest

from braid_lab import report
from braid_lab.clients.page import CONNECTIONS_PER_HOST, LARGEST_BYTES, page
from braid_lab.experiment import Experiment, Run, execute
from braid_lab.machine import CpuTicks
from braid_lab.net import scratch
from braid_lab.net.links import End, LinkSpec, emulated
from braid_lab.net.namespace import clean, namespace
from braid_lab.net.topology import UplinkSpec, network
from braid_lab.process import LabError, Process, run, wait_until
from braid_lab.product import binary, running
from braid_lab.setns import RUN_NETNS


def namespaces(pid: int) -> set[str]:
    return {path.name for path in RUN_NETNS.glob(f"{scratch.PREFIX}{pid}-*")}


def mine() -> set[str]:
    return namespaces(os.getpid())


def test_a_failure_inside_a_topology_leaves_nothing() -> None:
    before = mine()
    with pytest.raises(ZeroDivisionError), network([UplinkSpec("dsl"), UplinkSpec("lte")], lan_clients=2):
        assert len(mine() - before) == 5
        raise ZeroDivisionError
    assert mine() == before


BUILD_AND_WAIT = """
import signal, time
from braid_lab.net.topology import UplinkSpec, network
from braid_lab.process import unwind_on_signals
with unwind_on_signals(), network([UplinkSpec("dsl"), UplinkSpec("lte")]) as net:
    print(net.host.name, flush=True)
    signal.pause()
"""


def test_a_signal_tears_everything_down(tmp_path: Path) -> None:
    with Process([sys.executable, "-c", BUILD_AND_WAIT], log=tmp_path / "lab") as lab:
        host = lab.wait_output(r"^brl-\S+").group()
        assert host in namespaces(lab.pid)
        lab.signal(signal.SIGTERM)
        lab.wait(timeout=10)
        assert not namespaces(lab.pid)
        assert not (scratch.ROOT / str(lab.pid)).exists()


def test_clean_removes_what_a_killed_run_left_and_nothing_else(tmp_path: Path) -> None:
    with namespace("alive") as alive, Process([sys.executable, "-c", BUILD_AND_WAIT], log=tmp_path / "lab") as lab:
        host = lab.wait_output(r"^brl-\S+").group()
        lab.signal(signal.SIGKILL)
        lab.wait(timeout=10)
        assert host in namespaces(lab.pid)
        removed = clean()
        assert host in removed
        assert not namespaces(lab.pid)
        assert alive.name in mine()


BRAID_AND_WAIT = """
import signal
from braid_lab.net.topology import UplinkSpec, network
from braid_lab.product import braid
with network([UplinkSpec("dsl"), UplinkSpec("lte")]) as net, braid(net.host, net.scratch / "braid") as daemon:
    print("daemon", daemon.pid, flush=True)
    signal.pause()
"""


def test_clean_removes_a_killed_runs_daemon_and_its_mount(tmp_path: Path) -> None:
    with Process([sys.executable, "-c", BRAID_AND_WAIT], log=tmp_path / "lab") as lab:
        daemon = int(lab.wait_output(r"^daemon (\d+)").group(1))
        lab.signal(signal.SIGKILL)
        lab.wait(timeout=10)
    assert running(daemon)
    clean()
    assert not running(daemon)
    assert f"/braid-lab/{lab.pid}/" not in Path("/proc/self/mountinfo").read_text()


def test_the_binary_hands_over_to_the_lab() -> None:
    place = Path(sys.executable).parent
    path = {"PATH": f"{place}:/usr/sbin:/usr/bin:/sbin:/bin"}
    assert "demo\n" in run([binary(), "lab", "list", "--names"], env=path).stdout


def test_the_shell_is_on_the_host(tmp_path: Path) -> None:
    script = tmp_path / "shell"
    script.write_text("#!/bin/sh\nbraid uplinks && ip netns identify $$\n")
    script.chmod(0o755)
    done = run([sys.executable, "-m", "braid_lab.cli", "shell", "--lan", "1"], env={"SHELL": str(script)})
    assert "100.64.2.2" in done.stdout
    host = done.stdout.splitlines()[-1]
    assert host.endswith("-gateway")
    assert not (RUN_NETNS / host).exists()


def test_pages_are_as_the_paper_measured() -> None:
    """[host] §4: "The average number of flows is around 42"; sizes of "a few hundred KB or less", "close to 5MB"."""
    pages = [page(1, number) for number in range(100)]
    connections = {sum(min(CONNECTIONS_PER_HOST, len(host)) for host in each.hosts) for each in pages}
    assert connections == {42}
    sizes = [size for each in pages for host in each.hosts for size in host]
    assert statistics.median(sizes) < 100_000
    assert 3_000_000 < max(sizes) <= LARGEST_BYTES
    assert page(1, 7) == page(1, 7) != page(2, 7)


def measured(run: Run) -> None:
    run.measure("ratio", [0.5, 0.7, 0.6], better="lower", paper=0.63)
    run.passes("case", True)
    run.series("raw", [{"run": 1, "value": 0.5}])
    with run.plot("plot") as plot:
        plot.subplots().plot([1, 2, 3])


def test_the_share_of_time_that_other_guests_had_is_of_all_time() -> None:
    before = CpuTicks.parse("cpu  100 10 50 800 20 3 7 10 40 5\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    # The last two columns are part of the first two.
    assert before == CpuTicks(total=1000, idle=820, steal=10)
    after = CpuTicks.parse("cpu  130 10 60 830 20 3 7 40 60 5\n")
    assert after.since(before) == CpuTicks(total=100, idle=30, steal=30)
    assert after.since(before).steal_share == 0.3
    assert after.since(after).steal_share == 0.0


def test_results_say_what_they_are_and_where_from(tmp_path: Path) -> None:
    execute(Experiment("some/thing", "A <thing>", "host §5", measured), form="quick", seed=3, out=tmp_path)
    result = json.loads((tmp_path / "some/thing/result.json").read_text())
    assert {"experiment", "commit", "dirty", "seed", "form", "started", "machine", "failed", "figures"} <= set(result)
    assert result["figures"][0] == {
        "name": "ratio",
        "value": 0.6,
        "unit": "",
        "paper": 0.63,
        "better": "lower",
        "runs": 3,
        "spread": [0.5, 0.7],
    }
    assert {"raw.csv", "plot.svg", "plot.png"} <= {path.name for path in (tmp_path / "some/thing").iterdir()}
    assert report.write(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "A &lt;thing&gt;" in text
    assert "<svg" in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xlink", "")
    assert "https://" not in text


def test_cases_are_chosen_by_name_and_unknown_ones_refused(tmp_path: Path) -> None:
    seen: list[tuple[str, ...]] = []
    some = Experiment("some/thing", "", "", lambda run: seen.append(run.cases(["a", "b"])), cases=("a", "b", "c"))
    execute(some, form="quick", seed=1, out=tmp_path)
    execute(some, form="quick", seed=1, out=tmp_path, cases=["c"])
    assert seen == [("a", "b"), ("c",)]
    with pytest.raises(LabError, match="no case d: there are a, b, c"):
        execute(some, form="quick", seed=1, out=tmp_path, cases=["d"])
    assert json.loads((tmp_path / "some/thing/result.json").read_text())["cases"] == ["c"]


def test_a_missing_binary_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from braid_lab import product

    monkeypatch.setenv("BRAID_BIN", str(tmp_path))
    product.binary.cache_clear()
    try:
        with pytest.raises(LabError, match="make build"):
            product.binary()
    finally:
        monkeypatch.undo()
        product.binary.cache_clear()


def test_emulated_links_carry_swallow_and_vanish() -> None:
    with namespace("near") as near, namespace("far") as far:
        with emulated(
            End(near, "a"), End(far, "b"), LinkSpec(delay="5ms", queue="100ms"), scratch=scratch.directory()
        ) as link:
            near.ip("address add 10.9.0.1/24 dev a")
            far.ip("address add 10.9.0.2/24 dev b")
            words = ["ping", "-c", "1", "-W", "1", "10.9.0.2"]
            near.run(words)
            link.blackhole(True)
            assert near.run(words, check=False).status != 0
            link.blackhole(False)
            near.run(words)
        gone = run(["ip", "-n", near.name, "link", "show", "a"], check=False)
        wait_until(lambda: gone.status != 0, what="the TAP device to go")
