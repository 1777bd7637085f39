"""Real edges, `braid edge run`, in the machines between hosts and switches."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from braid_lab.fabric.controller import Fabric, configuration, controller
from braid_lab.fabric.ovs import INSIDE, OUTSIDE, OvsNetwork, ovs_network
from braid_lab.fabric.shapes import Shape
from braid_lab.fabric.tcp_transfer import Transfer
from braid_lab.net.namespace import Namespace
from braid_lab.process import CommandError, LabError, Process, wait_until
from braid_lab.product import DEGRADED, binary

T = TypeVar("T")
#: Attempts at an undisturbed measurement.
MAX_ATTEMPTS = 6
#: Events of the controller that are shown where a network does not settle.
SHOWN_EVENTS = 30


def measure_undisturbed(settle: Callable[[], object], plan: Callable[[], object], measure: Callable[[], T]) -> T:
    """Return a measurement during which the plan stayed the same, after `settle`; raise an error if there is none.

    A machine that runs nothing for a tenth of a second makes the edge leave a path for a while. That is correct
    behaviour, but not what is measured here.
    """
    for _ in range(MAX_ATTEMPTS):
        settle()
        before = plan()
        transfer = measure()
        if plan() == before:
            return transfer
    cause = "the machine is too busy, or a path comes and goes"
    msg = f"the plan changed during each of {MAX_ATTEMPTS} measurements: {cause}"
    raise RuntimeError(msg)


class Edge:
    """An edge in a box."""

    def __init__(self, box: Namespace, folder: Path, name: str, *options: str) -> None:
        """Create it; see `start`. `folder` gets its socket and logs, `options` select its paths."""
        self.box, self.folder, self.name, self.options = box, folder, name, options
        self.process: Process | None = None
        self._runs = 0

    def start(self) -> None:
        """Start it; returns once packets pass."""
        self._runs += 1
        words = ["--run-dir", str(self.folder), "edge", "run", "--name", self.name, "--inside", INSIDE, *self.options]
        log = self.folder / f"edge-{self.name}{self._runs}"
        self.process = Process([binary(), *words], log=log, namespace=self.box.name)
        self.process.wait_output("ready", timeout=60)

    def stop(self) -> None:
        """Stop it; the box goes on bridging."""
        if self.process is not None:
            self.process.stop()

    def status(self) -> dict[str, Any]:
        """Return its status; a degraded state is no error."""
        argv = [str(binary()), "--run-dir", str(self.folder), "edge", "status", self.name, "--json"]
        said = self.box.run(argv, check=False)
        if said.status not in (0, DEGRADED):
            raise CommandError(argv, said.status, said.text)
        told: dict[str, Any] = json.loads(said.stdout)
        return told

    def paths_to(self, target: str) -> list[dict[str, Any]]:
        """Return the paths that it uses to a target."""
        return next((each["paths"] for each in self.status()["egress"] if each["target"] == target), [])

    def sent_to(self, target: str) -> list[int]:
        """Return how many packets it has sent over each of these paths."""
        return [path["tx_packets"] for path in self.paths_to(target)]

    def held(self) -> int:
        """Return how many segments have waited here for earlier ones."""
        return sum(each["segments"]["held"] for each in self.status()["ingress"])


@dataclass(frozen=True)
class SplitFlow:
    """One flow over several paths: its transfer, and the segments that waited at the far edge."""

    transfer: Transfer
    held: int
    #: Packets sent over each path before it, and after it.
    before: list[int]
    after: list[int]

    @property
    def packets(self) -> list[int]:
        """Packets sent over each path, provided that the paths are still the same."""
        return [after - before for before, after in zip(self.before, self.after, strict=True)]


def split_flow(source: Edge, target: Edge, name: str, send: Callable[[], Transfer]) -> SplitFlow:
    """Send from behind an edge to behind another; `name` is the target's name at the source."""
    before, held = source.sent_to(name), target.held()
    transfer = send()
    return SplitFlow(transfer, target.held() - held, before, source.sent_to(name))


