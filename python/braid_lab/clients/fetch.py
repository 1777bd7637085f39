"""Asks servers for the address they see, and fetches from them, over one new connection each.

Run as `python -m braid_lab.clients.fetch [--bytes N] [--limit SECONDS] [--spacing SECONDS] ADDRESS…`; prints a line
of JSON, a `Fetched` for every address, in their order. Connections start in that order, `--spacing` apart. `--limit`
ends a slow fetch early; its rate is then that of the bytes so far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from dataclasses import asdict, dataclass

from braid_lab.clients.http1 import Connection

#: Limit until the server's first reply: a SYN lost three times has been repeated after 7 s.
FETCH_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Fetched:
    """Result of one connection. Times are CLOCK_MONOTONIC, which all namespaces share."""

    address: str
    #: The address that the server saw; None if the connection failed before.
    via: str | None
    #: Time from the first SYN until the connection was open.
    connect_s: float
    #: Start of the fetch itself, with the request.
    began: float
    ended: float
    bytes: int
    error: str | None = None

    @property
    def mbit(self) -> float:
        """Mean rate of the fetch, Mbit/s."""
        return 8e-6 * self.bytes / max(1e-9, self.ended - self.began)


async def fetch(address: str, size: int, limit: float, after: float) -> Fetched:
    """Connect after `after` seconds, ask for the address that the server sees, and fetch `size` bytes unless zero."""
    await asyncio.sleep(after)
    start = opened = began = time.monotonic()
    via, received = None, 0

    def count(some: int) -> None:
        nonlocal received
        received += some

    try:
        async with asyncio.timeout(FETCH_TIMEOUT_SECONDS):
            channel = await Connection.open(address)
            opened = time.monotonic()
            via = (await channel.get("/address")).decode().split()[0]
        began = time.monotonic()
        if size:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await channel.get(f"/bytes/{size}", count=count)
        channel.close()
    except (OSError, EOFError) as error:
        why = str(error) or type(error).__name__
        return Fetched(address, via, opened - start, began, time.monotonic(), received, why)
    return Fetched(address, via, opened - start, began, time.monotonic(), received)


async def fetch_all(addresses: list[str], size: int, limit: float, spacing: float) -> list[Fetched]:
    """Fetch from all."""
    tasks = (fetch(each, size, limit, number * spacing) for number, each in enumerate(addresses))
    return list(await asyncio.gather(*tasks))


def main() -> None:
    """Parse the arguments, fetch and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--spacing", type=float, default=0.0)
    parser.add_argument("addresses", nargs="+")
    words = parser.parse_args()
    fetched = asyncio.run(fetch_all(words.addresses, words.bytes, words.limit, words.spacing))
    json.dump([asdict(each) for each in fetched], sys.stdout)


if __name__ == "__main__":
    main()
