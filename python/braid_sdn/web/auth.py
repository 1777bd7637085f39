"""Login tokens, and the sessions that they open."""

from __future__ import annotations

import base64
import binascii
import enum
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from braid_sdn.web.login_attempts import Address, LoginAttempts

#: Characters of a token: none that is mistaken for another.
ALPHABET = "abcdefghjkmnpqrstvwxyz0123456789"
#: Characters of a token, 5 random bits each, and of a group between two dashes.
TOKEN_CHARS, GROUP_CHARS = 28, 4

#: Sessions of a role that were ended and have not expired, of which the server knows each.
MAX_ENDED_SESSIONS = 1024

NONCE_BYTES, TAG_BYTES = 16, 32
#: Role, expiry and nonce.
CLAIM_BYTES = 1 + 8 + NONCE_BYTES


class Role(enum.Enum):
    """Rights of a session: its name in JSON, its byte in a claim, and the seconds that it lives."""

    #: May look: a display on a wall is logged in once a month.
    VIEWER = ("viewer", 1, 30 * 24 * 3600)
    #: May look and act, for a working day.
    OPERATOR = ("operator", 2, 12 * 3600)

    def __init__(self, word: str, byte: int, lifetime: int) -> None:
        self.word = word
        self.byte = byte
        self.lifetime = lifetime


def new_token() -> str:
    """Return a new token: 140 random bits as text."""
    chars = [secrets.choice(ALPHABET) for _ in range(TOKEN_CHARS)]
    groups = ["".join(chars[at : at + GROUP_CHARS]) for at in range(0, TOKEN_CHARS, GROUP_CHARS)]
    return "-".join(groups)


def plain(token: str) -> bytes:
    """Return a token's characters without those that people add or change."""
    return "".join(char for char in token if char.isascii() and char.isalnum()).lower().encode()


@dataclass(frozen=True, slots=True)
class Session:
    """A session, as its cookie proves it."""

    role: Role
    #: Seconds since 1970 at which it ends.
    expires: int
    nonce: bytes

    @property
    def claim(self) -> bytes:
        """The part of its cookie that is signed."""
        return bytes([self.role.byte]) + self.expires.to_bytes(8, "big") + self.nonce


class WrongTokenError(Exception):
    """It is no token of ours."""


class TooManyError(Exception):
    """Too many wrong tokens came from there: the next one is looked at after `wait` seconds."""

    def __init__(self, wait: float) -> None:
        """Keep the time."""
        super().__init__(f"wait {wait:.0f} s")
        self.wait = wait


@dataclass
class EndedSessions:
    """Sessions of one role that were ended before their time."""

    #: Their expiry, by nonce.
    _expiries: dict[bytes, int] = field(default_factory=dict)
    #: Latest expiry of sessions that have ended all together.
    _all_until: int = 0

    def add(self, session: Session, clock: float) -> None:
        """End a session; if there are too many, all of its role that have begun."""
        self._expiries = {nonce: expires for nonce, expires in self._expiries.items() if expires > clock}
        if len(self._expiries) < MAX_ENDED_SESSIONS:
            self._expiries[session.nonce] = session.expires
        else:
            self._expiries = {}
            self._all_until = max(int(clock) + session.role.lifetime, session.expires)

    def __contains__(self, session: Session) -> bool:
        return session.expires <= self._all_until or session.nonce in self._expiries


@dataclass
class WebAuth:
    """Decides who is logged in. `now` is a monotonic clock, `clock` seconds since 1970.

    One thread asks it; another may replace `tokens` as a whole.
    """

    #: The token of each role; none if nobody has asked for it yet.
    tokens: Mapping[Role, str] = field(default_factory=dict)
    _attempts: LoginAttempts = field(default_factory=LoginAttempts)
    #: Sessions that were ended by their user. Those of a role are apart, so that viewers, whose token many have, end
    #: no operator's.
    _ended: dict[Role, EndedSessions] = field(default_factory=lambda: {role: EndedSessions() for role in Role})

    def log_in(self, source: Address, typed: str, now: float, clock: float) -> tuple[Session, str]:
        """Open a session for a typed token, and return it with its cookie; raises WrongTokenError or TooManyError."""
        wait = self._attempts.wait(source, now)
        if wait:
            raise TooManyError(wait)
        # Another thread may replace them.
        tokens = self.tokens
        # All are compared, so the time taken does not depend on the one that is right.
        same = [role for role, token in tokens.items() if hmac.compare_digest(plain(token), plain(typed))]
        if not same:
            self._attempts.note_failure(source, now)
            raise WrongTokenError
        self._attempts.forget(source)
        session = Session(same[0], int(clock) + same[0].lifetime, secrets.token_bytes(NONCE_BYTES))
        tag = hmac.digest(plain(tokens[session.role]), session.claim, "sha256")
        return session, _text(session.claim + tag)

    def session(self, cookie: str, clock: float) -> Session | None:
        """Return the session of a cookie, if it is one of ours that has not ended."""
        try:
            content = base64.b64decode(cookie + "=" * (-len(cookie) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        claim, tag = content[:CLAIM_BYTES], content[CLAIM_BYTES:]
        role = next((role for role in Role if claim[:1] == bytes([role.byte])), None)
        token = self.tokens.get(role) if role is not None else None
        if role is None or token is None or len(tag) != TAG_BYTES:
            return None
        if not hmac.compare_digest(hmac.digest(plain(token), claim, "sha256"), tag):
            return None
        found = Session(role, int.from_bytes(claim[1:9], "big"), claim[9:])
        over = found.expires <= clock or found in self._ended[role]
        return None if over else found

    def csrf_token(self, session: Session) -> str | None:
        """Return the token of requests of a session that change something; None if its login token is gone."""
        token = self.tokens.get(session.role)
        return None if token is None else _text(hmac.digest(plain(token), b"csrf" + session.claim, "sha256"))

    def is_csrf_token(self, session: Session, presented: str) -> bool:
        """Return true if a request of a session carries its token."""
        expected = self.csrf_token(session)
        return expected is not None and hmac.compare_digest(expected.encode(), presented.encode())

    def end(self, session: Session, clock: float) -> None:
        """End a session before its time. A program that restarts has forgotten that; the browser has not."""
        self._ended[session.role].add(session, clock)


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
