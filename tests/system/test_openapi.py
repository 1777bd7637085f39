"""The OpenAPI documents of the local APIs: valid, served, and true of what the daemon answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from braid_lab import remote_hub
from braid_lab.api_document import Document, complaints, documented
from braid_lab.net.namespace import Namespace
from braid_lab.net.remote_host import remote_host
from braid_lab.net.topology import Topology
from braid_lab.page import WEB, Visitor, token
from braid_lab.process import wait_until
from braid_lab.product import Braid
from conftest import StartBraid, configured

NOT_FOUND, NOT_ALLOWED = 404, 405

#: Queries without which a request is refused.
QUERIES = {
    "/v1/history": "uplink=dsl",
    "/v1/explain": "destination=198.51.100.1&protocol=6",
    "/v1/lookup": "name=localhost",
}


def ask(place: Namespace, socket: Path, path: str, *options: str) -> tuple[int, str]:
    """Return status and body of a request on a socket."""
    words = ["curl", "-sS", "--max-time", "10", "-w", "\n%{http_code}", *options, "--unix-socket", str(socket)]
    body, _, status = place.run([*words, f"http://braid{path}"]).stdout.rpartition("\n")
    return int(status), body


def shown(document: Document) -> Iterator[tuple[str, Any]]:
    """Yield the requests that show something as JSON, with the schemas of their answers."""
    for path, methods in document["paths"].items():
        content = methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        if "schema" in content.get("application/json", {}):
            yield path, content["application/json"]["schema"]


def filled(path: str) -> str:
    """Return a path with a name that nothing has for each parameter."""
    return path.replace("{name}", "none").replace("{id}", "0")


@pytest.mark.parametrize("name", ["openapi.json", "hub-openapi.json", "fabric-openapi.json"])
def test_a_document_is_valid(name: str) -> None:
    document = documented(name)
    validate(document)
    ids = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(ids) == len(set(ids))


def test_the_daemon_serves_its_document_and_answers_by_it(net: Topology, start_braid: StartBraid) -> None:
    rule = '[[rule]]\nname = "bank"\nport = 4711\nuse = "lte"\n'
    daemon = start_braid(net, "--config", configured(net, rule))
    daemon.call("rule", "pause", "bank")
    daemon.call("uplink", "pause", "lte", "--for", "1 h")
    net.host.run(["curl", "-sSf", "-o", "/dev/null", f"http://{net.server()}/bytes/1000"])
    socket = daemon.run_dir / "braid.sock"
    status, body = ask(net.host, socket, "/v1/openapi.json")
    document = json.loads(body)
    assert (status, document) == (200, documented("openapi.json"))
    checked = []
    for path, schema in shown(document):
        status, body = ask(net.host, socket, f"{path}?{QUERIES.get(path, '')}")
        assert (status, path, complaints(document, schema, json.loads(body))) == (200, path, [])
        checked.append(path)
    assert len(checked) >= 14, checked
    error = document["components"]["responses"]["Error"]["content"]["application/json"]["schema"]
    for path in ("/v1/nothing", "/v1/explain"):
        _, body = ask(net.host, socket, path)
        assert complaints(document, error, json.loads(body)) == []
    # The check itself sees a difference.
    assert complaints(document, {"$ref": "#/components/schemas/UplinksReport"}, {"uplinks": [{"name": 7}]})


def answers(visitor: Visitor, path: str) -> bool:
    """Return true if the page has a path: it is asked in a way that no request has."""
    status = visitor.change(path, "-X", "PATCH").status
    assert status in (NOT_FOUND, NOT_ALLOWED), path
    return status == NOT_ALLOWED


def check_page(document: Document, visitor: Visitor) -> None:
    """Check that a page has those paths that the document says it has."""
    for path, methods in document["paths"].items():
        on_page = any("x-page" in operation for operation in methods.values())
        assert answers(visitor, filled(path)) == on_page, path


def test_the_page_has_those_requests_that_the_document_says(net: Topology, start_braid: StartBraid) -> None:
    daemon: Braid = start_braid(net, "--config", configured(net, WEB))
    operator = Visitor(net.host, net.scratch)
    operator.log_in(token(daemon))
    document = operator.ask("/v1/openapi.json").json
    assert document == documented("openapi.json")
    check_page(document, operator)


def test_the_hub_serves_its_document_and_answers_by_it(net: Topology) -> None:
    with (
        remote_host(net) as far,
        remote_hub.running_hub(far, net.scratch / far.namespace.name, WEB) as hub,
    ):
        hub.invite("home")
        operator = Visitor(far.namespace, hub.folder)
        wait_until(lambda: operator.log_in(hub.json("web", "token")["token"]).status == 303, what="the page")
        document = operator.ask("/v1/openapi.json").json
        assert document == documented("hub-openapi.json")
        check_page(document, operator)
        for path, schema in shown(document):
            assert (path, complaints(document, schema, operator.ask(path).json)) == (path, [])
