"""Bytes on the wire: our messages there and back by os-ken, and the server with made-up and unfit switches."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3_parser as of_parser  # type: ignore[import-untyped]

from braid_lab.fabric.fake_switches import FakeNetwork, _flow_stats
from braid_lab.fabric.shapes import east_asia, two_paths
from braid_lab.fabric.simulated_switches import PACKET_IN
from braid_sdn.fabric.config import Config
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.plan import Edge, Flood, Host, PinnedPath, Plan, TaggedPath, Tree
from braid_sdn.fabric.service import Service
from braid_sdn.fabric.settings import Settings
from braid_sdn.fabric.switches import rules
from braid_sdn.fabric.switches.compiler import Compiler
from braid_sdn.fabric.switches.rules import base, leases
from braid_sdn.fabric.tenants import NOBODY, Tenant, Tenants
from braid_sdn.openflow.flow_mods import encode
from braid_sdn.openflow.flow_stats import MAX_KNOWN_SIZE, DecodedRules
from braid_sdn.openflow.flows import DIALECT, FLOW_FIELDS, LINK_FIELDS, UnknownRuleError, foreign_text, rule_in
from braid_sdn.openflow.messages import (
    AddRule,
    Barrier,
    BarrierReply,
    Bucket,
    DeleteMeter,
    DeleteRule,
    Echo,
    EchoReply,
    FlowStatsReply,
    FlowStatsRequest,
    GroupFeatures,
    GroupFeaturesRequest,
    GroupsReply,
    GroupsRequest,
    Malformed,
    Match,
    MeterCounters,
    MeterCountersReply,
    MeterCountersRequest,
    MeterFeatures,
    MeterFeaturesRequest,
    Output,
    PacketIn,
    PacketOut,
    PortStatsReply,
    PortStatsRequest,
    PushTag,
    Refused,
    Reserved,
    Rule,
    SetFailoverGroup,
    SetField,
    SetMeter,
    ToGroup,
)
from braid_sdn.openflow.tls import TlsFiles
from braid_sdn.openflow.wire import HEADER, MAX_OUTSTANDING, VERSION, Session, _flow_mod, parse

from .fuzzing import DPID, introduction, switch_message
from .virtual import KEY


def every_rule() -> list[Rule]:
    """One of each kind that a plan leads to."""
    plan = Plan(
        internal={1: frozenset({2})},
        outside={1: frozenset({5})},
        trees={
            1: Tree(1, 7, {2: 3}, detour=Tree(1, 7, {2: 4}), turning={2: frozenset({4})}),
            2: Tree(2, 8, {1: 2}),
        },
        floods={NOBODY: Flood(9, {1: frozenset({2})})},
    )
    hosts = [Host("02:00:00:00:00:01", PortId(1, 5)), Host("02:00:00:00:00:02", PortId(2, 5))]
    compiler = Compiler()
    compiler.update(
        plan, {host.mac: host for host in hosts}, [Edge("e", PortId(1, 6))], [1, 2], failover={2}, drop_marked={1, 2}
    )
    made = compiler.target
    path = [rule for _, rule in rules.of_path(TaggedPath(11, (PortId(1, 2), PortId(2, 6))))]
    ends = "02:00:00:00:00:01", "02:00:00:00:00:02"
    path += [rule for _, rule in rules.of_pinned(PinnedPath(12, *ends, 5, (PortId(1, 2),), 2))]
    return [
        *base(),
        *leases(),
        rules.marker(7),
        Rule(rules.SOURCES, 60, Match(in_port=5, vlan=(2000, 0xFF0)), (), rules.PATHS, rules.COOKIE),
        Rule(rules.TREES, 0, Match(metadata=(7 << 48, 0xFFFF << 48)), (PushTag(9),), rules.PATHS, rules.COOKIE),
        *rules.muted(5, [rules.Muted(9)], 4, edge=False),
        *of_tenants(),
        *made[1].values(),
        *made[2].values(),
        *path,
    ]


def of_tenants() -> list[Rule]:
    """One of each kind that tenants need besides: at ports, edges and trunks."""
    blue, red = Tenant("blue", 2000, 2499), Tenant("red", 3000, 3099)
    host = Host("02:00:00:00:00:03", PortId(1, 8), tenant=blue.number, vid=30)
    return [
        *rules.of_tenant_port(15, blue.number),
        *rules.of_tenant_edge(16, blue.number, Tenants((blue, red))),
        *rules.of_trunk(8, ((30, blue.number), (40, red.number))),
        *rules.of_local_host(host),
        rules.of_remote_host(host),
        rules.to_flood(2001, blue.number),
        *(rules.with_digest(rule, 77) for rule in rules.of_flood(2001, frozenset({2}), [2], [15], [(8, 30)])),
        *rules.muted(8, [rules.Muted(2001, blue.number, 30), rules.Muted(3001, red.number, 40)], 4, edge=False),
    ]


@pytest.mark.parametrize("rule", every_rule(), ids=lambda rule: f"{rule.table}-{rule.priority}-{rule.match.vlan}")
def test_rules_survive_the_wire(rule: Rule) -> None:
    told = parse(Session().encode(AddRule(rule)))
    assert rule_in(told) == rule


@pytest.mark.parametrize("rule", every_rule(), ids=lambda rule: f"{rule.table}-{rule.priority}-{rule.match.vlan}")
def test_a_flow_mod_by_hand_has_the_bytes_of_os_kens(rule: Rule) -> None:
    rule = replace(rule, idle=3, notify=True)
    for command in (0, 4):
        message = _flow_mod(rule, command)
        message.set_xid(1)
        message.serialize()
        assert encode(rule, command) == bytes(message.buf[8:])


def test_a_rule_of_flows_is_left_to_os_ken() -> None:
    rule = Rule(0, 1, Match(eth_type=0x0800, ipv4_dst="192.0.2.1"), (SetField("ipv4_src", "192.0.2.2"),))
    assert encode(rule, 0) is None
    assert encode(replace(rule, match=Match()), 0) is None
    told = parse(Session().encode(AddRule(rule)))
    assert rule_in(told, FLOW_FIELDS) == rule


def listing(*entries: bytes) -> bytes:
    """A switch's reply with rules, to the first request."""
    body = struct.pack("!HH4x", 1, 0) + b"".join(entries)
    return HEADER.pack(VERSION, 19, HEADER.size + len(body), 1) + body


