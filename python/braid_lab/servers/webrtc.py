"""The far end of a WebRTC channel: it sends everything back.

An offer comes as a line of JSON over TCP, and the answer goes the same way. Run as
`python -m braid_lab.servers.webrtc ADDRESS`; prints `ready`.
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
    """Have this process offer one address to its peers.

    A browser whose user has not allowed it the camera offers only the address that its default route has (RFC 8828,
    mode 2).
    """
    aioice.ice.get_host_addresses = lambda *_args, **_named: [address]


def new_peer() -> RTCPeerConnection:
    """Return an end that asks nobody for its public address."""
    return RTCPeerConnection(RTCConfiguration(iceServers=[]))


def described(line: bytes) -> RTCSessionDescription:
    """Return what a peer sent."""
    return RTCSessionDescription(**json.loads(line))


def description(peer: RTCPeerConnection) -> bytes:
    """Return what is sent to a peer: which candidates there are is known by now, since aiortc waits for them."""
    return json.dumps({"sdp": peer.localDescription.sdp, "type": peer.localDescription.type}).encode() + b"\n"


class EchoPeers:
    """All peers that ever called."""

    def __init__(self) -> None:
        """Nobody has called."""
        self._peers: list[RTCPeerConnection] = []

    async def call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take an offer."""
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
