"""Packets of TCP and UDP from files of tcpdump and Wireshark (pcap and pcapng), read by dpkt one at a time."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dpkt  # type: ignore[import-untyped]

from braid_lab.process import LabError

Address = tuple[str, int]

#: Link types of captures (LINKTYPE_…) whose frames dpkt knows.
FRAMES = {1: dpkt.ethernet.Ethernet, 113: dpkt.sll.SLL, 276: dpkt.sll2.SLL2}
#: Link types of bare IP packets.
BARE = (12, 101, 228, 229)


@dataclass(frozen=True)
class Packet:
    """One packet."""

    seconds: float
    #: tcp or udp.
    transport: str
    source: Address
    target: Address
    #: Of the whole IP packet on the wire, also where the capture has only its beginning.
    length: int
    #: Payload bytes on the wire, and those of them that were captured.
    payload_length: int
    payload: bytes
    #: TCP's sequence number, and whether the packet opens a connection.
    sequence: int = 0
    opens: bool = False


def packets(file: Path) -> Iterator[Packet]:
    """Yield a capture's packets of TCP and UDP, without ever holding more than one; LabError for other files."""
    try:
        with file.open("rb") as raw:
            reader = dpkt.pcap.UniversalReader(raw)
            link = reader.datalink()
            if link not in FRAMES and link not in BARE:
                raise LabError(
                    f"{file}: packets of link type {link} are not understood; capture on an Ethernet device"
                )
            for seconds, frame in reader:
                if (packet := _packet(float(seconds), link, frame)) is not None:
                    yield packet
    except OSError as error:
        raise LabError(f"{file}: {error.strerror}") from error
    except (ValueError, dpkt.Error) as error:
        raise LabError(f"{file}: neither a pcap nor a pcapng file, or cut off: {error}") from error


def _packet(seconds: float, link: int, frame: bytes) -> Packet | None:
    """Return a frame's packet; None for all but whole packets and first fragments of TCP and UDP."""
    try:
        if link in BARE:
            ip = dpkt.ip.IP(frame) if frame[0] >> 4 == 4 else dpkt.ip6.IP6(frame)
        else:
            ip = FRAMES[link](frame).data
    except (dpkt.UnpackError, IndexError):
        return None
    if isinstance(ip, dpkt.ip.IP):
        # Offloaded segments may have a length of 0.
        whole, header = ip.len or len(ip), 4 * ip.hl
    elif isinstance(ip, dpkt.ip6.IP6):
        whole, header = 40 + ip.plen, 40
    else:
        return None
    segment = ip.data
    source, target = (str(ipaddress.ip_address(each)) for each in (ip.src, ip.dst))
    transport, sequence, opens = "udp", 0, False
    if isinstance(segment, dpkt.tcp.TCP):
        payload_length = max(0, whole - header - 4 * segment.off)
        flags = segment.flags & (dpkt.tcp.TH_SYN | dpkt.tcp.TH_ACK)
        transport, sequence, opens = "tcp", segment.seq, flags == dpkt.tcp.TH_SYN
    elif isinstance(segment, dpkt.udp.UDP):
        payload_length = max(0, segment.ulen - 8)
    else:
        return None
    return Packet(
        seconds,
        transport,
        (source, segment.sport),
        (target, segment.dport),
        whole,
        payload_length,
        bytes(segment.data)[:payload_length],
        sequence,
        opens,
    )
