"""A page's listener, on a thread and an event loop of its own.

Neither TLS nor a browser that reads slowly delays the application's loop. `answer` is called for requests with a
session; it hands over to that loop what it asks of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import h11

from braid_sdn.web import privileges
from braid_sdn.web.guard import MAX_BODY_BYTES, Admitted, Guard
from braid_sdn.web.login_attempts import Address, canonical, network
from braid_sdn.web.messages import Answer, Arrival, Request

#: Most connections at once; further ones wait.
MAX_CONNECTIONS = 128
#: Most of these from one network, an IPv4 address or an IPv6 /64, since a host makes up addresses of its own. A
#: browser opens six, so five browsers behind one address fit, and no single host keeps all others out.
MAX_CONNECTIONS_OF_ONE = 32
#: Seconds for a TLS handshake, for a request, and for a browser to take an answer; also the time for which a
#: connection may be idle.
PATIENCE = 20.0
#: Pause after a failure to accept, seconds, which is for want of descriptors.
ACCEPT_PAUSE = 0.2
#: Seconds for the end of TLS.
TLS_END = 1.0
#: Bytes of a request's head, and of what is read at once.
MAX_HEAD_BYTES = 16384
#: Connections that wait to be accepted.
BACKLOG = 64

AnswerRequest = Callable[[Admitted], Awaitable[Answer]]


class Listener:
    """Serves a guarded page."""

    def __init__(
        self,
        guard: Guard,
        answer: AnswerRequest,
        tls: ssl.SSLContext | None,
        clocks: tuple[Callable[[], float], Callable[[], float]] = (time.monotonic, time.time),
    ) -> None:
        """Answer by `answer`, over TLS if there is a context. `clocks`: a monotonic one, and seconds since 1970."""
        self._guard = guard
        self._answer = answer
        self._tls = tls
        self._now, self._clock = clocks
        self._open: Counter[Address] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listening: socket.socket) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        places = asyncio.Semaphore(MAX_CONNECTIONS)
        try:
            while True:
                await places.acquire()
                try:
                    peer, name = await loop.sock_accept(listening)
                except OSError:
                    places.release()
                    await asyncio.sleep(ACCEPT_PAUSE)
                    continue
                source = canonical(ipaddress.ip_address(name[0].partition("%")[0]))
                place = network(source)
                if self._open[place] >= MAX_CONNECTIONS_OF_ONE:
                    peer.close()
                    places.release()
                    continue
                self._open[place] += 1
                task = loop.create_task(self._connection(peer, source))
                self._tasks.add(task)
                task.add_done_callback(lambda done, place=place: self._left(done, place, places))  # type: ignore[misc]
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _left(self, task: asyncio.Task[None], place: Address, places: asyncio.Semaphore) -> None:
        self._tasks.discard(task)
        self._open[place] -= 1
        if not self._open[place]:
            del self._open[place]
        places.release()

    async def _connection(self, peer: socket.socket, source: Address) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        times = {"ssl_handshake_timeout": PATIENCE, "ssl_shutdown_timeout": TLS_END} if self._tls else {}
        try:
            # A snapshot is one small write, for which nobody should wait.
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            local = peer.getsockname()
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, peer, ssl=self._tls, **times)
        except OSError:
            # It has gone, or speaks no TLS.
            peer.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        arrival = Arrival(
            source, canonical(ipaddress.ip_address(local[0].partition("%")[0])), local[1], self._tls is not None
        )
        try:
            await self._exchange(arrival, reader, writer)
        except TimeoutError:
            # The browser is too slow.
            transport.abort()
        except (OSError, EOFError):
            # The browser has gone.
            pass
        except asyncio.CancelledError:
            transport.abort()
            raise
        finally:
            # Its place is free once its socket is closed: the kernel holds the rest of an answer that nobody reads.
            writer.close()
            try:
                async with asyncio.timeout(PATIENCE):
                    await writer.wait_closed()
            except (OSError, TimeoutError):
                transport.abort()

    async def _exchange(self, arrival: Arrival, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a connection's requests, one after the other."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        while True:
            cookie, method = "", "GET"
            try:
                async with asyncio.timeout(PATIENCE):
                    request = await _request(reader, connection)
                method = request.method
                admitted = self._guard.admit(arrival, request, self._now(), self._clock())
                if isinstance(admitted, Admitted):
                    cookie = admitted.cookie
                    answer = self._guard.finished(await self._answer(admitted))
                else:
                    answer = admitted
            except h11.RemoteProtocolError as error:
                text = f"not a request of HTTP/1.1 that is answered here: {error}"
                answer = self._guard.answered(error.error_status_hint, {"error": text})
            await self._send(connection, writer, answer, None if method == "HEAD" else cookie)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _send(
        self, connection: h11.Connection, writer: asyncio.StreamWriter, answer: Answer, cookie: str | None
    ) -> None:
        """Send an answer; without a cookie its head alone. Pieces are sent while the cookie's session lives."""
        fields = list(answer.headers)
        if answer.status != HTTPStatus.NO_CONTENT:
            fields.append(("Content-Type", answer.kind))
            if answer.pieces is None:
                fields.append(("Content-Length", str(len(answer.body))))
        reason = HTTPStatus(answer.status).phrase.encode()
        head = h11.Response(status_code=answer.status, headers=fields, reason=reason)
        await _write(writer, connection.send(head))
        if cookie is not None and answer.pieces is not None:
            async with contextlib.aclosing(answer.pieces) as pieces:
                async for piece in pieces:
                    if self._guard.auth.session(cookie, self._clock()) is None:
                        break
                    await _write(writer, connection.send(h11.Data(data=piece)))
        elif cookie is not None and answer.body:
            await _write(writer, connection.send(h11.Data(data=answer.body)))
        await _write(writer, connection.send(h11.EndOfMessage()))


async def _write(writer: asyncio.StreamWriter, content: bytes | None) -> None:
    writer.write(content or b"")
    async with asyncio.timeout(PATIENCE):
        await writer.drain()


async def _request(reader: asyncio.StreamReader, connection: h11.Connection) -> Request:
    """Return the next request; raises EOFError if there is none, or h11.RemoteProtocolError."""
    head, body = None, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(MAX_HEAD_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise h11.RemoteProtocolError(f"its body is longer than {MAX_BODY_BYTES} bytes", 413)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            break
        else:
            raise EOFError
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
    return Request(head.method.decode("latin-1"), head.target.decode("latin-1"), headers, body)


def bind(address: Address, port: int) -> socket.socket:
    """Return a socket that listens for a page; raises OSError."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind((str(address), port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        shown = f"[{address}]" if address.version == 6 else str(address)
        raise OSError(f'[web] listen = "{shown}:{port}": {error.strerror or error}') from error
    return listening


class WebThread:
    """The thread that serves a page."""

    def __init__(self, listener: Listener, listening: socket.socket) -> None:
        """Create it; `start` runs it."""
        self._listener = listener
        self._listening = listening
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)
        self._begun = threading.Event()
        self._failure: OSError | None = None
        self._end: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin to serve; raises OSError if the thread cannot give up its privileges."""
        self._thread.start()
        self._begun.wait()
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """End it; its address is free when this returns."""
        self._end()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            privileges.drop()
            with self._listening, contextlib.suppress(asyncio.CancelledError), asyncio.Runner() as runner:
                runner.run(self._serve())
        except OSError as error:
            self._failure = error
        finally:
            self._begun.set()

    async def _serve(self) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # noqa: S101
        self._end = lambda: _cancel(loop, task)
        self._begun.set()
        await self._listener.serve(self._listening)


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    # A loop that has ended needs no end.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(task.cancel)
