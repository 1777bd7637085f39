"""Connections that are already open when a fault occurs.

Run as `python -m braid_lab.clients.open_connections WAITING SENDING ADDRESS`: of the connections it opens, WAITING
only wait for the server, as a chat or a mail program does, and SENDING send a request every tenth of a second. Prints
a line of JSON with the address that the server sees for each; then a line for each connection that ends, with time
and error. Runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

from braid_lab.servers.catalog import HTTP_PORT

REQUEST_INTERVAL_SECONDS = 0.1
REQUEST = b"GET /address HTTP/1.1\r\nHost: lab\r\n\r\n"

Kind = Literal["waiting", "sending"]


@dataclass
class OpenConnection:
    """One connection."""

    kind: Kind
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    via: str

    @staticmethod
    async def open(kind: Kind, address: str) -> OpenConnection:
        """Connect and ask for the address that the server sees."""
        reader, writer = await asyncio.open_connection(address, HTTP_PORT)
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        return OpenConnection(kind, reader, writer, (await reader.readline()).decode().split()[0])

    async def wait_closed(self) -> str:
        """Wait until the connection ends; return its error."""
        asking = asyncio.create_task(self._ask()) if self.kind == "sending" else None
        try:
            while await self.reader.read(65536):
                pass
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, type(error).__name__)
        finally:
            if asking is not None:
                asking.cancel()
        return "closed"

    async def _ask(self) -> None:
        while True:
            self.writer.write(REQUEST)
            await asyncio.sleep(REQUEST_INTERVAL_SECONDS)


def print_json(what: dict[str, Any] | list[str]) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def main(waiting: int, sending: int, address: str) -> None:
    """Open all, then wait for their ends."""
    kinds: list[Kind] = [*(["waiting"] * waiting), *(["sending"] * sending)]  # type: ignore[list-item]
    held = [await OpenConnection.open(kind, address) for kind in kinds]
    print_json([each.via for each in held])

    async def watch(number: int, one: OpenConnection) -> None:
        error = await one.wait_closed()
        print_json({"number": number, "kind": one.kind, "via": one.via, "at": time.monotonic(), "error": error})

    everybody = asyncio.gather(*(watch(number, one) for number, one in enumerate(held)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, everybody.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await everybody


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
