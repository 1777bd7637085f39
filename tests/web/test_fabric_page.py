"""The page of the real controller: its tokens, who gets in, what a restart keeps, and TLS."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from braid_lab.fabric.controller import Fabric, controller
from braid_lab.net.namespace import Namespace, namespace
from braid_lab.page import WEB, Visitor
from braid_lab.process import CommandError, Process, run, wait_until
from braid_lab.product import binary

OK, SEE_OTHER, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, MISDIRECTED = 200, 303, 401, 403, 404, 421

#: The fingerprint and the names of the server's certificate.
CERTIFICATE = (
    "openssl s_client -connect 10.66.0.1:8444 </dev/null 2>/dev/null"
    " | openssl x509 -noout -fingerprint -sha256 -ext subjectAltName"
)


@pytest.fixture
def place() -> Iterator[Namespace]:
    """A namespace with a loopback, and an address of a network."""
    with namespace("page") as made:
        made.ip("link set lo up", "address add 10.66.0.1/32 dev lo")
        yield made


@contextlib.contextmanager
def running(place: Namespace, folder: Path, config: str) -> Iterator[Fabric]:
    with controller(place, folder, config) as fabric:
        yield fabric


def token(fabric: Fabric, role: str = "operator", *words: str) -> str:
    made: str = fabric.json("web", "token", "--role", role, *words)["token"]
    return made


def test_without_configuration_no_port_is_open(place: Namespace, tmp_path: Path) -> None:
    with running(place, tmp_path, "") as fabric:
        listening = place.run(["ss", "-Hltn"]).stdout.splitlines()
        assert [line.split()[3] for line in listening] == ["127.0.0.1:6653"]
        said = fabric.call("web", "token").stdout.splitlines()
        assert said[1] == "# no page yet: write [web] listen in the configuration, then restart the controller"
        assert token(fabric) == said[0]


def test_a_token_is_roots_outlives_the_controller_and_a_new_one_ends_its_sessions(
    place: Namespace, tmp_path: Path
) -> None:
    with running(place, tmp_path, WEB) as fabric:
        first = token(fabric)
        assert token(fabric) == first, "it stays"
        kept = tmp_path / "state/fabric-web-tokens.json"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert first in kept.read_text()
        assert fabric.call("web", "token").stdout.splitlines() == [first, "# for http://127.0.0.1:8080/"]
        # As a flag of `braid` itself.
        said = run([binary(), "--run-dir", tmp_path, "sdn", "fabric", "web", "token"])
        assert said.stdout.splitlines()[0] == first
        operator, viewer, intruder = (Visitor(place, tmp_path) for _ in range(3))
        assert operator.log_in(first).status == SEE_OTHER
        assert viewer.log_in(token(fabric, "viewer")).status == SEE_OTHER
        assert intruder.log_in("guess").status == UNAUTHORIZED
        assert 'name="token"' in intruder.ask("/").body
        assert intruder.ask("/v1/fabric/status").status == UNAUTHORIZED
        assert operator.ask("/v1/fabric/status", "-H", "Host: evil.example").status == MISDIRECTED
        assert viewer.change("/v1/fabric/hosts/02:00:00:00:00:01/forget").status == FORBIDDEN
        assert operator.change("/v1/fabric/hosts/02:00:00:00:00:01/forget").status == NOT_FOUND
        fabric.stop()
        fabric.start()
        assert operator.ask("/v1/fabric/status").json["switches"] == []
        argv = ["curl", "-sSN", "--max-time", "60", "--cookie", operator.cookie, f"{operator.url}/v1/fabric/stream"]
        with Process(argv, log=tmp_path / "stream", namespace=place.name) as stream:
            wait_until(lambda: stream.stdout().count("event: snapshot") >= 2, what="two snapshots")
            assert token(fabric, "operator", "--new") != first
            stream.wait(timeout=5)
        assert operator.ask("/v1/fabric/status").status == UNAUTHORIZED
        assert viewer.ask("/v1/fabric/status").status == OK
        log = fabric.process.stderr() if fabric.process else ""
        assert "page at http://127.0.0.1:8080/" in log
        assert operator.log_in(first).status == UNAUTHORIZED
        wait_until(
            lambda: fabric.process and "warn page-token-refused source=127.0.0.1" in fabric.process.stderr(),
            what="the log",
        )


def test_a_network_is_served_by_tls_alone(place: Namespace, tmp_path: Path) -> None:
    config = '[web]\nlisten = "10.66.0.1:8444"\nnames = ["fabric.example"]\n'
    with running(place, tmp_path, config) as fabric:
        told = fabric.json("web", "token")
        assert told["urls"] == ["https://fabric.example:8444/", "https://10.66.0.1:8444/"]
        visitor = Visitor(place, tmp_path, "https://10.66.0.1:8444")
        answer = visitor.log_in(told["token"])
        assert answer.status == SEE_OTHER
        assert answer.header("set-cookie").startswith("__Host-braid-8444=")
        assert visitor.ask("/v1/fabric/status").status == OK
        plain = place.run(["curl", "-sS", "http://10.66.0.1:8444/"], check=False)
        assert plain.status != 0, "nothing is served in the clear"
        said = place.run(["sh", "-c", CERTIFICATE]).stdout
        assert told["certificate_sha256"] in said
        assert "DNS:localhost, IP Address:10.66.0.1, DNS:fabric.example" in said
        # The next controller has the same certificate, so a browser's exception stays valid.
        fabric.stop()
        fabric.start()
        assert fabric.json("web", "token")["certificate_sha256"] == told["certificate_sha256"]


def test_a_page_that_cannot_be_served_ends_the_start_with_its_reason(place: Namespace, tmp_path: Path) -> None:
    (tmp_path / "page.pem").write_text("no certificate")
    for config, why in (
        ('listen = "192.0.2.1:8443"', '[web] listen = "192.0.2.1:8443": Cannot assign requested address'),
        (
            'listen = "127.0.0.1:8080"\ncertificate = "page.pem"\nkey = "page.pem"',
            f"certificate {tmp_path}/page.pem with key {tmp_path}/page.pem: no certificate in it",
        ),
    ):
        with pytest.raises(CommandError) as refused, running(place, tmp_path, f"[web]\n{config}\n"):
            pass
        assert why in str(refused.value)
