"""A captive portal: it answers every HTTP request with its own page.

Run as `python -m braid_lab.servers.portal ADDRESS PORT`; prints `ready`. Traffic must be redirected here.
"""

from __future__ import annotations

import asyncio
import signal
import sys

PAGE = b"<html><title>Welcome</title>Please accept our terms.</html>\n"
ANSWER = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(PAGE), PAGE)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request."""
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        await writer.drain()
    except (OSError, EOFError):
        return
    finally:
        writer.close()


async def main(address: str, port: int) -> None:
    """Serve until SIGTERM."""
    done = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
    await asyncio.start_server(answer, address, port)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await done.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
