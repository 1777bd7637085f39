"""Real Open vSwitch in a namespace: one ovs-vswitchd in userspace, with a bridge per switch of a shape.

Bridges are `datapath_type=netdev`, fail-mode secure, OpenFlow 1.3; links
between them are veth pairs, or emulated lines where they have a delay or a rate. Checksum offload is off on every
veth end: packets with unfinished checksums would work for ping and fail for TCP.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from braid_lab.fabric.shapes import Shape, Wire
from braid_lab.net import scratch
from braid_lab.net.links import Emulated, End, LinkSpec, emulated, set_offload, veth
from braid_lab.net.namespace import Namespace, namespace
from braid_lab.net.open_vswitch import OpenVswitch, open_vswitch

#: Where the controller of the lab's switches listens.
CONTROLLER = "tcp:127.0.0.1:6653"

#: Devices of the machine between a host and its switch.
INSIDE, OUTSIDE = "inside", "outside"

#: Longest name of a device.
DEVICE = 15


@dataclass
class Station:
    """A host of a fabric: a namespace with one device."""

    name: str
    switch: str
    place: Namespace
    mac: str
    address: str
    #: The machine between it and its switch, where an edge may run; None if it is plugged in directly.
    box: Namespace | None = None

    def reaches(self, other: Station) -> bool:
        """Return true if it gets an answer to one ping within a second."""
        return self.place.run(["ping", "-c", "1", "-W", "1", other.address], check=False).status == 0


@dataclass
class OvsNetwork:
    """A shape built with Open vSwitch; all of it is removed when its block ends."""

    shape: Shape
    place: Namespace
    folder: Path
    switches: OpenVswitch
    stack: contextlib.ExitStack = field(repr=False)
    stations: dict[str, Station] = field(default_factory=dict)
    lines: dict[tuple[str, str], Emulated] = field(default_factory=dict)

    def vsctl(self, *words: str) -> str:
        """Run ovs-vsctl on it."""
        return self.switches.vsctl(*words)

    def ofctl(self, command: str, switch: str, *words: str, check: bool = True) -> str:
        """Run ovs-ofctl on one of its switches."""
        return self.switches.ofctl(command, switch, *words, check=check)

    def rules(self, switch: str) -> int:
        """Return how many rules a switch has."""
        return self.ofctl("dump-flows", switch).count("cookie=")

    def start(self) -> None:
        """Start the switches; their database keeps the configuration."""
        self.switches.start()

    def stop(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop all switches; their rules are lost with them."""
        self.switches.stop(how=how)

    def control(self, *targets: str, switches: Sequence[str] = ()) -> None:
        """Make switches (all without a name) connect to controllers, and try again every second."""
        words: list[str] = []
        for switch in switches or self.shape.switches:
            words += ["--", "set-controller", switch, *targets]
        self.vsctl(*words[1:])
        for each in self.vsctl("--bare", "--columns=_uuid", "list", "controller").split():
            self.vsctl("set", "controller", each, "max_backoff=1000", "inactivity_probe=5000")

    def connected(self, switch: str) -> bool:
        """Return whether a switch is connected to its controller."""
        return "is_connected: true" in self.vsctl("show").partition(f"Bridge {switch}\n")[2].partition("Bridge ")[0]


@contextlib.contextmanager
def ovs_network(
    shape: Shape, *, controller: str = CONTROLLER, plain: bool = False, boxes: bool = False
) -> Iterator[OvsNetwork]:
    """Build a shape; `plain` makes every link a veth pair, whatever its rate and delay.

    The switches connect to `controller`, which may start later. With `boxes`, stations that are edges have a machine
    between them and their switch, which bridges until an edge runs there.
    """
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(namespace("fabric"))
        folder = scratch.directory() / f"ovs-{place.name.rpartition('-')[0].rpartition('-')[2]}"
        switches = stack.enter_context(open_vswitch(place, folder))
        net = OvsNetwork(shape, place, folder, switches, stack)
        devices = shape.ports()
        for wire, ends in zip(shape.wires, devices, strict=True):
            _wire(net, wire, ends, plain=plain)
        for number, station in enumerate(shape.stations, 1):
            _station(net, number, station.name, station.switch, boxed=boxes and station.edge)
        net.start()
        words: list[str] = []
        for switch in shape.switches:
            words += ["--", "add-br", switch, "--", "set", "bridge", switch, "datapath_type=netdev"]
            words += [
                "fail_mode=secure",
                "protocols=OpenFlow13",
                f"other-config:datapath-id={shape.dpid(switch):016x}",
            ]
            words += ["--", "set-controller", switch, controller]
            words += ["--", "set", "controller", switch, "max_backoff=1000", "inactivity_probe=5000"]
        for wire, (one, other) in zip(shape.wires, devices, strict=True):
            words += ["--", "add-port", wire.one, one, "--", "add-port", wire.other, other]
        for station in shape.stations:
            words += ["--", "add-port", station.switch, station.name]
        net.vsctl(*words[1:])
        yield net


def _wire(net: OvsNetwork, wire: Wire, ends: tuple[str, str], *, plain: bool) -> None:
    near, far = (End(net.place, name[:DEVICE]) for name in ends)
    if plain or (wire.mbit >= 1000 and not wire.delay_ms):
        net.stack.enter_context(veth(near, far))
        for end in (near, far):
            net.place.run(["ethtool", "-K", end.device, "tx", "off"])
            net.place.sysctl(**{f"ipv6__conf__{end.device}__disable_ipv6": 1})
        return
    line = LinkSpec(
        rate=f"{wire.mbit:g}Mbit/s", delay=f"{wire.delay_ms:g}ms", queue=wire.queue, loss=wire.loss or None
    )
    link = net.stack.enter_context(emulated(near, far, line, scratch=net.folder))
    for end in (near, far):
        net.place.sysctl(**{f"ipv6__conf__{end.device}__disable_ipv6": 1})
    net.lines[wire.one, wire.other] = net.lines[wire.other, wire.one] = link


def _station(net: OvsNetwork, number: int, name: str, switch: str, *, boxed: bool) -> None:
    host = net.stack.enter_context(namespace(name))
    mac, address = f"02:00:00:00:{number >> 8:02x}:{number & 0xFF:02x}", f"10.77.{number >> 8}.{number & 0xFF}"
    inner, outer = End(host, "eth0"), End(net.place, name)
    box = net.stack.enter_context(_box(name, inner, outer)) if boxed else None
    if box is None:
        net.stack.enter_context(veth(inner, outer))
    set_offload(inner, on=False)
    net.place.run(["ethtool", "-K", outer.device, "tx", "off"])
    net.place.sysctl(**{f"ipv6__conf__{name}__disable_ipv6": 1})
    host.ip(
        f"link set eth0 address {mac}",
        f"address add {address}/16 dev eth0",
        f"address add fd77::{number:x}/64 dev eth0",
    )
    net.stations[name] = Station(name, switch, host, mac, address, box)


@contextlib.contextmanager
def _box(name: str, inner: End, outer: End) -> Iterator[Namespace]:
    """Put a machine between a host and its switch; it bridges packets that no program takes first."""
    with namespace(f"box-{name}") as box:
        inside, outside = End(box, INSIDE), End(box, OUTSIDE)
        with veth(inner, inside), veth(outside, outer):
            for end in (inside, outside):
                set_offload(end, on=False)
                box.sysctl(**{f"ipv6__conf__{end.device}__disable_ipv6": 1})
            box.ip(
                "link add wire type bridge mcast_snooping 0",
                f"link set {INSIDE} master wire",
                f"link set {OUTSIDE} master wire",
                "link set wire up",
            )
            yield box
