"""The API over its sockets: long polls, authentication, conditional GETs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric.api import report
from braid_sdn.fabric.api.events import Snapshot, changes
from braid_sdn.fabric.api.report import edge_revision
from braid_sdn.fabric.api.server import MAX_BODY_BYTES, Api
from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.edges.auth import EdgeAuth
from braid_sdn.fabric.edges.auth import mac as mac_of
from braid_sdn.fabric.settings import LinkSettings

from .virtual import Network, frame, mac, tags

KEYS = {"ha": b"the key of one edge", "hb": b"the key of the other"}


def request_line(path: str) -> str:
    """Edges report by POST; all else is GET."""
    return f"{'POST' if '/report?' in path else 'GET'} {path} HTTP/1.1"


def line(name: str, counter: int, request: str, key: bytes, body: str = "") -> str:
    shown = mac_of(key, "\n".join([str(counter), request, *([body] if body else [])]).encode())
    return f"Authorization: Braid {name} {counter} {shown}"


@contextlib.asynccontextmanager
async def served(net: Network, tmp_path: Path) -> AsyncIterator[tuple[Api, Path, int]]:
    """Connect a network and serve its controller's API at a socket and a port."""
    net.connect()
    net.run(5)
    api, socket = Api(net.controller, asyncio.get_running_loop().time), tmp_path / "api.sock"
    await api.listen(socket, ("127.0.0.1", 0))
    try:
        yield api, socket, api.addresses()[0][1]
    finally:
        await api.close()


