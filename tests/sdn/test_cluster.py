"""Several controllers: roles at switches, the API of one that follows, and a change of the leader in a process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from os_ken.ofproto import ofproto_v1_3 as of  # type: ignore[import-untyped]
from os_ken.ofproto import ofproto_v1_3_parser as parser

from braid_lab.fabric.fake_switches import FakeNetwork
from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric.api import metrics, report
from braid_sdn.fabric.api.events import Event
from braid_sdn.fabric.api.server import Api, Response
from braid_sdn.fabric.cluster.roles import RETENTION, Roles
from braid_sdn.fabric.cluster.store import Cluster, Member, Standing, StoreError
from braid_sdn.fabric.config import Config
from braid_sdn.fabric.controller import Controller
from braid_sdn.fabric.model import Problem
from braid_sdn.fabric.plan.policies import Policies
from braid_sdn.fabric.service import Service
from braid_sdn.fabric.settings import EdgeSettings, Settings
from braid_sdn.openflow.flows import DIALECT
from braid_sdn.openflow.messages import AddRule, Barrier, Match, Refused, Role, RoleReply, RoleRequest, Rule, SetMeter
from braid_sdn.openflow.wire import HEADER, Session

from .test_openflow import until
from .virtual import KEY, ready

ALPHA, BETA = Member("alpha"), Member("beta", "https://192.0.2.2:8444")


# OpenFlow.


def test_a_role_request_is_that_of_the_specification() -> None:
    """§A.3.9: "struct ofp_role_request { struct ofp_header header; uint32_t role; uint8_t pad[4];
    uint64_t generation_id; }", of type OFPT_ROLE_REQUEST (24)."""
    made = Session().encode(RoleRequest(Role.MASTER, 0x0102030405060708))
    assert made == bytes((4, 24, 0, 24, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8))
    theirs = parser.OFPRoleRequest(DIALECT, of.OFPCR_ROLE_SLAVE, 7)
    theirs.set_xid(1)
    theirs.serialize()
    assert Session().encode(RoleRequest(Role.SLAVE, 7)) == bytes(theirs.buf)


def error(kind: int, code: int, xid: int) -> bytes:
    return HEADER.pack(4, of.OFPT_ERROR, 76, xid) + bytes((0, kind, 0, code)) + bytes(64)


def test_what_switches_answer() -> None:
    session = Session()
    reply = bytes((4, 25, 0, 24, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8))
    assert session.decode(reply) == RoleReply(Role.MASTER, 0x0102030405060708)
    assert session.decode(bytes((4, 25, 0, 12, 0, 0, 0, 1, 0, 0, 0, 2))) is None
    rule = Rule(0, 1, Match())
    session.encode(AddRule(rule))
    # "the switch must reply with an OFPT_ERROR message with a type field of OFPET_BAD_REQUEST, a code field of
    # OFPBRC_IS_SLAVE" (§6.3.4); OFPRRFC_STALE is that of an old generation (§6.3.5).
    assert session.decode(error(1, 10, 1)) == Refused("slave", rule)
    assert session.decode(error(11, 0, 2)) == Refused("stale-generation")
    assert session.decode(error(11, 2, 2)) == Refused("error type 11 code 2")


def test_roles_follow_the_leadership() -> None:
    roles = Roles()
    assert not roles.set_request(0, leads=False)
    assert roles.request is None
    assert roles.set_request(5, leads=False)
    assert roles.request == RoleRequest(Role.SLAVE, 5)
    assert not roles.set_request(5, leads=False)
    # One that follows asks by what it knows, which may be old: that is nothing to report.
    assert roles.handle(1.0, 7, Refused("stale-generation"))
    assert roles.set_request(9, leads=True)
    assert roles.request == RoleRequest(Role.MASTER, 9)
    assert not list(roles.problems(str))


def test_a_switch_with_another_master_is_named_and_asked_again() -> None:
    roles = Roles()
    roles.set_request(9, leads=True)
    rule = Rule(0, 1, Match())
    # The rule is missing there, which is for the controller to know.
    assert not roles.handle(1.0, 7, Refused("slave", rule))
    assert not roles.handle(1.0, 7, Refused("slave", meter=SetMeter(7, 1000, 100, by_bits=True)))
    assert roles.handle(1.0, 7, Refused("slave"))
    assert not roles.handle(1.0, 7, Refused("table-full", rule))
    assert [each.code for each in roles.problems(str)] == ["second-controller"]
    assert roles.due(6.0) == [7]
    assert roles.handle(6.0, 7, RoleReply(Role.MASTER, 9))
    assert roles.due(1.0 + RETENTION) == []
    assert not list(roles.problems(str))
    roles.handle(80.0, 7, Refused("stale-generation"))
    roles.handle(80.0, 8, Refused("slave"))
    assert [(each.code, each.subject) for each in roles.problems(str)] == [
        ("second-controller", "8"),
        ("stale-generation", "7"),
    ]
    roles.handle(81.0, 7, RoleReply(Role.MASTER, 9))
    roles.handle_gone(8)
    assert not list(roles.problems(str))


