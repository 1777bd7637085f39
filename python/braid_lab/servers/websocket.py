"""A WebSocket server that echoes everything.

Run as `python -m braid_lab.servers.websocket ADDRESS`; prints `ready`.
"""

from __future__ import annotations

import asyncio
import sys

from websockets.asyncio.server import ServerConnection, serve

PORT = 8765


async def echo(peer: ServerConnection) -> None:
    """Serve one connection."""
    async for message in peer:
        await peer.send(message)


async def main(address: str) -> None:
    """Serve until SIGTERM, without closing handshakes: some peers may be unreachable."""
    async with serve(echo, address, PORT) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
