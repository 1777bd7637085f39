"""Whole networks: a host (or a gateway with a LAN) with several uplinks to one internet.

    client … lan0 ─ host ─ dsl ═══ isp-dsl ─┐
                         └ lte ═══ isp-lte ─┴ internet (servers)

Every uplink has a subnet of its own, IPv4 and IPv6, and the host gets a default route with a metric on each, as from
a DHCP client and router advertisements. The internet checks source addresses per uplink (strict reverse path, BCP
38), so a packet that leaves with the wrong one is lost, as with real providers.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from braid_lab.datapath import needs_whole_packets
from braid_lab.net import scratch
from braid_lab.net.links import Emulated, End, LinkSpec, emulated, set_offload, tunnel, veth
from braid_lab.net.namespace import Namespace, namespace

#: Number of the servers' addresses: a page comes from several hosts.
SERVERS = 8

#: Public resolvers, which Braid probes by default: this internet has them, too.
RESOLVERS = {
    4: ("1.1.1.1", "8.8.8.8", "9.9.9.9"),
    6: ("2606:4700:4700::1111", "2001:4860:4860::8888", "2620:fe::fe"),
}

GATEWAY_LINK_LOCAL = "fe80::1"

#: Devices of the machine that sees a line: towards the host, and towards the internet.
OBSERVER_NEAR, OBSERVER_FAR = "near", "far"


@dataclass(frozen=True)
class UplinkSpec:
    """Parameters of an uplink: `line` None is a plain veth pair, `layer` l3 a link without Ethernet."""

    name: str
    line: LinkSpec | None = None
    layer: Literal["l2", "l3"] = "l2"
    families: frozenset[int] = frozenset({4, 6})
    metric: int | None = None
    offload: bool = True
    mtu: int = 1500
    #: A machine beside the host's end of the line that sees and passes on all that goes over it.
    observed: bool = False


@dataclass
class Uplink:
    """An uplink of a running network."""

    spec: UplinkSpec
    index: int
    near: End
    far: End
    emulator: Emulated | None = None
    #: The machine that sees the line, if it is `observed`: a bridge of OBSERVER_NEAR and OBSERVER_FAR.
    observer: Namespace | None = None

    @property
    def name(self) -> str:
        """Its name, and that of its device on the host."""
        return self.spec.name

    @property
    def metric(self) -> int:
        """The metric of its default routes."""
        return self.spec.metric if self.spec.metric is not None else 100 * self.index

    @property
    def address4(self) -> str:
        """The host's IPv4 address on it."""
        return f"100.64.{self.index}.2"

    @property
    def gateway4(self) -> str:
        """Its IPv4 gateway."""
        return f"100.64.{self.index}.1"

    @property
    def address6(self) -> str:
        """The host's IPv6 address on it."""
        return f"2001:db8:{self.index}::2"

    def addresses(self) -> list[str]:
        """Return the host's addresses on it, with prefix lengths."""
        given = {4: f"{self.address4}/24", 6: f"{self.address6}/64"}
        return [given[family] for family in sorted(self.spec.families)]

    def defaults(self) -> list[str]:
        """Return the default routes over it, as arguments of `ip route`."""
        on = f"dev {self.near.device} metric {self.metric} proto dhcp"
        ethernet = self.spec.layer == "l2"
        via = {4: f"via {self.gateway4} ", 6: f"via {GATEWAY_LINK_LOCAL} "} if ethernet else {4: "", 6: ""}
        words = {4: f"0.0.0.0/0 {via[4]}{on} src {self.address4}", 6: f"::/0 {via[6]}{on}"}
        return [words[family] for family in sorted(self.spec.families)]


@dataclass
class Topology:
    """A running network; all of it is removed when its block ends."""

    host: Namespace
    internet: Namespace
    uplinks: dict[str, Uplink]
    clients: list[Namespace]
    scratch: Path
    stack: contextlib.ExitStack = field(repr=False)

    def server(self, number: int = 1, family: int = 4) -> str:
        """Return the address of one of the internet's servers, counted from 1 to SERVERS."""
        return f"198.51.100.{number}" if family == 4 else f"2001:db8:ffff::{number}"

    def servers(self, family: int = 4) -> list[str]:
        """Return all their addresses."""
        return [self.server(number, family) for number in range(1, SERVERS + 1)]

    def only(self, name: str) -> contextlib.AbstractContextManager[Uplink]:
        """Leave the host one default route for a while: a host without Braid, using one uplink."""
        return only(self.host, self.uplinks, name)


@contextlib.contextmanager
def only(host: Namespace, uplinks: Mapping[str, Uplink], name: str) -> Iterator[Uplink]:
    """Leave a host the default route of one of its uplinks for a while."""
    others = [uplink for uplink in uplinks.values() if uplink.name != name]
    for uplink in others:
        _routes(host, "delete", uplink)
    try:
        yield uplinks[name]
    finally:
        for uplink in others:
            _routes(host, "add", uplink)


def _routes(host: Namespace, verb: str, uplink: Uplink) -> None:
    host.ip(*(f"route {verb} {route}" for route in uplink.defaults()))


@contextlib.contextmanager
def network(uplinks: Sequence[UplinkSpec], *, lan_clients: int = 0) -> Iterator[Topology]:
    """Build a host with these uplinks; with `lan_clients`, it is a gateway that forwards for them."""
    with contextlib.ExitStack() as stack:
        folder = scratch.directory()
        host = stack.enter_context(namespace("gateway" if lan_clients else "host"))
        internet = stack.enter_context(_internet())
        made = {
            spec.name: attach(stack, folder, host, internet, index, spec)
            for index, spec in enumerate(uplinks, start=1)
        }
        clients = _lan(stack, host, lan_clients) if lan_clients else []
        yield Topology(host, internet, made, clients, folder, stack)


