"""The page's listener on a real daemon: who gets in, what the stream says and how soon, what an operator changes."""

from __future__ import annotations

import itertools
import json
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from braid_lab.net.faults import black_hole, unplugged
from braid_lab.net.topology import Topology, UplinkSpec
from braid_lab.observe import states
from braid_lab.page import WEB, Visitor, token
from braid_lab.process import run, wait_until
from braid_lab.product import Braid
from conftest import LINES, MakeNetwork, StartBraid, configured

OK, SEE_OTHER, UNAUTHORIZED, FORBIDDEN, NOT_ALLOWED, MISDIRECTED, TOO_MANY = 200, 303, 401, 403, 405, 421, 429


def page(net: Topology, daemon: Braid, role: str = "") -> Visitor:
    """Return a visitor who is logged in by a role, or not at all."""
    visitor = Visitor(net.host, net.scratch)
    if role:
        assert visitor.log_in(token(daemon, role)).status == SEE_OTHER
    return visitor


@pytest.fixture
def shown(net: Topology, start_braid: StartBraid) -> Braid:
    """A daemon with its page on the loopback."""
    return start_braid(net, "--config", configured(net, WEB))


def test_without_configuration_no_port_is_open(net: Topology, start_braid: StartBraid) -> None:
    daemon = start_braid(net)
    assert "8080" not in net.host.run(["ss", "-Hltn"]).stdout
    assert daemon.json("web", "token")["urls"] == []


def test_an_intruder_gets_the_form_and_nothing_else(net: Topology, shown: Braid) -> None:
    intruder = page(net, shown)
    names = "|".join(net.uplinks)
    for path in ("/", "/main.js", "/texts.js", "/page.css", "/icon.svg", "/nothing"):
        answer = intruder.ask(path)
        assert (answer.status, 'name="token"' in answer.body) == (UNAUTHORIZED, True), path
        assert not re.search(names, answer.body), path
    for path in ("/v1/status", "/v1/stream", "/v1/flows", "/v1/explain?destination=1.1.1.1&protocol=6", "/session"):
        answer = intruder.ask(path)
        assert (answer.status, set(answer.json)) == (UNAUTHORIZED, {"error"}), path
    for path in ("/v1/reload", "/v1/failback", "/v1/uplinks/lte/pause", "/v1/down", "/v1/web/token", "/logout"):
        assert intruder.ask(path, "-X", "POST").status == UNAUTHORIZED, path
    # Not even with the name of somebody else's site, which resolves here.
    owner = page(net, shown, "operator")
    assert owner.ask("/v1/status", "-H", "Host: evil.example").status == MISDIRECTED
    guesses = [intruder.log_in(f"guess-{i}").status for i in range(8)]
    assert guesses[0] == UNAUTHORIZED
    # Ten seconds make one more free, so the last may be.
    assert TOO_MANY in guesses


def test_a_token_is_roots_and_a_new_one_ends_its_sessions(net: Topology, shown: Braid) -> None:
    first = token(shown)
    assert token(shown) == first, "it stays"
    kept = shown.state_dir / "web-tokens.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert first in kept.read_text()
    said = shown.call("web", "token").stdout.splitlines()
    assert said == [first, "# for http://127.0.0.1:8080/"]
    operator, viewer = page(net, shown, "operator"), page(net, shown, "viewer")
    assert operator.ask("/v1/status").status == OK
    # A session outlives the daemon.
    shown.kill9()
    shown.up("--config", configured(net, WEB))
    wait_until(lambda: net.host.run(["curl", "-s", operator.url], check=False).status == 0, what="the page")
    assert operator.ask("/v1/status").status == OK
    with operator.stream() as stream:
        wait_until(lambda: bool(stream.messages("snapshot")), what="a snapshot")
        assert token(shown, "operator", "--new") != first
        # A stream that is open ends too.
        stream.process.wait(timeout=5)
    assert operator.ask("/v1/status").status == UNAUTHORIZED
    assert viewer.ask("/v1/status").status == OK
    assert operator.log_in(first).status == UNAUTHORIZED
    # The socket alone has the rest.
    for path in ("/v1/config", "/v1/metrics", "/v1/runs"):
        assert viewer.ask(path).status == 404, path


