"""Requests and answers of the page, as plain data."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from braid_sdn.web.login_attempts import Address

HTML = "text/html; charset=utf-8"
JSON = "application/json"

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Arrival:
    """The way in which a connection reached this server."""

    #: The browser's address.
    source: Address
    #: The address and the port that it connected to.
    local: Address
    port: int
    tls: bool


@dataclass(frozen=True, slots=True)
class Request:
    """A request; names of headers are in lower case."""

    method: str
    target: str
    headers: Headers = ()
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path, without its query, as it was sent."""
        return self.target.partition("?")[0]

    @property
    def shows(self) -> bool:
        """True if it asks for something and changes nothing."""
        return self.method in ("GET", "HEAD")

    def header(self, name: str) -> str | None:
        """Return the first value of a header."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True)
class Answer:
    """An answer; its body is all there at once, or comes in pieces for as long as the session lives."""

    status: int
    body: bytes = b""
    kind: str = JSON
    headers: Headers = ()
    pieces: AsyncGenerator[bytes, None] | None = field(default=None, repr=False)
