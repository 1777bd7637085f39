"""A chat over a WebSocket: `python -m braid_lab.clients.websocket ADDRESS`.

Sends a message ten times a second, which the server echoes, and prints the time of every echo. Ends with the
connection, and prints the reason.
"""

from __future__ import annotations

import asyncio
import sys
import time

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from braid_lab.servers.websocket import PORT

MESSAGE_SECONDS = 0.1


async def _send(peer: ClientConnection) -> None:
    while True:
        await peer.send("How are you?")
        await asyncio.sleep(MESSAGE_SECONDS)


async def main(address: str) -> None:
    """Chat, and print when echoes arrive."""
    async with connect(f"ws://{address}:{PORT}", proxy=None) as peer:
        sending = asyncio.create_task(_send(peer))
        try:
            while True:
                await peer.recv()
                sys.stdout.write(f"{time.monotonic():.4f}\n")
                sys.stdout.flush()
        finally:
            sending.cancel()


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1]))
    except (ConnectionClosed, OSError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
