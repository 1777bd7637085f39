"""The HTTP/1.1 API: JSON on a Unix socket, and for edges that have a key on a TCP address.

GET changes nothing; an edge reports its counters and long-polls for its table by POST. Of several controllers those
that follow the leader answer 409 to most requests, and name it.

GET  /v1/fabric/status      /v1/fabric/paths      /v1/fabric/topology.svg
GET  /v1/fabric/explain?source=A&target=B
GET  /v1/fabric/figures     /v1/fabric/openapi.json
GET  /v1/fabric/edges/NAME                        (ETag, If-None-Match)
GET  /v1/fabric/hosts                             /metrics, /v1/metrics
GET  /v1/fabric/events?after=NUMBER
GET  /v1/fabric/policies                          /v1/fabric/acl        /v1/fabric/tenants
POST /v1/fabric/hosts/HOST/forget                 (on the Unix socket, as all up to web/token)
POST /v1/fabric/hosts/MAC/add?switch=SWITCH&port=PORT&addresses=A,B&vid=VID       hosts/HOST/remove
POST /v1/fabric/switches/SWITCH/drain?force=1     …/undrain
POST /v1/fabric/links/ONE/OTHER/forbid?force=1    …/permit
POST /v1/fabric/links/ONE/OTHER/set-capacity?capacity_bit_s=RATE&force=1          …/unset-capacity
POST /v1/fabric/pairs/ONE/OTHER/pin?via=A,B,C     …/unpin
POST /v1/fabric/web/token?role=ROLE&new=1         (on the Unix socket)
POST /v1/fabric/edges/NAME/report?revision=REVISION&wait=SECONDS
     with rx=TAG:PACKETS,…&rx_bytes=TAG:BYTES,…&tx=TAG:PACKETS,…&counted_us=TIME&shim=1&probed=TAG,…&silent=TAG,…
     in the body (or in the query, which has room for few paths)

docs/fabric-openapi.json describes all of them, and `openapi.json` beside this file leads there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import urllib.parse
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import h11

from braid_sdn.fabric.api import metrics, policy, report
from braid_sdn.fabric.api.drawing import svg
from braid_sdn.fabric.api.events import Journal, event_number
from braid_sdn.fabric.cluster.store import StoreError
from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.edges.auth import EdgeAuth, UnauthorizedError, VerifiedRequest
from braid_sdn.fabric.listen_address import naming_address
from braid_sdn.fabric.plan.policies import Policies

#: Seconds within which a request must have arrived.
REQUEST_TIMEOUT = 10.0
#: Longest long poll that a client may ask for, seconds.
MAX_WAIT = 60.0
#: TCP connections that have not authenticated; beyond this the oldest is closed.
MAX_UNAUTHENTICATED = 256
#: Concurrent requests of one edge; an edge sends one.
MAX_REQUESTS_PER_EDGE = 8
#: Paths at which metrics are.
METRICS = (["metrics"], ["v1", "metrics"])
#: Requests that a controller answers which follows another one: the rest it does not know.
OF_FOLLOWER = (["status"], ["events"], ["figures"], ["openapi.json"])
#: The OpenAPI document: a link to that of `docs` in a checkout, a file in a package.
DOCUMENT = Path(__file__).with_name("openapi.json")
#: Bytes of a request's head, and of its body. An edge may report counters of 1,024 tags each way: 93 kB at most.
MAX_HEAD_BYTES = 131072
MAX_BODY_BYTES = 131072


@dataclass(frozen=True)
class Response:
    """An HTTP response."""

    status: int
    body: bytes
    kind: str = "application/json"
    etag: str = ""


async def _kept_by_nobody(_: Policies) -> None:
    """Keep no policies."""


class Api:
    """Serves the API of one controller."""

    def __init__(
        self,
        fabric: Controller,
        clock: Callable[[], float],
        on_change: Callable[[], None] = lambda: None,
        journal: Journal | None = None,
        token: Callable[[str, bool], dict[str, Any]] | None = None,
        keep: Callable[[Policies], Awaitable[None]] = _kept_by_nobody,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create it; `listen` opens its sockets.

        `on_change` is called when a request leaves the controller work. `token` returns the report of a role's login
        token, or of a new one; it raises KeyError if there is no such role, or OSError. `keep` writes policies down,
        and raises StoreError. `leads` returns false if another controller, or none, controls the switches.
        """
        self.on_change = on_change
        self._keep = keep
        self._leads = leads
        #: One change of policies at a time: each is made from those before.
        self._policy_change = asyncio.Lock()
        self._journal = journal or Journal()
        self._token = token
        self._document = DOCUMENT.read_bytes()
        self.fabric = fabric
        self.clock = clock
        self._servers: list[asyncio.Server] = []
        self._socket: Path | None = None
        #: Resolved when a table may have changed, and replaced by a new one.
        self._changed: asyncio.Future[None] | None = None
        self._last_seen: tuple[object, ...] = ()
        #: TCP connections that have not authenticated, the oldest first.
        self._unauthenticated: dict[asyncio.Task[None], None] = {}
        #: Requests in progress, by edge.
        self._active: Counter[str] = Counter()
        self._auth = EdgeAuth(_keys(fabric))

    def attach(self, fabric: Controller) -> None:
        """Serve another controller's API from now on."""
        self.fabric = fabric
        # The requests that were counted stay so: with the same key they could be sent again.
        self._auth.keys = _keys(fabric)
        self._last_seen = ()
        self.notify()

    def notify(self) -> None:
        """Wake waiting requests if anything that edges see has changed. Called after every event."""
        distributor = self.fabric.distributor
        known = (
            distributor.tables.generation,
            distributor.has_plan,
            self.fabric.hosts.changes,
            set(distributor.shims),
            dict(distributor.requests),
            self.fabric.forecasts.changes,
        )
        if known == self._last_seen:
            return
        self._last_seen = known
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    async def listen(
        self, socket: Path, http: tuple[str, int] | None, scraped: tuple[str, int] | None = None
    ) -> None:
        """Listen on a Unix socket that only its owner may use.

        Edges that have a key are served at a TCP address too. At another one everybody may read metrics alone.
        """
        socket.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            socket.unlink()
        # The umask sets the mode: before a later chmod somebody could connect.
        before = os.umask(0o177)
        try:
            self._servers.append(await asyncio.start_unix_server(self._serve, socket))
        finally:
            os.umask(before)
        self._socket = socket
        if http is not None:
            with naming_address("--http", *http):
                self._servers.append(await asyncio.start_server(self._serve_edges, *http))
        if scraped is not None:
            with naming_address("[metrics] listen", *scraped):
                self._servers.append(await asyncio.start_server(self._serve_metrics, *scraped))

    def addresses(self) -> list[tuple[str, int]]:
        """Return the TCP addresses that it listens on."""
        bound = [socket.getsockname() for server in self._servers for socket in server.sockets]
        return [(name[0], name[1]) for name in bound if isinstance(name, tuple)]

    async def close(self) -> None:
        """Close all sockets."""
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
        finally:
            self._unauthenticated.pop(task, None)

    async def _serve_metrics(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, metrics_only=True)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        auth: EdgeAuth | None = None,
        *,
        metrics_only: bool = False,
    ) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        name: str | None = None
        try:
            verified, headers = None, list[tuple[str, str]]()
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    request, lines, body = await _read_request(reader, connection)
                verified = auth.verify(request, lines, body) if auth else None
                if verified is not None:
                    self._start_request(verified)
                    name = verified.name
                if metrics_only and _parts(request)[0] not in METRICS:
                    answer = _error(404, "only /metrics is here; the rest is on the Unix socket")
                else:
                    answer = await self._answer(request, lines, body, verified)
            except UnauthorizedError as error:
                answer = _error(401, str(error))
                headers.append(("WWW-Authenticate", "Braid"))
            except _TooLongError as error:
                answer = _error(413, str(error))
            except h11.RemoteProtocolError as error:
                answer = _error(error.error_status_hint, f"not a request of HTTP/1.1: {error}")
            if verified is not None:
                headers.append(verified.sign(answer.status, answer.body))
            writer.write(_written(connection, answer, headers))
            await writer.drain()
        except (OSError, EOFError, TimeoutError):
            # The client has gone, or did not send a whole request.
            pass
        except asyncio.CancelledError:
            # One connection too many, or the end of the process. Nobody awaits this task: asyncio's streams would
            # report the cancellation as an unhandled exception.
            writer.transport.abort()
        finally:
            if name is not None:
                self._active[name] -= 1
            writer.close()

    def _start_request(self, verified: VerifiedRequest) -> None:
        """Count a request of an edge whose key was verified."""
        task = asyncio.current_task()
        if task is not None:
            self._unauthenticated.pop(task, None)
        if self._active[verified.name] >= MAX_REQUESTS_PER_EDGE:
            raise UnauthorizedError("too many requests of this edge are in progress")
        self._active[verified.name] += 1

    async def _answer(
        self, request: str, headers: list[str], body: bytes, verified: VerifiedRequest | None
    ) -> Response:
        path, query = _parts(request)
        if verified is not None and path[:3] == ["v1", "fabric", "edges"] and path[3:4] != [verified.name]:
            return _error(403, f"this is not the table of {verified.name}, whose key was shown")
        if request.startswith("POST "):
            match path:
                case ["v1", "fabric", "edges", name, "report"] if "revision" in query:
                    return await self._report(name, _query(body.decode("latin-1")) | query, verified)
                case ["v1", "fabric", "web", "token"] if verified is None:
                    return self._web_token(query)
            done = await self.change(request) if verified is None else None
            return done or _error(
                405,
                "only POST edges/NAME/report?revision=… is answered; on the socket hosts/HOST/…, policies "
                "and web/token",
            )
        return self.answer(request, headers)

    async def _report(self, name: str, query: dict[str, str], verified: VerifiedRequest | None) -> Response:
        """Take in an edge's report and return its table once it differs from `revision`; 204 after `wait` seconds.

        The response comes at once if the controller wants the edge's counters again.
        """
        fabric = self.fabric
        if not fabric.serves_edge(name):
            return _error(404, f"no edge is called {name}")
        revision = query["revision"]
        # A report that names no table of this start may be a replay of one made before it.
        believed = self._leads() and (verified is None or report.is_own_revision(fabric, revision))
        if believed:
            self._take_in(name, query)
        requests = fabric.distributor.requests.get(name, 0)
        try:
            seconds = min(max(float(query.get("wait", 0)), 0.0), MAX_WAIT)
        except ValueError:
            return _error(400, "wait must be a number of seconds")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # A controller that follows another one answers once it leads.
                while (
                    self.fabric is fabric
                    and fabric.distributor.requests.get(name, 0) == requests
                    and (report.edge_revision(fabric, name) == revision or not self._leads())
                ):
                    if self._changed is None:
                        self._changed = asyncio.get_running_loop().create_future()
                    # Other requests wait for the same future.
                    await asyncio.shield(self._changed)
        if not self._leads():
            return self._misdirected()
        if believed and self.fabric is fabric:
            fabric.poller.handle_response(self.clock(), name)
        answer = self._table(name)
        return Response(204, b"") if answer.etag == _etag(revision) else answer

    async def change(self, request: str) -> Response | None:
        """Return the response to a request of an operator's that changes something; None if it is no such one."""
        path, query = _parts(request)
        if request.split(" ")[0] != "POST" or path[:2] != ["v1", "fabric"]:
            return None
        if not self._leads():
            return self._misdirected()
        match path[2:]:
            case ["hosts", host, "forget"]:
                return self._forget(host)
            case rest:
                return await self._set_policy(rest, query)

    def _misdirected(self) -> Response:
        """Return the answer of a controller that does not lead to a request for the one that does."""
        cluster = self.fabric.cluster
        known = cluster.leader if cluster is not None else None
        text = f"{known} leads: ask it there" if known is not None else "no controller leads at this moment"
        told = {"error": f"{text}; see braid sdn fabric status"}
        return _answered(409, {**told, "leader": report.leader(cluster) if cluster is not None else None})

    async def _set_policy(self, path: list[str], query: dict[str, str]) -> Response | None:
        async with self._policy_change:
            fabric = self.fabric
            try:
                told = policy.wanted(fabric, path, query)
                if told is None:
                    return None
                wanted, text = told
                is_other = wanted != fabric.policies
                if is_other:
                    await self._keep(wanted)
                    fabric.set_policies(self.clock(), wanted)
            except (policy.PolicyError, StoreError) as error:
                return _error(error.status, str(error))
        self.on_change()
        return _json({"changed": is_other, "text": text})

    def _web_token(self, query: dict[str, str]) -> Response:
        """Return a login token of the page."""
        if self._token is None:
            return _error(404, "this controller has no page")
        try:
            return _json(self._token(query.get("role", ""), query.get("new") == "1"))
        except KeyError:
            return _error(400, "role must be viewer or operator")
        except OSError as error:
            return _error(500, f"the token cannot be kept: {error}; see --state-dir")

    def _forget(self, word: str) -> Response:
        """Forget a host by its MAC or IP address."""
        host = self.fabric.find_host(word)
        if host is None:
            return _error(404, f"{word}: no host is known by that; see braid sdn fabric hosts")
        if host.mac in self.fabric.hosts.static:
            undo = "take it out there and reload"
            what = f"is a [[host]] of the configuration; {undo}"
            if host.mac in self.fabric.policies.hosts:
                what = f"was added by the operator; undo it by braid sdn fabric remove-host {host.mac}"
            return _error(409, f"{word}: {what}")
        self.fabric.forget_host(self.clock(), host)
        self.on_change()
        return _json({"mac": host.mac, "port": self.fabric.topology.port_name(host.port)})

    def _take_in(self, name: str, query: dict[str, str]) -> None:
        """Hand an edge's counters, its revision and its wish for shims to the controller."""
        now = self.clock()
        self.fabric.poller.handle_tx(now, name, _counts(query.get("tx", "")))
        self.fabric.poller.handle_rx(now, name, _counts(query.get("rx", "")))
        counted = _seconds(query.get("counted_us", ""))
        rx_bytes = _counts(query.get("rx_bytes", ""))
        self.fabric.poller.handle_rx_bytes(now, now if counted is None else counted, rx_bytes)
        probed, silent = (_tags(query.get(word, "")) for word in ("probed", "silent"))
        if self.fabric.poller.handle_states(now, name, probed, silent):
            self.on_change()
        current = report.edge_revision(self.fabric, name) == query["revision"]
        more = self.fabric.handle_edge(now, name, current=current)
        if self.fabric.handle_shim(name, wanted=query.get("shim") == "1") or more:
            self.notify()

    def _table(self, name: str) -> Response:
        table = report.edge_table(self.fabric, name)
        if table is None:
            return _error(404, f"no edge is called {name}")
        return Response(200, json.dumps(table).encode() + b"\n", etag=_etag(table["revision"]))

    def answer(self, request: str, headers: list[str]) -> Response:
        """Return the response to a GET request, which changes nothing."""
        words = request.split(" ")
        if len(words) != 3 or words[0] != "GET":
            return _error(405, "only GET and POST are answered")
        path, query = _parts(request)
        now = self.clock()
        if path[:2] == ["v1", "fabric"] and path[2:3] not in OF_FOLLOWER and not self._leads():
            return self._misdirected()
        match path:
            case ["v1", "fabric", "status"]:
                return _json(report.status(self.fabric, now))
            case ["v1", "fabric", "hosts"]:
                return _json(report.hosts(self.fabric, now))
            case ["v1", "fabric", "policies"]:
                return _json(report.policies(self.fabric, now))
            case ["v1", "fabric", "acl"]:
                return _json(report.acl(self.fabric, now))
            case ["v1", "fabric", "tenants"]:
                return _json(report.tenants_of(self.fabric, now))
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
            case _ if path in METRICS:
                return Response(200, metrics.exposition(self.fabric, now).encode(), metrics.KIND)
            case ["v1", "fabric", "events"]:
                after = event_number(query.get("after", "0"))
                if after is None:
                    return _error(400, "after must be an event's number")
                return _json({"version": report.VERSION, "events": self._journal.after(after)})
            case ["v1", "fabric", "figures"]:
                return _json(report.figures(self.fabric))
            case ["v1", "fabric", "openapi.json"]:
                return Response(200, self._document)
            case ["v1", "fabric", "edges", name]:
                table = self._table(name)
                known = [line.partition(":")[2] for line in headers if line.lower().startswith("if-none-match:")]
                matches = any(table.etag in value for value in known) if table.etag else False
                return Response(304, b"", etag=table.etag) if matches else table
        return _error(404, f"there is no /{'/'.join(path)}")


