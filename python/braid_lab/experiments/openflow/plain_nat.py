"""A host with a plain bridge of Open vSwitch: connection tracking and NAT, and nothing of ours.

It is what the group mode is measured against. Bits of source ports decide the uplink, so nothing has to be chosen,
but the bridge reads and writes the same devices.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from braid_lab.net.links import End, set_offload
from braid_lab.net.namespace import Namespace
from braid_lab.net.open_vswitch import OpenVswitch, open_vswitch
from braid_lab.net.topology import Topology, Uplink

BRIDGE = "plain"
#: The way in, as Braid's: a veth pair into the bridge, an address that nobody has, and a next hop that nobody is.
NEAR, FAR = "plain0", "plain1"
INNER, NEXT_HOP = "192.0.0.8", "192.0.0.9"
ZONE = 1
PORTS = "16384-32767"


@contextlib.contextmanager
def plain_nat(net: Topology, folder: Path) -> Iterator[OpenVswitch]:
    """Lead the host's IPv4 connections through a bridge that translates them."""
    host = net.host
    with open_vswitch(host, folder) as made:
        made.start()
        host.ip(f"link add {NEAR} type veth peer name {FAR}", f"link set {NEAR} up", f"link set {FAR} up")
        for device in (NEAR, FAR):
            set_offload(End(host, device), on=False)
        made.vsctl("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev", "fail_mode=secure")
        made.vsctl("add-port", BRIDGE, FAR, *_words(("--", "add-port", BRIDGE, device) for device in net.uplinks))
        made.vsctl("set", "bridge", BRIDGE, "protocols=OpenFlow13")
        file = folder / "rules"
        file.write_text(_rules(net, made))
        made.ofctl("add-flows", BRIDGE, str(file))
        # The kernel gets the uplinks' frames as well, and would reset the bridge's connections.
        host.run(
            ["nft", "-f", "-"], text=FILTER.format(devices=", ".join(map('"{}"'.format, net.uplinks)), ports=PORTS)
        )
        host.ip(
            f"address add {INNER}/32 dev {NEAR}",
            f"neighbour add {NEXT_HOP} lladdr 02:00:00:00:00:09 dev {NEAR}",
            f"route add 0.0.0.0/0 via {NEXT_HOP} dev {NEAR} onlink metric 1 src {INNER}",
        )
        yield made


RULES = """
table=0,priority=20,in_port={inside},tcp,ct_state=-trk,actions=ct(zone={zone},nat,table=0)
table=0,priority=10,in_port={inside},tcp,ct_state=+trk+est,actions=goto_table:1
"""

UPLINK_RULES = """
table=0,priority=20,in_port={outside},tcp,ct_state=-trk,actions=ct(zone={zone},nat,table=0)
table=0,priority=10,in_port={inside},tcp,tp_src={bits}/{mask},ct_state=+trk+new,\
actions=ct(commit,zone={zone},nat(src={address}:{ports}),table=1)
table=0,priority=10,in_port={outside},tcp,ct_state=+trk+est+rpl,\
actions=set_field:{own}->eth_src,set_field:{host}->eth_dst,output:{inside}
table=1,in_port={inside},ip,nw_src={address},actions=set_field:{own}->eth_src,set_field:{gateway}->eth_dst,output:{outside}
"""

FILTER = """
table inet plain {{
    chain prerouting {{
        type filter hook prerouting priority raw
        iifname {{ {devices} }} tcp dport {ports} drop
    }}
}}
"""


def _words(commands: Iterable[Iterable[str]]) -> Iterator[str]:
    return itertools.chain.from_iterable(commands)


def _rules(net: Topology, switch: OpenVswitch) -> str:
    def port(device: str) -> str:
        return switch.vsctl("get", "interface", device, "ofport").strip()

    shared = {"zone": ZONE, "inside": port(FAR), "ports": PORTS, "host": _mac(net.host, NEAR)}
    # Linux connects from ports of one parity. The number of uplinks is a power of two.
    mask = (len(net.uplinks) - 1) * 2
    made = [RULES.format(**shared)]
    for number, uplink in enumerate(net.uplinks.values()):
        ends = {"outside": port(uplink.name), "own": _mac(net.host, uplink.name), "gateway": _gateway(uplink)}
        made.append(UPLINK_RULES.format(bits=number * 2, mask=mask, address=uplink.address4, **ends, **shared))
    return "".join(made)


def _mac(host: Namespace, device: str) -> str:
    address: str = json.loads(host.run(["ip", "-json", "link", "show", "dev", device]).stdout)[0]["address"]
    return address


def _gateway(uplink: Uplink) -> str:
    return _mac(uplink.far.namespace, uplink.far.device)
