"""Authentication of edges over TCP by a key that each shares with the controller. Pure: lines in, lines out.

A request bears `Authorization: Braid NAME COUNTER MAC`. The MAC covers request line, body and a counter that only
grows, so reports can be neither forged nor replayed. A restarted controller remembers no counters, so it accepts a
report only if that names a table of its own start (`report.is_own_revision`). The response bears
`Braid-Authentication: MAC` over counter, status and body, so that an edge follows no forged table. Nothing is
encrypted.
"""

from __future__ import annotations

import hmac
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"Authorization: Braid (\S{1,255}) (\d{1,20}) ([0-9a-f]{64})", re.IGNORECASE)


class UnauthorizedError(Exception):
    """A request is refused, and the reason."""


@dataclass(frozen=True, slots=True)
class VerifiedRequest:
    """A request whose MAC is right: the edge, its counter and key."""

    name: str
    counter: int
    key: bytes

    def sign(self, status: int, body: bytes) -> tuple[str, str]:
        """Return name and value of the header that authenticates the response."""
        return "Braid-Authentication", mac(self.key, b"%d\n%d\n%b" % (self.counter, status, body))


@dataclass
class EdgeAuth:
    """Verifies requests by the edges' keys."""

    keys: Mapping[str, bytes]
    #: The counter of each edge's last request: a replay guard.
    _last: dict[str, int] = field(default_factory=dict)

    def verify(self, request: str, headers: list[str], body: bytes = b"") -> VerifiedRequest:
        """Verify a request line with these headers and this body; raises UnauthorizedError."""
        found = next((match for line in headers if (match := _LINE.fullmatch(line))), None)
        if found is None:
            raise UnauthorizedError("over TCP only edges are answered, which authenticate by their key (key_file)")
        name, counter = urllib.parse.unquote(found[1]), int(found[2])
        key = self.keys.get(name)
        covered = f"{counter}\n{request}".encode("latin-1") + (b"\n" + body if body else b"")
        if key is None or not hmac.compare_digest(mac(key, covered), found[3]):
            raise UnauthorizedError("the key is not that of an edge of this name (key_file)")
        if counter <= self._last.get(name, -1):
            raise UnauthorizedError(
                "a replay: see whether the edge's clock was set back, two edges have one name, or this controller is "
                "named twice by its --controller"
            )
        self._last[name] = counter
        return VerifiedRequest(name, counter, key)


def mac(key: bytes, what: bytes) -> str:
    """Return the HMAC-SHA-256 of a message, as hex digits."""
    return hmac.digest(key, what, "sha256").hex()
