"""Two sites with third-party routers between them: layer-3 paths between Braid's edges ([mpsdn] §IV-B).

    ha ─ A ═══ r1 ─── B ─ hb
         └════ r2 ────┘

A and B are routers with an edge each. A path has its own addresses at either end, and its router knows only those, so
a packet with a host's own address goes nowhere. A and B choose the router by the source address.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from braid_lab.fabric.edges import Edge, measure_undisturbed
from braid_lab.fabric.ovs import INSIDE, Station
from braid_lab.fabric.shapes import Wire
from braid_lab.net import scratch
from braid_lab.net.links import Emulated, End, LinkSpec, emulated, set_offload, veth
from braid_lab.net.namespace import Namespace, namespace
from braid_lab.process import wait_until

T = TypeVar("T")

#: Networks of the hosts, by side: behind A, behind B.
HOSTS4 = ("10.81.1.0/24", "10.81.2.0/24")
HOSTS6 = ("fd81:1::/64", "fd81:2::/64")

SIDES = ("ha", "hb")


def path4(path: int, side: int) -> str:
    """Return a side's prefix on a path, counted from 1."""
    return f"10.82.{10 * path + side}.0/24"


def path6(path: int, side: int) -> str:
    """Return the same for IPv6."""
    return f"fd82:{path}:{side}::/64"


@dataclass
class RoutedSites:
    """Both sites and the network between them; all of it is removed when its block ends."""

    folder: Path
    stack: contextlib.ExitStack = field(repr=False)
    stations: dict[str, Station] = field(default_factory=dict)
    edges: dict[str, Edge] = field(default_factory=dict)
    #: One per path, if lines are emulated.
    lines: list[Emulated] = field(default_factory=list)
    routers: list[Namespace] = field(default_factory=list)

    def box(self, side: int) -> Namespace:
        """Return a side's router."""
        box = self.stations[SIDES[side]].box
        assert box is not None  # noqa: S101
        return box

    def use(self, paths: Sequence[int], mbit: Sequence[float], *options: str) -> None:
        """Restart both edges with these paths and rates; returns once all of them carry traffic."""
        for side, name in enumerate(SIDES):
            if name in self.edges:
                self.edges[name].stop()
            file = self.folder / f"{name}.toml"
            file.write_text(_paths_file(side, paths, mbit))
            words = ["--paths", str(file), *options]
            for path in range(1, len(self.routers) + 1):
                words += ["--outside", f"out{path}"]
            edge = self.edges[name] = Edge(self.box(side), self.folder, name, *words)
            edge.start()
            self.stack.callback(edge.stop)
        wait_until(self.carries, what="all layer-3 paths to carry", timeout=60, poll=0.05)

    def route_over(self, path: int) -> None:
        """Lead the hosts' IPv4 packets over one path, for a comparison without edges."""
        for side in (0, 1):
            link = f"10.83.{10 * path + side}"
            self.box(side).ip(f"route add {HOSTS4[1 - side]} via {link}.2")
            self.routers[path - 1].ip(f"route add {HOSTS4[side]} via {link}.1")

    def measure_undisturbed(self, measure: Callable[[], T]) -> T:
        """Return a measurement during which all paths carried traffic and no edge changed its plan."""
        return measure_undisturbed(
            lambda: wait_until(self.carries, what="all layer-3 paths to carry", timeout=60, poll=0.05),
            lambda: [edge.status()["generation"] for edge in self.edges.values()],
            measure,
        )

    def carries(self) -> bool:
        """Return whether no path has a problem."""
        return not any(edge.status()["health"] for edge in self.edges.values())


def _paths_file(side: int, paths: Sequence[int], mbit: Sequence[float]) -> str:
    other = 1 - side
    text = ""
    for family, hosts, of in ((4, HOSTS4, path4), (6, HOSTS6, path6)):
        text += f'[[edge]]\nname = "{SIDES[other]}-{family}"\nlocal = "{hosts[side]}"\nremote = "{hosts[other]}"\n'
        for path, rate in zip(paths, mbit, strict=True):
            text += (
                f'[[edge.path]]\nlocal = "{of(path, side)}"\nremote = "{of(path, other)}"\nrate = "{rate:g} Mbit/s"\n'
            )
    return text


@contextlib.contextmanager
def routed(wires: Sequence[Wire], *, emulate: bool = True) -> Iterator[RoutedSites]:
    """Build two sites with a path for each wire; `RoutedSites.use` starts the edges.

    Without `emulate` all lines are cables, as fast as the machine.
    """
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        boxes = [enter(namespace(f"site-{name}")) for name in SIDES]
        folder = scratch.directory() / boxes[0].name
        folder.mkdir(parents=True)
        made = RoutedSites(folder, stack)
        for side, (name, box) in enumerate(zip(SIDES, boxes, strict=True)):
            made.stations[name] = _host(stack, side, name, box)
        for path, wire in enumerate(wires, 1):
            router = enter(namespace(f"router{path}"))
            made.routers.append(router)
            _forward(router)
            ends = [End(router, f"to{SIDES[side]}") for side in (0, 1)]
            outs = [End(box, f"out{path}") for box in boxes]
            if emulate:
                line = LinkSpec(rate=f"{wire.mbit:g}Mbit/s", delay=f"{wire.delay_ms:g}ms", queue=wire.queue)
                made.lines.append(enter(emulated(outs[0], ends[0], line, scratch=folder)))
            else:
                enter(veth(outs[0], ends[0], offload=False))
            enter(veth(ends[1], outs[1], offload=False))
            for side in (0, 1):
                _join(path, side, outs[side], ends[side])
        yield made


def _forward(router: Namespace) -> None:
    router.sysctl(ipv4__ip_forward=1, ipv6__conf__all__forwarding=1)


def _host(stack: contextlib.ExitStack, side: int, name: str, box: Namespace) -> Station:
    host = stack.enter_context(namespace(name))
    inner = End(host, "eth0")
    stack.enter_context(veth(inner, End(box, INSIDE), offload=False))
    _forward(box)
    network4, network6 = HOSTS4[side].removesuffix("0/24"), HOSTS6[side].removesuffix("/64")
    box.ip(f"address add {network4}254/24 dev {INSIDE}", f"address add {network6}fe/64 dev {INSIDE}")
    host.ip(
        f"address add {network4}7/24 dev eth0",
        f"address add {network6}7/64 dev eth0",
        f"route add default via {network4}254",
        f"route add default via {network6}fe",
    )
    set_offload(inner, on=False)
    return Station(name, "", host, "", f"{network4}7", box)


def _join(path: int, side: int, out: End, end: End) -> None:
    """Configure a router's link to a site: its addresses, and the routes of this path in both directions."""
    link4, link6 = f"10.83.{10 * path + side}", f"fd83:{path}:{side}:"
    table = 100 + path
    out.namespace.ip(
        f"address add {link4}.1/30 dev {out.device}",
        f"address add {link6}:1/64 dev {out.device}",
        f"route add default via {link4}.2 dev {out.device} table {table}",
        f"route add default via {link6}:2 dev {out.device} table {table}",
        f"rule add from {path4(path, side)} table {table}",
    )
    out.namespace.run(["ip", "-6", "rule", "add", "from", path6(path, side), "table", str(table)])
    end.namespace.ip(
        f"address add {link4}.2/30 dev {end.device}",
        f"address add {link6}:2/64 dev {end.device}",
        f"route add {path4(path, side)} via {link4}.1",
        f"route add {path6(path, side)} via {link6}:1",
    )