def test_the_thread_that_strangers_speak_to_has_no_privileges(shown: Braid) -> None:
    tasks = [task for task in Path(f"/proc/{shown.pid}/task").iterdir() if (task / "comm").read_text() == "web\n"]
    (status,) = [(task / "status").read_text() for task in tasks]
    for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        assert re.search(rf"^{kind}:\s+0+$", status, re.MULTILINE), status
    assert "NoNewPrivs:\t1" in status
    # The loop keeps its own.
    assert not re.search(r"^CapEff:\s+0+$", Path(f"/proc/{shown.pid}/status").read_text(), re.MULTILINE)


def test_viewers_look_and_operators_act(net: Topology, shown: Braid) -> None:
    viewer, operator = page(net, shown, "viewer"), page(net, shown, "operator")
    assert viewer.ask("/session").json["role"] == "viewer"
    assert {each["name"] for each in viewer.ask("/v1/uplinks").json["uplinks"]} == set(net.uplinks)
    for path in ("/v1/reload", "/v1/failback"):
        assert viewer.change(path).status == FORBIDDEN
        assert operator.ask(path).status == NOT_ALLOWED, "GET changes nothing"
        assert operator.ask(path, "-X", "POST").status == FORBIDDEN, "no CSRF token"
        assert operator.change(path).status == OK
    assert [each["kind"] for each in shown.json("events")["events"]].count("reloaded") == 1
    for path in ("/v1/down", "/v1/bond", "/v1/runs", "/v1/web/token"):
        assert operator.change(path).status in (404, NOT_ALLOWED), path


def test_an_operator_tries_alarms_which_are_told_with_the_daemons_privileges(
    net: Topology, start_braid: StartBraid, tmp_path: Path
) -> None:
    script, told = tmp_path / "told.sh", tmp_path / "told"
    script.write_text(f"#!/bin/sh\ngrep CapEff /proc/self/status >{told}\n")
    script.chmod(0o755)
    alarm = f'[[alarm]]\nname = "line"\nwhen = "uplink-dead"\ncommand = ["{script}"]\n'
    daemon = start_braid(net, "--config", configured(net, WEB + alarm))
    assert page(net, daemon, "viewer").change("/v1/alarms/test").status == FORBIDDEN
    answer = page(net, daemon, "operator").change("/v1/alarms/test")
    assert [result.get("error") for result in answer.json["results"]] == [None]
    own = re.search(r"^CapEff:.*$", Path(f"/proc/{daemon.pid}/status").read_text(), re.MULTILINE)
    assert own and told.read_text().strip() == own.group()


def test_an_operator_pauses_uplinks_and_rules_and_a_viewer_sees_it(net: Topology, start_braid: StartBraid) -> None:
    rule = '[[rule]]\nname = "bank.de"\nport = 4711\nuse = "lte"\n'
    daemon = start_braid(net, "--config", configured(net, WEB + rule))
    viewer, operator = page(net, daemon, "viewer"), page(net, daemon, "operator")
    body = ("-X", "POST", "--json", "{}")
    paths = ("/v1/uplinks/lte/pause", "/v1/rules/bank.de/pause")
    for path in paths:
        assert viewer.change(path, *body).status == FORBIDDEN
        assert viewer.change(path, "-X", "DELETE").status == FORBIDDEN
        assert operator.change(path, *body).status == OK
    paused = {each["name"]: each.get("pause") for each in viewer.ask("/v1/status").json["uplinks"]}
    assert paused["dsl"] is None
    assert paused["lte"]["by"] == "page"
    assert viewer.ask("/v1/rules").json["rules"][0]["paused"]["by"] == "page"
    assert operator.change("/v1/uplinks/dsl/pause", *body).json["error"]["code"] == "last-uplink"
    for path in paths:
        assert operator.change(path, "-X", "DELETE").status == OK
        assert operator.change(path, "-X", "DELETE").json["error"]["code"] == "not-paused"
    assert states(daemon) == {"dsl": "up", "lte": "up"}


