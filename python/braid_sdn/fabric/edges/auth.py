"""Who may ask over TCP: edges that share a key with the controller. Pure: lines in, lines out.

A question bears `Authorization: Braid NAME COUNTER MAC`, the MAC over what is asked and a counter that only grows, so
that nobody makes up counts of packets or plays them back. A controller that starts anew remembers no counters: so
what is told with a question counts only if that names a table which this start has made (`report.is_own_revision`). The
answer bears `Braid-Authentication: MAC` over the counter and all of itself, so that an edge follows no table that
somebody else made. Nothing is kept secret.
"""

from __future__ import annotations

import hmac
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"Authorization: Braid (\S{1,255}) (\d{1,20}) ([0-9a-f]{64})", re.IGNORECASE)


class UnauthorizedError(Exception):
    """Who asks does not get in, and why."""


@dataclass(frozen=True, slots=True)
class VerifiedRequest:
    """Who has shown that it knows an edge's key."""

    name: str
    counter: int
    key: bytes

    def sign(self, status: int, body: bytes) -> str:
        """Return the line that an answer to it bears."""
        return "Braid-Authentication: " + mac(self.key, b"%d\n%d\n%b" % (self.counter, status, body))


@dataclass
class EdgeAuth:
    """Knows the keys of edges, by their names."""

    keys: Mapping[str, bytes]
    #: The counter of each edge's last question.
    _last: dict[str, int] = field(default_factory=dict)

    def verify(self, request: str, headers: list[str]) -> VerifiedRequest:
        """Return who sends a request line with these headers; raises UnauthorizedError."""
        found = next((match for line in headers if (match := _LINE.fullmatch(line))), None)
        if found is None:
            raise UnauthorizedError(
                "over TCP only edges are answered, which show that they have their key (key_file)"
            )
        name, counter = urllib.parse.unquote(found[1]), int(found[2])
        key = self.keys.get(name)
        if key is None or not hmac.compare_digest(mac(key, f"{counter}\n{request}".encode("latin-1")), found[3]):
            raise UnauthorizedError("the key is not that of an edge of this name (key_file)")
        if counter <= self._last.get(name, -1):
            raise UnauthorizedError(
                "it was asked before; see whether the edge's clock was set back, or two have one name"
            )
        self._last[name] = counter
        return VerifiedRequest(name, counter, key)


def mac(key: bytes, what: bytes) -> str:
    """Return the HMAC-SHA-256 of something, as hex digits."""
    return hmac.digest(key, what, "sha256").hex()
