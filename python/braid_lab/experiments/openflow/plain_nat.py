"""A host with a plain bridge of Open vSwitch: connection tracking and NAT, and nothing of ours.

It is what the group mode is measured against. All connections take the first uplink, so nothing has to be chosen.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from braid_lab.net.links import End, set_offload
from braid_lab.net.namespace import Namespace
from braid_lab.net.open_vswitch import OpenVswitch, open_vswitch
from braid_lab.net.topology import Topology

BRIDGE = "plain"
#: The way in, as Braid's: a veth pair into the bridge, an address that nobody has, and a next hop that nobody is.
NEAR, FAR = "plain0", "plain1"
INNER, NEXT_HOP = "192.0.0.8", "192.0.0.9"
ZONE = 1
PORTS = "16384-32767"


@contextlib.contextmanager
def plain_nat(net: Topology, folder: Path) -> Iterator[OpenVswitch]:
    """Lead the host's IPv4 connections through a bridge that translates them."""
    uplink = next(iter(net.uplinks.values()))
    host = net.host
    with open_vswitch(host, folder) as made:
        made.start()
        host.ip(f"link add {NEAR} type veth peer name {FAR}", f"link set {NEAR} up", f"link set {FAR} up")
        for device in (NEAR, FAR):
            set_offload(End(host, device), on=False)
        made.vsctl("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev", "fail_mode=secure")
        made.vsctl("add-port", BRIDGE, FAR, "--", "add-port", BRIDGE, uplink.name)
        made.vsctl("set", "bridge", BRIDGE, "protocols=OpenFlow13")
        inside, outside = (made.vsctl("get", "interface", port, "ofport").strip() for port in (FAR, uplink.name))
        macs = {"own": _mac(host, uplink.name), "host": _mac(host, NEAR), "gateway": _gateway(net)}
        rules = RULES.format(zone=ZONE, inside=inside, outside=outside, address=uplink.address4, ports=PORTS, **macs)
        file = folder / "rules"
        file.write_text(rules)
        made.ofctl("add-flows", BRIDGE, str(file))
        # The kernel gets the uplink's frames as well, and would reset the bridge's connections.
        host.run(["nft", "-f", "-"], text=FILTER.format(device=uplink.name, ports=PORTS))
        host.ip(
            f"address add {INNER}/32 dev {NEAR}",
            f"neighbour add {NEXT_HOP} lladdr 02:00:00:00:00:09 dev {NEAR}",
            f"route add 0.0.0.0/0 via {NEXT_HOP} dev {NEAR} onlink metric 1 src {INNER}",
        )
        yield made


RULES = """
table=0,priority=20,in_port={inside},tcp,ct_state=-trk,actions=ct(zone={zone},nat,table=0)
table=0,priority=20,in_port={outside},tcp,ct_state=-trk,actions=ct(zone={zone},nat,table=0)
table=0,priority=10,in_port={inside},tcp,ct_state=+trk+new,\
actions=ct(commit,zone={zone},nat(src={address}:{ports}),table=1)
table=0,priority=10,in_port={inside},tcp,ct_state=+trk+est,actions=goto_table:1
table=0,priority=10,in_port={outside},tcp,ct_state=+trk+est+rpl,\
actions=set_field:{own}->eth_src,set_field:{host}->eth_dst,output:{inside}
table=1,in_port={inside},actions=set_field:{own}->eth_src,set_field:{gateway}->eth_dst,output:{outside}
"""

FILTER = """
table inet plain {{
    chain prerouting {{
        type filter hook prerouting priority raw
        iifname "{device}" tcp dport {ports} drop
    }}
}}
"""


def _mac(host: Namespace, device: str) -> str:
    address: str = json.loads(host.run(["ip", "-json", "link", "show", "dev", device]).stdout)[0]["address"]
    return address


def _gateway(net: Topology) -> str:
    uplink = next(iter(net.uplinks.values()))
    return _mac(uplink.far.namespace, uplink.far.device)