def test_a_renewed_certificate_is_read_at_a_reload_alone(
    net: Topology, start_braid: StartBraid, tmp_path: Path
) -> None:
    def renew() -> str:
        files = ["-keyout", f"{tmp_path}/key.pem", "-out", f"{tmp_path}/certificate.pem"]
        algorithm = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        run(["openssl", "req", "-x509", *algorithm, "-nodes", "-days", "30", "-subj", "/CN=gate", *files])
        return serial(run(["openssl", "x509", "-noout", "-serial", "-in", tmp_path / "certificate.pem"]).stdout)

    def served() -> str:
        shown = net.host.run(["curl", "-ksv", "-o", "/dev/null", "-w", "%{certs}", "https://127.0.0.1:8080/"])
        return serial(shown.stdout)

    def serial(text: str) -> str:
        found = re.search(r"serial(?: Number)?[=:]\s*([0-9a-fA-F:]+)", text, re.IGNORECASE)
        assert found, text
        return found.group(1).replace(":", "").lower().lstrip("0")

    first = renew()
    files = f'certificate = "{tmp_path}/certificate.pem"\nkey = "{tmp_path}/key.pem"\n'
    daemon = start_braid(net, "--config", configured(net, WEB + files))
    wait_until(
        lambda: net.host.run(["curl", "-ks", "https://127.0.0.1:8080/"], check=False).status == 0, what="a page"
    )
    assert served() == first
    visitor = page(net, daemon)
    visitor.url = visitor.url.replace("http:", "https:")
    assert visitor.log_in(token(daemon, "viewer")).status == SEE_OTHER
    with visitor.stream() as stream:
        wait_until(lambda: bool(stream.messages("snapshot")), what="a snapshot")
        second = renew()
        assert second != first
        # An event and a reload of the same configuration, of which the first changes nothing.
        daemon.call("uplink", "pause", "lte")
        wait_until(lambda: stream.states()["lte"] == "paused", what="the event")
        assert served() == first
    daemon.call("reload")
    wait_until(lambda: served() == second, what="the new certificate", timeout=10)


@pytest.mark.parametrize("how", [unplugged, black_hole])
def test_a_fault_is_on_the_stream_within_a_second_with_its_reason(
    make_network: MakeNetwork, start_braid: StartBraid, how: Callable[..., Any]
) -> None:
    net = make_network(*LINES)
    daemon = start_braid(net, "--config", configured(net, WEB))
    visitor = page(net, daemon, "viewer")
    with visitor.stream() as stream:
        wait_until(lambda: stream.states() == {"dsl": "up", "lte": "up"}, what="both to be up")
        old = len(stream.messages("event"))
        with how(net.uplinks["lte"]):
            wait_until(lambda: stream.states()["lte"] in ("down", "dead"), what="the fault to be shown", timeout=5)
            seen = time.time() * 1000
        (uplink,) = (each for each in stream.messages("snapshot")[-1]["uplinks"] if each["name"] == "lte")
        events = stream.messages("event")[old:]
        told = next(each for each in events if each["uplink"] == "lte" and each["kind"] in ("uplink-gone", "verdict"))
        assert uplink["since_unix_ms"] == told["unix_ms"]
        assert seen - told["unix_ms"] < 1000
        reason = uplink["why"]
        assert re.search("carrier" if how is unplugged else "silent|answered", reason), reason
        wait_until(lambda: stream.states()["lte"] == "up", what="the line to be back", timeout=20)
    # Nobody watches: no snapshot is made, and the next viewer gets one of now, with the events that came meanwhile.
    net.host.ip("link set lte down")
    wait_until(lambda: states(daemon)["lte"] == "down", what="lte to be down")
    with visitor.stream() as stream:
        wait_until(lambda: bool(stream.messages("snapshot")), what="a snapshot")
        assert stream.states()["lte"] == "down"
        assert stream.messages("event")[-1]["number"] >= events[-1]["number"] + 1


