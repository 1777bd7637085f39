"""Kernel MPTCP on a network's host and servers."""

from __future__ import annotations

from braid_lab.net.topology import Topology


def use_all_uplinks(net: Topology) -> None:
    """Let MPTCP connections use every uplink beside the one that they begin on."""
    for place in (net.host, net.internet):
        place.run(["ip", "mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "8"])
    for uplink in net.uplinks.values():
        words = ["add", uplink.address4, "dev", uplink.near.device, "subflow"]
        net.host.run(["ip", "mptcp", "endpoint", *words])
