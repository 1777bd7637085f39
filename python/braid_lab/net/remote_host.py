"""A machine elsewhere on the internet, where a hub can run.

    host ═ dsl ═╗
         ═ lte ═╩ internet (servers) ── far

The internet forwards for it; to the servers, traffic through it has its address.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from braid_lab.net.links import End, veth
from braid_lab.net.namespace import Namespace, namespace
from braid_lab.net.topology import Topology


@dataclass(frozen=True)
class RemoteHost:
    """The machine, as a namespace."""

    namespace: Namespace
    address4: str = "203.0.113.9"
    address6: str = "2001:db8:fa::9"
    gateway4: str = "203.0.113.1"

    def address(self, family: int) -> str:
        """Return its address of an IP version."""
        return self.address4 if family == 4 else self.address6


@contextlib.contextmanager
def remote_host(net: Topology, *, offload: bool = False) -> Iterator[RemoteHost]:
    """Put the machine on a network's internet for the length of a block."""
    with namespace("far") as place:
        far = RemoteHost(place)
        net.internet.sysctl(ipv4__ip_forward=1, ipv6__conf__all__forwarding=1)
        with veth(End(place, "eth0"), End(net.internet, "far"), offload=offload):
            place.ip(
                "link set eth0 up",
                f"address add {far.address4}/24 dev eth0",
                f"address add {far.address6}/64 dev eth0 nodad",
            )
            net.internet.ip(
                "link set far up",
                f"address add {far.gateway4}/24 dev far",
                "address add 2001:db8:fa::1/64 dev far nodad",
            )
            place.ip(f"route add default via {far.gateway4}", "route add default via 2001:db8:fa::1")
            yield far
