"""A WebRTC data channel: `python -m braid_lab.clients.webrtc SERVER SOURCE`; SOURCE is the address it offers.

Sends a message ten times a second, which the server echoes, and prints the time of every echo. Ends with the
connection, and prints its final state.
"""

from __future__ import annotations

import asyncio
import sys
import time

from braid_lab.servers.webrtc import PORT, described, description, new_peer, offer_only

MESSAGE_SECONDS = 0.1


async def main(server: str, source: str) -> str:
    """Exchange messages until the connection ends; return its final state."""
    offer_only(source)
    peer = new_peer()
    channel = peer.createDataChannel("talk")
    opened, over = asyncio.Event(), asyncio.Event()
    channel.on("open", opened.set)
    channel.on("close", over.set)

    def came(_: str) -> None:
        sys.stdout.write(f"{time.monotonic():.4f}\n")
        sys.stdout.flush()

    channel.on("message", came)

    def changed() -> None:
        if peer.connectionState in ("failed", "closed"):
            over.set()

    peer.on("connectionstatechange", changed)
    await peer.setLocalDescription(await peer.createOffer())
    reader, writer = await asyncio.open_connection(server, PORT)
    writer.write(description(peer))
    await peer.setRemoteDescription(described(await reader.readline()))
    writer.close()
    await opened.wait()
    while not over.is_set():
        channel.send("How are you?")
        await asyncio.sleep(MESSAGE_SECONDS)
    return f"the connection is {peer.connectionState}, its channel {channel.readyState}"


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(*sys.argv[1:])))
