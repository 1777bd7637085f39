"""The far end of a WebRTC channel: it echoes everything.

An offer comes as a line of JSON over TCP, and the answer goes the same way. Run as `python -m
braid_lab.servers.webrtc ADDRESS`; prints `ready`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import aioice.ice
from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription

PORT = 8080


def offer_only(address: str) -> None:
    """Offer only one address to peers of this process.

    A browser without camera permission offers only the address of its default route (RFC 8828, mode 2).
    """
    aioice.ice.get_host_addresses = lambda *_args, **_named: [address]


def new_peer() -> RTCPeerConnection:
    """Return a peer that uses no STUN server."""
    return RTCPeerConnection(RTCConfiguration(iceServers=[]))


def described(line: bytes) -> RTCSessionDescription:
    """Parse a peer's session description."""
    return RTCSessionDescription(**json.loads(line))


def description(peer: RTCPeerConnection) -> bytes:
    """Return the description for a peer; candidates are complete, since aiortc waits for them."""
    return json.dumps({"sdp": peer.localDescription.sdp, "type": peer.localDescription.type}).encode() + b"\n"


class EchoPeers:
    """All peers so far."""

    def __init__(self) -> None:
        """No peer has called."""
        self._peers: list[RTCPeerConnection] = []

    async def call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept an offer."""
        peer = new_peer()
        self._peers.append(peer)

        def opened(channel: RTCDataChannel) -> None:
            channel.on("message", channel.send)

        peer.on("datachannel", opened)
        await peer.setRemoteDescription(described(await reader.readline()))
        await peer.setLocalDescription(await peer.createAnswer())
        writer.write(description(peer))
        await writer.drain()
        writer.close()


async def main(address: str) -> None:
    """Serve until SIGTERM."""
    offer_only(address)
    done = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
    async with await asyncio.start_server(EchoPeers().call, address, PORT):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
