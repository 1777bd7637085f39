"""HTTP/1.1 client: one connection, GET requests one after the other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

READ_BYTES = 256 * 1024
LENGTH = re.compile(rb"\r\nContent-Length: (\d+)")


class Connection:
    """A connection to one server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use `open`."""
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def open(address: str, port: int = 80) -> Connection:
        """Connect."""
        return Connection(*await asyncio.open_connection(address, port, limit=4 * READ_BYTES))

    async def get(self, path: str, *, count: Callable[[int], None] | None = None) -> bytes:
        """Fetch `path` and return its body; with `count`, only report the sizes of chunks as they arrive."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: lab\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError(f"GET {path}: {head.partition(bytes([13]))[0].decode()}")
        length = LENGTH.search(head)
        left = int(length.group(1)) if length else None
        body = bytearray()
        while left is None or left > 0:
            data = await self._reader.read(READ_BYTES if left is None else min(left, READ_BYTES))
            if not data:
                raise ConnectionError(f"GET {path}: closed before its end")
            left = None if left is None else left - len(data)
            if count is None:
                body += data
            else:
                count(len(data))
        return bytes(body)

    def close(self) -> None:
        """Close it."""
        self._writer.close()