def test_one_snapshot_a_second_is_for_all(net: Topology, shown: Braid) -> None:
    visitors = [page(net, shown, "viewer") for _ in range(3)]
    with visitors[0].stream() as one, visitors[1].stream() as two, visitors[2].stream() as three:
        streams = (one, two, three)
        wait_until(lambda: all(len(each.messages("snapshot")) >= 3 for each in streams), what="snapshots")
        seen = [{each["up_ms"] for each in stream.messages("snapshot")} for stream in streams]
    common = set.intersection(*seen)
    assert len(common) >= 2, "they are the same ones"
    ordered = sorted(common)
    assert all(after - before >= 900 for before, after in itertools.pairwise(ordered)), ordered


def test_a_quota_is_shown(net: Topology, start_braid: StartBraid) -> None:
    quotas = {"dsl": 5_000_000, "lte": 7_000_000}
    tables = [f'[[uplink]]\ndevice = "{name}"\nquota = "{quota} B/month"\n' for name, quota in quotas.items()]
    daemon = start_braid(net, "--config", configured(net, "".join(tables) + WEB))
    visitor = page(net, daemon, "viewer")

    def used() -> int:
        uplinks = visitor.ask("/v1/uplinks").json["uplinks"]
        assert {each["name"]: each["quota_bytes"] for each in uplinks} == quotas
        return sum(each["quota_used_bytes"] for each in uplinks)

    def counted() -> bool:
        net.host.run(["curl", "-sSf", "-o", "/dev/null", f"http://{net.server()}/bytes/100000"])
        return used() > 100_000

    # A daemon that has just started has no reference for what it counts yet.
    wait_until(counted, what="downloads to be counted", poll=0.1)


def test_a_destination_is_explained_and_flows_are_found(net: Topology, shown: Braid) -> None:
    visitor = page(net, shown, "viewer")
    net.host.run(["curl", "-sSf", "-o", "/dev/null", f"http://{net.server(1)}/bytes/1000"])
    net.host.run(["curl", "-sSf", "-o", "/dev/null", f"http://{net.server(2)}/bytes/1000"])
    answer = visitor.ask(f"/v1/explain?destination={net.server(1)}&port=80&protocol=6").json
    assert answer["steps"]
    assert f"{net.server(1)}:80" in answer["question"]
    every = visitor.ask("/v1/flows").json
    assert every["matching"] == len(every["flows"]) >= 2
    (largest,) = visitor.ask("/v1/flows?limit=1").json["flows"]
    total = largest["tx_bytes"] + largest["rx_bytes"]
    assert total == max(each["tx_bytes"] + each["rx_bytes"] for each in visitor.ask("/v1/flows").json["flows"])
    found = visitor.ask(f"/v1/flows?find={net.server(2)}:80&limit=50").json
    assert {each["remote"] for each in found["flows"]} == {f"{net.server(2)}:80"}
    assert visitor.ask("/v1/flows?uplink=none").json == {"flows": [], "matching": 0}
    assert visitor.ask("/v1/lookup?name=localhost").json["addresses"]
    assert visitor.ask("/v1/lookup?name=no.such.invalid").status == 404
    assert visitor.ask("/v1/lookup?name=a%20b").status == 400


