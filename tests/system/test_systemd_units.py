"""The systemd units: their privileges suffice, and the services report readiness."""

from __future__ import annotations

import contextlib
import grp
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from braid_lab.net.namespace import namespace
from braid_lab.net.scratch import directory
from braid_lab.page import Visitor
from braid_lab.process import Process, run, wait_until
from braid_lab.product import binary, repository

SYSTEMD = repository() / "packaging/systemd"


@pytest.fixture
def folder() -> Path:
    """A folder with a path short enough for sockets."""
    made = directory() / "units"
    made.mkdir(exist_ok=True)
    return made


@contextlib.contextmanager
def service_manager(folder: Path) -> Iterator[tuple[str, socket.socket]]:
    """Receive service notifications as systemd does."""
    path = folder / "notify"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(30)
        yield str(path), listener


def confinement(unit: str) -> list[str | Path]:
    """Return the command prefix that limits a program to its unit's capabilities and address families."""
    text = (SYSTEMD / unit).read_text()
    [left] = re.findall(r"^CapabilityBoundingSet=(.*)$", text, re.MULTILINE)
    bounds = ["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in left.split())]
    [families] = re.findall(r"^RestrictAddressFamilies=(.*)$", text, re.MULTILINE)
    limits = [sys.executable, Path(__file__).parent / "limit_families.py", families]
    return ["setpriv", "--no-new-privs", f"--bounding-set={','.join(bounds)}", "--", *limits]


def test_an_edge_works_as_its_unit_and_its_example_have_it(folder: Path) -> None:
    example = (repository() / "packaging/edge.conf").read_text()
    [options] = re.findall(r"^OPTIONS=(.*)$", example, re.MULTILINE)
    with namespace("edge") as box, service_manager(folder) as (address, listener):
        for inner, outer in (("lan0", "host0"), ("fab0", "switch0")):
            box.ip(f"link add {inner} type veth peer name {outer}", f"link set {inner} up", f"link set {outer} up")
        argv = [*confinement("braid-edge@.service"), binary(), "--run-dir", folder, "edge", "run", "--name", "north"]
        argv += shlex.split(options)
        edge = Process(argv, log=folder / "edge", namespace=box.name, env={"NOTIFY_SOCKET": address})
        try:
            assert listener.recv(100) == b"READY=1\n", edge.stderr()

            def first() -> set[str]:
                tasks = list(Path(f"/proc/{edge.pid}/task").iterdir())
                policy = {task: os.sched_getscheduler(int(task.name)) & ~os.SCHED_RESET_ON_FORK for task in tasks}
                return {(task / "comm").read_text().strip() for task in tasks if policy[task] == os.SCHED_FIFO}

            # The threads that carry packets and probes set their own priority, once they run.
            wait_until(lambda: first() == {"resequencer", "prober"}, what="packets' threads to come first")
            said = run([binary(), "--run-dir", folder, "edge", "status", "north"], namespace=box.name, check=False)
            assert "edge north: lan0 inside, fab0 outside" in said.stdout, said.text
        finally:
            ended = edge.stop()
        assert ended.status == 0, ended.text


#: Largest exposure by `systemd-analyze security`.
MOST_EXPOSED = 2.5

#: Units that are exposed more, and why.
EXCEPTIONS = {
    # Its datapath outlives it, so it has no mounts, devices or namespaces of its own; it loads BPF programs.
    "braid.service": 5.4,
    # A configured port may be below 1024 (CAP_NET_BIND_SERVICE), and a configured group's the socket (CAP_CHOWN).
    "braid-hub.service": 2.6,
    # It loads BPF programs, sends tagged probes, and its packet thread has real-time priority.
    "braid-edge@.service": 3.4,
}


@pytest.mark.parametrize("unit", sorted(each.name for each in SYSTEMD.glob("*.service")))
def test_a_unit_takes_away_what_its_service_does_not_need(unit: str, folder: Path) -> None:
    # Of a template an instance is rated.
    copy = folder / unit.replace("@.", "@x.")
    copy.write_text((SYSTEMD / unit).read_text())
    said = run(["systemd-analyze", "security", "--offline=true", "--no-pager", copy])
    [exposure] = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", said.stdout)
    assert float(exposure) <= EXCEPTIONS.get(unit, MOST_EXPOSED), said.stdout


def test_a_hub_works_as_its_unit_has_it(folder: Path) -> None:
    run_dir, config = folder / "r", folder / "hub.toml"
    with namespace("hub") as box, service_manager(folder) as (address, listener):
        box.ip("link set lo up", "addr add 203.0.113.2/32 dev lo")
        # Any group but root's, and a port that not everybody may have.
        group = next(each.gr_name for each in grp.getgrall() if each.gr_gid)
        config.write_text(f'store = "{folder}/store/hub.redb"\nlisten = 500\ngre = true\n[api]\ngroup = "{group}"\n')
        # As systemd shows a credential: root's, to be read alone.
        credential = folder / "credentials/braid.seal"
        credential.parent.mkdir(mode=0o500, exist_ok=True)
        credential.touch(mode=0o400)
        credential.write_bytes(bytes(32))
        env = {"NOTIFY_SOCKET": address, "CREDENTIALS_DIRECTORY": str(credential.parent)}
        words: list[str | Path] = [binary(), "--run-dir", run_dir, "hub"]
        argv = [*confinement("braid-hub.service"), *words, "--config", config]
        hub = Process(argv, log=folder / "hub", namespace=box.name, env=env)
        try:
            assert listener.recv(100) == b"READY=1\n", hub.stderr()
            socket_file = run_dir / "hub/braid.sock"
            assert (socket_file.group(), socket_file.stat().st_mode & 0o777) == (group, 0o660)
            assert socket_file.parent.stat().st_mode & 0o777 == 0o755
            assert run([*words, "invite", "attic", "--address", "203.0.113.2"], namespace=box.name).stdout.startswith(
                "braid1_"
            )
            said = run([*words, "rotate-key", "--json"], namespace=box.name)
            assert '"previous_key"' in said.stdout
            shown = run([*words, "status", "--json"], namespace=box.name, check=False)
            assert '"is_sealed": true' in shown.stdout
            # The unit leaves out what raw sockets need, and that is told.
            assert (shown.status, "gre = true has no effect" in shown.stdout) == (4, True), shown.text
            assert "table inet braid_hub" in run(["nft", "list", "ruleset"], namespace=box.name).stdout
        finally:
            ended = hub.stop()
        assert ended.status == 0, ended.text


def test_a_controller_works_as_its_unit_has_it(folder: Path) -> None:
    with namespace("controller") as box, service_manager(folder) as (address, listener):
        box.ip("link set lo up")
        config = folder / "fabric.toml"
        # The page's thread gives up its privileges, of which there are none, and a certificate is made.
        config.write_text('[web]\nlisten = "0.0.0.0:8443"\n')
        sdn = [sys.executable, "-m", "braid_sdn.cli", "fabric"]
        argv = [*confinement("braid-sdn.service"), *sdn, "run", "--config", config, "--listen", "127.0.0.1:0"]
        argv += ["--run-dir", folder, "--state-dir", folder / "state"]
        controller = Process(argv, log=folder / "controller", namespace=box.name, env={"NOTIFY_SOCKET": address})
        try:
            assert listener.recv(100) == b"READY=1", controller.stderr()
            said = run([*sdn, "status", "--run-dir", folder])
            assert "SWITCH" in said.stdout
            token = run([*sdn, "web", "token", "--run-dir", folder]).stdout.splitlines()[0]
            assert Visitor(box, folder, "https://127.0.0.1:8443").log_in(token).status == 303
        finally:
            controller.signal(signal.SIGTERM)
            ended = controller.wait()
        assert ended.status == 0, ended.text


def test_the_credential_of_the_documentation_is_long_enough(folder: Path) -> None:
    document = (repository() / "docs/security.md").read_text()
    [command] = re.findall(r"^# (head -c .* \| systemd-creds encrypt .*)$", document, re.MULTILINE)
    sealed = folder / "sealed"
    assert command.endswith(" /etc/credstore.encrypted/braid.seal")
    # A test machine has neither a TPM nor a key of its own.
    command = command.replace("--with-key=host+tpm2", "--with-key=tpm2-absent").replace(
        "/etc/credstore.encrypted/braid.seal", str(sealed)
    )
    run(["bash", "-c", command])
    opened = folder / "opened"
    run(["systemd-creds", "decrypt", "--name=braid.seal", sealed, opened])
    assert len(opened.read_bytes()) == 32