class EdgedNetwork:
    """A network with its controller and its edges."""

    def __init__(self, net: OvsNetwork, fabric: Fabric, edges: dict[str, Edge]) -> None:
        """Use `edged_network`."""
        self.net, self.fabric, self.edges = net, fabric, edges

    def pair(self, source: str, target: str) -> dict[str, Any] | None:
        """Return the controller's entry for a pair of edges."""
        pairs = self.fabric.api_get("paths")["pairs"]
        return next((each for each in pairs if (each["source"], each["target"]) == (source, target)), None)

    def settle(self, source: str, target: str, paths: int | None, *, timeout: float = 60.0) -> dict[str, Any]:
        """Wait until a pair has `paths` paths both ways (None: any), its edges are current, and its hosts known."""
        one, other = self.net.stations[source], self.net.stations[target]

        def ready() -> dict[str, Any] | None:
            # The controller learns hosts from their packets.
            if one.place.run(["ping", "-c", "1", "-W", "1", other.address], check=False).status:
                return None
            status, there, back = self.fabric.api_get("status"), self.pair(source, target), self.pair(target, source)
            if status["changing"] or not there or not back:
                return None
            if paths is not None and {len(there["paths"]), len(back["paths"])} != {paths}:
                return None
            for each in (self.edges[source], self.edges[target]):
                known = each.status()
                hosts = sum(egress["hosts"] for egress in known["egress"])
                if known["generation"] != status["generation"] or not hosts:
                    return None
            return there

        what = f"{paths or 'any'} paths from {source} to {target}"
        try:
            return wait_until(ready, what=what, timeout=timeout, poll=0.1)
        except LabError as error:
            known = [self.pair(source, target), self.pair(target, source)]
            raise LabError("\n".join([str(error), *map(json.dumps, known), *self._last_events()])) from error

    def _last_events(self) -> list[str]:
        """Return the controller's last events, a line for each."""
        return [json.dumps(each) for each in self.fabric.api_get("events")["events"][-SHOWN_EVENTS:]]

    def measure_undisturbed(self, source: str, target: str, paths: int, measure: Callable[[], T]) -> T:
        """Return a measurement over `paths` paths during which the controller changed nothing."""
        return measure_undisturbed(
            lambda: self.settle(source, target, paths), lambda: self.fabric.api_get("status")["generation"], measure
        )


@contextlib.contextmanager
def edged_network(
    shape: Shape,
    *,
    order: str | Mapping[str, str] = "adaptive",
    limits: str = "",
    plain: bool = False,
    shims: Container[str] | None = None,
    hook: str = "auto",
    capacities: bool = True,
    more: str = "",
) -> Iterator[EdgedNetwork]:
    """Build a shape with its controller and edges.

    `limits` is the controller's `[paths]`; `order` is the edges' `--order`, one for all or by edge; `shims` are the
    edges that request sequence numbers for packets without any (None: all); `hook` is how programs are attached to
    devices; `capacities` tells the controller the lines' rates; `more` are further tables of its configuration.
    """
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(ovs_network(shape, boxes=True, plain=plain))
        config = f"{configuration(shape, probe=True, capacities=capacities)}\n[paths]\n{limits}\n{more}"
        fabric = stack.enter_context(controller(net.place, net.folder, config))
        edges = {}
        for station in shape.stations:
            if station.edge:
                how = order if isinstance(order, str) else order[station.name]
                box = net.stations[station.name].box
                assert box is not None  # noqa: S101
                words = [] if shims is None or station.name in shims else ["--shim", "off"]
                where = ("--outside", OUTSIDE, "--controller", f"unix:{net.folder / 'fabric.sock'}")
                transfer = Edge(box, net.folder, station.name, *where, "--reordering", how, "--hook", hook, *words)
                stack.callback(transfer.stop)
                transfer.start()
                edges[station.name] = transfer
        yield EdgedNetwork(net, fabric, edges)