class _TooLongError(Exception):
    """A body is longer than any report."""


async def _read_request(reader: asyncio.StreamReader, connection: h11.Connection) -> tuple[str, list[str], bytes]:
    """Return the request line, the header lines and the body of a request.

    Raises EOFError if the client closes the connection before its end, or _TooLongError.
    """
    head = await _next_event(reader, connection)
    if not isinstance(head, h11.Request):
        raise EOFError
    body = bytearray()
    while isinstance(event := await _next_event(reader, connection), h11.Data):
        body += event.data
        if len(body) > MAX_BODY_BYTES:
            raise _TooLongError(f"the body has more than {MAX_BODY_BYTES} bytes")
    if not isinstance(event, h11.EndOfMessage):
        raise EOFError
    words = [head.method, head.target, b"HTTP/" + head.http_version]
    lines = [(n + b": " + v).decode("latin-1") for n, v in head.headers]
    return b" ".join(words).decode("latin-1"), lines, bytes(body)


async def _next_event(reader: asyncio.StreamReader, connection: h11.Connection) -> h11.Event | None:
    """Return the next part of a request; None if no more belongs to it."""
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(MAX_HEAD_BYTES))
    return event if isinstance(event, h11.Event) else None


def _written(connection: h11.Connection, answer: Response, headers: list[tuple[str, str]]) -> bytes:
    """Return the bytes of a response, after which the connection ends."""
    fields = [*headers, ("Connection", "close")]
    if answer.etag:
        fields.append(("ETag", answer.etag))
    if answer.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        fields += [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body)))]
    reason = HTTPStatus(answer.status).phrase.encode()
    events: list[h11.Event] = [h11.Response(status_code=answer.status, headers=fields, reason=reason)]
    if answer.body:
        events.append(h11.Data(data=answer.body))
    events.append(h11.EndOfMessage())
    return b"".join(connection.send(event) or b"" for event in events)


