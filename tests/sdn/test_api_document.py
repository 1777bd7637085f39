"""The API's OpenAPI document: whole, served, and true of what the controller answers, to the last field."""

from __future__ import annotations

import ast
import asyncio
import inspect
import ipaddress
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from braid_lab.api_document import complaints, documented
from braid_lab.fabric.shapes import beside, parallel, two_paths
from braid_lab.product import repository
from braid_sdn.fabric.acl import Acl, AclEntry, Action, End
from braid_sdn.fabric.api import page, policy, report, server
from braid_sdn.fabric.api.events import Event, Snapshot, changes
from braid_sdn.fabric.api.live import Live
from braid_sdn.fabric.api.server import Api
from braid_sdn.fabric.cluster.store import Cluster, Member, StoreError
from braid_sdn.fabric.plan.policies import Policies
from braid_sdn.fabric.settings import HostSettings
from braid_sdn.fabric.tenants import Tenant, Tenants
from braid_sdn.web.access import WebAccess, WebSettings
from braid_sdn.web.auth import Role

from .test_api import KEYS, line, with_keys
from .virtual import Network, arp, mac, ready

Schema = dict[str, Any]
Route = tuple[str, str]

DOCUMENT = documented("fabric-openapi.json")
SCHEMAS: dict[str, Schema] = DOCUMENT["components"]["schemas"]
OPERATIONS: dict[Route, Schema] = {
    (method, path): operation for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
}
PREFIX = "/v1/fabric"
#: Behind the page's session alone.
STREAM = ("get", f"{PREFIX}/stream")
#: Objects in requests, which no answer has.
ASKED = {"EdgeReport"}
#: Fields that are in answers of a controller that does not lead alone.
OF_FOLLOWER = {("NotLeadingReport", "error"), ("NotLeadingReport", "leader"), ("ErrorReport", "leader")}

ALPHA, BETA = Member("alpha"), Member("beta", "https://192.0.2.2:8444")
BEGAN = 1_800_000_000_000


def filled(route: Route) -> str:
    """Return the request line of a route, with an end for each parameter."""
    method, path = route
    names = {"name": "ha", "host": mac(1), "switch": "P1", "one": "A", "other": "P1", "source": "ha", "target": "hb"}
    queries = {
        f"{PREFIX}/explain": "source=ha&target=hb",
        f"{PREFIX}/edges/{{name}}/report": "revision=&wait=0",
        f"{PREFIX}/web/token": "role=viewer",
    }
    return f"{method.upper()} {path.format(**names)}?{queries.get(path, '')} HTTP/1.1"


