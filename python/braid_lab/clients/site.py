"""Loads a site's front page as a browser does, without the browser: the same dependencies, connections and limits.

The rules, of Chromium as of HTML: the document's styles, scripts and images are asked for as soon as its beginning is
there; what a script asks for, as soon as that script is there. A host has at most six connections over HTTP/1.1, one
over HTTP/2 and HTTP/3. Over HTTP/1.1 no more than ten requests of low priority, images and scripts that the parser
does not wait for, are under way at a time. The load event is due when nothing that delays it is under way; fetches do
not delay it. Deviations: scripts take no time, nothing is drawn, and requests of equal priority have no order.

Run as `python -m braid_lab.clients.site CORPUS SITE PROTOCOL TRUST`; PROTOCOL is http/1.1, h2 or h3, TRUST a file
with an authority's certificate. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpcore

from braid_lab.clients.http3 import Client, connected
from braid_lab.pages.corpus import CONNECTIONS_PER_HOST, Kind, Object, Site, read
from braid_lab.pages.sites import PROTOCOLS
from braid_lab.servers.catalog import QUIC_PORT

#: Requests of low priority under way at a time over HTTP/1.1, and their kinds.
LOW_PRIORITY_REQUESTS = 10
LOW_PRIORITY: tuple[Kind, ...] = ("image", "script")


class Names:
    """Addresses of host names, each asked for once."""

    def __init__(self) -> None:
        """Know none yet."""
        self._asked: dict[str, asyncio.Task[str]] = {}

    async def address(self, host: str) -> str:
        """Return a host's IPv4 address."""
        if host not in self._asked:
            self._asked[host] = asyncio.create_task(self._ask(host))
        return await self._asked[host]

    async def _ask(self, host: str) -> str:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, QUIC_PORT, family=socket.AF_INET, type=socket.SOCK_STREAM)
        return str(found[0][4][0])


class CountingBackend(httpcore.AsyncNetworkBackend):
    """Opens connections to names of `Names`, and counts them."""

    def __init__(self, names: Names) -> None:
        """Open none yet."""
        self._names = names
        self._real = httpcore.AnyIOBackend()
        self.opened = 0

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Open one."""
        address = await self._names.address(host)
        self.opened += 1
        return await self._real.connect_tcp(address, port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        """Sleep, between attempts of httpcore."""
        await self._real.sleep(seconds)


class Transport(Protocol):
    """Fetches objects over one protocol."""

    @property
    def flows(self) -> int:
        """The connections that it has opened."""
        ...

    async def fetch(self, what: Object, sent: Callable[[], None], began: Callable[[], None]) -> int:
        """Fetch an object and return its size; call `sent` with the request, `began` at the answer's first bytes."""
        ...


class OverTcp:
    """HTTP/1.1 or HTTP/2: a pool of connections to every host."""

    def __init__(self, protocol: str, trust: Path, stack: contextlib.AsyncExitStack) -> None:
        """Connect later."""
        self._two = protocol == "h2"
        self._backend = CountingBackend(Names())
        self._context = ssl.create_default_context(cafile=str(trust))
        self._stack = stack
        self._pools: dict[str, httpcore.AsyncConnectionPool] = {}

    @property
    def flows(self) -> int:
        """The connections that were opened."""
        return self._backend.opened

    def _pool(self, host: str) -> httpcore.AsyncConnectionPool:
        if host not in self._pools:
            pool = httpcore.AsyncConnectionPool(
                ssl_context=self._context,
                max_connections=1 if self._two else CONNECTIONS_PER_HOST,
                http1=not self._two,
                http2=self._two,
                network_backend=self._backend,
            )
            self._stack.push_async_callback(pool.aclose)
            self._pools[host] = pool
        return self._pools[host]

    async def fetch(self, what: Object, sent: Callable[[], None], began: Callable[[], None]) -> int:
        """Fetch an object and return its size."""
        size = 0

        async def trace(event: str, _: dict[str, Any]) -> None:
            if event.endswith("send_request_headers.started"):
                sent()

        async with self._pool(what.host).stream("GET", what.url, extensions={"trace": trace}) as answer:
            if answer.status != 200:
                raise ConnectionError(f"{what.url}: HTTP status {answer.status}")
            async for piece in answer.aiter_stream():
                if size == 0:
                    began()
                size += len(piece)
        return size