def test_a_network_is_served_by_tls_alone_and_a_reload_moves_it(
    make_network: MakeNetwork, start_braid: StartBraid
) -> None:
    net = make_network(lan_clients=1)
    gateway = "10.66.0.1"
    net.host.ip(f"address add {gateway}/32 dev lo")
    net.clients[0].ip(f"route replace {gateway}/32 via {net.clients[0].run(['sh', '-c', DEFAULT]).stdout.strip()}")
    text = '[lan]\nforward = true\n[web]\nlisten = "{}"\nnames = ["gate.example"]\n'
    config = configured(net, text.format(f"{gateway}:8443"))
    daemon = start_braid(net, "--config", config)
    assert daemon.json("web", "token")["urls"] == ["https://gate.example:8443/", f"https://{gateway}:8443/"]
    wait_until(lambda: daemon.json("web", "token")["certificate_sha256"], what="the page to be served")
    told = daemon.json("web", "token")
    client = Visitor(net.clients[0], net.scratch, f"https://{gateway}:8443")
    answer = client.log_in(told["token"])
    assert answer.status == SEE_OTHER
    cookie = answer.header("set-cookie")
    assert cookie.startswith("__Host-braid-8443=")
    assert cookie.endswith("; Secure")
    assert client.ask("/v1/status").status == OK
    plain = net.clients[0].run(["curl", "-sS", f"http://{gateway}:8443/"], check=False)
    assert plain.status != 0, "nothing is served in the clear"
    said = net.clients[0].run(["sh", "-c", FINGERPRINT.format(f"{gateway}:8443")]).stdout
    assert told["certificate_sha256"] in said
    kept = daemon.state_dir / "web-certificate.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    # Another port by a reload; an address that nobody has is a health problem, until a reload names one that works.
    config.write_text(text.format(f"{gateway}:9443"))
    daemon.call("reload")
    client.url = f"https://{gateway}:9443"
    wait_until(lambda: net.clients[0].run(["curl", "-ks", client.url], check=False).status == 0, what="the new port")
    assert client.log_in(told["token"]).status == SEE_OTHER
    assert daemon.json("web", "token")["certificate_sha256"] == told["certificate_sha256"], "the certificate stays"
    config.write_text(text.format("203.0.113.77:8443"))
    daemon.call("reload")

    def problems() -> list[str]:
        return [each["code"] for each in daemon.json("status")["health"]]

    wait_until(lambda: "web" in problems(), what="the problem to be told")
    # It comes by itself with its address.
    net.host.ip("address add 203.0.113.77/32 dev lo")
    wait_until(lambda: "web" not in problems(), what="the page to be served", timeout=15)


#: The next hop of a client's default route.
DEFAULT = "ip -4 route show default | sed 's/.*via \\([^ ]*\\).*/\\1/'"

#: The fingerprint of a server's certificate.
FINGERPRINT = "openssl s_client -connect {} </dev/null 2>/dev/null | openssl x509 -noout -fingerprint -sha256"


def test_a_given_certificate_is_served_and_a_bad_one_is_a_problem(
    net: Topology, start_braid: StartBraid, tmp_path: Path
) -> None:
    pem = tmp_path / "web.pem"

    def renew() -> str:
        words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        run([*words, "-days", "2", "-subj", "/CN=gate.example", "-keyout", tmp_path / "key", "-out", pem])
        return run(["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", pem]).stdout

    first = renew()
    text = f'{WEB}certificate = "{pem}"\nkey = "{tmp_path}/key"\n'
    daemon = start_braid(net, "--config", configured(net, text))
    assert daemon.json("web", "token")["certificate_sha256"] in first
    second = renew()
    daemon.call("reload")
    wait_until(lambda: daemon.json("web", "token")["certificate_sha256"] in second, what="the renewed one")
    pem.write_text("no certificate")
    daemon.call("reload")
    wait_until(
        lambda: any(each["code"] == "web" for each in daemon.json("status")["health"]), what="the problem to be told"
    )


def test_hostile_names_travel_as_data(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    net = make_network(UplinkSpec("dsl", offload=False), UplinkSpec("<b>lte", offload=False))
    daemon = start_braid(net, "--config", configured(net, WEB))
    visitor = page(net, daemon, "viewer")
    daemon.call("run", "--uplink", "<b>lte", "--", "true", "<img src=x onerror=alert(1)>")
    answer = visitor.ask("/v1/events")
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-content-type-options") == "nosniff"
    assert "<img src=x" in json.dumps(answer.json["events"])
    assert "<b>lte" in {each["name"] for each in visitor.ask("/v1/uplinks").json["uplinks"]}
    for path in ("/", "/nothing", "/login"):
        assert "<b>" not in visitor.ask(path).body
