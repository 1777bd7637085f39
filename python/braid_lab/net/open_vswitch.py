"""Real Open vSwitch in a namespace: its database and one ovs-vswitchd with userspace bridges.

All its files (database, sockets, logs) are in a directory of its own, so several instances can run beside one another
and beside the machine's own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from braid_lab.datapath import Choice, Datapath, choose
from braid_lab.net.namespace import Namespace
from braid_lab.process import Process, wait_until

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")


@dataclass
class OpenVswitch:
    """An instance; `folder` is its run directory."""

    place: Namespace
    folder: Path
    stack: contextlib.ExitStack = field(repr=False)
    _daemon: Process | None = None
    _database: Process | None = None
    _runs: int = 0

    def vsctl(self, *words: str) -> str:
        """Run ovs-vsctl on it."""
        return self.place.run(["ovs-vsctl", f"--db=unix:{self.folder}/db.sock", *words]).stdout

    def ofctl(self, command: str, bridge: str, *words: str, check: bool = True) -> str:
        """Run ovs-ofctl on one of its bridges."""
        target = f"unix:{self.folder}/{bridge}.mgmt"
        return self.place.run(["ovs-ofctl", "-O", "OpenFlow13", command, target, *words], check=check).stdout

    def _database_listens(self) -> bool:
        """Return true if it accepts connections, which is a moment after its socket's file is there."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            return client.connect_ex(f"{self.folder}/db.sock") == 0

    def start_database(self) -> None:
        """Serve the database."""
        self._runs += 1
        words: list[str | Path] = [
            "ovsdb-server",
            self.folder / "conf.db",
            f"--remote=punix:{self.folder}/db.sock",
            "--log-file=/dev/null",
        ]
        environment = {"OVS_RUNDIR": str(self.folder), "OVS_LOGDIR": str(self.folder)}
        (self.folder / "db.sock").unlink(missing_ok=True)
        log = self.folder / f"ovsdb{self._runs}"
        self._database = Process(words, log=log, namespace=self.place.name, env=environment)
        self.stack.callback(self._database.stop)
        wait_until(self._database_listens, what="ovsdb-server")

    def kill_database(self) -> None:
        """End the database without a word; bridges go on."""
        assert self._database is not None  # noqa: S101
        self._database.signal(signal.SIGKILL)
        self._database.wait()

    def start(self) -> None:
        """Start the bridges; their database keeps the configuration."""
        self._runs += 1
        environment = {"OVS_RUNDIR": str(self.folder), "OVS_LOGDIR": str(self.folder), "OVS_DBDIR": str(self.folder)}
        program = ["ovs-vswitchd", f"unix:{self.folder}/db.sock", "--log-file=/dev/null", "-vconsole:warn"]
        # Real-time priority, like the emulated lines: a switch that does not run drops packets. Several busy ones at
        # once leave nothing to other programs.
        if os.environ.get("BRAID_LAB_REAL_TIME") != "no":
            program = ["chrt", "--rr", "1", *program]
        daemon = Process(
            program, log=self.folder / f"vswitchd{self._runs}", namespace=self.place.name, env=environment
        )
        self._daemon = daemon
        self.stack.callback(daemon.stop)

    @property
    def pid(self) -> int:
        """The process id of ovs-vswitchd."""
        assert self._daemon is not None  # noqa: S101
        return self._daemon.pid

    def stop(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop all bridges; their rules are lost with them."""
        assert self._daemon is not None  # noqa: S101
        self._daemon.signal(how)
        self._daemon.wait()


def appctl(place: Namespace, folder: Path, *words: str, check: bool = True) -> str:
    """Run ovs-appctl on the ovs-vswitchd whose run directory this is."""
    (control,) = folder.glob("ovs-vswitchd.*.ctl")
    return place.run(["ovs-appctl", "-t", control, *words], check=check).stdout


@contextlib.contextmanager
def open_vswitch(place: Namespace, folder: Path) -> Iterator[OpenVswitch]:
    """Create a database and serve it; `start` starts the bridges."""
    with contextlib.ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        place.run(["ovsdb-tool", "create", folder / "conf.db", SCHEMA])
        made = OpenVswitch(place, folder, stack)
        made.start_database()
        made.vsctl("--no-wait", "init")
        yield made


@contextlib.contextmanager
def _started(place: Namespace, folder: Path) -> Iterator[None]:
    # An earlier daemon of this run directory has left a database.
    shutil.rmtree(folder, ignore_errors=True)
    with open_vswitch(place, folder) as made:
        made.start()
        yield


def on_datapath(datapath: Datapath) -> contextlib.AbstractContextManager[None]:
    """Have the daemons that start in a block use a datapath, with a switch of their own if it needs one."""
    return choose(None if datapath == "ebpf" else Choice(datapath, _started))
