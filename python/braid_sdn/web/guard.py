"""The guard in front of every request: names, sessions, CSRF tokens, and the headers of every answer. Pure."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import math
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from braid_sdn.web.auth import Role, Session, TooManyError, WebAuth, WrongTokenError
from braid_sdn.web.login_attempts import canonical
from braid_sdn.web.messages import HTML, Answer, Arrival, Headers, Request

#: Header with the session's CSRF token, on requests that change something.
CSRF_HEADER = "x-csrf-token"
#: Longest body of a request: that of a login.
MAX_BODY_BYTES = 1024

#: Sources of the page's parts: files of this server alone, no script or style within the document, no frame around.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: The login form is complete in itself, so that nothing else is served without a session.
LOGIN_POLICY = (
    "default-src 'none'; style-src 'sha256-{}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

#: Headers of every answer. With "no-referrer" browsers would hide the origin of our own forms too.
HEADERS: Headers = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)

#: Places in the login form: of a message, and of the command that prints a token.
MESSAGE, COMMAND = "<!-- message -->", "<!-- command -->"


@dataclass(frozen=True)
class Admitted:
    """A request that may be answered, with its session and the cookie that proves it."""

    request: Request
    session: Session
    cookie: str


class Guard:
    """Decides which requests are answered."""

    def __init__(
        self,
        auth: WebAuth,
        names: tuple[str, ...],
        form: str,
        command: str,
        on_login: Callable[[Arrival, Role | None], None] = lambda *_: None,
    ) -> None:
        """Answer to `names`, with a login form that names the command which prints a token.

        `on_login` hears of logins with their role, and of wrong tokens.
        """
        self.auth = auth
        self._on_login = on_login
        self._names = {"localhost", *(name.lower() for name in names)}
        self._form = form.replace(COMMAND, command)
        self._command = command
        style = form.partition("<style>")[2].partition("</style>")[0]
        self._login_policy = LOGIN_POLICY.format(base64.b64encode(hashlib.sha256(style.encode()).digest()).decode())

    def admit(self, arrival: Arrival, request: Request, now: float, clock: float) -> Admitted | Answer:
        """Return a request that may be answered, or the answer of one that may not."""
        host = request.header("host")
        if host is None or not self._is_name(host, arrival):
            text = "this machine is not called that: use its address, or add the name to [web] names\n"
            return self._to_stranger(Answer(421, text.encode(), "text/plain; charset=utf-8"))
        own = f"{'https' if arrival.tls else 'http'}://{host}"
        # Browsers send it with every request that changes something.
        origin = request.header("origin")
        if not request.shows and origin is not None and origin.lower() != own.lower():
            return self._to_stranger(_json(403, {"error": "another site's page has sent this"}))
        if request.path == "/login" and request.method == "POST":
            return self._to_stranger(self._log_in(arrival, request, now, clock))
        for cookie in _cookies(request, _cookie_name(arrival)):
            session = self.auth.session(cookie, clock)
            if session is not None:
                return self._of_session(Admitted(request, session, cookie), arrival, clock)
        return self._to_stranger(self._without_session(request))

    def _of_session(self, found: Admitted, arrival: Arrival, clock: float) -> Admitted | Answer:
        request, session = found.request, found.session
        if not request.shows:
            if not self.auth.is_csrf_token(session, request.header(CSRF_HEADER) or ""):
                return self.refused("the request lacks the session's X-CSRF-Token")
            if session.role is not Role.OPERATOR and request.path != "/logout":
                return self.refused("a viewer changes nothing")
        if request.path == "/session" and request.shows:
            return self.finished(self._session(session))
        if request.path == "/logout":
            if request.method != "POST":
                return self.answered(405, {"error": "only POST logs out"})
            self.auth.end(session, clock)
            gone = _cookie(arrival, "", 0)
            return self.finished(Answer(204, headers=(("Set-Cookie", gone),)))
        return found

    def answered(self, status: int, content: object) -> Answer:
        """Return an answer in JSON."""
        return self.finished(_json(status, content))

    def refused(self, why: str) -> Answer:
        """Return the answer to a request that may not be."""
        return self.answered(403, {"error": why})

    def finished(self, answer: Answer) -> Answer:
        """Return an answer with the headers that every answer has."""
        policies = [value for name, value in answer.headers if name == "Content-Security-Policy"]
        policy: Headers = () if policies else (("Content-Security-Policy", PAGE_POLICY),)
        return Answer(answer.status, answer.body, answer.kind, (*answer.headers, *policy, *HEADERS), answer.pieces)

    def _to_stranger(self, answer: Answer) -> Answer:
        """Return an answer without a session, which ends its connection: others want its place."""
        closing = Answer(answer.status, answer.body, answer.kind, (*answer.headers, ("Connection", "close")))
        return self.finished(closing)

    def _is_name(self, host: str, arrival: Arrival) -> bool:
        """Return true if a `Host` header names this machine.

        The port is no part of it: it changes where connections are forwarded, and a foreign site cannot choose it.
        """
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        try:
            return canonical(ipaddress.ip_address(name)) == arrival.local
        except ValueError:
            return name.removesuffix(".").lower() in self._names

    def _without_session(self, request: Request) -> Answer:
        """Answer a request without a session: a browser's navigation gets the form, a program an error."""
        if request.path.startswith("/v1/") or request.path == "/session":
            return _json(401, {"error": f"log in first ({self._command}, then POST /login)"})
        return self._login_form(401)

    def _login_form(self, status: int, message: str = "", *more: tuple[str, str]) -> Answer:
        page = self._form.replace(MESSAGE, message)
        policy = ("Content-Security-Policy", self._login_policy)
        return Answer(status, page.encode(), HTML, (policy, *more))

    def _log_in(self, arrival: Arrival, request: Request, now: float, clock: float) -> Answer:
        typed = urllib.parse.parse_qs(request.body.decode("latin-1")).get("token")
        if not typed:
            return self._login_form(400, "The form was incomplete.")
        try:
            session, cookie = self.auth.log_in(arrival.source, typed[0], now, clock)
        except WrongTokenError:
            self._on_login(arrival, None)
            return self._login_form(401, "That is not a valid token.")
        except TooManyError as limit:
            seconds = math.floor(limit.wait) + 1
            text = f"Too many wrong tokens. Try again in {seconds} s."
            return self._login_form(429, text, ("Retry-After", str(seconds)))
        self._on_login(arrival, session.role)
        made = _cookie(arrival, cookie, session.expires - int(clock))
        return Answer(303, headers=(("Set-Cookie", made), ("Location", "/")))

    def _session(self, session: Session) -> Answer:
        content = {
            "role": session.role.word,
            "csrf_token": self.auth.csrf_token(session),
            "expires_unix_ms": session.expires * 1000,
        }
        return _json(200, content)


def _cookie_name(arrival: Arrival) -> str:
    """Return the name of the session's cookie.

    Browsers share cookies between the ports of a machine, so it has the port's number; within TLS they keep its
    prefix from being set by others.
    """
    return f"{'__Host-' if arrival.tls else ''}braid-{arrival.port}"


def _cookie(arrival: Arrival, value: str, seconds: int) -> str:
    secure = "; Secure" if arrival.tls else ""
    return f"{_cookie_name(arrival)}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"


def _cookies(request: Request, name: str) -> Iterator[str]:
    for key, line in request.headers:
        if key == "cookie":
            for pair in line.split(";"):
                found, _, value = pair.strip().partition("=")
                if found == name:
                    yield value


def _json(status: int, content: object) -> Answer:
    return Answer(status, json.dumps(content).encode() + b"\n")
