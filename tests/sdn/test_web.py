"""The page's guard, as a browser and an intruder meet it; no socket and no clock."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import ssl
import stat
from pathlib import Path

import pytest

from braid_sdn.web import auth, login_attempts, state_file
from braid_sdn.web.access import WebAccess, WebSettings, urls
from braid_sdn.web.auth import (
    MAX_ENDED_SESSIONS,
    Role,
    Session,
    TooManyError,
    WebAuth,
    WrongTokenError,
    new_token,
)
from braid_sdn.web.certificate import RENEWAL, SELF_MADE_LIFETIME, SelfMade, load, names_of
from braid_sdn.web.files import SHARED, login_form, page_files
from braid_sdn.web.guard import Admitted, Guard
from braid_sdn.web.login_attempts import FAILURE_INTERVAL, FREE_FAILURES, MAX_NETWORKS, LoginAttempts
from braid_sdn.web.messages import Answer, Arrival, Headers, Request
from braid_sdn.web.seal import SealError, SealKey

HERE = ipaddress.ip_address("192.0.2.1")
PORT = 8444
CLOCK = 1_800_000_000.0
TOKENS = {role: new_token() for role in Role}


def arrival(*, tls: bool = False, source: str = "192.0.2.7") -> Arrival:
    return Arrival(ipaddress.ip_address(source), HERE, PORT, tls)


def request(line: str, *headers: tuple[str, str], host: str = f"192.0.2.1:{PORT}", body: bytes = b"") -> Request:
    method, _, target = line.partition(" ")
    return Request(method, target, (("host", host), *headers), body)


class Page:
    """A guard with both tokens, and what it said of logins."""

    def __init__(self) -> None:
        self.logins: list[Role | None] = []
        auth = WebAuth(dict(TOKENS))
        command = "braid sdn fabric web token"
        self.guard = Guard(auth, ("gate.example",), login_form(), command, lambda _, role: self.logins.append(role))

    def ask(
        self,
        line: str,
        *headers: tuple[str, str],
        host: str = f"192.0.2.1:{PORT}",
        body: bytes = b"",
        tls: bool = False,
        now: float = 0.0,
        clock: float = CLOCK,
    ) -> Admitted | Answer:
        return self.guard.admit(arrival(tls=tls), request(line, *headers, host=host, body=body), now, clock)

    def refused(self, line: str, *headers: tuple[str, str], host: str = f"192.0.2.1:{PORT}") -> Answer:
        answer = self.ask(line, *headers, host=host)
        assert isinstance(answer, Answer), line
        return answer

    def try_token(self, token: str, *headers: tuple[str, str], now: float = 0.0, tls: bool = False) -> Answer:
        answer = self.ask("POST /login", *headers, body=f"token={token}".encode(), now=now, tls=tls)
        assert isinstance(answer, Answer)
        return answer

    def cookie(self, role: Role) -> tuple[str, str]:
        """Log in, and return the header of the session."""
        answer = self.try_token(TOKENS[role])
        assert answer.status == 303
        return "cookie", header(answer, "Set-Cookie").partition(";")[0]

    def csrf(self, cookie: tuple[str, str]) -> tuple[str, str]:
        token = json.loads(self.refused("GET /session", cookie).body)["csrf_token"]
        return "x-csrf-token", token


def header(answer: Answer, name: str) -> str:
    return next((value for key, value in answer.headers if key == name), "")


def test_without_a_session_there_is_the_form_and_nothing_else() -> None:
    page = Page()
    for path in ("/", "/nothing", "/main.js", "/login"):
        answer = page.refused(f"GET {path}")
        assert answer.status == 401, path
        assert b'name="token"' in answer.body, path
        assert b"<code>sudo braid sdn fabric web token</code>" in answer.body
    for line in ("GET /v1/fabric/status", "GET /session", "GET /v1/nothing", "HEAD /v1/fabric/stream"):
        answer = page.refused(line)
        assert answer.status == 401, line
        assert set(json.loads(answer.body)) == {"error"}, line
    for line in ("POST /v1/fabric/hosts/x/forget", "POST /logout", "DELETE /"):
        assert page.refused(line).status == 401, line
    for cookie in ("braid=x", f"a=b; braid-{PORT}=AAAA; braid-{PORT}=", f"braid-{PORT}=\xff{'A' * 76}"):
        assert page.refused("GET /", ("cookie", cookie)).status == 401, cookie


def test_a_connection_without_a_session_is_not_kept() -> None:
    page = Page()
    strangers = [page.refused(line) for line in ("GET /", "GET /session", "POST /logout")]
    strangers += [page.refused("GET /", host="other.example"), page.try_token("guess"), page.try_token("")]
    strangers.append(page.refused("POST /login", ("origin", "https://other.example")))
    assert [header(answer, "Connection") for answer in strangers] == ["close"] * len(strangers)
    cookie = page.cookie(Role.VIEWER)
    for answer in (page.refused("GET /session", cookie), page.refused("POST /logout", cookie)):
        assert header(answer, "Connection") == ""


def test_a_session_sees_the_page_until_it_is_ended() -> None:
    page = Page()
    cookie = page.cookie(Role.VIEWER)
    for line in ("GET /", "HEAD /", "GET /v1/fabric/status?x=y"):
        admitted = page.ask(line, cookie)
        assert isinstance(admitted, Admitted), line
        assert admitted.session.role is Role.VIEWER
    assert page.refused("GET /logout", cookie).status == 405
    gone = page.refused("POST /logout", cookie, page.csrf(cookie))
    assert gone.status == 204
    assert "Max-Age=0" in header(gone, "Set-Cookie")
    assert page.refused("GET /", cookie).status == 401
    assert page.logins == [Role.VIEWER]


def test_every_answer_has_the_headers_that_keep_other_sites_out() -> None:
    page = Page()
    cookie = page.cookie(Role.VIEWER)
    answers = [
        page.refused("GET /"),
        page.refused("GET /session", cookie),
        page.refused("GET /v1/fabric/status"),
        page.refused("GET /", host="evil.example"),
        page.refused("POST /v1/fabric/hosts/x/forget", cookie),
        page.try_token("wrong"),
        page.guard.finished(Answer(200, b"the page")),
    ]
    for answer in answers:
        policy = header(answer, "Content-Security-Policy")
        assert policy.startswith("default-src 'none'; "), policy
        for part in ("frame-ancestors 'none'", "base-uri 'none'"):
            assert part in policy
        assert "unsafe" not in policy
        assert "*" not in policy
        names = [name for name, _ in answer.headers]
        assert names.count("Content-Security-Policy") == 1
        for name, value in (
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            assert header(answer, name) == value


def test_a_cookie_is_kept_from_scripts_from_other_sites_and_from_plain_http() -> None:
    page = Page()
    plain = header(page.try_token(TOKENS[Role.OPERATOR]), "Set-Cookie")
    sealed = header(page.try_token(TOKENS[Role.OPERATOR], tls=True), "Set-Cookie")
    assert plain.startswith(f"braid-{PORT}=")
    assert sealed.startswith(f"__Host-braid-{PORT}=")
    assert sealed.endswith("; Secure")
    for part in ("; HttpOnly", "; SameSite=Strict", "; Path=/", f"; Max-Age={12 * 3600}"):
        assert part in plain
        assert part in sealed


def test_only_own_names_are_answered() -> None:
    page = Page()
    cookie = page.cookie(Role.VIEWER)
    for host in (
        f"192.0.2.1:{PORT}",
        "localhost",
        "LocalHost:9",
        "gate.example",
        "Gate.Example.:443",
        "[::ffff:192.0.2.1]",
    ):
        assert isinstance(page.ask("GET /", cookie, host=host), Admitted), host
    foreign = ("evil.example", "192.0.2.2", "gate.example.evil.example", "[::1]", "", ":80", "localhost@x", "[", "..")
    for host in foreign:
        assert page.refused("GET /", cookie, host=host).status == 421, host
    nameless = page.guard.admit(arrival(), Request("GET", "/", (cookie,)), 0.0, CLOCK)
    assert isinstance(nameless, Answer)
    assert nameless.status == 421


def test_a_change_needs_an_operator_and_the_sessions_csrf_token() -> None:
    page = Page()
    line = "POST /v1/fabric/hosts/x/forget"
    operator, viewer = page.cookie(Role.OPERATOR), page.cookie(Role.VIEWER)
    may, of_viewer = page.csrf(operator), page.csrf(viewer)
    origin = ("origin", f"http://192.0.2.1:{PORT}")
    for good in ((operator, may), (operator, may, origin)):
        assert isinstance(page.ask(line, *good), Admitted)
    refusals: dict[str, Headers] = {
        "no token": (operator,),
        "an empty token": (operator, ("x-csrf-token", "")),
        "another session's token": (operator, of_viewer),
        "a viewer": (viewer, of_viewer),
        "another site": (operator, may, ("origin", "http://evil.example")),
        "a site that hides": (operator, may, ("origin", "null")),
        "another scheme": (operator, may, ("origin", f"https://192.0.2.1:{PORT}")),
    }
    for why, headers in refusals.items():
        assert page.refused(line, *headers).status == 403, why
    # Another site's form cannot log a browser in either.
    foreign = page.try_token(TOKENS[Role.VIEWER], ("origin", "http://evil.example"))
    assert (foreign.status, header(foreign, "Set-Cookie")) == (403, "")


def test_wrong_tokens_make_even_the_right_one_wait() -> None:
    page = Page()
    for _ in range(FREE_FAILURES):
        assert page.try_token("abcd-abcd").status == 401
    limited = page.try_token(TOKENS[Role.VIEWER])
    assert limited.status == 429
    wait = int(header(limited, "Retry-After"))
    assert 0 < wait <= FAILURE_INTERVAL + 1
    assert page.logins == [None] * FREE_FAILURES
    assert page.try_token(TOKENS[Role.VIEWER], now=wait).status == 303
    for body in (b"", b"x=y", b"token=", b"&" * 900, b"\xff\xfe"):
        answer = page.ask("POST /login", body=body, now=1000.0)
        assert isinstance(answer, Answer)
        assert answer.status == 400, body


def test_a_host_guesses_six_times_a_minute_at_most() -> None:
    attempts, tried = LoginAttempts(), 0
    for second in range(600):
        # It changes its address within its network.
        source = ipaddress.ip_address(f"2001:db8::{second:x}")
        if not attempts.wait(source, second):
            attempts.note_failure(source, second)
            tried += 1
    assert 60 <= tried <= FREE_FAILURES + 60
    assert attempts.wait(ipaddress.ip_address("192.0.2.1"), 0) == 0, "others do not wait"
    assert login_attempts.network(ipaddress.ip_address("::ffff:192.0.2.1")) == HERE
    for number in range(MAX_NETWORKS + 100):
        attempts.note_failure(ipaddress.ip_address(number), 1000)
    assert len(attempts) == MAX_NETWORKS


def test_a_token_opens_sessions_of_its_role_until_they_expire() -> None:
    known = WebAuth(dict(TOKENS))
    for role, token in TOKENS.items():
        assert len(token) == 34
        session, cookie = known.log_in(HERE, token.upper().replace("-", " "), 0.0, CLOCK)
        assert session.role is role
        assert known.session(cookie, CLOCK) == session
        assert known.session(cookie, CLOCK + role.lifetime) is None, "it has expired"


def test_nobody_makes_a_session_or_another_role_of_one() -> None:
    known = WebAuth(dict(TOKENS))
    session, cookie = known.log_in(HERE, TOKENS[Role.VIEWER], 0.0, CLOCK)
    content = base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
    for place in range(len(content)):
        forged = bytearray(content)
        forged[place] ^= 3
        text = base64.urlsafe_b64encode(forged).rstrip(b"=").decode()
        assert known.session(text, CLOCK) is None, place
    for nothing in ("", "x", "AAAA", cookie[1:], cookie + "é", cookie[: auth.CLAIM_BYTES]):
        assert known.session(nothing, CLOCK) is None
    other, _ = known.log_in(HERE, TOKENS[Role.VIEWER], 0.0, CLOCK)
    token = known.csrf_token(session)
    assert token is not None
    assert known.is_csrf_token(session, token)
    assert not known.is_csrf_token(other, token)


def test_a_new_token_ends_the_sessions_of_its_role_alone() -> None:
    known = WebAuth(dict(TOKENS))
    cookies = {role: known.log_in(HERE, token, 0.0, CLOCK)[1] for role, token in TOKENS.items()}
    known.tokens = {**TOKENS, Role.VIEWER: new_token()}
    assert known.session(cookies[Role.VIEWER], CLOCK) is None
    assert known.session(cookies[Role.OPERATOR], CLOCK) is not None
    with pytest.raises(WrongTokenError):
        WebAuth().log_in(HERE, "", 0.0, CLOCK)
    refusing = WebAuth()
    for _ in range(FREE_FAILURES):
        with pytest.raises(WrongTokenError):
            refusing.log_in(HERE, "guess", 0.0, CLOCK)
    with pytest.raises(TooManyError):
        refusing.log_in(HERE, "guess", 0.0, CLOCK)


def test_many_ended_sessions_keep_none_alive() -> None:
    known = WebAuth(dict(TOKENS))

    def opened(role: Role, clock: float) -> tuple[Session, str]:
        return known.log_in(HERE, TOKENS[role], 0.0, clock)

    _, other = opened(Role.VIEWER, CLOCK)
    _, operator = opened(Role.OPERATOR, CLOCK)
    for number in range(MAX_ENDED_SESSIONS + 1):
        session, cookie = opened(Role.VIEWER, CLOCK)
        assert known.session(cookie, CLOCK) == session
        known.end(session, CLOCK)
        assert known.session(cookie, CLOCK) is None
        assert known.session(cookie, CLOCK + 1) is None
        assert (known.session(other, CLOCK) is None) is (number == MAX_ENDED_SESSIONS)
    # A new one begins, and its end counts as well.
    session, cookie = opened(Role.VIEWER, CLOCK + 1)
    assert known.session(cookie, CLOCK + 1) == session
    known.end(session, CLOCK + 1)
    assert known.session(cookie, CLOCK + 1) is None
    acting = known.session(operator, CLOCK)
    assert acting is not None, "viewers end no operator's"
    known.end(acting, CLOCK)
    assert known.session(operator, CLOCK) is None


def settings(listen: str, *names: str, files: tuple[Path | None, Path | None] = (None, None)) -> WebSettings:
    return WebSettings((ipaddress.ip_address(listen), PORT), names, *files)


def test_tokens_are_made_once_kept_and_roots(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    access = WebAccess(folder, "fabric-web")
    operator, viewer = access.token(Role.OPERATOR), access.token(Role.VIEWER)
    assert operator != viewer
    # The next controller knows them.
    access = WebAccess(folder, "fabric-web")
    assert access.token(Role.OPERATOR) == operator
    kept = folder / "fabric-web-tokens.json"
    assert json.loads(kept.read_text()) == {"viewer": viewer, "operator": operator}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    fresh = access.report(Role.OPERATOR, None, new=True)
    assert fresh["token"] not in (operator, viewer)
    assert fresh["urls"] == []
    assert access.token(Role.VIEWER) == viewer, "the other role's stays"
    # A file that cannot be read is no reason not to start.
    for rubbish in ("{", "[]", '{"operator": 5}'):
        kept.write_text(rubbish)
        assert WebAccess(folder, "fabric-web").token(Role.OPERATOR) != fresh["token"]


def test_a_file_of_the_state_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    assert state_file.read(path) is None
    # An interrupted earlier write left this.
    path.parent.mkdir()
    path.with_suffix(".new").write_text("half")
    state_file.write(path, {"x": 1})
    assert state_file.read(path) == {"x": 1}
    assert [file.name for file in path.parent.iterdir()] == ["b.json"]


#: `"a secret"` of the file bond.json, by the credential 0 … 31: crates/braid-host/src/seal.rs opens it too.
SEALED = "AWRlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn+AgYKD8p3Mbihf57ToYLYcfqRJW58+m6XKbAPRG3s="


def test_tokens_are_sealed_once_there_is_a_credential(tmp_path: Path) -> None:
    folder, kept = tmp_path / "state", tmp_path / "state/fabric-web-tokens.json"
    token = WebAccess(folder, "fabric-web").token(Role.OPERATOR)
    assert token in kept.read_text()
    key = SealKey(bytes(32))
    assert WebAccess(folder, "fabric-web", key).token(Role.OPERATOR) == token
    assert token not in kept.read_text()
    viewer = WebAccess(folder, "fabric-web", key).token(Role.VIEWER)
    assert viewer not in kept.read_text()
    again = WebAccess(folder, "fabric-web", key)
    assert (again.token(Role.OPERATOR), again.token(Role.VIEWER)) == (token, viewer)
    for other, told in ((None, "no credential braid.seal"), (SealKey(bytes(33)), "by another credential")):
        with pytest.raises(SealError, match=told):
            state_file.read(kept, other)
    moved = kept.with_name("other.json")
    moved.write_bytes(kept.read_bytes())
    with pytest.raises(SealError):
        state_file.read(moved, key)
    for rubbish in ("AAAA", "?", ""):
        kept.write_text(json.dumps({"sealed": rubbish}))
        with pytest.raises(SealError):
            state_file.read(kept, key)
    assert SealKey(bytes(range(32))).open("bond.json", base64.b64decode(SEALED)) == b'"a secret"'


def test_a_credential_is_read_from_the_services_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SealKey.from_environment() is None
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert SealKey.from_environment() is None
    file = tmp_path / "braid.seal"
    file.write_bytes(bytes(31))
    with pytest.raises(SealError, match="has 31 bytes, and 32 are needed"):
        SealKey.from_environment()
    file.write_bytes(bytes(32))
    key = SealKey.from_environment()
    assert key is not None
    assert SealKey(bytes(32)).open("x", key.seal("x", b"y")) == b"y"
    file.unlink()
    file.mkdir()
    with pytest.raises(SealError, match=r"credential braid\.seal"):
        SealKey.from_environment()


def test_a_network_gets_tls_and_the_machine_itself_needs_none(tmp_path: Path) -> None:
    access = WebAccess(tmp_path, "fabric-web")

    def fingerprint(listen: str, clock: float = CLOCK) -> str | None:
        found = access.identity(settings(listen), clock)
        assert access.fingerprint == (found.fingerprint if found else None)
        return access.fingerprint

    assert fingerprint("127.0.0.1") is None
    assert fingerprint("::1") is None
    assert fingerprint("::ffff:127.0.0.1") is None
    made = fingerprint("192.168.1.1")
    assert made is not None
    assert len(made) == 95
    assert fingerprint("192.168.1.1") == made, "it is kept"
    assert stat.S_IMODE((tmp_path / "fabric-web-certificate.json").stat().st_mode) == 0o600
    assert fingerprint("192.168.1.1", CLOCK + SELF_MADE_LIFETIME - RENEWAL) != made, "it is renewed in time"
    assert fingerprint("0.0.0.0") is not None  # noqa: S104
    (tmp_path / "fabric-web-certificate.json").write_text('{"x": 1}')
    assert fingerprint("::") is not None
    assert names_of(ipaddress.ip_address("fd00::1"), ("a.example",)) == ["localhost", "fd00::1", "a.example"]


def test_files_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    one, other = tmp_path / "one.pem", tmp_path / "other.pem"
    made, stranger = (SelfMade.make(["a.example", "192.0.2.1"], CLOCK) for _ in range(2))
    one.write_text(made.certificate)
    other.write_text(made.key)
    loaded = WebAccess(tmp_path, "fabric-web").identity(settings("127.0.0.1", files=(one, other)), CLOCK)
    assert loaded is not None
    shown = hashlib.sha256(ssl.PEM_cert_to_DER_cert(made.certificate)).hexdigest()
    assert loaded.fingerprint.replace(":", "").lower() == shown
    for certificate, key, why in (
        (one, stranger.key, "match"),
        (one, "sealed?", ""),
        (other, made.key, "no certificate"),
    ):
        other.write_text(key)
        with pytest.raises(OSError, match=r"other\.pem") as refused:
            load(certificate, other)
        assert why in str(refused.value)
    with pytest.raises(OSError, match=r"nothing\.pem.*No such file"):
        load(tmp_path / "nothing.pem", other)


def test_addresses_for_the_address_bar() -> None:
    assert urls(None) == []
    both = ["https://gate.example:8444/", "https://localhost:8444/"]
    assert urls(settings("0.0.0.0", "gate.example")) == both  # noqa: S104
    assert urls(settings("fd00::1")) == ["https://[fd00::1]:8444/"]
    assert urls(settings("::1")) == ["http://[::1]:8444/"]
    assert urls(settings("127.0.0.1", files=(Path("c"), Path("k")))) == ["https://127.0.0.1:8444/"]


def test_the_login_form_is_not_among_the_files_of_a_page(tmp_path: Path) -> None:
    for name in ("index.html", "main.js", "notes.txt"):
        (tmp_path / name).write_text(name)
    files = page_files(tmp_path)
    shared = {f"/{file.name}" for file in SHARED.iterdir()} - {"/login.html"}
    assert {"/dom.js", "/page.css", "/icon.svg"} <= shared
    assert files.keys() == {"/", "/main.js"} | shared
    assert files["/main.js"].kind == "text/javascript; charset=utf-8"
    assert files["/"].body == b"index.html"
