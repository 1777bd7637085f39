"""A real `braid hub` on a remote machine, and clients that join it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from braid_lab.net.remote_host import RemoteHost
from braid_lab.process import CommandError, LabError, Process, run, wait_until
from braid_lab.product import DEGRADED, binary

#: Default UDP port of a hub.
PORT = 27243

CONFIGURATION = """
store = "{store}"
"""


class Hub:
    """The hub. It keeps its store over restarts."""

    def __init__(self, far: RemoteHost, folder: Path, configuration: str = "", program: Path | None = None) -> None:
        """Start nothing yet; see `start`. `configuration` is the content of hub.toml, without the store."""
        self.program = program or binary()
        self.far = far
        self.folder = folder
        self.file = folder / "hub.toml"
        self.configure(configuration)
        self.process: Process | None = None
        self._starts = 0

    def configure(self, configuration: str) -> None:
        """Set another configuration, effective from its next start."""
        self.file.write_text(CONFIGURATION.format(store=self.folder / "hub.redb") + configuration)

    def words(self, *words: str | Path) -> list[str | Path]:
        """Return the command line of `braid hub WORDS…` for this hub."""
        return [self.program, "--run-dir", self.folder / "run", "hub", *words]

    def start(self) -> None:
        """Start it; returns once it serves."""
        self._starts += 1
        log = self.folder / f"hub-{self._starts}"
        process = Process(self.words("--config", self.file), log=log, namespace=self.far.namespace.name)
        self.process = process

        def serves() -> bool:
            if not process.running:
                raise LabError(f"braid hub ended early\n{process.stderr()}")
            return "the hub serves" in process.stderr()

        wait_until(serves, what="the hub to serve", timeout=60)

    def invite(self, name: str, *addresses: str) -> str:
        """Return a token for a client, with the hub's addresses; the IPv4 one by default."""
        at = [word for address in addresses or (self.far.address4,) for word in ("--address", address)]
        said = run(self.words("invite", name, *at), namespace=self.far.namespace.name)
        return said.stdout.strip()

    def json(self, *words: str) -> dict[str, Any]:
        """Return the output of `braid hub WORDS… --json`; a degraded state is no error."""
        said = run(self.words(*words, "--json"), namespace=self.far.namespace.name, check=False)
        if said.status not in (0, DEGRADED):
            raise CommandError(["braid", "hub", *words], said.status, said.text)
        answer: dict[str, Any] = json.loads(said.stdout)
        return answer

    def revoke(self, name: str) -> None:
        """Revoke a client's access."""
        run(self.words("revoke", name), namespace=self.far.namespace.name)

    def kill9(self) -> None:
        """Kill it as a crash would."""
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.stop()

    def stop(self) -> None:
        """Stop it with SIGTERM, if it runs."""
        if self.process is not None:
            self.process.stop()
            self.process = None


@contextlib.contextmanager
def running_hub(far: RemoteHost, folder: Path, configuration: str = "", program: Path | None = None) -> Iterator[Hub]:
    """Run a hub for the length of a block."""
    folder.mkdir(parents=True, exist_ok=True)
    hub = Hub(far, folder, configuration, program)
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()
