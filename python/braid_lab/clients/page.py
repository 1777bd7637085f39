"""A web page as a browser loads it, modelled on the pages of [host] §4.

The paper measured 100 sites: about 42 connections a page (Fig. 6) with a long tail of sizes, most at most a few
hundred KB and the largest near 5 MB (Fig. 7). The page here consists of objects on several hosts, since a browser
does not know sizes beforehand: it fetches the document, then opens up to six connections per host, and each
connection takes the host's next object as soon as it is free. Deviations: no TLS, no scripts that request more
objects, no DNS.

Run as `python -m braid_lab.clients.page [--retries N] [--halfway] SEED NUMBER ADDRESS…`; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections import deque
from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from typing import Any

from braid_lab.clients.http1 import Connection

#: Limit of browsers with HTTP/1.1.
CONNECTIONS_PER_HOST = 6

#: Objects per host: most on the site's own host, few on third parties. With at most six connections per host, this
#: makes 6+6+6+6+6+5+4+3 = 42 connections, the paper's mean.
OBJECTS = (34, 20, 12, 9, 7, 5, 4, 3)

#: Log-normal object sizes. About 2.2 objects share a connection, which gives a median near 100 KB per connection;
#: among the paper's 100 pages the largest object is expected at 4 to 5 MB.
MEDIAN_BYTES = 30_000
SIGMA = 1.3
LARGEST_BYTES = 5_000_000

DOCUMENT_BYTES = 60_000

#: A request that takes longer is made again, as a user would reload.
REQUEST_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Page:
    """Object sizes of a page, by host; the first object of the first host is the document."""

    hosts: tuple[tuple[int, ...], ...]

    @property
    def total(self) -> int:
        """Size of the whole page, bytes."""
        return sum(map(sum, self.hosts))


@dataclass
class Flow:
    """Traffic of one connection."""

    host: int
    opened_s: float
    closed_s: float = 0.0
    objects: int = 0
    bytes: int = 0


def page(seed: int, number: int) -> Page:
    """Return page `number` of the series `seed`; the same arguments give the same page."""
    generator = random.Random(f"page {seed} {number}")

    def size() -> int:
        return max(200, min(LARGEST_BYTES, round(generator.lognormvariate(math.log(MEDIAN_BYTES), SIGMA))))

    hosts = [[size() for _ in range(count)] for count in OBJECTS]
    hosts[0][0] = DOCUMENT_BYTES
    return Page(tuple(map(tuple, hosts)))


class Visit:
    """One load of a page.

    With `retries`, a request that fails or times out is made again over a new connection, as browsers do; a request
    that fails more often is counted and dropped. Without retries, the first failure ends the visit.
    """

    def __init__(self, what: Page, addresses: list[str], *, retries: int = 0) -> None:
        """Load nothing yet; see `load`."""
        self._addresses = addresses
        self._retries = retries
        self._queues = [deque(sizes) for sizes in what.hosts]
        self._objects = sum(map(len, what.hosts))
        self._done = 0
        self.started = time.monotonic()
        self.flows: list[Flow] = []
        self.retried = 0
        self.failed = 0
        self.halfway = asyncio.Event()

    async def load(self) -> float:
        """Load everything and return the page load time in seconds."""
        origin, first = self._flow(0), self._queues[0].popleft()
        await self._request(origin, first)
        async with asyncio.TaskGroup() as tasks:
            for host, queue in enumerate(self._queues):
                for slot in range(min(CONNECTIONS_PER_HOST, len(queue) + (host == 0))):
                    again = host == 0 and slot == 0
                    tasks.create_task(self._connection(origin if again else self._flow(host)))
        return time.monotonic() - self.started

    def _flow(self, host: int) -> Channel:
        flow = Flow(host, time.monotonic() - self.started)
        self.flows.append(flow)
        return Channel(self._addresses[host % len(self._addresses)], flow)

    async def _connection(self, channel: Channel) -> None:
        """Fetch the host's remaining objects, one after another."""
        queue = self._queues[channel.flow.host]
        opened = await self._attempt(channel.open())
        while queue:
            # A failed connection counts as the first try of its first request.
            await self._request(channel, queue.popleft(), tried=0 if opened else 1)
            opened = True
        channel.flow.closed_s = time.monotonic() - self.started
        channel.close()

    async def _request(self, channel: Channel, size: int, tried: int = 0) -> None:
        for number in range(tried, self._retries + 1):
            self.retried += number == 1
            if await self._attempt(channel.fetch(size)):
                break
            channel.close()
        else:
            self.failed += 1
        self._done += 1
        if 2 * self._done >= self._objects:
            self.halfway.set()

    async def _attempt(self, what: Awaitable[None]) -> bool:
        """Await an operation and return whether it succeeded; without retries, raise its error."""
        if not self._retries:
            await what
            return True
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                await what
        except (OSError, EOFError):
            return False
        return True


class Channel:
    """A slot in a browser's connection pool; its connection is replaced after a failure."""

    def __init__(self, address: str, flow: Flow) -> None:
        """Connect later, in `open`."""
        self._address = address
        self.flow = flow
        self._connection: Connection | None = None

    async def open(self) -> None:
        """Connect unless connected."""
        if self._connection is None:
            self._connection = await Connection.open(self._address)

    async def fetch(self, size: int) -> None:
        """Fetch one object."""

        def count(received: int) -> None:
            self.flow.bytes += received

        await self.open()
        assert self._connection is not None  # noqa: S101
        await self._connection.get(f"/bytes/{size}", count=count)
        self.flow.objects += 1

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def visit(one: Visit, *, tell_halfway: bool) -> dict[str, Any]:
    """Load a page and return its load time and connections."""
    loading = asyncio.create_task(one.load())
    if tell_halfway:
        await one.halfway.wait()
        sys.stdout.write("halfway\n")
        sys.stdout.flush()
    seconds = await loading
    return {"seconds": seconds, "retried": one.retried, "failed": one.failed}


def main() -> None:
    """Load one page and print the result."""
    parser = argparse.ArgumentParser(description="Load a page.")
    parser.add_argument("--retries", type=int, default=0, help="how often a request that failed is made again")
    parser.add_argument("--halfway", action="store_true", help="print `halfway` when half of the objects are there")
    parser.add_argument("seed", type=int)
    parser.add_argument("number", type=int)
    parser.add_argument("addresses", nargs="+")
    options = parser.parse_args()
    what = page(options.seed, options.number)
    one = Visit(what, options.addresses, retries=options.retries)
    result = asyncio.run(visit(one, tell_halfway=options.halfway))
    json.dump({**result, "bytes": what.total, "flows": [asdict(each) for each in one.flows]}, sys.stdout)


if __name__ == "__main__":
    main()
