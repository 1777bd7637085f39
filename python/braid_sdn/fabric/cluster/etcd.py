"""A client of etcd 3.4 and later, by its JSON gateway: HTTP/1.1, keys and values in base64, numbers as text.

https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h11

#: Bytes of an answer: etcd takes requests of 1.5 MiB.
MAX_ANSWER_BYTES = 4 << 20
#: Bytes that are read at once.
READ_BYTES = 65536

#: gRPC's code of a key, or a lease, that does not exist.
NOT_FOUND = 5


class EtcdError(Exception):
    """No answer, or a refusal. Where there was no answer, a change may have been made."""


class RefusedError(EtcdError):
    """etcd answered that it does not do it, so nothing was changed."""

    def __init__(self, text: str, code: int) -> None:
        """Keep gRPC's code."""
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of one server."""

    host: str
    port: int
    is_tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key's value, and the revisions of the store at which the key was created and last changed."""

    value: bytes
    created: int
    modified: int
    lease: int


class Etcd:
    """The servers of one etcd: the one that answered last is asked, and the next one after a failure."""

    def __init__(self, endpoints: Sequence[Endpoint], tls: ssl.SSLContext | None = None) -> None:
        """Create it; connections are opened when they are needed."""
        self._endpoints = tuple(endpoints)
        self._tls = tls
        self._turn = 0
        self._idle: list[_Connection] = []

    def __str__(self) -> str:
        return ", ".join(map(str, self._endpoints))

    async def ask(self, path: str, body: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer to a request; raises EtcdError.

        A request is sent once: one that failed may have been followed.
        """
        endpoint = self._endpoints[self._turn % len(self._endpoints)]
        try:
            async with asyncio.timeout(seconds):
                connection = await self._connection(endpoint)
                try:
                    status, said = await connection.ask(path, json.dumps(body).encode())
                except BaseException:
                    connection.close()
                    raise
        except (OSError, EOFError, h11.RemoteProtocolError, TimeoutError) as error:
            self._next()
            why = f"nothing came within {seconds:g} s" if isinstance(error, TimeoutError) else str(error)
            raise EtcdError(f"{endpoint}: {why or 'it ended the connection'}") from error
        if connection.is_reusable():
            self._idle.append(connection)
        else:
            connection.close()
        return self._read(endpoint, status, said)

    def _read(self, endpoint: Endpoint, status: int, said: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(said)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            self._next()
            raise EtcdError(f"{endpoint}: answered {status} and no JSON object: not etcd's v3 gateway?")
        if status == 200:
            return answer
        # Another server may do it: one of several that has lost the others refuses.
        self._next()
        text = str(answer.get("message") or answer.get("error") or status)
        code = answer.get("code")
        raise RefusedError(f"{endpoint}: {text}", code if isinstance(code, int) else 0)

    def _next(self) -> None:
        self._turn += 1
        self.close()

    async def _connection(self, endpoint: Endpoint) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open():
                return connection
            connection.close()
        tls = self._tls if endpoint.is_tls else None
        return _Connection(endpoint, *await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls))

    def close(self) -> None:
        """Close all connections that are not in use."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    # Requests.

    async def grant(self, seconds: int, timeout: float) -> tuple[int, float]:
        """Return a new lease and the seconds for which it holds, which may be more."""
        answer = await self.ask("/v3/lease/grant", {"TTL": str(seconds)}, timeout)
        with self._understood():
            return int(answer["ID"]), float(answer["TTL"])

    async def renew(self, lease: int, timeout: float) -> float:
        """Renew a lease; return the seconds for which it holds from now on, 0 if it has ended."""
        answer = await self.ask("/v3/lease/keepalive", {"ID": str(lease)}, timeout)
        with self._understood():
            return float(answer["result"].get("TTL", 0))

    async def revoke(self, lease: int, timeout: float) -> None:
        """End a lease, and with it the keys that it holds."""
        with contextlib.suppress(RefusedError):
            await self.ask("/v3/lease/revoke", {"ID": str(lease)}, timeout)

    async def read(self, keys: Sequence[str], timeout: float) -> tuple[KeyValue | None, ...]:
        """Return keys' values at one moment, which is after the call: a server that lags behind says nothing."""
        _, found = await self.change((), (), keys, timeout)
        return found

    async def change(
        self,
        conditions: Sequence[Mapping[str, Any]],
        puts: Sequence[Mapping[str, Any]],
        keys: Sequence[str],
        timeout: float,
    ) -> tuple[bool, tuple[KeyValue | None, ...]]:
        """Write `puts` if all conditions hold; return whether they did, and the keys' values after it."""
        ranges = [{"request_range": {"key": encoded(key)}} for key in keys]
        request = {
            "compare": list(conditions),
            "success": [*({"request_put": put} for put in puts), *ranges],
            "failure": ranges,
        }
        answer = await self.ask("/v3/kv/txn", request, timeout)
        with self._understood():
            responses = answer.get("responses", ())
            shown = [_value(each["response_range"]) for each in responses if "response_range" in each]
            if len(shown) == len(keys):
                return bool(answer.get("succeeded")), tuple(shown)
        raise EtcdError(f"{self}: an answer without the values that were asked for")

    @contextlib.contextmanager
    def _understood(self) -> Iterator[None]:
        """Read an answer; raises EtcdError if it is not of etcd's kind."""
        try:
            yield
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise EtcdError(f"{self}: an answer that is not of etcd's v3 gateway: {error!r}") from error


def encoded(text: str) -> str:
    """Return a key or a value as etcd's gateway has it."""
    return base64.b64encode(text.encode()).decode()


def is_created(key: str, revision: int) -> dict[str, str]:
    """Return the condition that a key was created at a revision; 0: that it does not exist."""
    return {"key": encoded(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def is_modified(key: str, revision: int) -> dict[str, str]:
    """Return the condition that a key was last changed at a revision; 0: that it does not exist."""
    return {"key": encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def put(key: str, value: str, lease: int = 0) -> dict[str, str]:
    """Return the change that gives a key a value, for as long as a lease holds if there is one."""
    return {"key": encoded(key), "value": encoded(value), "lease": str(lease)}


def _value(shown: Mapping[str, Any]) -> KeyValue | None:
    for each in shown.get("kvs", ()):
        numbers = (int(each.get(name, 0)) for name in ("create_revision", "mod_revision", "lease"))
        return KeyValue(base64.b64decode(each.get("value", "")), *numbers)
    return None


class _Connection:
    """One connection, for one request after another."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = str(endpoint).partition("//")[2]
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)

    async def ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        headers = [("Host", self._host), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        request = h11.Request(method="POST", target=path, headers=headers)
        for part in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(part) or b"")
        await self._writer.drain()
        status, said = 0, bytearray()
        while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                said += event.data
                if len(said) > MAX_ANSWER_BYTES:
                    raise EOFError("the answer is too long")
            elif isinstance(event, h11.ConnectionClosed):
                raise EOFError("it ended the connection")
        return status, bytes(said)

    def is_reusable(self) -> bool:
        """Make room for the next request; return false if this was the last one."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return self.is_open()

    def is_open(self) -> bool:
        """Return true if the server has not closed it."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        """Close it."""
        self._writer.close()