@contextlib.contextmanager
def _internet() -> Iterator[Namespace]:
    """Make the servers' namespace."""
    with namespace("internet") as made:
        # Strict source validation is the larger of "all" and the device's own value.
        made.sysctl(ipv4__conf__all__rp_filter=1, ipv4__ip_forward=0)
        made.ip(
            *(f"address add 198.51.100.{number}/32 dev lo" for number in range(1, SERVERS + 1)),
            *(f"address add 2001:db8:ffff::{number}/128 dev lo nodad" for number in range(1, SERVERS + 1)),
        )
        add_resolvers(made)
        yield made


def add_resolvers(place: Namespace) -> None:
    """Give a namespace the public resolvers' addresses."""
    place.ip(
        *(f"address add {address}/32 dev lo" for address in RESOLVERS[4]),
        *(f"address add {address}/128 dev lo nodad" for address in RESOLVERS[6]),
    )


def attach(
    stack: contextlib.ExitStack,
    folder: Path,
    host: Namespace,
    isp: Namespace,
    index: int,
    spec: UplinkSpec,
) -> Uplink:
    """Make uplink number `index` (from 1), with addresses at both ends and the host's default routes."""
    uplink = Uplink(spec, index, End(host, spec.name), End(isp, f"isp-{spec.name}"[:15]))
    near = uplink.near
    offload = spec.offload and not needs_whole_packets()
    if spec.observed:
        uplink.observer = stack.enter_context(_observer(near, offload=offload))
        near = End(uplink.observer, OBSERVER_FAR)
    if spec.layer == "l3":
        stack.enter_context(tunnel(near, uplink.far, scratch=folder))
    elif spec.line is not None:
        uplink.emulator = stack.enter_context(emulated(near, uplink.far, spec.line, scratch=folder))
        if needs_whole_packets():
            set_offload(uplink.near, on=False)
    else:
        stack.enter_context(veth(near, uplink.far, offload=offload))
    if uplink.observer is not None:
        uplink.observer.ip(f"link set {OBSERVER_FAR} up master wire")
    device, far = uplink.near.device, uplink.far.device
    at_host, at_isp = [f"link set {device} up mtu {spec.mtu}"], [f"link set {far} up mtu {spec.mtu}"]
    at_host += [f"address add {address} dev {device} nodad" for address in uplink.addresses()]
    if 4 in spec.families:
        at_isp.append(f"address add {uplink.gateway4}/24 dev {far}")
    if 6 in spec.families:
        at_isp += [
            f"address add 2001:db8:{index}::1/64 dev {far} nodad",
            f"address add {GATEWAY_LINK_LOCAL}/64 dev {far} nodad",
        ]
    isp.ip(*at_isp)
    host.ip(*at_host, *(f"route add {route}" for route in uplink.defaults()))
    if 4 in spec.families and spec.layer == "l2":
        # As after DHCP, both ends know each other's link-layer address. Otherwise the first packet to ask for the
        # gateway's might be left over from an earlier measurement and have another uplink's address; the gateway does
        # not answer such a request, and address resolution would then block for three seconds.
        host.run(["ping", "-c", "1", "-W", "2", "-I", device, uplink.gateway4], check=False)
    return uplink


@contextlib.contextmanager
def _observer(host: End, *, offload: bool) -> Iterator[Namespace]:
    """Make a machine that bridges between a host's device and the line that will be OBSERVER_FAR."""
    with namespace(f"observer-{host.device}") as made, veth(host, End(made, OBSERVER_NEAR), offload=offload):
        made.ip(
            "link add wire type bridge mcast_snooping 0", f"link set {OBSERVER_NEAR} master wire", "link set wire up"
        )
        yield made


def _lan(stack: contextlib.ExitStack, gateway: Namespace, count: int) -> list[Namespace]:
    """Connect clients to the gateway's `lan0`: one directly, several by a switch."""
    gateway.sysctl(ipv4__ip_forward=1, ipv6__conf__all__forwarding=1)
    clients = [stack.enter_context(namespace(f"client{number}")) for number in range(1, count + 1)]
    if count == 1:
        stack.enter_context(veth(End(gateway, "lan0"), End(clients[0], "eth0")))
    else:
        switch = stack.enter_context(namespace("switch"))
        switch.ip("link add br0 type bridge", "link set br0 up")
        ends = [(gateway, "lan0"), *((client, "eth0") for client in clients)]
        for port, (place, device) in enumerate(ends):
            stack.enter_context(veth(End(place, device), End(switch, f"port{port}")))
            switch.ip(f"link set port{port} master br0")
    gateway.ip("address add 192.168.8.1/24 dev lan0", "address add fd00:8::1/64 dev lan0 nodad")
    for number, client in enumerate(clients, start=1):
        client.ip(
            f"address add {lan_address(number)}/24 dev eth0",
            f"address add {lan_address(number, 6)}/64 dev eth0 nodad",
            "route add default via 192.168.8.1",
            "route add ::/0 via fd00:8::1",
        )
    return clients


def lan_address(number: int, family: int = 4) -> str:
    """Return the address of a LAN client, counted from 1."""
    base = ipaddress.ip_address("192.168.8.100" if family == 4 else "fd00:8::100")
    return str(base + number)