class OverQuic:
    """HTTP/3: a connection to every host."""

    def __init__(self, trust: Path, stack: contextlib.AsyncExitStack) -> None:
        """Connect later."""
        self._names = Names()
        self._trust = trust
        self._connections: dict[str, asyncio.Task[Client]] = {}
        self._stacks: list[contextlib.AsyncExitStack] = []
        stack.push_async_callback(self._close)

    @property
    def flows(self) -> int:
        """The connections that were opened."""
        return len(self._connections)

    async def _connect(self, host: str) -> Client:
        address = await self._names.address(host)
        stack = contextlib.AsyncExitStack()
        self._stacks.append(stack)
        return await stack.enter_async_context(connected(address, name=host, trust=self._trust))

    async def _close(self) -> None:
        # Each waits some round trips for its end.
        await asyncio.gather(*(stack.aclose() for stack in self._stacks))

    async def fetch(self, what: Object, sent: Callable[[], None], began: Callable[[], None]) -> int:
        """Fetch an object and return its size."""
        if what.host not in self._connections:
            self._connections[what.host] = asyncio.create_task(self._connect(what.host))
        client = await self._connections[what.host]
        size = 0

        def count(received: int) -> None:
            nonlocal size
            if size == 0:
                began()
            size += received

        sent()
        await client.get(what.path, count=count)
        return size


@dataclass
class Page:
    """One load of a page."""

    site: Site
    transport: Transport
    #: Over HTTP/1.1, places for requests of low priority.
    places: asyncio.Semaphore | None
    bytes: int = 0
    #: Objects under way that delay the load event.
    delaying: int = 0
    #: When the first request went out, and when the load event was due.
    _started: float = 0.0
    _loaded: float = 0.0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def load(self) -> float:
        """Load everything; return the seconds from the first request to the load event, which fetches may outlast."""
        self._ask(0)
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            for each in done:
                self._tasks.discard(each)
                each.result()
        return self._loaded - self._started

    def _sent(self) -> None:
        self._started = self._started or time.monotonic()

    def _ask(self, number: int) -> None:
        self.delaying += self.site.objects[number].kind != "fetch"
        self._tasks.add(asyncio.create_task(self._fetch(number)))

    def _ask_children(self, number: int) -> None:
        for child in self.site.children(number):
            self._ask(child)

    async def _fetch(self, number: int) -> None:
        what = self.site.objects[number]
        # The document's beginning names all that it asks for, and a script runs at its end.
        document = what.kind == "document"
        async with self.places if self.places and what.kind in LOW_PRIORITY else contextlib.nullcontext():
            began = (lambda: self._ask_children(number)) if document else (lambda: None)
            size = await self.transport.fetch(what, self._sent, began)
        self.bytes += size
        if not document:
            self._ask_children(number)
        self.delaying -= what.kind != "fetch"
        if self.delaying == 0:
            self._loaded = self._loaded or time.monotonic()


async def load(site: Site, protocol: str, trust: Path) -> dict[str, Any]:
    """Load a site's page over new connections; return its time, bytes and connections. The caller limits its time."""
    async with contextlib.AsyncExitStack() as stack:
        transport: Transport = OverQuic(trust, stack) if protocol == "h3" else OverTcp(protocol, trust, stack)
        places = asyncio.Semaphore(LOW_PRIORITY_REQUESTS) if protocol == "http/1.1" else None
        page = Page(site, transport, places)
        seconds = await page.load()
        return {"seconds": seconds, "bytes": page.bytes, "flows": transport.flows}


def main() -> None:
    """Load one page and print the result."""
    parser = argparse.ArgumentParser(description="Load a page.")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("site")
    parser.add_argument("protocol", choices=PROTOCOLS)
    parser.add_argument("trust", type=Path)
    options = parser.parse_args()
    site = next(each for each in read(options.corpus) if each.name == options.site)
    json.dump(asyncio.run(load(site, options.protocol, options.trust)), sys.stdout)


if __name__ == "__main__":
    main()