def test_what_switches_refused_one_leadership_is_none_of_the_next_ones() -> None:
    roles = Roles()
    roles.set_request(9, leads=True)
    roles.handle(1.0, 7, Refused("slave"))
    roles.handle(1.0, 8, Refused("stale-generation"))
    roles.set_request(10, leads=True)
    assert roles.due(1.1) == []
    roles.handle(2.0, 8, Refused("stale-generation"))
    roles.handle_gone(8)
    assert roles.due(2.1) == []


def test_a_later_generation_that_switches_know_is_asked_for_and_told_once() -> None:
    roles = Roles()
    roles.set_request(9, leads=True)
    for dpid in (7, 8):
        assert roles.handle(1.0, dpid, Refused("stale-generation"))
    assert roles.poll_messages() == [(7, RoleRequest(Role.NOCHANGE, 0)), (8, RoleRequest(Role.NOCHANGE, 0))]
    assert roles.poll_later() is None
    roles.handle(1.1, 7, RoleReply(Role.SLAVE, 500))
    roles.handle(1.1, 8, RoleReply(Role.SLAVE, 400))
    # Not one of a switch that has refused nothing.
    roles.handle(1.1, 3, RoleReply(Role.EQUAL, 900))
    assert (roles.poll_later(), roles.poll_later()) == (500, None)


# The API of a controller that follows.


def follower(leader: Member | None) -> Controller:
    fabric = Controller(Settings(KEY, edges=(EdgeSettings("ha", "A", "ha"),)), stopwatch=lambda: 0.0)
    fabric.cluster = Cluster(ALPHA, False, leader, 5, (Problem("no-leader", "etcd", "…"),) if leader is None else ())
    return fabric


def test_one_that_follows_names_the_leader_and_changes_nothing() -> None:
    fabric = follower(BETA)
    api = Api(fabric, lambda: 1.0, leads=lambda: False)

    async def posted(what: str) -> Response:
        answer = await api.change(f"POST /v1/fabric/{what} HTTP/1.1")
        assert answer is not None
        return answer

    told = [asyncio.run(posted(what)) for what in ("switches/A/drain", "hosts/10.0.0.1/forget", "links/A/B/forbid")]
    told += [api.answer(f"GET /v1/fabric/{what} HTTP/1.1", []) for what in ("paths", "hosts", "policies", "edges/ha")]
    for each in told:
        assert each.status == 409
        assert json.loads(each.body) == {
            "error": "beta (at https://192.0.2.2:8444) leads: ask it there; see braid sdn fabric status",
            "leader": {"name": "beta", "address": "https://192.0.2.2:8444"},
        }
    shown = json.loads(api.answer("GET /v1/fabric/status HTTP/1.1", []).body)
    assert shown["cluster"]["name"] == "alpha"
    assert not shown["cluster"]["leads"]
    # Its own edge is the leader's concern.
    assert not shown["health"]
    assert "braid_fabric_leader 0" in metrics.exposition(fabric, 1.0)
    for path in ("events", "figures"):
        assert api.answer(f"GET /v1/fabric/{path} HTTP/1.1", []).status == 200


def test_without_a_leader_that_is_said() -> None:
    fabric = follower(None)
    api = Api(fabric, lambda: 1.0, leads=lambda: False)
    told = api.answer("GET /v1/fabric/paths HTTP/1.1", [])
    assert json.loads(told.body)["error"].startswith("no controller leads at this moment")
    assert [each["code"] for each in report.health(fabric, 1.0)] == ["no-leader"]