def test_a_rule_that_is_listed_again_is_the_same_with_other_counters() -> None:
    decoded = DecodedRules(LINK_FIELDS)
    rules_ = every_rule()
    again = []
    for packets in (5, 6):
        session = Session(decoded=decoded)
        session.encode(FlowStatsRequest())
        told = session.decode(listing(*(_flow_stats(rule, packets, 0) for rule in rules_)))
        assert isinstance(told, FlowStatsReply)
        assert [each.rule for each in told.rules] == rules_
        assert {each.packets for each in told.rules} == {packets}
        again.append(told.rules)
    assert all(one.rule is other.rule for one, other in zip(*again, strict=True))


def test_an_answer_whose_parts_are_of_two_kinds_makes_nobody_stumble() -> None:
    session = Session()
    rule = _flow_stats(base()[0], 1, 0)
    port_ = struct.pack("!I100xII", 1, 7, 0)
    meters = struct.pack("!IIIBB2x", 9, 1 << 1, 0b1101, 1, 1)

    def part(kind: int, xid: int, body: bytes, *, more: bool) -> bytes:
        data = struct.pack("!HH4x", kind, more) + body
        return HEADER.pack(VERSION, 19, HEADER.size + len(data), xid) + data

    for xid, request in enumerate((FlowStatsRequest(), FlowStatsRequest(4)), 1):
        session.encode(request)
        assert session.decode(part(1, xid, rule, more=True)) is None
    told = session.decode(part(4, 1, port_, more=False))
    assert isinstance(told, PortStatsReply)
    assert [(each.port, each.age) for each in told.ports] == [(1, 7.0)]
    assert isinstance(session.decode(part(11, 2, meters, more=False)), MeterFeatures)
    assert not session._tables


def test_long_rules_that_a_switch_makes_up_are_not_remembered() -> None:
    decoded = DecodedRules(LINK_FIELDS)
    ours = [_flow_stats(rule, 1, 0) for rule in every_rule()]
    assert max(len(entry) for entry in ours) < MAX_KNOWN_SIZE
    for actions in (1, 3000):
        session = Session(decoded=decoded)
        session.encode(FlowStatsRequest())
        made_up = Rule(0, 1, Match(in_port=actions), (Output(1),) * actions)
        told = session.decode(listing(_flow_stats(made_up, 1, 0)))
        assert isinstance(told, FlowStatsReply)
        assert [each.rule for each in told.rules] == [made_up]
    assert len(decoded._known) == 1


