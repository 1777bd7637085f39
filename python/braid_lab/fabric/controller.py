"""Runs the real controller, `braid sdn fabric run`."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from braid_lab import api
from braid_lab.fabric.shapes import Shape
from braid_lab.net.namespace import Namespace
from braid_lab.process import CommandError, LabError, Output, Process, run, wait_until
from braid_lab.product import DEGRADED

SDN = [sys.executable, "-m", "braid_sdn.cli", "fabric"]


def configuration(shape: Shape, *, probe: bool = False, capacities: bool = True) -> str:
    """Return the configuration file for a shape: names, edges, and `capacities` of links."""
    parts = []
    for switch in shape.switches:
        parts.append(f'[[switch]]\nid = "{shape.dpid(switch):016x}"\nname = "{switch}"\n')
    for wire in shape.wires if capacities else ():
        parts.append(f'[[link]]\nbetween = ["{wire.one}", "{wire.other}"]\ncapacity = "{wire.mbit:g} Mbit/s"\n')
    for station in shape.stations:
        if station.edge:
            parts.append(
                f'[[edge]]\nname = "{station.name}"\nswitch = "{station.switch}"\nport = "{station.name}"\n'
                f"probe = {str(probe).lower()}\n"
            )
    return "\n".join(parts)


class Fabric:
    """A running controller."""

    def __init__(self, place: Namespace | None, folder: Path, config: str, *options: str) -> None:
        """Create it; `start` runs it, in the current namespace if none is given."""
        self.place = place
        self.folder = folder
        self.options = options
        self.config = folder / "fabric.toml"
        self.config.write_text(config)
        self.process: Process | None = None
        self._runs = 0

    def start(self) -> str:
        """Start it; returns its switches' address once it listens."""
        self._runs += 1
        self.process = Process(
            [*SDN, "run", *self._folders(), "--config", self.config, *self.options],
            log=self.folder / f"controller{self._runs}",
            namespace=self.place.name if self.place else None,
        )
        process = self.process

        def ready() -> re.Match[str] | None:
            if not process.running:
                raise CommandError(process.argv, process.wait().status, process.stderr())
            return re.search(r"ready: switches at \('([^']+)', (\d+)\)", process.stderr())

        match = wait_until(ready, what="the controller to be ready", timeout=60)
        return f"{match[1]}:{match[2]}"

    def _folders(self) -> list[str | Path]:
        return ["--run-dir", self.folder, "--state-dir", self.folder / "state"]

    def stop(self) -> None:
        """Stop it; the network keeps forwarding."""
        if self.process is not None:
            self.process.stop()

    def call(self, *words: str, check: bool = True) -> Output:
        """Run `braid sdn fabric WORDS…`."""
        return run([*SDN, *words, "--run-dir", self.folder], check=check)

    def json(self, *words: str) -> dict[str, Any]:
        """Return a command's `--json` output; a degraded state is no error."""
        said = self.call(*words, "--json", check=False)
        if said.status not in (0, DEGRADED):
            raise CommandError(words, said.status, said.text)
        told: dict[str, Any] = json.loads(said.stdout)
        return told

    def api_get(self, what: str) -> dict[str, Any]:
        """Return the API's reply for `status`, `paths` or `edges/NAME`, without starting a program each time."""
        told = api.get(self.folder / "fabric.sock", f"/v1/fabric/{what}")
        if told is None:
            raise LabError(f"the controller refuses {what}")
        return told

    def codes(self) -> set[str]:
        """Return the codes of all health problems."""
        return {each["code"] for each in self.api_get("status")["health"]}


@contextlib.contextmanager
def controller(place: Namespace | None, folder: Path, config: str, *options: str) -> Iterator[Fabric]:
    """Run a controller for the length of a block."""
    fabric = Fabric(place, folder, config, *options)
    try:
        fabric.start()
        yield fabric
    finally:
        fabric.stop()
