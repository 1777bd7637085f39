"""The page on real sockets: its listener on its own thread, what is behind a session, the stream, and the journal."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric.api import page as fabric_page
from braid_sdn.fabric.api import report
from braid_sdn.fabric.api.events import Event, Snapshot, changes
from braid_sdn.fabric.api.live import Live
from braid_sdn.fabric.api.page import Page
from braid_sdn.fabric.api.server import Api
from braid_sdn.fabric.pieces import at_once
from braid_sdn.fabric.settings import FloodSettings
from braid_sdn.web import listener
from braid_sdn.web.access import WebAccess, WebSettings
from braid_sdn.web.auth import Role, WebAuth
from braid_sdn.web.files import login_form
from braid_sdn.web.guard import Guard
from braid_sdn.web.messages import Answer

from . import tenant_network
from .virtual import Network, frame, mac, ready

LOOPBACK = ipaddress.ip_address("127.0.0.1")
BEGAN = 1_800_000_000_000


@dataclass
class Reply:
    """An answer over HTTP."""

    status: int
    head: str
    body: bytes

    @property
    def json(self) -> Any:
        """Its body, decoded."""
        return json.loads(self.body)


@dataclass
class Served:
    """A page of a controller of made-up switches."""

    net: Network
    live: Live
    access: WebAccess
    port: int
    tls: ssl.SSLContext | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)

    async def ask(self, line: str, *headers: str, body: str = "") -> Reply:
        """Send a request, and return the answer once the connection is closed."""
        reader, writer = await self.connect()
        lines = [f"{line} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Connection: close", *headers]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        writer.write("\r\n".join([*lines, "", body]).encode())
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return Reply(int(head.split()[1]), head.decode(), rest)

    async def log_in(self, role: Role) -> str:
        """Return the header of a session."""
        told = await self.ask("POST /login", body=f"token={self.access.token(role)}")
        assert told.status == 303, told
        cookie = re.search(r"Set-Cookie: ([^;]+)", told.head)
        assert cookie is not None
        return f"Cookie: {cookie[1]}"


def shown(net: Network) -> Generator[None, None, dict[str, Any]]:
    """Make what the page shows, piece by piece."""
    return {"unix_ms": BEGAN, **(yield from report.snapshot_pieces(net.controller, net.now))}


@contextlib.asynccontextmanager
async def served(net: Network, folder: Path, listen: str = "127.0.0.1") -> AsyncIterator[Served]:
    """Serve a controller's page by the listener's own thread; TLS for an address of a network."""
    access = WebAccess(folder, "fabric-web")
    settings = WebSettings((ipaddress.ip_address(listen), 0))
    live = Live(lambda: shown(net), BEGAN)
    api = Api(net.controller, lambda: net.now, journal=live.journal)
    identity = access.identity(settings, BEGAN / 1000)
    bound = listener.bind(*settings.listen)
    guard = Guard(access.auth, (), login_form(), "braid sdn fabric web token")
    server = listener.Listener(guard, Page(api, live).answer, identity.context if identity else None)
    thread = listener.WebThread(server, bound)
    port = bound.getsockname()[1]
    thread.start()
    tls = ssl._create_unverified_context() if identity else None  # noqa: S323
    try:
        yield Served(net, live, access, port, tls)
    finally:
        await thread.stop()


def story(net: Network, folder: Path, tell: Callable[[Served], Awaitable[None]], listen: str = "127.0.0.1") -> None:
    """Run a test's part that waits."""

    async def told() -> None:
        async with served(net, folder, listen) as page:
            await tell(page)

    asyncio.run(asyncio.wait_for(told(), 60))