def test_counters_of_ports_are_those_that_os_ken_reads() -> None:
    entries = [
        struct.pack("!I4x12QII", number, *(100 * number + each for each in range(12)), 7, 500_000_000)
        for number in (1, 2, 0xFFFFFFFE)
    ]
    data = HEADER.pack(VERSION, 19, 16 + 112 * len(entries), 1) + struct.pack("!HH4x", 4, 0) + b"".join(entries)
    session = Session()
    session.encode(PortStatsRequest())
    told = session.decode(data)
    assert isinstance(told, PortStatsReply)
    known = {each.port_no: each for each in parse(data).body}
    assert [each.port for each in told.ports] == [1, 2]
    for each in told.ports:
        theirs = known[each.port]
        assert (each.rx_bytes, each.tx_bytes, each.dropped) == (theirs.rx_bytes, theirs.tx_bytes, theirs.tx_dropped)
        assert each.age == 7.5
    again = Session()
    again.encode(PortStatsRequest())
    assert isinstance(again.decode(data[:-1]), Malformed)


def test_the_rest_has_the_bytes_of_the_specification() -> None:
    session = Session()
    assert session.encode(Echo(b"12345678"))[:4] == b"\x04\x02\x00\x10"
    assert session.encode(Barrier(5)) == bytes.fromhex("0414000880000005")
    assert session.decode(bytes.fromhex("0415000880000005")) == BarrierReply(5)
    assert session.decode(b"\x04\x03\x00\x0a\x00\x00\x00\x01hi") == EchoReply(b"hi")
    out = session.encode(PacketOut((3, 4), b"frame"))
    assert (
        out[:4] + out[8:]
        == bytes.fromhex(
            "040d003dfffffffffffffffd00200000000000000000001000000003ffff0000000000000000001000000004ffff000000000000"
        )
        + b"frame"
    )
    assert session.encode(PortStatsRequest())[8:] == bytes.fromhex("0004000000000000ffffffff00000000")
    assert session.encode(FlowStatsRequest(3))[8:17] == bytes.fromhex("000100000000000003")
    gone = parse(session.encode(DeleteRule((3, 10, Match(vlan=7)))))
    assert (gone.command, gone.table_id, gone.priority) == (4, 3, 10)


def test_a_refusal_names_its_rule() -> None:
    session = Session()
    rule = base()[0]
    xid = HEADER.unpack_from(session.encode(AddRule(rule)))[3]
    error = HEADER.pack(VERSION, 1, 12, xid) + b"\x00\x05\x00\x01"
    assert session.decode(error) == Refused("table-full", rule)
    assert session.decode(error) == Refused("table-full", None)


def test_a_refusal_of_a_frame_tells_its_length_and_beginning() -> None:
    session = Session()
    for ports in ((3,), (3, 4)):
        data = bytes(range(250)) * 36
        sent = session.encode(PacketOut(ports, data))
        # OFPBRC_BAD_LEN; "the data contains at least 64 bytes of the failed request" (OpenFlow 1.3 §A.4.4).
        error = HEADER.pack(VERSION, 1, 76, HEADER.unpack_from(sent)[3]) + b"\x00\x01\x00\x06" + sent[:64]
        start = data[: 24 if len(ports) == 1 else 8]
        assert session.decode(error) == Refused("error type 1 code 6", frame_bytes=9000, frame_start=start)
    # OFPBRC_IS_SLAVE is another matter, and so is another message.
    error = HEADER.pack(VERSION, 1, 76, HEADER.unpack_from(sent)[3]) + b"\x00\x01\x00\x0a" + sent[:64]
    assert session.decode(error) == Refused("slave")
    other = session.encode(AddRule(base()[0]))
    error = HEADER.pack(VERSION, 1, 76, 0) + b"\x00\x01\x00\x06" + other[:64].ljust(64, b"\0")
    assert session.decode(error) == Refused("error type 1 code 6")


@given(st.integers(0, 30), st.binary(max_size=120))
@settings(max_examples=300)
def test_no_message_makes_the_decoder_stumble(kind: int, body: bytes) -> None:
    data = HEADER.pack(VERSION, kind, HEADER.size + len(body), 1) + body
    told = Session().decode(data)
    assert not isinstance(told, PacketIn) or told.data == body[len(body) - len(told.data) :]


# The server.


def serving(test: Callable[[Service, tuple[str, int]], Awaitable[None]], *, tls: TlsFiles | None = None) -> None:
    """Run a service on a free port of the loopback for the length of a test."""

    async def run() -> None:
        config = Config(Settings(KEY), port=0, tls=tls)
        service = Service(config, Path("/nonexistent"))
        from braid_sdn.openflow.tls import server_context

        listening = await service.server.listen("127.0.0.1", 0, server_context(tls) if tls else None)
        try:
            async with asyncio.timeout(60):
                await test(service, listening.sockets[0].getsockname()[:2])
        finally:
            service.server.close()
            listening.close()
            service.stop()
            await asyncio.sleep(0)

    asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def codes(service: Service) -> set[str]:
    now = asyncio.get_running_loop().time()
    return {each.code for each in service.controller.problems.current(now)}


