"""Behaviours that eBPF has and this datapath has not: their names, and the reasons. docs/openflow.md has the same."""

from __future__ import annotations

from fnmatch import fnmatch

from braid_lab.datapath import Datapath

ALL: tuple[Datapath, ...] = ("packet-in", "group")
GROUP: tuple[Datapath, ...] = ("group",)

#: Patterns of names, the modes concerned, and why.
DEVIATIONS: tuple[tuple[str, tuple[Datapath, ...], str], ...] = (
    ("failover_download_*", GROUP, "no replay: a client that only receives sends nothing that would move its flow"),
    ("icmp_error_with_a_wrong_checksum_stays_wrong_*", ALL, "an error is written anew, with a right checksum"),
    ("icmp_error_about_udp_*", ALL, "the checksum inside of the quoted datagram is not adapted"),
    ("icmp_error_about_an_echo_*", ALL, "the checksum inside of the quoted echo is not adapted"),
    ("icmp_error_about_tcp_*", GROUP, "the tracker of Open vSwitch before 3.4 loses errors about IPv6 flows"),
    ("icmp_error_of_a_client_*", ALL, "errors of the inside are not translated"),
    ("path_mtu_of_the_lan_*", ALL, "errors of the inside are not translated"),
    (
        "host_path_mtu_reaches_the_socket_*",
        ALL,
        "the path's MTU is not told for packets that the uplink's own is for",
    ),
    ("*port_is_preserved_*", ALL, "outer ports come from the uplink's range alone"),
    ("udp_port_parity_*", ALL, "outer ports come from the uplink's range alone"),
    ("udp_hairpin*", ALL, "the kernel has the uplinks' addresses, and takes packets to them for itself"),
    ("tcp_without_a_flow_*", ALL, "segments of no flow are answered inside, and not sent out"),
    ("mss_is_clamped_*", ALL, "no action writes TCP's options"),
    ("segments_as_large_as_the_uplink_*", ALL, "a userspace bridge does not cut large segments"),
    ("options_are_kept_v6", ALL, "packets with IPv6 extension headers have no rule"),
    ("*tcp_simultaneous_open_*", GROUP, "the tracker takes both SYNs of a simultaneous open for invalid"),
    ("tcp_forged_reset_*", GROUP, "the tracker ends a connection with any reset in its window"),
)


def reason(name: str, datapath: Datapath) -> str:
    """Return why a behaviour is missing; empty if it should be there."""
    found = (why for pattern, modes, why in DEVIATIONS if datapath in modes and fnmatch(name, pattern))
    return next(found, "")