async def over_tcp(port: int, path: str, *headers: str, body: str = "") -> tuple[int, list[str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    length = [f"Content-Length: {len(body)}"] if body else []
    writer.write("\r\n".join([request_line(path), "Host: fabric", *headers, *length, "", body]).encode())
    head, _, said = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), lines, said


async def asked(socket: Path, path: str) -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(f"{request_line(path)}\r\nHost: fabric\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body) if body else {}


def test_an_edge_gets_its_next_table_when_there_is_one(tmp_path: Path) -> None:
    async def story() -> None:
        net = Network(two_paths())
        async with served(net, tmp_path) as (api, socket, _):
            status, table = await asked(socket, "/v1/fabric/edges/ha/report?revision=&wait=5")
            assert status == 200
            waits = f"/v1/fabric/edges/ha/report?revision={table['revision']}&wait="
            assert await asked(socket, waits + "0.01") == (204, {})
            # A host appears behind the other edge, which is no new plan but a new table.
            waiting = asyncio.create_task(asked(socket, waits + "30"))
            net.send("hb", frame(mac(2), "ff:ff:ff:ff:ff:ff", b"here I am"))
            net.run(2)
            # As often as something happens, until it is heard.
            while not waiting.done():
                api.notify()
                await asyncio.sleep(0)
            status, after = await waiting
            assert status == 200
            assert after["revision"] != table["revision"]
            assert [each["hosts"] for each in after["egress"]] == [[mac(2)]]
            # The other edge wants shims: none are sent before it has asked for them.
            assert [each["shim"] for each in after["egress"]] == [False]
            await asked(socket, "/v1/fabric/edges/hb/report?revision=&wait=0&shim=1")
            waits = f"/v1/fabric/edges/ha/report?revision={after['revision']}&wait=30"
            _, numbered = await asked(socket, waits)
            assert [each["shim"] for each in numbered["egress"]] == [True]
            # The other edge was replaced by one that does not want shims.
            await asked(socket, "/v1/fabric/edges/hb/report?revision=&wait=0")
            _, plain = await asked(socket, f"/v1/fabric/edges/ha/report?revision={numbered['revision']}&wait=30")
            assert [each["shim"] for each in plain["egress"]] == [False]
            assert (await asked(socket, "/v1/fabric/edges/nobody/report?revision=x&wait=1"))[0] == 404

    asyncio.run(asyncio.wait_for(story(), 20))


def test_a_path_that_its_edge_tells_to_be_silent_is_left_at_once(tmp_path: Path) -> None:
    """Its probes arrive all the time: the edge's own are under a load that the controller does not see."""

    async def story() -> None:
        net = Network(two_paths())
        async with served(net, tmp_path) as (_, socket, _):
            _, table = await asked(socket, "/v1/fabric/edges/ha/report?revision=&wait=5")
            own = sorted(set(table["egress"][0]["slots"]))
            foreign = sorted(path["tag"] for path in table["ingress"][0]["paths"])
            assert len(own) == len(foreign) == 2
            told = f"/v1/fabric/edges/ha/report?revision={table['revision']}&wait=0&probed={own[0]},{own[1]}"
            # Nobody tells of others' paths, nor of such as do not exist.
            await asked(socket, f"{told}&silent={foreign[0]},4000,,x,99999")
            net.run(0.5)
            assert sorted(tags(net, "ha", "hb")) == own
            paths = {
                path["tag"]: path for pair in report.paths(net.controller, net.now)["pairs"] for path in pair["paths"]
            }
            assert {tag: path["edge_probed"] for tag, path in paths.items()} == {
                tag: tag in own for tag in (*own, *foreign)
            }
            gone = next(tuple(path["switches"]) for path in paths.values() if path["tag"] == own[0])
            await asked(socket, f"{told}&silent={own[0]}")
            net.run(0.1)
            (left,) = tags(net, "ha", "hb")
            assert left == own[1]
            assert sorted(tags(net, "hb", "ha")) == foreign
            (pair,) = [each for each in report.paths(net.controller, net.now)["pairs"] if each["source"] == "ha"]
            assert gone not in [tuple(path["switches"]) for path in pair["paths"]]
            # It rests, and is tried again.
            net.run(8)
            assert len(tags(net, "ha", "hb")) == 2

    asyncio.run(asyncio.wait_for(story(), 20))


def test_who_waits_looks_only_when_there_may_be_something_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def revision(fabric: Controller, name: str) -> str:
        nonlocal looks
        looks += 1
        return edge_revision(fabric, name)

    async def story() -> None:
        net = Network(two_paths())
        net.connect()
        net.run(5)
        api = Api(net.controller, asyncio.get_running_loop().time)
        socket = tmp_path / "api.sock"
        await api.listen(socket, None)
        try:
            _, table = await asked(socket, "/v1/fabric/edges/ha/report?revision=&wait=5")
            monkeypatch.setattr(report, "edge_revision", revision)
            waiting = asyncio.create_task(
                asked(socket, f"/v1/fabric/edges/ha/report?revision={table['revision']}&wait=30")
            )
            while not looks:
                await asyncio.sleep(0)
            # Switches say all sorts of things that edges are not told.
            for _ in range(200):
                api.notify()
                await asyncio.sleep(0)
            assert looks < 10
            # A request for counters ends the wait at once.
            net.controller.distributor.request_counts(["ha"])
            api.notify()
            assert await waiting == (204, {})
        finally:
            await api.close()

    asyncio.run(asyncio.wait_for(story(), 20))


def with_keys() -> Network:
    """Return a network whose edges share a key with the controller each."""
    net = Network(two_paths())
    edges = tuple(replace(edge, key=KEYS[edge.name]) for edge in net.settings.edges)
    net.controller.settings = replace(net.settings, edges=edges)
    return net


def test_a_key_is_shown_as_other_programs_work_it_out() -> None:
    """`printf '7\\nPOST / HTTP/1.1\\nrx=7:1' | openssl dgst -sha256 -hmac 'the key of one edge'`."""
    shown = "8704f0d358e72dab13a02b6fc7272af9ad51e8c6a41677a45c7a6aaa04e6cc20"
    verified = EdgeAuth(KEYS).verify("POST / HTTP/1.1", [f"Authorization: Braid ha 7 {shown}"], b"rx=7:1")
    # `printf '7\n200\n{}' | openssl dgst …` for the answer.
    assert verified.sign(200, b"{}") == (
        "Braid-Authentication",
        "26eb5f8f5db365cb92da858f9528c367b0adb37e603b1fdf580d9a28db516c05",
    )


def test_over_tcp_only_edges_that_show_their_key_are_answered_and_each_about_itself(tmp_path: Path) -> None:
    async def story() -> None:
        net = with_keys()
        async with served(net, tmp_path) as (_, _, port):
            tags = [path.tag for path in net.controller.tables.pairs["ha", "hb"].paths]
            # It has had a table of this controller before.
            path = f"/v1/fabric/edges/hb/report?revision=0.0.0&wait=0&rx={tags[0]}:500"
            request = request_line(path)
            good = line("hb", 7, request, KEYS["hb"])
            bad = {
                "no key": [],
                "another's key": [line("hb", 7, request, KEYS["ha"])],
                "nobody's": [line("hc", 7, request, b"")],
                "another question": [line("hb", 7, request.replace("500", "501"), KEYS["hb"])],
                "rubbish": ["Authorization: Bearer me"],
            }
            for what, headers in bad.items():
                status, _, body = await over_tcp(port, path, *headers)
                assert status == 401, what
                assert b"key" in body, what
            assert not any(each.rx for each in net.controller.path_monitor.paths.values())
            status, lines, body = await over_tcp(port, path, "Accept: */*", good)
            assert status == 200
            assert json.loads(body)["edge"] == "hb"
            assert "Braid-Authentication: " + mac_of(KEYS["hb"], b"7\n200\n" + body) in lines
            came = net.controller.path_monitor.paths[tags[0]].rx
            assert came is not None
            assert came.packets == 500
            # Played back, and older.
            assert (await over_tcp(port, path, good))[0] == 401
            assert (await over_tcp(port, path, line("hb", 6, request, KEYS["hb"])))[0] == 401
            # Its own key does not make it another.
            assert (await over_tcp(port, path, line("ha", 1, request, KEYS["ha"])))[0] == 403
            other = "/v1/fabric/status"
            assert (await over_tcp(port, other, line("ha", 2, f"GET {other} HTTP/1.1", KEYS["ha"])))[0] == 200

    asyncio.run(asyncio.wait_for(story(), 20))


def test_a_report_may_be_as_long_as_that_of_all_paths(tmp_path: Path) -> None:
    async def story() -> None:
        net = with_keys()
        async with served(net, tmp_path) as (_, _, port):
            tag = net.controller.tables.pairs["ha", "hb"].paths[0].tag
            # The query says of which table, and the body has the counters: of 1,024 paths, none of which is longer.
            path = "/v1/fabric/edges/hb/report?revision=0.0.0&wait=0"
            others = ",".join(f"{other}:{2**64 - 1}" for other in range(3000, 4023))
            body = f"rx={tag}:500,{others}&rx_bytes={tag}:7,{others}&tx={others}&shim=1&probed=&silent=&revision=no"
            assert len(body) > 75_000
            request = request_line(path)
            for changed in (body.replace(":500", ":501"), body[:-1], ""):
                header = line("hb", 7, request, KEYS["hb"], body)
                assert (await over_tcp(port, path, header, body=changed))[0] == 401
            header = line("hb", 7, request, KEYS["hb"], body)
            assert (await over_tcp(port, path, header, body=body))[0] == 200
            came = net.controller.path_monitor.paths[tag].rx
            assert came is not None
            assert came.packets == 500
            assert net.controller.distributor.shims == {"hb"}
            status, _, said = await over_tcp(port, path, header, body="x" * (MAX_BODY_BYTES + 1))
            assert status == 413
            assert b"has more than" in said

    asyncio.run(asyncio.wait_for(story(), 20))


def test_what_an_edge_told_before_a_restart_tells_the_controller_after_it_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        net = Network(two_paths())
        edges = tuple(replace(edge, key=KEYS[edge.name]) for edge in net.settings.edges)
        recorded: list[tuple[str, str]] = []

        def start(number: int) -> None:
            """Start the next controller in the same network."""
            net.disconnect()
            net.controller = Controller(replace(net.settings, edges=edges), lambda: 0.0, nonce=number)

        async def told(port: int, counter: int, revision: str, packets: int) -> dict[str, Any]:
            """Have hb ask and tell, of whatever tags the paths have; the answer's table."""
            counts = ",".join(f"{tag}:{packets}" for tag in range(2, 100))
            path = f"/v1/fabric/edges/hb/report?revision={revision}&wait=0&rx={counts}&shim=1"
            header = line("hb", counter, request_line(path), KEYS["hb"])
            recorded.append((path, header))
            status, _, body = await over_tcp(port, path, header)
            assert status == (200 if body else 204)
            return json.loads(body) if body else {}

        def came() -> set[int]:
            return {each.rx.packets for each in net.controller.path_monitor.paths.values() if each.rx is not None}

        start(0x5EED)
        async with served(net, tmp_path) as (_, _, port):
            table = await told(port, 7, "", 100)
            assert came() == set()
            await told(port, 8, table["revision"], 200)
            assert came() == {200}
            assert net.controller.distributor.shims == {"hb"}
        start(0xBEEF)
        async with served(net, tmp_path) as (_, _, port):
            # Its counters begin anew, so it is answered: but what it told was told somebody else.
            for path, header in recorded:
                assert (await over_tcp(port, path, header))[0] == 200
            assert came() == set()
            assert net.controller.distributor.shims == set()
            # The edge itself is believed again once it names a table of this start.
            after = await told(port, 9, table["revision"], 300)
            assert came() == set()
            await told(port, 10, after["revision"], 400)
            assert came() == {400}
            # It counts after it was answered, and before it is heard.
            answered = asyncio.get_running_loop().time()
            await told(port, 11, after["revision"], 500)
            for each in net.controller.path_monitor.paths.values():
                assert each.rx is None or 0 < each.rx.since < answered < each.rx.at
            assert net.controller.distributor.shims == {"hb"}

    asyncio.run(asyncio.wait_for(story(), 20))


def test_who_shows_no_key_gives_way_to_who_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braid_sdn.fabric.api.server.MAX_UNAUTHENTICATED", 4)

    async def story() -> None:
        shape = two_paths()
        net = Network(shape)
        edges = tuple(replace(edge, key=KEYS[edge.name]) for edge in net.settings.edges)
        net.settings = replace(net.settings, edges=edges)
        net.controller = Controller(net.settings, stopwatch=lambda: 0.0)
        async with served(net, tmp_path) as (_, _, port):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
            for reader, _ in silent[:2]:
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            path = "/v1/fabric/edges/ha/report?revision=&wait=0"
            request = request_line(path)
            status, _, _ = await over_tcp(port, path, line("ha", 1, request, KEYS["ha"]))
            assert status == 200
            for _, writer in silent:
                writer.close()

    asyncio.run(asyncio.wait_for(story(), 20))


def test_the_socket_is_made_with_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(*_: object) -> None:
        raise AssertionError("its mode is changed after it was made")

    async def story() -> None:
        monkeypatch.setattr(Path, "chmod", changed)
        async with served(Network(two_paths()), tmp_path) as (_, socket, _):
            assert socket.stat().st_mode & 0o777 == 0o600

    before = os.umask(0)
    try:
        asyncio.run(asyncio.wait_for(story(), 20))
    finally:
        os.umask(before)


def test_a_get_changes_nothing_and_is_conditional(tmp_path: Path) -> None:
    async def story() -> None:
        net = Network(two_paths())
        async with served(net, tmp_path) as (api, socket, _):
            tags = [path.tag for path in net.controller.tables.pairs["ha", "hb"].paths]
            path = "/v1/fabric/edges/hb"
            _, table = await asked(socket, path)
            shown = f"{path}?revision={table['revision']}&rx={tags[0]}:500&shim=1"
            assert (await asked(socket, shown))[0] == 200
            assert not any(each.rx for each in net.controller.path_monitor.paths.values())
            assert net.controller.distributor.shims == set()
            etag = f'If-None-Match: "{table["revision"]}"'
            known = api.answer(f"GET {path} HTTP/1.1", [etag])
            assert (known.status, known.body) == (304, b"")
            assert api.answer(f"GET {path} HTTP/1.1", ['If-None-Match: "other"']).status == 200
            assert (await asked(socket, "/v1/fabric/status/report?revision="))[0] == 405

    asyncio.run(asyncio.wait_for(story(), 20))


def test_the_end_of_the_process_ends_long_polls_without_a_complaint(tmp_path: Path) -> None:
    complaints = list[dict[str, Any]]()

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        net = Network(two_paths())
        async with served(net, tmp_path) as (api, socket, _):
            revision = edge_revision(net.controller, "ha")
            waiting = asyncio.create_task(asked(socket, f"/v1/fabric/edges/ha/report?revision={revision}&wait=30"))
            async with asyncio.timeout(10):
                while api._changed is None:
                    await asyncio.sleep(0)
            # As `asyncio.run` does once the main task has ended.
            own = {asyncio.current_task(), waiting}
            handlers = [task for task in asyncio.all_tasks() if task not in own]
            assert handlers
            for task in handlers:
                task.cancel()
            await asyncio.gather(waiting, *handlers, return_exceptions=True)
            await asyncio.sleep(0)

    asyncio.run(story())
    assert complaints == []


def test_a_client_that_does_not_speak_http_is_told_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with served(Network(two_paths()), tmp_path) as (_, socket, _):
            reader, writer = await asyncio.open_unix_connection(socket)
            writer.write(b"hello\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert int(head.split()[1]) == 400
            assert "not a request of HTTP/1.1" in json.loads(body)["error"]
            assert (await asked(socket, "//["))[0] == 404

    asyncio.run(story())


def test_an_address_that_is_taken_is_named_with_its_option(tmp_path: Path) -> None:
    async def story() -> None:
        async with served(Network(two_paths()), tmp_path) as (api, _, port):
            for addresses, option in (
                ((None, ("127.0.0.1", port)), "[metrics] listen"),
                ((("127.0.0.1", port),), "--http"),
            ):
                with pytest.raises(OSError, match="address already in use") as refused:
                    await api.listen(tmp_path / "other.sock", *addresses)
                assert str(refused.value).startswith(f'{option} = "127.0.0.1:{port}": ')

    asyncio.run(story())


def test_metrics_are_openmetrics_on_the_socket_and_alone_on_their_own_port(tmp_path: Path) -> None:
    net = Network(two_paths())

    async def test() -> None:
        net.connect()
        net.run(5)
        api, socket = Api(net.controller, lambda: net.now), tmp_path / "api.sock"
        await api.listen(socket, None, ("127.0.0.1", 0))
        ((_, port),) = api.addresses()
        try:
            status, lines, body = await over_tcp(port, "/metrics")
            refused, _, _ = await over_tcp(port, "/v1/fabric/status")
        finally:
            await api.close()
        assert status == 200
        assert "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8" in lines
        text = body.decode()
        assert text.endswith("# EOF\n")
        assert "braid_fabric_switches 4\n" in text
        assert 'braid_fabric_pair_paths{source="ha",target="hb"} 2\n' in text
        capacity = re.search(r'pair_capacity_bytes_per_second\{source="ha",target="hb"\} (\S+)', text)
        assert float(capacity[1]) == pytest.approx(20e6 / 8, rel=0.02)  # type: ignore[index]
        assert int(float(re.search(r"braid_fabric_packet_ins_total (\S+)", text)[1])) > 10  # type: ignore[index]
        assert refused == 404

    asyncio.run(test())


def test_hosts_are_forgotten_on_the_socket_alone(tmp_path: Path) -> None:
    net = Network(
        two_paths(), edges=tuple(replace(each, key=KEYS[each.name]) for each in Network(two_paths()).settings.edges)
    )

    async def test() -> None:
        async with served(net, tmp_path) as (api, socket, port):
            net.send("ha", frame(mac(1), "ff:ff:ff:ff:ff:ff"))
            net.run(1)
            path = f"/v1/fabric/hosts/{mac(1)}/forget"
            request = f"POST {path} HTTP/1.1"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{request}\r\nHost: fabric\r\n{line('ha', 1, request, KEYS['ha'])}\r\n\r\n".encode())
            assert b" 405 " in (await reader.read()).partition(b"\r\n")[0]
            writer.close()
            assert mac(1) in net.controller.hosts.known
            reader, writer = await asyncio.open_unix_connection(socket)
            writer.write(f"{request}\r\nHost: fabric\r\n\r\n".encode())
            assert b" 200 " in (await reader.read()).partition(b"\r\n")[0]
            writer.close()
            assert mac(1) not in net.controller.hosts.known
            assert api.answer("GET /v1/fabric/hosts HTTP/1.1", []).status == 200

    asyncio.run(test())


def test_changes_become_lines_of_a_log() -> None:
    net = Network(two_paths())
    before = Snapshot.of(net.controller, net.now)
    net.connect()
    net.run(5)
    after = Snapshot.of(net.controller, net.now)
    names = [event.name for event in changes(before, after)]
    assert names.count("switch-connected") == 4
    assert names.count("link-found") == 8
    assert names.count("paths-used") == 2
    assert list(changes(after, after)) == []
    net.unplug("A", "P")
    net.run(3)
    events = {event.name: event for event in changes(after, Snapshot.of(net.controller, net.now))}
    assert set(events) == {"link-lost", "paths-used", "problem"}
    assert events["link-lost"].warning
    lost = events["paths-used"].text("2026-01-01T00:00:00.000+00:00")
    why = "B>P>A is left: a link of it is lost (port A:A-P is down)"
    assert lost == f'2026-01-01T00:00:00.000+00:00 info paths-used source=hb target=ha paths=B>Q>A why="{why}"'
    assert events["link-lost"].fields["why"] == "port A:A-P is down"
    told = json.loads(events["problem"].json("now"))
    assert (told["level"], told["event"], told["code"]) == ("warn", "problem", "link-unknown")
    assert 'text="this link is lost: port A:A-P is down"' in events["problem"].text("now")


def test_a_link_that_was_never_there_is_told_from_one_that_was_lost() -> None:
    net = Network(two_paths(), links=(LinkSettings(("A", "B"), 1e7),))
    net.connect()
    net.run(5)
    found = report.problems(net.controller, net.now)
    told = {each.subject: each.text for each in found if each.code == "link-unknown"}
    assert list(told) == ["A - B"]
    assert told["A - B"].startswith("no such link is found")