def test_made_up_switches_are_found_over_tcp() -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        network = FakeNetwork(east_asia())
        await network.connect(*address)
        await until(lambda: len(service.controller.topology.links()) == 18)
        await until(lambda: service.controller.planning and service.controller.updater.idle)
        for dpid, switch in network.switches.items():
            has = service.controller.updater.installed[dpid]
            assert {key for key, rule in switch.pipeline.rules.items() if not rule.lease} == has.keys()
        network.close()
        await until(lambda: not service.controller.topology.switches)

    serving(test)


async def speak(address: tuple[str, int], *messages: bytes) -> bytes:
    """Connect, say something, and return what comes until the other side hangs up."""
    reader, writer = await asyncio.open_connection(*address)
    for message in messages:
        writer.write(message)
    said = await reader.read()
    writer.close()
    return said


def test_another_version_is_named_and_the_rest_goes_on() -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        said = await speak(address, b"\x01\x00\x00\x08\x00\x00\x00\x01")
        # OpenFlow 1.3 §6.3.1: an error HELLO_FAILED, INCOMPATIBLE comes before the end.
        assert said.endswith(b"\x04\x01\x00\x0c\x00\x00\x00\x00\x00\x00\x00\x00")
        (problem,) = service.controller.problems.current(asyncio.get_running_loop().time())
        assert problem.code == "other-version"
        assert "OpenFlow 1.0, not 1.3" in problem.text
        network = FakeNetwork(two_paths())
        await network.connect(*address)
        await until(lambda: len(service.controller.topology.links()) == 8)
        network.close()

    serving(test)


def test_a_second_switch_with_an_id_is_named_and_refused() -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        first, second = FakeNetwork(two_paths()), FakeNetwork(two_paths())
        await first.connect(*address)
        await until(lambda: len(service.controller.topology.switches) == 4)
        await second.connect(*address)
        await until(lambda: "duplicate-id" in codes(service))
        await until(lambda: all(each.transport is None for each in second.switches.values()))
        assert len(service.controller.topology.switches) == 4
        assert all(each.transport is not None for each in first.switches.values())
        first.close()

    serving(test)


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n\r\n", b"\x04\x00\x00\x00\x00\x00\x00\x00", b"\x04\x05\x00\x08\x00\x00\x00\x01"]
)
def test_who_speaks_no_openflow_is_shown_out(words: bytes) -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        await speak(address, words)
        assert codes(service) & {"malformed", "other-version"}

    serving(test)


def test_a_switch_that_sends_a_hosts_frame_before_its_features_is_welcome() -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        head = PACKET_IN.pack(0xFFFFFFFF, 1514, 0, 0, 0, 1, 12, 0x80000004, 1)
        packet_in = switch_message(10, head + bytes(6) + bytes(1514))
        hello, others = introduction()[: HEADER.size], introduction()[HEADER.size :]
        _, writer = await asyncio.open_connection(*address)
        writer.write(hello + packet_in + others)
        await until(lambda: DPID in service.controller.topology.switches)
        assert not codes(service) & {"malformed"}
        writer.close()

    serving(test)


def ports(xid: int, number: int) -> bytes:
    """A part of a description of ports, with more to come (OpenFlow 1.3 §A.3.5)."""
    return switch_message(19, b"\x00\x0d\x00\x01\x00\x00\x00\x00" + number * bytes(64), xid)


def test_a_switch_with_ports_without_end_is_shown_out() -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        hello = b"\x04\x00\x00\x08\x00\x00\x00\x01"
        await speak(address, hello, *(ports(2, 15) for _ in range(300)))
        assert codes(service) == {"malformed"}

    serving(test)


def test_parts_of_answers_that_nobody_asked_for_are_not_kept() -> None:
    session = Session()
    for xid in range(1, 100):
        assert session.decode(ports(xid, 15)) is None
    assert not session._parts
    for _ in range(1000):
        session.encode(PortStatsRequest())
    assert len(session._parts) == MAX_OUTSTANDING


