"""A stranger on the internet of a network, whose provider does not check source addresses.

host ═ dsl ═╗
     ═ lte ═╩ internet (servers) ── stranger
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from braid_lab.net.links import End, veth
from braid_lab.net.namespace import Namespace, namespace
from braid_lab.net.topology import Topology

ADDRESS = {4: "198.18.0.2", 6: "2001:db8:bad::2"}
_ROUTER = {4: "198.18.0.1", 6: "2001:db8:bad::1"}
#: Its IPv6 networks, as many as a site has; it gets what is sent to any address of them.
SITE = "2001:db8:bad::/48"

_FAR = "isp-stranger"


@contextlib.contextmanager
def stranger(net: Topology) -> Iterator[Namespace]:
    """Connect the stranger for the length of a block; its device is eth0."""
    with namespace("stranger") as made, veth(End(net.internet, _FAR), End(made, "eth0")):
        # The uplinks' providers go on checking; "all" would hold for the stranger's, too.
        checked = {f"ipv4__conf__{each.far.device}__rp_filter": 1 for each in net.uplinks.values()}
        net.internet.sysctl(
            **checked,
            **{f"ipv4__conf__{_FAR}__rp_filter": 0},
            # The servers' own addresses are this router's, too, and come from outside when they are forged.
            **{f"ipv4__conf__{_FAR}__accept_local": 1},
            ipv4__conf__all__rp_filter=0,
            ipv4__ip_forward=1,
            ipv6__conf__all__forwarding=1,
        )
        net.internet.ip(
            f"address add {_ROUTER[4]}/30 dev {_FAR}",
            f"address add {_ROUTER[6]}/64 dev {_FAR} nodad",
            f"route add {SITE} via {ADDRESS[6]} dev {_FAR}",
        )
        made.ip(
            f"address add {ADDRESS[4]}/30 dev eth0",
            f"address add {ADDRESS[6]}/64 dev eth0 nodad",
            f"route add default via {_ROUTER[4]}",
            f"route add ::/0 via {_ROUTER[6]}",
            f"route add local {SITE} dev lo",
        )
        yield made