async def sent(opened: tuple[asyncio.StreamReader, asyncio.StreamWriter], *lines: str) -> tuple[int, str, bytes]:
    """Send a request; status, type and body of its answer."""
    reader, writer = opened
    writer.write("\r\n".join([lines[0], "Host: fabric", *lines[1:], "", ""]).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *fields = head.decode().split("\r\n")
    kinds = [each.partition(": ")[2] for each in fields if each.startswith("Content-Type: ")]
    return int(first.split()[1]), "".join(kinds), body


def resolved(schema: Schema) -> Schema:
    """Follow a reference."""
    found = DOCUMENT
    for word in schema.get("$ref", "#").split("/")[1:]:
        found = found[word]
    return found if "$ref" in schema else schema


def properties(schema: Schema, content: Any) -> Iterator[tuple[str, str]]:
    """Yield the documented properties that an answer has, each with the name of its schema."""
    if isinstance(content, list):
        for each in content:
            yield from properties(schema["items"], each)
    elif isinstance(content, dict):
        schema = schema["anyOf"][0] if "anyOf" in schema else schema
        name = schema["$ref"].rpartition("/")[2]
        for key, value in content.items():
            yield name, key
            yield from properties(SCHEMAS[name]["properties"][key], value)


class Reader:
    """Asks an API on its socket, and compares each answer with the document."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.seen: set[tuple[str, str]] = set()

    def check(self, schema: Schema, content: Any, what: str) -> None:
        assert complaints(DOCUMENT, schema, content) == [], what
        self.seen.update(properties(schema, content))

    async def ask(self, request: str, wanted: int = 200, *headers: str) -> Any:
        """Return the content of an answer."""
        opened = await asyncio.open_unix_connection(self.socket)
        status, kind, body = await sent(opened, f"{request} HTTP/1.1", *headers)
        assert status == wanted, (request, body)
        responses = OPERATIONS[route_of(request)]["responses"]
        answer = resolved(responses.get(str(status), responses["default"]))
        assert kind == "".join(answer.get("content", {})), request
        if kind != "application/json" or "schema" not in answer["content"][kind]:
            return body
        content = json.loads(body)
        self.check(answer["content"][kind]["schema"], content, request)
        return content


def route_of(request: str) -> Route:
    """Return the route of a request."""
    method, _, target = request.partition(" ")
    asked = target.partition("?")[0].split("/")

    def fits(path: str) -> bool:
        words = path.split("/")
        return len(words) == len(asked) and all(
            word == there or word.startswith("{") for word, there in zip(words, asked, strict=True)
        )

    exact = [route for route in OPERATIONS if route == (method.lower(), "/".join(asked))]
    (found,) = exact or [route for route in OPERATIONS if route[0] == method.lower() and fits(route[1])]
    return found


# The document.


def test_it_is_the_one_that_is_served_and_exists_once() -> None:
    assert server.DOCUMENT.is_symlink()
    assert server.DOCUMENT.resolve() == repository() / "docs/fabric-openapi.json"
    assert DOCUMENT["info"]["version"] == str(report.VERSION)
    told = Api(Network(two_paths()).controller, lambda: 1.0).answer(f"GET {PREFIX}/openapi.json HTTP/1.1", [])
    assert (told.status, told.kind, json.loads(told.body)) == (200, "application/json", DOCUMENT)


def test_each_object_has_all_its_fields_and_each_field_a_text() -> None:
    def look(schema: Schema, name: str) -> None:
        assert schema.get("description"), name
        if schema.get("type") == "object":
            assert schema["additionalProperties"] is False, name
            assert set(schema.get("required", ())) <= set(schema["properties"]), name
            for key, each in schema["properties"].items():
                look(each, f"{name}.{key}")

    for name, schema in SCHEMAS.items():
        look(schema, name)
    optional = {
        name: set(schema["properties"]) - set(schema["required"])
        for name, schema in SCHEMAS.items()
        if name not in ASKED | {"EventFields"}
    }
    assert {name: fields for name, fields in optional.items() if fields} == {
        "ErrorReport": {"leader"},
        "ExplainReport": {"pair"},
        "Snapshot": {"cluster"},
        "StatusReport": {"cluster"},
        "TokenReport": {"certificate_sha256"},
    }


#: The functions that choose by a request's path: its method, and what of the path is before the part that they match.
CHOICES = {
    (server, "_answer"): ("post", ""),
    (server, "change"): ("post", PREFIX),
    (policy, "wanted"): ("post", PREFIX),
    (server, "answer"): ("get", ""),
}


def patterns(module: ModuleType, pattern: ast.pattern, guard: ast.expr | None) -> Iterator[list[str]]:
    """Yield the paths that a case is for, with `{}` for each part that may be anything."""
    match pattern, guard:
        case ast.MatchSequence(parts), _:
            yield [_part(each) for each in parts]
        case ast.MatchOr(cases), _:
            for each in cases:
                yield from patterns(module, each, guard)
        case ast.MatchAs(pattern=None), ast.Compare(ops=[ast.In()], comparators=[ast.Name(known)]):
            yield from getattr(module, known)
        case ast.MatchAs(pattern=None, name=str()), None:
            # The rest goes to the next function.
            pass
        case _:
            raise AssertionError(f"{module.__name__}:{pattern.lineno}: a path of a kind that this test does not know")


def _part(pattern: ast.pattern) -> str:
    if isinstance(pattern, ast.MatchAs):
        return "{}"
    assert isinstance(pattern, ast.MatchValue)
    assert isinstance(pattern.value, ast.Constant)
    return str(pattern.value.value)


def served() -> Iterator[Route]:
    """Yield the routes of the server by its source."""
    for module in (server, policy):
        for function in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            cases = [case for match in ast.walk(function) if isinstance(match, ast.Match) for case in match.cases]
            for case in cases:
                method, before = CHOICES[module, function.name]
                for parts in patterns(module, case.pattern, case.guard):
                    yield method, "/".join([before, *parts])


def test_its_paths_are_those_that_are_answered() -> None:
    nameless = {
        (method, "/".join("{}" if word.startswith("{") else word for word in path.split("/")))
        for method, path in OPERATIONS
    }
    assert set(served()) | {STREAM} == nameless
    assert STREAM[1] == page.STREAM


def test_the_page_has_those_requests_that_it_says() -> None:
    roles = {route: operation["x-page"] for route, operation in OPERATIONS.items() if "x-page" in operation}
    api = Api(ready(two_paths()).controller, lambda: 1.0)
    changing = [
        route for route in OPERATIONS if route[0] == "post" and asyncio.run(api.change(filled(route))) is not None
    ]
    assert roles == {
        **{("get", f"{page.API}{name}"): "viewer" for name in page.SHOWN},
        STREAM: "viewer",
        **dict.fromkeys(changing, "operator"),
    }


# Answers.


def crowded() -> Network:
    """Return two networks: with a split pair that leaves a path out, and with edges that nothing leads to."""
    split = parallel([(10, 25), (10, 25), (10, 400)])
    acl = Acl((AclEntry(Action.DENY, End(mac=mac(99)), name="stolen"),))
    blue = Tenant("blue", 2000, 2099, (("XA", "hxa"), ("XB", "hxb")))
    shape = beside(split, parallel([(10, 25)], prefix="X"))
    tenants = Tenants((blue,), discovers_links=True)
    net = ready(shape, hosts=(HostSettings(mac(1), "A", "ha"),), acl=acl, tenants=tenants)
    net.send("hb", arp(mac(2), "10.0.0.2", "10.0.0.1"))
    net.run(1)
    return net


def shown(net: Network) -> Generator[None, None, dict[str, Any]]:
    """Make what the page shows, piece by piece."""
    return {"unix_ms": BEGAN, **(yield from report.snapshot_pieces(net.controller, net.now))}


@pytest.mark.usefixtures("rare_probes")
def test_what_the_controller_answers_is_what_it_says(tmp_path: Path) -> None:
    net, seen = crowded(), Snapshot()
    live = Live(lambda: shown(net), BEGAN)
    access, web = WebAccess(tmp_path, "fabric-web"), WebSettings((ipaddress.ip_address("0.0.0.0"), 8443))  # noqa: S104
    access.identity(web, BEGAN / 1000)
    refusals: list[StoreError] = []

    async def keep(_: Policies) -> None:
        if refusals:
            raise refusals.pop()

    def token(role: str, new: bool) -> dict[str, Any]:
        return access.report({each.word: each for each in Role}[role], web, new=new)

    def look() -> None:
        nonlocal seen
        now = Snapshot.of(net.controller, net.now)
        for event in changes(seen, now):
            live.note(BEGAN, event)
        seen = now
        live.turn()

    async def streamed(reader: Reader) -> None:
        _, _, piece = await live.frame(-1, 0)
        kinds = {"event": "Event", "snapshot": "Snapshot"}
        for message in piece.decode().split("\n\n")[:-1]:
            fields = dict(each.split(": ", 1) for each in message.splitlines())
            schema = {"$ref": f"#/components/schemas/{kinds[fields['event']]}"}
            reader.check(schema, json.loads(fields["data"]), "the stream")

    async def read(reader: Reader) -> None:
        """Ask for all that shows."""
        look()
        await streamed(reader)
        for method, path in OPERATIONS:
            if method == "get" and (method, path) != STREAM:
                await reader.ask(filled((method, path)).removesuffix(" HTTP/1.1"))
        for edge in ("hb", "hxa"):
            await reader.ask(f"GET {PREFIX}/edges/{edge}")
            await reader.ask(f"GET {PREFIX}/explain?source=ha&target={edge}")

    async def post(reader: Reader, what: str, wanted: int = 200) -> Any:
        told = await reader.ask(f"POST {PREFIX}/{what}", wanted)
        net.run(3)
        return told

    async def story() -> None:
        api = Api(net.controller, lambda: net.now, journal=live.journal, token=token, keep=keep)
        reader = Reader(tmp_path / "api.sock")
        await api.listen(reader.socket, None)
        try:
            await read(reader)
            await changed(reader)
            await refused(reader)
        finally:
            await api.close()
        wanted = {(name, key) for name, schema in SCHEMAS.items() for key in schema["properties"]}
        left = {(name, key) for name, key in wanted - reader.seen if name not in ASKED}
        assert left == OF_FOLLOWER, "fields that no answer has"

    async def changed(reader: Reader) -> None:
        """Change what can be changed, and ask again."""
        table = await reader.ask(f"POST {PREFIX}/edges/ha/report?revision=&wait=0")
        await reader.ask(f"POST {PREFIX}/edges/ha/report?revision={table['revision']}&wait=0", 204)
        await reader.ask(f"GET {PREFIX}/edges/ha", 304, f'If-None-Match: "{table["revision"]}"')
        assert (await reader.ask(f"POST {PREFIX}/web/token?role=viewer"))["certificate_sha256"]
        assert (await post(reader, "switches/P2/drain"))["changed"]
        assert (await post(reader, "links/A/P3:P3-A/forbid?force=1"))["changed"]
        assert (await post(reader, "pairs/hxa/hxb/pin?via=XA,XP1,XB"))["changed"]
        assert (await post(reader, f"hosts/{mac(7)}/add?switch=B&port=hb&addresses=10.0.0.7"))["changed"]
        assert (await post(reader, "links/A/P1/set-capacity?capacity_bit_s=20000000"))["changed"]
        await post(reader, f"hosts/{mac(2)}/forget")
        net.unplug("XP1", "XB")
        net.disconnect("XP1")
        net.run(2)
        net.controller.cluster = Cluster(ALPHA, True, ALPHA, 5)
        for event in (
            Event("leads", {"generation": 5}),
            Event("follows", {"leader": "beta"}),
            Event("tenants-changed", {"tenants": "blue", "taken": "tenant"}),
            Event(
                "reloaded",
                {"taken": "acl, flood", "restart": "listen", "acl": "entries 1, default permit", "flood": "auto"},
            ),
        ):
            live.note(BEGAN, event)
        await read(reader)
        status = await reader.ask(f"GET {PREFIX}/status")
        assert {"drained", "link-forbidden", "pin-unused", "pair-unserved", "link-unknown"} <= {
            each["code"] for each in status["health"]
        }
        undone = ("switches/P2/undrain", "links/A/P3:P3-A/permit", "pairs/hxa/hxb/unpin")
        for what in (*undone, f"hosts/{mac(7)}/remove", "links/A/P1/unset-capacity"):
            assert (await post(reader, what))["changed"]
            assert not (await post(reader, what))["changed"]

    async def refused(reader: Reader) -> None:
        """Ask for what is not there, or would do harm."""
        for asked in (f"{PREFIX}/edges/nobody", f"{PREFIX}/explain?source=ha&target=nobody"):
            await reader.ask(f"GET {asked}", 404)
        for asked in ("explain?source=ha", "events?after=x"):
            await reader.ask(f"GET {PREFIX}/{asked}", 400)
        await post(reader, "edges/nobody/report?revision=", 404)
        await post(reader, "edges/ha/report?revision=&wait=x", 400)
        await post(reader, "edges/ha/report", 405)
        await post(reader, "web/token?role=king", 400)
        await post(reader, "hosts/nobody/forget", 404)
        await post(reader, f"hosts/{mac(1)}/forget", 409)
        await post(reader, "switches/A/drain")
        await post(reader, "switches/B/drain", 409)
        for what in (
            "switches/none/undrain",
            "links/A/B/forbid",
            "links/A/none/permit",
            "links/A/B/set-capacity?capacity_bit_s=1",
            "links/A/none/unset-capacity",
            "pairs/ha/nobody/unpin",
            f"hosts/{mac(7)}/add?switch=A&port=none",
        ):
            await post(reader, what, 404)
        await post(reader, "links/A/P1/set-capacity?capacity_bit_s=x", 400)
        await post(reader, f"hosts/{mac(7)}/add", 400)
        await post(reader, "hosts/nobody/remove", 400)
        await post(reader, f"hosts/{mac(1)}/remove", 409)
        await post(reader, f"hosts/{mac(7)}/add?switch=A&port=A-P1", 409)
        await post(reader, "pairs/ha/hb/pin", 409)
        for status in (409, 500, 503):
            refusals.append(StoreError("it is not kept", status))
            await post(reader, "switches/A/undrain", status)
        assert refusals == []

    asyncio.run(asyncio.wait_for(story(), 60))


def test_one_that_follows_refuses_what_it_says(tmp_path: Path) -> None:
    net = crowded()

    async def story() -> None:
        reader = Reader(tmp_path / "api.sock")
        api = Api(net.controller, lambda: net.now, leads=lambda: False)
        await api.listen(reader.socket, None)
        try:
            for leader in (BETA, None):
                net.controller.cluster = Cluster(ALPHA, False, leader, 5)
                for route, operation in OPERATIONS.items():
                    # There is no page here.
                    otherwise = 404 if route == ("post", f"{PREFIX}/web/token") else 200
                    wanted = 409 if "409" in operation["responses"] else otherwise
                    if route != STREAM:
                        told = await reader.ask(filled(route).removesuffix(" HTTP/1.1"), wanted)
                        assert wanted != 409 or told["leader"] == report.leader(net.controller.cluster), route
            assert reader.seen >= OF_FOLLOWER
        finally:
            await api.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_over_tcp_an_edges_key_opens_what_it_says(tmp_path: Path) -> None:
    net = with_keys()
    net.connect()
    net.run(5)

    async def story() -> None:
        api = Api(net.controller, lambda: net.now)
        await api.listen(tmp_path / "api.sock", ("127.0.0.1", 0))
        ((_, port),) = api.addresses()
        error = {"$ref": "#/components/schemas/ErrorReport"}
        try:
            for number, (route, operation) in enumerate(OPERATIONS.items()):
                request = filled(route)
                for key, wanted in ((KEYS["ha"], {200} if "security" in operation else {404, 405}), (b"", {401})):
                    shown = line("ha", number, request, key)
                    status, _, body = await sent(await asyncio.open_connection("127.0.0.1", port), request, shown)
                    assert status in wanted, route
                    assert status == 200 or complaints(DOCUMENT, error, json.loads(body)) == [], route
            for number, route in enumerate(route for route in OPERATIONS if "{name}" in route[1]):
                request = filled(route).replace("/ha", "/hb")
                shown = line("ha", 1000 + number, request, KEYS["ha"])
                status, _, body = await sent(await asyncio.open_connection("127.0.0.1", port), request, shown)
                assert (status, complaints(DOCUMENT, error, json.loads(body))) == (403, []), route
        finally:
            await api.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_field_that_is_not_in_it_is_noticed() -> None:
    net = ready(two_paths())
    told = report.hosts(net.controller, net.now)
    schema = {"$ref": "#/components/schemas/HostsReport"}
    assert complaints(DOCUMENT, schema, told) == []
    told["hosts"][0]["color"] = "red"
    assert complaints(DOCUMENT, schema, told) == [
        "$.hosts[0]: Additional properties are not allowed ('color' was unexpected)"
    ]