def test_who_does_not_introduce_itself_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braid_sdn.openflow.server.MAX_HANDSHAKES", 4)

    async def test(service: Service, address: tuple[str, int]) -> None:
        silent = [await asyncio.open_connection(*address) for _ in range(6)]
        for reader, _ in silent[:2]:
            with contextlib.suppress(ConnectionError):
                await reader.read()
        assert len(service.server.handshakes) == 4
        network = FakeNetwork(two_paths())
        await network.connect(*address)
        await until(lambda: len(service.controller.topology.switches) == 4)
        network.close()
        for _, writer in silent:
            writer.close()

    serving(test)


def test_hundreds_of_switches_may_connect_at_once() -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        connections = await asyncio.gather(*(asyncio.open_connection(*address) for _ in range(300)))
        await until(lambda: len(service.server.handshakes) == 300)
        assert not any(reader.at_eof() for reader, _ in connections)
        for _, writer in connections:
            writer.close()

    serving(test)


def test_a_switch_is_who_showed_its_certificate_first(tmp_path: Path) -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        def showing(name: str) -> ssl.SSLContext:
            context = trusting(tmp_path)
            context.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
            return context

        network = FakeNetwork(two_paths())
        await network.connect(*address, tls=showing("switch"))
        await until(lambda: len(service.controller.topology.switches) == 4)
        network.close()
        await until(lambda: not service.controller.topology.switches)
        other = FakeNetwork(two_paths())
        await other.connect(*address, tls=showing("other"))
        await until(lambda: "other-certificate" in codes(service))
        await until(lambda: all(each.transport is None for each in other.switches.values()))
        assert not service.controller.topology.switches
        again = FakeNetwork(two_paths())
        await again.connect(*address, tls=showing("switch"))
        await until(lambda: len(service.controller.topology.switches) == 4)
        again.close()

    serving(test, tls=certificates(tmp_path))


def certificates(folder: Path) -> TlsFiles:
    """An authority, and certificates of a controller, two switches, and a server on this machine.

    As those of ovs-pki, the authority says nothing of its key's usage.
    """

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    for name in ("controller", "switch", "other", "server"):
        where = ("-addext", "subjectAltName=DNS:localhost") if name == "server" else ()
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", *where)
        sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", *sign, "-out", f"{name}.pem")
    return TlsFiles(folder / "controller.pem", folder / "controller.key", folder / "ca.pem")


