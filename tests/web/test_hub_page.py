"""The hub's page on a real hub: who gets in, and an invitation by QR code that a second machine takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from braid_lab import remote_hub
from braid_lab.net.remote_host import remote_host
from braid_lab.net.topology import Topology
from braid_lab.page import WEB, Visitor
from braid_lab.process import run, wait_until
from braid_lab.remote_hub import Hub
from conftest import StartBraid

OK, SEE_OTHER, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 200, 303, 401, 403, 404
#: Pixels of a picture for each square of a QR code.
SQUARE = 4
#: Light squares around it.
MARGIN = 4
LIGHT, DARK = 255, 0


@pytest.fixture
def hub(net: Topology) -> Iterator[Hub]:
    """A hub with its page on the loopback."""
    with remote_host(net) as far, remote_hub.running_hub(far, net.scratch / far.namespace.name, WEB) as hub:
        yield hub


def visitor(hub: Hub, role: str = "") -> Visitor:
    """Return a visitor who is logged in by a role, or not at all."""
    visitor = Visitor(hub.far.namespace, hub.folder)
    if role:
        token = hub.json("web", "token", "--role", role)["token"]
        assert visitor.log_in(token).status == SEE_OTHER
    return visitor


def invitation(name: str) -> tuple[str, ...]:
    """Return curl's options for an invitation."""
    return ("--json", json.dumps({"name": name, "valid_ms": 3_600_000}))


def picture(rows: list[str], file: Path) -> Path:
    """Draw a QR code as a browser shows it."""
    side = len(rows) + 2 * MARGIN
    image = Image.new("L", (side, side), LIGHT)
    for y, row in enumerate(rows):
        for x, square in enumerate(row):
            image.putpixel((x + MARGIN, y + MARGIN), DARK if square == "1" else LIGHT)
    image.resize((side * SQUARE, side * SQUARE), Image.Resampling.NEAREST).save(file)
    return file


def test_an_intruder_and_a_viewer_invite_nobody(hub: Hub) -> None:
    intruder = visitor(hub)
    assert 'name="token"' in intruder.ask("/").body
    for path in ("/v1/status", "/v1/clients", "/session"):
        answer = intruder.ask(path)
        assert (answer.status, set(answer.json)) == (UNAUTHORIZED, {"error"}), path
    assert intruder.ask("/v1/invitations", *invitation("thief")).status == UNAUTHORIZED
    viewer = visitor(hub, "viewer")
    assert viewer.ask("/v1/status").json["clients"]["joined"] == 0
    assert viewer.change("/v1/invitations", *invitation("thief")).status == FORBIDDEN
    # Without the session's own word for it, which another site cannot know, not even an operator.
    operator = visitor(hub, "operator")
    assert operator.ask("/v1/invitations", *invitation("thief")).status == FORBIDDEN
    for path in ("/v1/key", "/v1/web/token", "/v1/metrics"):
        assert operator.change(path).status == NOT_FOUND, path
    assert hub.json("clients")["clients"] == []


def test_an_invitation_by_qr_code_is_taken_and_its_client_is_shown_and_revoked(
    net: Topology, hub: Hub, start_braid: StartBraid
) -> None:
    operator = visitor(hub, "operator")
    for path, word in (
        ("/", "main.js"),
        ("/main.js", "clients.js"),
        ("/clients.js", "class"),
        ("/page.css", "--ink"),
    ):
        assert word in operator.ask(path).body, path
    made = operator.change("/v1/invitations", *invitation("van"))
    assert made.status == OK, made.body
    daemon = start_braid(net)
    # A photograph that shows no code says what to do.
    blank = net.scratch / "blank.png"
    Image.new("L", (200, 200), LIGHT).save(blank)
    refused = daemon.call("join", "--scan", blank, check=False)
    assert refused.status == 1
    assert "no token in it" in refused.text
    daemon.call("join", "--scan", picture(made.json["qr_code"], net.scratch / "code.png"))

    def connected() -> bool:
        clients = operator.ask("/v1/clients").json["clients"]
        return [(each["name"], each["connected"]) for each in clients] == [("van", True)]

    wait_until(connected, what="the client to be shown as connected", timeout=20)
    gone = operator.change("/v1/clients/van", "-X", "DELETE")
    assert gone.json["had_joined"]
    assert operator.ask("/v1/status").json["clients"]["revoked"] == 1


def test_a_page_that_cannot_be_served_ends_the_start_with_its_reason(hub: Hub) -> None:
    hub.stop()
    hub.configure('[web]\nlisten = "192.0.2.1:8443"\n')
    said = run(hub.words("--config", hub.file), namespace=hub.far.namespace.name, check=False)
    assert said.status == 1
    assert '[web] listen = "192.0.2.1:8443"' in said.text