def test_an_intruder_gets_the_form_and_nothing_else(tmp_path: Path) -> None:
    async def tell(page: Served) -> None:
        for path in ("/", "/main.js", "/nothing"):
            told = await page.ask(f"GET {path}")
            assert told.status == 401, path
            assert b'name="token"' in told.body, path
        for path in ("/v1/fabric/status", "/v1/fabric/stream", "/session"):
            told = await page.ask(f"GET {path}")
            assert (told.status, set(told.json)) == (401, {"error"}), path
        assert (await page.ask("POST /v1/fabric/hosts/x/forget")).status == 401
        assert (await page.ask("GET /", "Cookie: braid-1=x", body="x" * 5000)).status == 413
        reader, writer = await page.connect()
        writer.write(b"hello\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        guesses = [(await page.ask("POST /login", body=f"token=guess{i}")).status for i in range(8)]
        assert guesses[0] == 401
        assert guesses[-1] == 429

    story(ready(two_paths()), tmp_path, tell)


def test_a_session_sees_what_shows_and_nothing_else(tmp_path: Path) -> None:
    async def tell(page: Served) -> None:
        cookie = await page.log_in(Role.VIEWER)
        for path, word in (
            ("/", b"main.js"),
            ("/main.js", b"network.js"),
            ("/dom.js", b"textContent"),
            ("/page.css", b"--ink"),
        ):
            told = await page.ask(f"GET {path}", cookie)
            assert told.status == 200, path
            assert word in told.body, path
        status = (await page.ask("GET /v1/fabric/status", cookie)).json
        assert {each["name"] for each in status["switches"]} == {"A", "B", "P", "Q"}
        paths = (await page.ask("GET /v1/fabric/paths", cookie)).json
        assert [len(pair["paths"]) for pair in paths["pairs"]] == [2, 2]
        explained = await page.ask("GET /v1/fabric/explain?source=ha&target=hb", cookie)
        assert explained.json["steps"]
        assert (await page.ask("GET /v1/fabric/explain?source=ha&target=nobody", cookie)).status == 404
        assert (await page.ask("HEAD /v1/fabric/status", cookie)).body == b""
        for path in (
            "/metrics",
            "/v1/fabric/edges/ha",
            "/v1/fabric/web/token",
            "/login.html",
            "/../cli.py",
            "/v1/fabric/",
        ):
            assert (await page.ask(f"GET {path}", cookie)).status == 404, path

    story(ready(two_paths()), tmp_path, tell)


def test_an_operator_forgets_a_host_and_a_viewer_does_not(tmp_path: Path) -> None:
    net = ready(two_paths())
    line = f"POST /v1/fabric/hosts/{mac(1)}/forget"

    async def tell(page: Served) -> None:
        for role, wanted in ((Role.VIEWER, 403), (Role.OPERATOR, 200)):
            cookie = await page.log_in(role)
            csrf = f"X-CSRF-Token: {(await page.ask('GET /session', cookie)).json['csrf_token']}"
            assert (await page.ask(line, cookie)).status == 403, "no CSRF token"
            assert mac(1) in net.controller.hosts.known
            assert (await page.ask(line, cookie, csrf)).status == wanted
            for other in ("POST /v1/fabric/edges/ha/report?revision=", "POST /v1/fabric/web/token?role=operator"):
                assert (await page.ask(other, cookie, csrf)).status in (403, 405), other
        assert mac(1) not in net.controller.hosts.known

    story(net, tmp_path, tell)


async def message(reader: asyncio.StreamReader) -> tuple[str, Any]:
    """Return the next message of a stream: its kind and content."""
    fields = {}
    while (text := (await reader.readline()).decode().rstrip("\r\n")) or "data" not in fields:
        name, _, value = text.partition(": ")
        if value:
            fields[name] = value
    return fields["event"], json.loads(fields["data"])


async def stream(page: Served, cookie: str, *headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await page.connect()
    lines = ["GET /v1/fabric/stream HTTP/1.1", f"Host: 127.0.0.1:{page.port}", cookie, *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head
    assert b"text/event-stream" in head
    return reader, writer


def look(page: Served, seen: Snapshot) -> Snapshot:
    """Note what has changed since a snapshot, and begin the next turn, as the service does every second."""
    now = Snapshot.of(page.net.controller, page.net.now)
    for event in changes(seen, now):
        page.live.note(BEGAN + round(page.net.now * 1000), event)
    page.live.turn()
    return now


def test_the_stream_says_what_changed_and_why_and_ends_with_its_session(tmp_path: Path) -> None:
    net = ready(two_paths())

    async def tell(page: Served) -> None:
        seen = look(page, Snapshot())
        first, second = await page.log_in(Role.VIEWER), await page.log_in(Role.OPERATOR)
        reader, writer = await stream(page, first)
        others, other = await stream(page, second, f"Last-Event-ID: {page.live.journal.last}")
        kinds = []
        while (told := await message(reader))[0] == "event":
            kinds.append(told[1]["event"])
        assert kinds.count("link-found") == 8
        assert len(told[1]["links"]) == 8
        # The page that has them already gets none again.
        assert (await message(others))[0] == "snapshot"
        net.unplug("A", "P")
        net.run(1)
        seen = look(page, seen)
        news = []
        while (told := await message(reader))[0] == "event":
            news.append(told[1])
        lost = [each for each in news if each["event"] == "link-lost"]
        assert {each["fields"]["why"] for each in lost} == {"port A:A-P is down"}
        (used,) = (each for each in news if each["event"] == "paths-used" and each["fields"]["source"] == "ha")
        assert used["fields"]["why"] == "A>P>B is left: a link of it is lost (port A:A-P is down)"
        assert [each["number"] for each in news] == sorted({each["number"] for each in news})
        assert {each["why"] for each in told[1]["lost_links"]} == {"port A:A-P is down"}
        # A new token ends the streams of the old one's sessions.
        page.access.token(Role.VIEWER, new=True)
        page.live.turn()
        assert b"snapshot" not in await reader.read()
        page.live.turn()
        while (await message(others))[0] != "snapshot":
            pass
        for each in (writer, other):
            each.close()

    story(net, tmp_path, tell)


def test_nobody_watching_no_snapshot_is_made_and_one_is_for_all() -> None:
    made = []

    async def tell() -> None:
        def snapshot() -> Generator[None, None, dict[str, Any]]:
            made.append(1)
            yield
            return {"hosts": [{"number": number} for number in range(1000)], "edges": [], "planned": True}

        live = Live(snapshot, BEGAN)
        for _ in range(10):
            live.turn()
        assert made == []
        turn, number, _ = await live.frame(-1, 0)
        assert (turn, number) == (10, BEGAN)
        waiting = [asyncio.create_task(live.frame(turn, number)) for _ in range(5)]
        await asyncio.sleep(0)
        live.note(BEGAN, Event("link-found", {}))
        live.turn()
        frames = await asyncio.gather(*waiting)
        assert len(made) == 2
        assert len({piece for *_, piece in frames}) == 1
        *_, told = frames[0][2].decode().strip().split("\n")
        assert json.loads(told.removeprefix("data: ")) == at_once(snapshot())

    asyncio.run(tell())


def test_hostile_names_travel_as_data(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    net = Network(two_paths())
    net.controller.topology.names[1] = hostile
    net.connect()
    net.run(5)
    net.send("ha", frame(mac(1), "ff:ff:ff:ff:ff:ff"))
    net.run(1)

    async def tell(page: Served) -> None:
        look(page, Snapshot())
        cookie = await page.log_in(Role.VIEWER)
        for path in ("status", "events", "hosts"):
            told = await page.ask(f"GET /v1/fabric/{path}", cookie)
            assert "Content-Type: application/json\r\n" in told.head, path
            assert "X-Content-Type-Options: nosniff" in told.head, path
            assert hostile in told.body.decode(), path
        for path in ("/", f"/{hostile}", "/login"):
            assert b"<img src=x" not in (await page.ask(f"GET {path.replace(' ', '%20')}", cookie)).body, path

    story(net, tmp_path, tell)


def test_a_network_is_served_by_tls_alone(tmp_path: Path) -> None:
    async def tell(page: Served) -> None:
        cookie = await page.log_in(Role.VIEWER)
        assert cookie.startswith("Cookie: __Host-braid-")
        # Requests of one connection follow each other.
        reader, writer = await page.connect()
        for _ in range(2):
            writer.write(f"GET /session HTTP/1.1\r\nHost: localhost\r\n{cookie}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"Content-Length: (\d+)", head)
            assert length is not None
            assert json.loads(await reader.readexactly(int(length[1])))["role"] == "viewer"
        writer.close()
        plain, speak = await asyncio.open_connection("127.0.0.1", page.port)
        speak.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert not (await plain.read()).startswith(b"HTTP/")
        speak.close()
        assert (await page.ask("GET /", cookie)).status == 200, "others are served on"

    story(ready(two_paths()), tmp_path, tell, "0.0.0.0")  # noqa: S104


def test_one_host_cannot_take_all_places_and_a_silent_connection_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PATIENCE", 0.5)

    async def tell(page: Served) -> None:
        opened = [await page.connect() for _ in range(listener.MAX_CONNECTIONS_OF_ONE)]
        reader, writer = await page.connect()
        writer.write(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b"", "it is closed at once"
        writer.close()
        # The others say nothing, and make room by that.
        for silent, speak in opened:
            assert await silent.read() == b""
            speak.close()
        assert (await page.ask("GET /")).status == 401

    story(ready(two_paths()), tmp_path, tell)


def test_one_host_cannot_take_all_places_by_many_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    most = listener.MAX_CONNECTIONS_OF_ONE
    names = [f"2001:db8:0:1::{host:x}" for host in range(1, most + 2)] + ["2001:db8:0:2::1"]
    served: list[str] = []

    async def connection(_: listener.Listener, peer: socket.socket, source: object) -> None:
        served.append(str(source))
        with peer:
            await asyncio.Event().wait()

    async def scenario() -> None:
        pairs = [socket.socketpair() for _ in names]
        coming = iter(zip(pairs, names, strict=True))

        async def accept(_: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
            for (near, _far), name in coming:
                return near, (name, 443)
            # All tasks that were made before have begun when this one runs again.
            await asyncio.sleep(0)
            raise asyncio.CancelledError

        monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", accept)
        guard = Guard(WebAuth(), (), login_form(), "")
        with contextlib.suppress(asyncio.CancelledError):
            await listener.Listener(guard, page_of_nothing, None).serve(pairs[0][0])
        for _near, far in pairs:
            far.close()

    monkeypatch.setattr(listener.Listener, "_connection", connection)
    asyncio.run(scenario())
    assert served == [*names[:most], names[-1]]


async def page_of_nothing(_: object) -> Answer:
    raise AssertionError("nobody has a session")


def test_the_thread_that_strangers_speak_to_has_no_privileges(tmp_path: Path) -> None:
    async def tell(_: Served) -> None:
        (thread,) = (each for each in threading.enumerate() if each.name == "web")
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            assert re.search(rf"^{kind}:\s+0+$", status, re.MULTILINE), status
        assert "NoNewPrivs:\t1" in status

    story(ready(two_paths()), tmp_path, tell)


def test_an_address_that_nobody_has_is_named() -> None:
    with pytest.raises(OSError, match=r'^\[web\] listen = "192\.0\.2\.1:8444": '):
        listener.bind(ipaddress.ip_address("192.0.2.1"), 8444)


def test_the_page_asks_for_no_more_of_the_api_than_it_may() -> None:
    folder = fabric_page.FOLDER
    asked = {name for file in folder.glob("*.js") for name in re.findall(r'"/v1/fabric/([a-z.]+)"', file.read_text())}
    assert asked <= {*fabric_page.SHOWN, "stream"}
    assert "stream" in asked


def test_a_snapshot_has_tenants_and_flood_limits_and_the_page_has_texts_and_places_for_them() -> None:
    net = tenant_network.network(flood=FloodSettings(1e6))
    for switch in net.switches.values():
        switch.meters = 300
    tenant_network.settled(net)
    shown = at_once(report.snapshot_pieces(net.controller, net.now))
    assert [(each["name"], each["hosts"]) for each in shown["tenants"]] == [("default", 3), ("blue", 4), ("red", 4)]
    assert {each["flood_limit_bit_s"] for each in shown["hosts"]} == {1_000_000}
    page, texts = ((fabric_page.FOLDER / name).read_text() for name in ("index.html", "texts.js"))
    script = (fabric_page.FOLDER / "hosts.js").read_text()
    places = set(re.findall(r'getElementById\("([\w-]+)"\)', script))
    assert {"tenants", "tenants-table"} <= places <= set(re.findall(r'id="([\w-]+)"', page))
    assert set(re.findall(r"\btexts\.(?!js)(\w+)", script)) <= set(re.findall(r"^  (\w+):", texts, re.MULTILINE))