def trusting(folder: Path) -> ssl.SSLContext:
    """A switch's context, which trusts that authority and shows no certificate.

    Open vSwitch does not demand key usages, as `ssl.create_default_context` does since Python 3.13.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(folder / "ca.pem")
    return context


def test_only_switches_with_a_certificate_of_the_authority_are_served(tmp_path: Path) -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        context = trusting(tmp_path)
        network = FakeNetwork(two_paths())
        stranger = FakeNetwork(two_paths())
        # TLS 1.3 tells a client without a certificate only after it thinks it is connected.
        await stranger.connect(*address, tls=context)
        await until(lambda: all(each.transport is None for each in stranger.switches.values()))
        assert not service.controller.topology.switches
        context.load_cert_chain(tmp_path / "switch.pem", tmp_path / "switch.key")
        await network.connect(*address, tls=context)
        await until(lambda: len(service.controller.topology.switches) == 4)
        network.close()

    serving(test, tls=certificates(tmp_path))


def test_a_switch_without_tls_and_one_that_nobody_vouches_for_are_named(tmp_path: Path) -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        plain = FakeNetwork(two_paths())
        await plain.connect(*address)
        await until(lambda: "plain-tcp" in codes(service))
        plain.close()
        stranger = FakeNetwork(two_paths())
        await stranger.connect(*address, tls=trusting(tmp_path))
        await until(lambda: "other-certificate" in codes(service))
        assert not service.controller.topology.switches

    serving(test, tls=certificates(tmp_path))


def test_a_switch_with_tls_at_a_controller_without_is_named(tmp_path: Path) -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        certificates(tmp_path)
        with contextlib.suppress(OSError):
            await asyncio.open_connection(*address, ssl=trusting(tmp_path))
        await until(lambda: "tls-refused" in codes(service))

    serving(test)


def test_a_foreign_rule_becomes_a_text() -> None:
    match = of_parser.OFPMatch(eth_type=0x0800, ipv4_dst="10.0.0.2")
    mod = of_parser.OFPFlowMod(DIALECT, priority=300, match=match, instructions=[])
    mod.set_xid(1)
    mod.serialize()
    told = parse(bytes(mod.buf))
    with pytest.raises(UnknownRuleError):
        rule_in(told)
    assert foreign_text(told) == "table=0,priority=300,eth_type=0x800,ipv4_dst=10.0.0.2"


def test_a_meter_is_deleted_and_added() -> None:
    # OpenFlow 1.3 §A.3.4.5: command, flags (packets a second, with a burst), number, and a band that drops.
    delete = "041d0010000000010002000000000007"
    add = "041d0020000000020000000600000007" + "00010010000000c80000006400000000"
    assert Session().encode(SetMeter(7, 200, 100)).hex() == delete + add


def test_a_meter_by_kilobits_is_changed_and_deleted() -> None:
    # OFPMC_MODIFY, OFPMF_KBPS and OFPMF_BURST.
    change = "041d0020000000010001000500000007" + "0001001000000fa00000019000000000"
    assert Session().encode(SetMeter(7, 4000, 400, by_bits=True, is_new=False)).hex() == change
    assert Session().encode(DeleteMeter(7)).hex() == "041d0010000000010002000000000007"


def test_a_refused_change_of_a_meter_is_told_with_the_meter_until_a_barrier_shows_that_it_was_taken() -> None:
    session = Session()
    meters = [SetMeter(number, 4000, 400, by_bits=True, is_new=number == 8) for number in (7, 8, 9)]
    asked = [session.encode(meter) for meter in meters]
    # Of a new one the last message is its addition. OFPET_METER_MOD_FAILED, OFPMMFC_BAD_RATE.
    errors = [bytes.fromhex("0401000c") + sent[-28:-24] + bytes.fromhex("000c0006") for sent in asked]
    assert session.decode(errors[0]) == Refused("error type 12 code 6", meter=meters[0])
    assert session.decode(errors[1]) == Refused("error type 12 code 6", meter=meters[1])
    session.encode(Barrier(5))
    assert session.decode(bytes.fromhex("0415000880000005")) == BarrierReply(5)
    assert session.decode(errors[2]) == Refused("error type 12 code 6")
    assert not session._pending


def counted_meter(number: int, packets: int, dropped: int) -> bytes:
    """The counters of a meter with one band (OpenFlow 1.3 §A.3.5.11), created 1.5 s ago."""
    head = struct.pack("!IH6xIQQII", number, 56, 3, packets, 100 * packets, 1, 500_000_000)
    return head + struct.pack("!QQ", dropped, 100 * dropped)


def meters_part(xid: int, *entries: bytes, more: bool = False) -> bytes:
    """A part of a switch's reply with counters of meters."""
    body = struct.pack("!HH4x", 9, more) + b"".join(entries)
    return HEADER.pack(VERSION, 19, HEADER.size + len(body), xid) + body


def test_counters_of_meters_are_read_in_parts() -> None:
    session = Session()
    asked = session.encode(MeterCountersRequest())
    assert asked.hex() == "04120018" + "00000001" + "0009000000000000" + "ffffffff00000000"
    assert session.decode(meters_part(1, counted_meter(7, 30, 10), more=True)) is None
    told = session.decode(meters_part(1, counted_meter(8, 5, 0)))
    assert told == MeterCountersReply((MeterCounters(7, 30, 10, 1.5), MeterCounters(8, 5, 0, 1.5)))
    assert not session._parts


def test_counters_of_meters_that_cannot_be_read_spoil_the_reply() -> None:
    entry = counted_meter(7, 30, 10)
    for bad in (entry[:-1], entry[:4] + b"\0\0" + entry[6:], entry[:4] + b"\0\x39" + entry[6:], entry[:12]):
        session = Session()
        session.encode(MeterCountersRequest())
        assert session.decode(meters_part(1, bad)) == Malformed("counters of meters")
        assert not session._parts


def test_a_switch_that_refuses_to_count_meters_has_none_to_tell_of() -> None:
    session = Session()
    asked = session.encode(MeterCountersRequest())
    error = bytes.fromhex("0401000c") + asked[4:8] + bytes.fromhex("00010002")
    assert session.decode(error) == MeterCountersReply(())


def test_a_switch_that_refuses_to_tell_of_meters_has_none() -> None:
    session = Session()
    asked = session.encode(MeterFeaturesRequest())
    # OFPET_BAD_REQUEST, OFPBRC_BAD_MULTIPART.
    error = bytes.fromhex("0401000c") + asked[4:8] + bytes.fromhex("00010002")
    assert session.decode(error) == MeterFeatures(0)
    assert not session._parts


