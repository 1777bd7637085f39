"""Base classes of programs: a server, sessions one after another, and the times of arrivals.

A session is one run of the client. It either succeeds (the file is there and correct), or it is broken: it ended by
itself but should not have, it ended with an error, or its data is wrong.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import Topology
from braid_lab.process import LabError, Output, Process, wait_until
from braid_lab.servers.catalog import READY

#: Rate of downloads, bytes per second: slow enough that they overlap every fault, and far below the rate of any line
#: in the lab.
RATE = 300_000


@dataclass(frozen=True)
class ProgramEnv:
    """Environment of a program: a network, the address of its server there, and a folder of its own."""

    net: Topology
    server: str
    folder: Path
    #: Length of a session that ends by itself, s.
    seconds: float

    @property
    def client(self) -> Namespace:
        """The user's namespace: behind the gateway if the network has one."""
        return self.net.clients[0] if self.net.clients else self.net.host

    @property
    def size(self) -> int:
        """Bytes of such a session."""
        return round(RATE * self.seconds)

    def source(self) -> str:
        """Return the source address that the client's kernel chooses for packets to the server."""
        route = self.client.run(["ip", "-oneline", "route", "get", self.server]).stdout
        found = re.search(r"\bsrc (\S+)", route)
        return found.group(1) if found else ""

    def serve(
        self, name: str, argv: Sequence[str | Path], *, port: int | None = None, udp_port: int | None = None
    ) -> None:
        """Run a server for the network's lifetime; returns once it has its port, or else prints that it is ready."""
        process = Process(argv, log=self.folder / name, namespace=self.net.internet.name)
        self.net.stack.callback(process.stop)
        if port is None and udp_port is None:
            process.wait_output(READY, timeout=60)
            return

        def listens() -> bool:
            if not process.running:
                raise LabError(f"{name} ended early\n{process.stdout()}{process.stderr()}".rstrip())
            return all(
                each is None or self.net.internet.listens(self.server, each, udp=udp)
                for each, udp in ((port, False), (udp_port, True))
            )

        wait_until(listens, what=f"{name} to listen", timeout=60)

    def start(self, name: str, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> Process:
        """Start a client."""
        return Process(argv, log=self.folder / name, namespace=self.client.name, env=env)

    def start_module(self, name: str, *words: object) -> Process:
        """Start one of the lab's own clients, `python -m braid_lab.clients.NAME WORDS…`."""
        return self.start(name, [sys.executable, "-m", f"braid_lab.clients.{name}", *map(str, words)])

    def empty(self, name: str) -> Path:
        """Return an empty folder."""
        made = self.folder / name
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        return made


@dataclass
class Session(ABC):
    """One run of a client."""

    process: Process
    began: float = field(default_factory=time.monotonic, init=False)
    #: Failures that did not end the session.
    complaints: list[str] = field(default_factory=list, init=False)

    @abstractmethod
    def arrived(self) -> list[float]:
        """Return the times of arrivals since the last call, on the monotonic clock."""

    def broken(self, ended: Output) -> str | None:
        """Return why an ended session is broken, or None if it ended as it should."""
        return None if ended.status == 0 else _last_error(ended)

    def stop(self) -> None:
        """End it."""
        self.process.stop(grace=1.0)


def _last_error(ended: Output) -> str:
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    return f"exit status {ended.status}: {lines[-1] if lines else 'no word of why'}"


@dataclass
class Download(Session):
    """A client that writes received data to files of a folder."""

    folder: Path
    #: The expected file and the received one, if the client does not check it itself.
    right: tuple[Path, Path] | None = None
    _size: int = field(default=0, init=False)

    def arrived(self) -> list[float]:
        """Check whether the files have grown."""
        size = _size(self.folder)
        before, self._size = self._size, size
        return [time.monotonic()] if size != before else []

    def broken(self, ended: Output) -> str | None:
        """The client must succeed, and the file must equal the server's."""
        reason = super().broken(ended)
        if reason is None and self.right is not None:
            asked, got = self.right
            if not got.exists() or asked.read_bytes() != got.read_bytes():
                return "the file that came differs from the server's"
        return reason


def _size(folder: Path) -> int:
    """Return the size of a folder's files; the folder may not exist yet, and files may disappear."""
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat().st_size for entry in entries)
    except FileNotFoundError:
        return 0


@dataclass
class TimestampingClient(Session):
    """One of the lab's clients that prints the time of every arrival and never ends by itself."""

    #: Pattern of a line of its output; the first group is the time.
    line: ClassVar[re.Pattern[str]] = re.compile(r"^(\d+\.\d+)$", re.MULTILINE)
    _read: int = field(default=0, init=False)

    def arrived(self) -> list[float]:
        """Read its new output."""
        return self.new_moments(self.process.out)

    def new_moments(self, log: Path) -> list[float]:
        """Return the times in a file that were not read before."""
        return [float(match.group(1)) for match in self.line.finditer(self.new_lines(log))]

    def new_lines(self, log: Path) -> str:
        """Return the complete lines of a file that were not read before."""
        with log.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace")

    def broken(self, ended: Output) -> str | None:
        """Return its last output: any end is a failure."""
        return _last_error(ended)


class Program(ABC):
    """A program and its server."""

    name: ClassVar[str]

    def missing(self) -> str | None:
        """Return what it lacks on this machine, or None if it can run."""
        return None

    @abstractmethod
    def serve(self, env: ProgramEnv) -> None:
        """Start its server for the network's lifetime; returns once it answers."""

    @abstractmethod
    def begin(self, env: ProgramEnv) -> Session:
        """Start a session."""


def not_found(*programs: str) -> str | None:
    """Return which of these programs this machine lacks, and how to install them."""
    lacking = [name for name in programs if shutil.which(name) is None]
    return f"{' and '.join(lacking)} not found (tools/setup bench)" if lacking else None
