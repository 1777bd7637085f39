"""The API: HTTP/1.1 and JSON on a Unix socket, and for edges with a key on an address. It only reads.

GET /v1/fabric/status      /v1/fabric/paths      /v1/fabric/topology.svg
GET /v1/fabric/explain?source=A&target=B
GET /v1/fabric/figures
GET /v1/fabric/edges/NAME?unlike=REVISION&wait=SECONDS&came=TAG:PACKETS,…&sent=TAG:PACKETS,…&shim=1
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import urllib.parse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from braid_sdn.fabric.api import report
from braid_sdn.fabric.api.drawing import svg
from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.edges.auth import EdgeAuth, UnauthorizedError, VerifiedRequest

#: Seconds that a request may take to come in.
REQUEST_TIMEOUT = 10.0
#: Seconds that a request may ask to be kept waiting.
MAX_WAIT = 60.0
#: Connections over TCP that have not shown a key; beyond this the oldest of them gives way.
MAX_UNAUTHENTICATED = 256
#: Questions of one edge that are answered at once; it has one.
MAX_REQUESTS_PER_EDGE = 8
#: Bytes that a request's head may have: an edge may tell of all tags that there are.
MAX_HEAD_BYTES = 131072


@dataclass(frozen=True)
class Response:
    """What goes back."""

    status: int
    body: bytes
    kind: str = "application/json"


class Api:
    """Answers questions about a controller."""

    def __init__(self, fabric: Controller, clock: Callable[[], float]) -> None:
        """Nothing is listened on yet; see `listen`."""
        self.fabric = fabric
        self.clock = clock
        self._servers: list[asyncio.Server] = []
        self._socket: Path | None = None
        #: Done when there may be something new; then there is another.
        self._changed: asyncio.Future[None] | None = None
        self._last_seen: tuple[object, ...] = ()
        #: Who has connected over TCP and not shown a key, the oldest first.
        self._unauthenticated: dict[asyncio.Task[None], None] = {}
        #: Questions of each edge that are being answered.
        self._active: Counter[str] = Counter()
        self._auth = EdgeAuth({edge.name: edge.key for edge in fabric.settings.edges if edge.key is not None})

    def notify(self) -> None:
        """Something happened, very often: have those look who wait for something new, if it may be for them."""
        distributor = self.fabric.distributor
        known = (
            distributor.tables.generation,
            self.fabric.hosts.changes,
            set(distributor.shims),
            dict(distributor.requests),
        )
        if known == self._last_seen:
            return
        self._last_seen = known
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    async def listen(self, socket: Path, http: tuple[str, int] | None) -> None:
        """Answer on a Unix socket, readable by its owner alone, and edges that have a key on a TCP address."""
        socket.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            socket.unlink()
        # It is made with its mode: between making and changing it somebody could connect.
        before = os.umask(0o177)
        try:
            self._servers.append(await asyncio.start_unix_server(self._serve, socket, limit=MAX_HEAD_BYTES))
        finally:
            os.umask(before)
        self._socket = socket
        if http is not None:
            self._servers.append(await asyncio.start_server(self._serve_edges, *http, limit=MAX_HEAD_BYTES))

    def addresses(self) -> list[tuple[str, int]]:
        """Return where it answers over TCP."""
        bound = [socket.getsockname() for server in self._servers for socket in server.sockets]
        return [(name[0], name[1]) for name in bound if isinstance(name, tuple)]

    async def close(self) -> None:
        """Stop."""
        for server in self._servers:
            server.close()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    async def _serve_edges(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._unauthenticated[task] = None
        if len(self._unauthenticated) > MAX_UNAUTHENTICATED:
            next(iter(self._unauthenticated)).cancel()
        try:
            await self._serve(reader, writer, self._auth)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._unauthenticated.pop(task, None)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, auth: EdgeAuth | None = None
    ) -> None:
        name: str | None = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request, *headers = head.split("\r\n")
            lines, verified = list[str](), None
            try:
                verified = auth.verify(request, headers) if auth else None
                if verified is not None:
                    self._start_request(verified)
                    name = verified.name
                answer = await self._answer(request, verified)
            except UnauthorizedError as error:
                answer = _error(401, str(error))
                lines.append("WWW-Authenticate: Braid")
            if verified is not None:
                lines.append(verified.sign(answer.status, answer.body))
            lines += [f"Content-Type: {answer.kind}", f"Content-Length: {len(answer.body)}", "Connection: close"]
            reason = "OK" if answer.status == 200 else "Error"
            told = "\r\n".join([f"HTTP/1.1 {answer.status} {reason}", *lines, "", ""])
            writer.write(told.encode() + answer.body)
            await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            # Whoever asked has gone, or asks no question.
            pass
        finally:
            if name is not None:
                self._active[name] -= 1
            writer.close()

    def _start_request(self, verified: VerifiedRequest) -> None:
        """An edge has shown its key: no stranger any more."""
        task = asyncio.current_task()
        if task is not None:
            self._unauthenticated.pop(task, None)
        if self._active[verified.name] >= MAX_REQUESTS_PER_EDGE:
            raise UnauthorizedError("too many questions of this edge are being answered")
        self._active[verified.name] += 1

    async def _answer(self, request: str, verified: VerifiedRequest | None) -> Response:
        path, _ = _parts(request)
        if verified is not None and path[:3] == ["v1", "fabric", "edges"] and path[3:] != [verified.name]:
            return _error(403, f"this is not the table of {verified.name}, whose key was shown")
        await self._wait(request, verified)
        return self.answer(request)

    async def _wait(self, request: str, verified: VerifiedRequest | None) -> None:
        """Keep a question for an edge's next table until there is one, or the edge is to tell what passed."""
        path, query = _parts(request)
        match path:
            case ["v1", "fabric", "edges", name] if "unlike" in query:
                pass
            case _:
                return
        # What does not name a table of this start may have been asked before it, and be played back.
        believed = verified is None or report.is_own_revision(self.fabric, query["unlike"])
        if believed:
            self._take_in(name, query)
        asked = self.fabric.distributor.requests.get(name, 0)
        try:
            seconds = min(max(float(query.get("wait", 0)), 0.0), MAX_WAIT)
        except ValueError:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (
                    self.fabric.distributor.requests.get(name, 0) == asked
                    and report.edge_revision(self.fabric, name) == query["unlike"]
                ):
                    if self._changed is None:
                        self._changed = asyncio.get_running_loop().create_future()
                    # Others wait for the same one.
                    await asyncio.shield(self._changed)
        if believed:
            self.fabric.poller.handle_response(self.clock(), name)

    def _take_in(self, name: str, query: dict[str, str]) -> None:
        """Take in what an edge tells with its question."""
        now = self.clock()
        self.fabric.poller.handle_tx(now, name, _counts(query.get("sent", "")))
        self.fabric.poller.handle_rx(now, name, _counts(query.get("came", "")))
        current = report.edge_revision(self.fabric, name) == query["unlike"]
        more = self.fabric.handle_edge(now, name, current=current)
        if self.fabric.handle_shim(name, wanted=query.get("shim") == "1") or more:
            self.notify()

    def answer(self, request: str) -> Response:
        """Return the answer to a request line."""
        words = request.split(" ")
        if len(words) != 3 or words[0] != "GET":
            return _error(405, "only GET is answered")
        path, query = _parts(request)
        now = self.clock()
        match path:
            case ["v1", "fabric", "status"]:
                return _json(report.status(self.fabric, now))
            case ["v1", "fabric", "paths"]:
                return _json(report.paths(self.fabric, now))
            case ["v1", "fabric", "topology.svg"]:
                return Response(
                    200,
                    svg(report.status(self.fabric, now), report.paths(self.fabric, now)).encode(),
                    "image/svg+xml",
                )
            case ["v1", "fabric", "explain"]:
                try:
                    return _json(report.explain(self.fabric, now, query["source"], query["target"]))
                except KeyError as missing:
                    return _error(400, f"the query needs {missing.args[0]}")
                except report.UnknownEndError as error:
                    return _error(404, str(error))
            case ["v1", "fabric", "figures"]:
                return _json(report.figures(self.fabric))
            case ["v1", "fabric", "edges", name]:
                table = report.edge_table(self.fabric, name)
                if table is None:
                    return _error(404, f"no edge is called {name}")
                return Response(304, b"") if table["revision"] == query.get("unlike") else _json(table)
        return _error(404, f"there is no /{'/'.join(path)}")


def _parts(request: str) -> tuple[list[str], dict[str, str]]:
    """Return a request line's path, by its parts, and query."""
    words = request.split(" ")
    url = urllib.parse.urlsplit(words[1] if len(words) == 3 else "")
    path = [urllib.parse.unquote(part) for part in url.path.split("/")[1:]]
    return path, dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))


def _counts(text: str) -> dict[int, int]:
    """Return `TAG:PACKETS,…` as it was meant; what is not of that form says nothing."""
    found = re.findall(r"(?:^|,)(\d{1,4}):(\d{1,20})(?=,|$)", text)
    return {int(tag): int(packets) for tag, packets in found}


def _json(data: object) -> Response:
    return Response(200, json.dumps(data).encode() + b"\n")


def _error(status: int, text: str) -> Response:
    return Response(status, json.dumps({"error": text}).encode() + b"\n")