def test_a_switch_tells_its_highest_meter() -> None:
    session = Session()
    asked = session.encode(MeterFeaturesRequest())
    # OpenFlow 1.3 §A.3.5.13: 200,000 meters that drop, by packets and by kilobits, with bursts and statistics.
    told = "0413 0020" + asked[4:8].hex() + "000b 0000 00000000" + "00030d40 00000002 0000000f 01 00 0000"
    assert session.decode(bytes.fromhex(told)) == MeterFeatures(200_000, 200_000)


def part_of(xid: int, *entries: bytes, more: bool) -> bytes:
    """A part of a switch's reply with rules."""
    body = struct.pack("!HH4x", 1, more) + b"".join(entries)
    return HEADER.pack(VERSION, 19, HEADER.size + len(body), xid) + body


def unreadable(entry: bytes) -> bytes:
    """A rule whose lengths fit, and in whose match there is a field of a length that none has."""
    field = entry.index(bytes.fromhex("80000004"))
    return entry[:field] + bytes.fromhex("80000006") + entry[field + 4 :]


def test_a_rule_that_cannot_be_read_costs_neither_the_others_nor_the_reply() -> None:
    known = [Rule(0, 10 + port, Match(in_port=port), (Output(1),)) for port in range(1, 7)]
    entries = [_flow_stats(rule, 1, 0) for rule in known]
    bad = unreadable(entries[1])
    with pytest.raises(Exception):  # noqa: B017
        of_parser.OFPFlowStats.parser(bytes(16) + bad, 16)
    for place in (0, 1):
        session = Session()
        session.encode(FlowStatsRequest())
        parts = [[entries[0], entries[2]], [entries[3], entries[4]]]
        parts[place].insert(1, bad)
        assert session.decode(part_of(1, *parts[0], more=True)) is None
        told = session.decode(part_of(1, *parts[1], more=False))
        assert isinstance(told, FlowStatsReply)
        assert [each.rule for each in told.rules] == [known[0], *known[2:5]]
        assert told.foreign == ("table=0,priority=12 (its match or its actions cannot be read)",)
        assert not session._parts


def test_a_part_whose_lengths_do_not_fit_spoils_the_reply_and_is_told() -> None:
    """Its other parts alone would look as if the switch had lost the rest of its rules."""
    entries = [_flow_stats(rule, 1, 0) for rule in base()]
    session = Session()
    session.encode(FlowStatsRequest())
    assert isinstance(session.decode(part_of(1, entries[0], entries[1][:-8], more=True)), Malformed)
    assert session.decode(part_of(1, *entries[2:], more=False)) is None
    session.encode(FlowStatsRequest())
    told = session.decode(part_of(2, *entries, more=False))
    assert isinstance(told, FlowStatsReply)
    assert len(told.rules) == len(entries)


def test_a_switch_whose_replies_cannot_be_read_is_named_and_stays() -> None:
    async def test(service: Service, address: tuple[str, int]) -> None:
        network = FakeNetwork(two_paths())
        switch = network.switches[1]
        say = switch._parts

        def spoilt(kind: int, entries: list[bytes], xid: int) -> None:
            say(kind, [entry[:-8] for entry in entries] if kind == 1 else entries, xid)

        switch._parts = spoilt  # type: ignore[method-assign]
        await network.connect(*address)
        await until(lambda: len(service.controller.topology.switches) == 4)
        await until(lambda: "malformed" in codes(service))
        assert len(service.controller.topology.switches) == 4
        network.close()

    serving(test)


# Groups.


def test_a_failover_group_has_the_bytes_of_the_specification() -> None:
    """OpenFlow 1.3 §A.3.4.2: type 3, buckets without weight that watch a port."""
    buckets = (Bucket(2, (Output(2),)), Bucket(1, (SetField("vlan_pcp", 2), Output(Reserved.IN_PORT))))
    sent = Session().encode(SetFailoverGroup(0xB3002001, buckets, is_new=True))
    first = "0020 0000 00000002 ffffffff 00000000" + "0000 0010 00000002 ffff 000000000000"
    mark = "0019 0010 80000e01 02 00000000000000"
    second = "0030 0000 00000001 ffffffff 00000000" + mark + "0000 0010 fffffff8 ffff 000000000000"
    head = "040f 0060 00000001" + "0000 03 00 b3002001"
    assert sent == bytes.fromhex(head + first + second)
    assert Session().encode(SetFailoverGroup(7, (), is_new=False))[8:] == bytes.fromhex("0001030000000007")


def group_desc(number: int, kind: int, buckets: bytes) -> bytes:
    return struct.pack("!HBxI", 8 + len(buckets), kind, number) + buckets


