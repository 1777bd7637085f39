"""A web page as a browser loads it, shaped after the pages of [host] §4.

A page is what the paper measured on 100 sites: about 42 connections (Fig. 6) whose sizes have a long tail, most
at most a few hundred KB and the largest of all near 5 MB (Fig. 7). We make it from objects on several hosts,
since a browser does not know sizes beforehand: it fetches the document, then opens up to six connections per
host, and each connection takes the host's next object as soon as it is free. Deviation: no TLS, no scripts that
ask for more, and no DNS.

Run as `python -m braid_lab.load.page SEED NUMBER ADDRESS…`.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass

from braid_lab.load.http1 import Connection

#: What browsers allow themselves with HTTP/1.1.
CONNECTIONS_PER_HOST = 6

#: Objects per host: the site's own host has most, third parties few. With six connections per host at most,
#: this makes 6+6+6+6+6+5+4+3 = 42 connections, the paper's mean.
OBJECTS = (34, 20, 12, 9, 7, 5, 4, 3)

#: Log-normal object sizes. About 2.2 objects share a connection, whose median is then near 100 KB; among the
#: paper's 100 pages the largest object is expected at 4 to 5 MB.
MEDIAN_BYTES = 30_000
SIGMA = 1.3
LARGEST_BYTES = 5_000_000

DOCUMENT_BYTES = 60_000


@dataclass(frozen=True)
class Page:
    """The sizes of a page's objects, host by host; the first object of the first host is the document."""

    hosts: tuple[tuple[int, ...], ...]

    @property
    def total(self) -> int:
        """All bytes of the page."""
        return sum(map(sum, self.hosts))


@dataclass
class Flow:
    """What one connection carried."""

    host: int
    opened_s: float
    closed_s: float = 0.0
    objects: int = 0
    bytes: int = 0


def page(seed: int, number: int) -> Page:
    """Return page `number` of the series `seed`: always the same one."""
    generator = random.Random(f"page {seed} {number}")

    def size() -> int:
        return max(200, min(LARGEST_BYTES, round(generator.lognormvariate(math.log(MEDIAN_BYTES), SIGMA))))

    hosts = [[size() for _ in range(count)] for count in OBJECTS]
    hosts[0][0] = DOCUMENT_BYTES
    return Page(tuple(map(tuple, hosts)))


async def load(what: Page, addresses: list[str]) -> tuple[float, list[Flow]]:
    """Load a page whose hosts have these addresses; return the page load time in seconds and its flows."""
    started = time.monotonic()
    flows: list[Flow] = []
    queues = [deque(sizes) for sizes in what.hosts]
    first = Flow(0, 0.0)
    origin = await Connection.open(addresses[0])
    flows.append(first)
    await _fetch(origin, queues[0].popleft(), first)

    async def connection(host: int, ready: Connection | None, flow: Flow | None) -> None:
        if flow is None:
            flow = Flow(host, time.monotonic() - started)
            flows.append(flow)
        channel = ready or await Connection.open(addresses[host % len(addresses)])
        while queues[host]:
            await _fetch(channel, queues[host].popleft(), flow)
        flow.closed_s = time.monotonic() - started
        channel.close()

    async with asyncio.TaskGroup() as tasks:
        for host, queue in enumerate(queues):
            for slot in range(min(CONNECTIONS_PER_HOST, len(queue) + (host == 0))):
                again = host == 0 and slot == 0
                tasks.create_task(connection(host, origin if again else None, first if again else None))
    return time.monotonic() - started, flows


async def _fetch(channel: Connection, size: int, flow: Flow) -> None:
    def count(received: int) -> None:
        flow.bytes += received

    await channel.get(f"/bytes/{size}", count=count)
    flow.objects += 1


def main() -> None:
    """Load one page and print what it took."""
    seed, number, *addresses = sys.argv[1:]
    what = page(int(seed), int(number))
    seconds, flows = asyncio.run(load(what, addresses))
    json.dump({"seconds": seconds, "bytes": what.total, "flows": [asdict(each) for each in flows]}, sys.stdout)


if __name__ == "__main__":
    main()