def test_an_edge_waits_at_the_next_leader_until_it_leads(tmp_path: Path) -> None:
    """So it has the new leader's table as soon as there is one, and reports to it before the first plan."""
    leading = [False]

    async def story() -> None:
        fabric = follower(BETA)
        api = Api(fabric, asyncio.get_running_loop().time, leads=lambda: leading[0])
        await api.listen(tmp_path / "s", None)

        async def asked(wait: float) -> tuple[int, dict[str, object]]:
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(
                f"POST /v1/fabric/edges/ha/report?revision=&wait={wait} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            )
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            return int(head.split()[1]), json.loads(body)

        assert (await asked(0))[0] == 409
        assert fabric.distributor._last_request == {}
        waiting = asyncio.create_task(asked(30))
        while api._changed is None:
            await asyncio.sleep(0.01)
        leading[0] = True
        later = follower(None)
        later.cluster = None
        api.attach(later)
        status, table = await waiting
        # There is no plan yet: the edge keeps what it has.
        assert (status, table["pending"]) == (200, True)
        await api.close()

    asyncio.run(asyncio.wait_for(story(), 20))


def test_a_table_is_pending_until_the_first_plan() -> None:
    net = ready(two_paths())
    table = report.edge_table(net.controller, "ha")
    assert table is not None
    assert not table["pending"]
    net.restart_controller()
    first = report.edge_table(net.controller, "ha")
    assert first is not None
    assert first["pending"]
    net.run(4)
    then = report.edge_table(net.controller, "ha")
    assert then is not None
    assert not then["pending"]
    assert then["revision"] != first["revision"]
    assert then["egress"]


# A change of the leader inside a process.


class ToldStore:
    """A store that says what a test tells it: what happens at one moment, etcd does not show."""

    def __init__(self) -> None:
        self.me: Member | None = ALPHA
        self.standing = Standing(4, BETA)
        self.leading = False
        self.kept: list[Policies] = []
        self.changed: Callable[[], None] = lambda: None

    def leads(self) -> bool:
        return self.leading

    def problems(self) -> Sequence[Problem]:
        return ()

    async def keep(self, policies: Policies) -> None:
        if not self.leading:
            raise StoreError("beta leads", 409)
        self.kept.append(policies)

    async def surpass(self, generation: int) -> None:
        self.surpassed = generation

    async def run(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        changed()
        await asyncio.get_running_loop().create_future()

    def say(self, generation: int, leader: Member, *, leads: bool, policies: Policies) -> None:
        self.standing, self.leading = Standing(generation, leader, policies), leads
        self.changed()


def test_a_controller_takes_over_and_steps_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ToldStore()
    monkeypatch.setattr("braid_sdn.fabric.service._store", lambda *_: store)
    events: list[Event] = []

    async def story() -> None:
        service = Service(Config(Settings(KEY), port=0), tmp_path, events.append)
        sent: list[object] = []
        send = service.server.send

        def sending(messages: Sequence[tuple[int, object]]) -> None:
            told = list(messages)
            sent.extend(message for _, message in told)
            send(told)  # type: ignore[arg-type]

        monkeypatch.setattr(service.server, "send", sending)
        listening = await service.server.listen("127.0.0.1", 0)
        host, port = listening.sockets[0].getsockname()[:2]
        running = asyncio.create_task(store.run(service._handle_standing))
        await asyncio.sleep(0)
        network = FakeNetwork(two_paths())
        await network.connect(host, port)
        await until(lambda: len(service.controller.topology.switches) == 4)
        await asyncio.sleep(0.1)
        # As one that follows it asks for that role alone.
        assert set(map(type, sent)) == {RoleRequest}
        assert sent[0] == RoleRequest(Role.SLAVE, 4)
        sent.clear()
        store.say(6, ALPHA, leads=True, policies=Policies(frozenset({3})))
        assert sent[:4] == [RoleRequest(Role.MASTER, 6)] * 4
        assert service.controller.policies.drained == {3}
        await until(lambda: len(service.controller.topology.links()) == 8 and service.controller.planned)
        assert [event.name for event in events][-1:] == ["leads"]
        # Switches are told of a plan in turns after it is made.
        await until(lambda: any(isinstance(each, Barrier) for each in sent))
        # Its lease is over, and the store has not said so yet: it sends nothing more.
        first = [each.token for each in sent if isinstance(each, Barrier)]
        store.leading = False
        sent.clear()
        service._pump.run()
        assert sent[:4] == [RoleRequest(Role.SLAVE, 6)] * 4
        assert len(sent) == 4
        assert not service.controller.planned
        assert events[-1].name == "follows"
        # It leads again, over the same connections: no barrier is taken for one of before.
        sent.clear()
        store.say(8, ALPHA, leads=True, policies=Policies())
        await until(lambda: any(isinstance(each, Barrier) for each in sent))
        then = [each.token for each in sent if isinstance(each, Barrier)]
        assert first
        assert min(then) > max(first)
        network.close()
        running.cancel()
        service.server.close()
        listening.close()
        service.stop()
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(story(), 60))