def groups_reply(*entries: bytes, kind: int = 7) -> bytes:
    body = struct.pack("!HH4x", kind, 0) + b"".join(entries)
    return HEADER.pack(VERSION, 19, HEADER.size + len(body), 1) + body


def test_groups_are_listed_as_they_were_sent_and_others_without_their_buckets() -> None:
    buckets = rules.buckets_of(0xB3002001)
    assert buckets is not None
    sent = Session().encode(SetFailoverGroup(0xB3002001, buckets, is_new=True))[16:]
    session = Session()
    session.encode(GroupsRequest())
    odd = struct.pack("!HHII4x", 16 + 8, 0, 1, 0xFFFFFFFF) + bytes.fromhex("000b000800000000")
    told = session.decode(
        groups_reply(group_desc(0xB3002001, 3, sent), group_desc(7, 1, sent), group_desc(8, 3, odd))
    )
    assert told == GroupsReply({0xB3002001: buckets, 7: None, 8: None})


@pytest.mark.parametrize(
    "entry",
    [
        struct.pack("!HBxI", 0, 3, 7),
        struct.pack("!HBxI", 9, 3, 7),
        group_desc(7, 3, bytes(16)),
        group_desc(7, 3, struct.pack("!HHII4x", 24, 0, 1, 0xFFFFFFFF) + bytes(8)),
        group_desc(7, 3, struct.pack("!HHII4x", 24, 0, 1, 0xFFFFFFFF) + struct.pack("!HH4x", 0, 16)),
    ],
)
def test_a_list_of_groups_whose_lengths_do_not_fit_is_malformed(entry: bytes) -> None:
    session = Session()
    session.encode(GroupsRequest())
    assert session.decode(groups_reply(entry)) == Malformed("a list of groups")


def test_a_switch_tells_of_failover_groups_that_can_mark_packets() -> None:
    for types, actions, most in ((0xF, 1 << 0 | 1 << 25, 100), (0x7, 1 << 0 | 1 << 25, 0), (0xF, 1, 0)):
        session = Session()
        session.encode(GroupFeaturesRequest())
        body = struct.pack("!II8I", types, 0, 1, 2, 3, 100, 0, 0, 0, actions)
        assert session.decode(groups_reply(body, kind=8)) == GroupFeatures(most)
    session = Session()
    session.encode(GroupFeaturesRequest())
    assert session.decode(groups_reply(kind=8)) == GroupFeatures(0)


def test_a_switch_that_knows_no_groups_may_say_so() -> None:
    session = Session()
    asked = [session.encode(each) for each in (GroupFeaturesRequest(), GroupsRequest())]
    for request, meant in zip(asked, (GroupFeatures(0), GroupsReply({})), strict=True):
        error = HEADER.pack(VERSION, 1, 12, HEADER.unpack_from(request)[3]) + b"\x00\x01\x00\x02"
        assert session.decode(error) == meant
    rule = Rule(4, 1, Match(), (ToGroup(7),))
    xid = HEADER.unpack_from(session.encode(AddRule(rule)))[3]
    # OFPBAC_BAD_OUT_GROUP (OpenFlow 1.3 §A.4.4).
    error = HEADER.pack(VERSION, 1, 12, xid) + struct.pack("!HH", 2, 9)
    assert session.decode(error) == Refused("group-unknown", rule)
    # OFPBAC_BAD_TYPE: it knows no such action.
    xid = HEADER.unpack_from(session.encode(AddRule(rule)))[3]
    error = HEADER.pack(VERSION, 1, 12, xid) + struct.pack("!HH", 2, 0)
    assert session.decode(error) == Refused("group-refused", rule)
    sent = session.encode(SetFailoverGroup(7, (), is_new=True))
    for code, reason in ((0, "group-exists"), (1, "group-refused"), (8, "group-unknown")):
        error = HEADER.pack(VERSION, 1, 12, HEADER.unpack_from(sent)[3]) + struct.pack("!HH", 6, code)
        assert session.decode(error) == Refused(reason)


def test_a_barrier_confirms_the_rules_before_it_and_no_others() -> None:
    session = Session()
    before, after = base()[0], base()[1]
    first = HEADER.unpack_from(session.encode(AddRule(before)))[3]
    session.encode(Barrier(5))
    second = HEADER.unpack_from(session.encode(AddRule(after)))[3]
    session.decode(bytes.fromhex("0415000880000005"))
    errors = [HEADER.pack(VERSION, 1, 12, xid) + b"\x00\x05\x00\x01" for xid in (first, second)]
    assert [session.decode(error) for error in errors] == [Refused("table-full"), Refused("table-full", after)]
