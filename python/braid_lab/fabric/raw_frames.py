"""Raw frames at a station of a fabric, sent and received with their tags.

    python -m braid_lab.fabric.raw_frames reflect DEVICE
    python -m braid_lab.fabric.raw_frames count DEVICE SECONDS
    python -m braid_lab.fabric.raw_frames send DEVICE TARGET-MAC COUNT PER-SECOND TAG…

`reflect` returns the controller's edge probes, as an edge does. `send` uses the tags in turn, and numbers its frames;
`count` prints as JSON, after the first frame or SECONDS, which numbers came with which tag.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import struct
import sys
import time

from braid_sdn.fabric.monitor.probe import EXPERIMENTAL, mac_bytes, tagged

#: IEEE 802 local experimental EtherType 2: no other traffic has it.
SEQUENCE_ETHERTYPE = 0x88B6

_AUXDATA = 8  # PACKET_AUXDATA of <linux/if_packet.h>
_SOL_PACKET = 263
_VLAN_VALID = 0x10  # TP_STATUS_VLAN_VALID
_AUX = struct.Struct("=IIIHHHH")


def packet_socket(device: str) -> socket.socket:
    """Return a socket for whole frames of a device."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    made.bind((device, 0))
    made.setsockopt(_SOL_PACKET, _AUXDATA, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_000_000)
    return made


def receive(peer: socket.socket) -> bytes | None:
    """Return the next incoming frame with the tag that the kernel took off it; None for an outgoing one."""
    frame, extra, _, origin = peer.recvmsg(65536, 256)
    if origin[2] == socket.PACKET_OUTGOING:
        return None
    for level, kind, data in extra:
        if (level, kind) == (_SOL_PACKET, _AUXDATA):
            status, _, _, _, _, vlan, _ = _AUX.unpack_from(data)
            if status & _VLAN_VALID:
                return tagged(frame, vlan)
    return frame


def reflect(device: str) -> None:
    """Return edge probes until killed."""
    peer = packet_socket(device)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        frame = receive(peer)
        if frame is not None and frame[12:14] == EXPERIMENTAL.to_bytes(2, "big"):
            peer.send(frame)


def send(device: str, target: str, count: int, per_second: float, tags: list[int]) -> None:
    """Send numbered frames, each with the next tag; tag 0 is none."""
    peer = packet_socket(device)
    source = peer.getsockname()[4]
    head = mac_bytes(target) + source + SEQUENCE_ETHERTYPE.to_bytes(2, "big")
    began = time.monotonic()
    for number in range(count):
        frame = (head + struct.pack("!I", number)).ljust(60, b"\0")
        tag = tags[number % len(tags)]
        peer.send(tagged(frame, tag) if tag else frame)
        time.sleep(max(0.0, began + number / per_second - time.monotonic()))


def count(device: str, seconds: float) -> None:
    """Count numbered frames until none has arrived for `seconds`; the first may take ten times that."""
    peer = packet_socket(device)
    seen: dict[int, list[int]] = {}
    times: list[float] = []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    deadline = time.monotonic() + 10 * seconds
    while (left := deadline - time.monotonic()) > 0 and select.select([peer], [], [], left)[0]:
        frame = receive(peer)
        if frame is None:
            continue
        tag, body = 0, frame[12:]
        if body[:2] == b"\x81\x00":
            tag, body = int.from_bytes(body[2:4], "big") & 0xFFF, body[4:]
        if body[:2] == SEQUENCE_ETHERTYPE.to_bytes(2, "big"):
            seen.setdefault(tag, []).append(int.from_bytes(body[2:6], "big"))
            times.append(time.monotonic())
            deadline = times[-1] + seconds
    longest = max((b - a for a, b in itertools.pairwise(times)), default=0.0)
    sys.stdout.write(json.dumps({"seen": seen, "longest_gap_s": longest}) + "\n")


if __name__ == "__main__":
    what, device, *rest = sys.argv[1:]
    if what == "reflect":
        reflect(device)
    elif what == "count":
        count(device, float(rest[0]))
    else:
        send(device, rest[0], int(rest[1]), float(rest[2]), [int(each) for each in rest[3:]])
