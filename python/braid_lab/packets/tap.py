"""A TAP device with its wire in our hands: we read the kernel's packets byte by byte, and write those it receives.

With offloads the device resembles a virtual machine's network card: the kernel may give us packets with unfinished
checksums and segments larger than the link, and accepts the same. Without them, every byte is as on a wire.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence

from braid_lab.net.namespace import Namespace
from braid_lab.packets.codec import CHECKSUM_AT, TCP, UDP, Icmp, Packet, Tcp, Udp, decode, encode, ones_sum
from braid_lab.process import LabError

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
#: Checksums, and TCP segmentation for both IP versions.
OFFLOADS = 0x01 | 0x02 | 0x04
#: struct virtio_net_hdr: flags, gso type, header length, gso size, checksum start and offset.
VNET = struct.Struct("=BBHHHH")
NEEDS_CHECKSUM = 1
ETHERNET = struct.Struct("!6s6sH")
ETHERTYPE = {4: 0x0800, 6: 0x86DD}
ETHERTYPE_ARP, NEIGHBOUR_ADVERTISEMENT = 0x0806, 136
#: Ethernet, IPv4, the lengths of their addresses, and the operation.
ARP_REPLY = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2)
LARGEST_FRAME = 1 << 17


class Port:
    """One TAP device in a namespace, and all hosts at the other end of its wire.

    On our side all of them share one link-layer address, `neighbour`; the namespace needs static neighbour entries
    (`ip neighbour`), since nothing here answers ARP or neighbour solicitations.
    """

    def __init__(self, place: Namespace, device: str, number: int, *, offload: bool) -> None:
        """Create and enable the device; `close` removes it."""
        self.place, self.device, self.offload = place, device, offload
        self.address = bytes([2, 0, 0, 0, 1, number])
        self._peer = bytes([2, 0, 0, 0, 2, number])
        with place.inside():
            self._descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        request = struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR)
        fcntl.ioctl(self._descriptor, TUNSETIFF, request)
        fcntl.ioctl(self._descriptor, TUNSETOFFLOAD, OFFLOADS if offload else 0)
        place.ip(f"link set {device} address {self.address.hex(':')}", f"link set {device} up")

    @property
    def neighbour(self) -> str:
        """Link-layer address of all hosts beyond."""
        return self._peer.hex(":")

    def close(self) -> None:
        """Remove the device."""
        os.close(self._descriptor)

    def send(self, packet: Packet, *, spoil: bool = False, source: bytes | None = None) -> None:
        """Give the kernel a packet from the wire.

        With offloads its checksum is left unfinished where that is usual. `source` is the sender's link-layer
        address, `neighbour` by default.
        """
        partial = self.offload and not spoil and packet.piece is None and _summed_by_devices(packet)
        data = encode(packet, partial=partial, spoil=spoil)
        header = VNET.pack(0, 0, 0, 0, 0, 0)
        if partial:
            protocol = TCP if isinstance(packet.body, Tcp) else UDP
            start = ETHERNET.size + len(data) - _transport_size(packet)
            header = VNET.pack(NEEDS_CHECKSUM, 0, 0, 0, start, CHECKSUM_AT[protocol])
        frame = ETHERNET.pack(self.address, source or self._peer, ETHERTYPE[packet.family]) + data
        os.write(self._descriptor, header + frame)

    def announce(self, address: str) -> None:
        """Tell everybody on the wire that `neighbour` has an address: an ARP reply, or a neighbour advertisement."""
        if ":" in address:
            target = socket.inet_pton(socket.AF_INET6, address)
            # Override; and the option of the target's link-layer address (RFC 4861 §4.4).
            told = Icmp(NEIGHBOUR_ADVERTISEMENT, rest=b"\x20\0\0\0", data=target + b"\x02\x01" + self._peer)
            self.send(Packet(address, "ff02::1", told, hops=255))
            return
        ends = self._peer + socket.inet_aton(address)
        reply = ARP_REPLY + ends + self.address + socket.inet_aton(address)
        frame = ETHERNET.pack(self.address, self._peer, ETHERTYPE_ARP) + reply
        os.write(self._descriptor, VNET.pack(0, 0, 0, 0, 0, 0) + frame)

    def packets(self) -> list[Packet]:
        """Return the waiting IP packets, oldest first."""
        found: list[Packet] = []
        while True:
            try:
                data = os.read(self._descriptor, LARGEST_FRAME)
            except BlockingIOError:
                return found
            packet = _received(data)
            if packet:
                found.append(packet)

    def fileno(self) -> int:
        """Descriptor that is readable when packets wait."""
        return self._descriptor


Arrived = tuple[Port, Packet]


def expect(
    ports: Sequence[Port],
    wanted: Callable[[Packet], bool],
    *,
    what: str,
    timeout: float = 3.0,
    passing: list[Arrived] | None = None,
) -> Arrived:
    """Return the first `wanted` packet on any of the ports; packets before it are added to `passing`.

    LabError names the packets that came instead.
    """
    seen: list[Arrived] = [] if passing is None else passing
    deadline = time.monotonic() + timeout
    found: Arrived | None = None
    while True:
        for port in ports:
            for packet in port.packets():
                if found is None and wanted(packet):
                    found = (port, packet)
                else:
                    seen.append((port, packet))
        if found:
            return found
        left = deadline - time.monotonic()
        if left <= 0:
            raise LabError(f"no {what}; instead {[(port.device, packet) for port, packet in seen[-3:]]}")
        select.select(ports, [], [], left)


def _summed_by_devices(packet: Packet) -> bool:
    return isinstance(packet.body, Tcp) or (isinstance(packet.body, Udp) and packet.body.checksum)


def _transport_size(packet: Packet) -> int:
    body = packet.body
    if isinstance(body, Udp):
        return 8 + len(body.data)
    if isinstance(body, Tcp):
        return 20 + (0 if body.mss is None else 4) + len(body.data)
    raise LabError("only TCP and UDP checksums are offloaded to devices")


def _received(data: bytes) -> Packet | None:
    """Parse a frame after finishing its checksum as the device would; None if it holds no IP packet."""
    flags, _, _, _, start, offset = VNET.unpack_from(data)
    frame = bytearray(data[VNET.size :])
    if flags & NEEDS_CHECKSUM:
        # The field holds the pseudo header's sum, so summing over it completes the checksum.
        value = ~ones_sum(bytes(frame[start:])) & 0xFFFF
        struct.pack_into("!H", frame, start + offset, value or 0xFFFF)
    if struct.unpack_from("!H", frame, 12)[0] not in ETHERTYPE.values():
        return None
    with contextlib.suppress(ValueError):
        return decode(bytes(frame[ETHERNET.size :]))
    return None