def _parts(request: str) -> tuple[list[str], dict[str, str]]:
    """Return the path's segments and the query of a request line."""
    words = request.split(" ")
    try:
        url = urllib.parse.urlsplit(words[1] if len(words) == 3 else "")
    except ValueError:
        # An address in brackets that do not close, for one.
        return [], {}
    path = [urllib.parse.unquote(part) for part in url.path.split("/")[1:]]
    return path, _query(url.query)


def _query(text: str) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(text, keep_blank_values=True))


def _counts(text: str) -> dict[int, int]:
    """Parse `TAG:PACKETS,…`; malformed entries are skipped."""
    found = re.findall(r"(?:^|,)(\d{1,4}):(\d{1,20})(?=,|$)", text)
    return {int(tag): int(packets) for tag, packets in found}


def _seconds(text: str) -> float | None:
    """Parse µs of an edge's clock; None from an edge that does not say when it counted."""
    return int(text) / 1e6 if re.fullmatch(r"\d{1,18}", text) else None


def _tags(text: str) -> set[int]:
    """Parse `TAG,…`; malformed entries are skipped."""
    return {int(tag) for tag in re.findall(r"(?:^|,)(\d{1,4})(?=,|$)", text)}


def _etag(revision: str) -> str:
    return f'"{revision}"'


def _json(data: object) -> Response:
    return _answered(200, data)


def _error(status: int, text: str) -> Response:
    return _answered(status, {"error": text})


def _answered(status: int, data: object) -> Response:
    return Response(status, json.dumps(data).encode() + b"\n")


def _keys(fabric: Controller) -> dict[str, bytes]:
    """Return the keys of edges that may ask over TCP."""
    return {edge.name: edge.key for edge in fabric.settings.edges if edge.key is not None}
