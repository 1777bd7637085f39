"""Rules by name under attack: lying name servers, and answers forged by third parties."""

from __future__ import annotations

import ipaddress
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from braid_lab.experiments.balance.nat.testbed import Mapping, NatTestbed, bench
from braid_lab.net.open_vswitch import on_datapath
from braid_lab.packets.codec import Packet, Udp
from braid_lab.packets.tap import expect
from braid_lab.process import wait_until

DNS, A, CNAME, AAAA, IN = 53, 1, 5, 28, 1
#: Name servers that clients query, by their number in `NatTestbed.remote`: a listed one, and a client's own.
TRUSTED, STRANGE = 53, 54
RULES = """
name_servers = "198.51.100.53"
[[rule]]
name = "bank"
domain = "*.bank.example"
use = "lte"
"""
SEED = 20261122


@pytest.fixture(scope="module", params=["ebpf", "packet-in"])
def location(request: pytest.FixtureRequest) -> Iterator[NatTestbed]:
    with on_datapath(request.param), bench("gateway", offload=False, configuration=RULES) as made:
        yield made


def wire_name(name: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


@dataclass(frozen=True)
class Record:
    """One record of an answer: an address, an alias, or arbitrary data."""

    owner: bytes
    kind: int
    data: bytes
    ttl: int = 60

    def wire(self) -> bytes:
        return self.owner + struct.pack("!HHIH", self.kind, IN, self.ttl, len(self.data)) + self.data


def address(name: str, text: str, ttl: int = 60) -> Record:
    packed = ipaddress.ip_address(text).packed
    return Record(wire_name(name), A if len(packed) == 4 else AAAA, packed, ttl)


def message(asked: str, *records: Record, kind: int = A, answers: int | None = None, flags: int = 0x8180) -> bytes:
    count = len(records) if answers is None else answers
    question = wire_name(asked) + struct.pack("!HH", kind, IN)
    return struct.pack("!6H", 7, flags, 1, count, 0, 0) + question + b"".join(each.wire() for each in records)


def ask(location: NatTestbed, asked: str, kind: int = A, server: int = TRUSTED) -> Mapping:
    """Let a client query a name server."""
    mapping = location.send_udp(4, remote=server, remote_port=DNS)
    location.out(mapping.request(message(asked, kind=kind, flags=0x0100)))
    return mapping


def answer(location: NatTestbed, mapping: Mapping, data: bytes) -> None:
    """Let the server answer, and check that the client gets its answer unchanged."""
    got = location.back(mapping.uplink, mapping.answer(data))
    assert got.udp().data == data


def rule_for(location: NatTestbed, server: str) -> bool:
    """Return whether a connection to this address would match the rule."""
    explained = location.daemon.json("explain", f"{server}:443", "--source", location.client(4))["answers"][0]
    return bool(explained["outcome"] == "uplink" and explained["uplink"] == "lte")


def learn(location: NatTestbed, number: int) -> None:
    """Let a true answer be learned after the packets sent before: answers are processed in order."""
    name, server = f"n{number}.bank.example", f"203.0.113.{number}"
    answer(location, ask(location, name), message(name, address(name, server)))
    wait_until(lambda: rule_for(location, server), what=f"{name} to be learned")


def test_an_answer_to_what_was_asked_is_believed(location: NatTestbed) -> None:
    learn(location, 1)
    chain = Record(wire_name("www.bank.example"), CNAME, wire_name("cdn.example"))
    answer(
        location,
        ask(location, "www.bank.example"),
        message("www.bank.example", chain, address("cdn.example", "203.0.113.2")),
    )
    wait_until(lambda: rule_for(location, "203.0.113.2"), what="an alias' address to be learned")
    name = "six.bank.example"
    said = message(name, address(name, "2001:db8:aaaa::1"), kind=AAAA)
    answer(location, ask(location, name, AAAA), said)
    wait_until(
        lambda: location.daemon.json("explain", "2001:db8:aaaa::1")["answers"][0]["uplink"] == "lte",
        what="an IPv6 address to be learned",
    )


LIES = {
    "another name": (
        "evil.example",
        message("evil.example", address("evil.example", "203.0.113.9"), address("pay.bank.example", "203.0.113.10")),
    ),
    "another question": ("evil.example", message("pay.bank.example", address("other.bank.example", "203.0.113.10"))),
    "a name that only looks like it": (
        "bank.example.evil",
        message("bank.example.evil", address("bank.example.evil", "203.0.113.10")),
    ),
    "an alias away from it": (
        "evil.example",
        message(
            "evil.example",
            Record(wire_name("evil.example"), CNAME, wire_name("pay.bank.example")),
            address("evil.example", "203.0.113.10"),
        ),
    ),
    "an address that is cut off": (
        "pay.bank.example",
        message("pay.bank.example", Record(wire_name("pay.bank.example"), A, b"\xcb\x00\x71")),
    ),
    "more answers than there are": ("pay.bank.example", message("pay.bank.example", answers=65535)),
    "a question and no answer": ("pay.bank.example", message("pay.bank.example", flags=0x0100)),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_not_believed(location: NatTestbed, lie: str) -> None:
    asked, said = LIES[lie]
    answer(location, ask(location, asked), said)
    learn(location, 20 + list(LIES).index(lie))
    assert not rule_for(location, "203.0.113.10")


@pytest.mark.parametrize(
    "server", ["192.168.8.102", "127.0.0.1", "10.0.0.1", "169.254.1.1", "100.64.1.2", "224.0.0.1"]
)
def test_addresses_that_are_nowhere_else_are_not_learned(location: NatTestbed, server: str) -> None:
    """DNS rebinding: a name outside that points inside."""
    answer(
        location, ask(location, "pay.bank.example"), message("pay.bank.example", address("pay.bank.example", server))
    )
    learn(location, 40 + int(server.split(".")[0]) % 100)
    assert not rule_for(location, server)


def test_a_stranger_is_not_believed(location: NatTestbed) -> None:
    """A mapping is open to any remote, but only the queried server's answers are learned."""
    mapping = ask(location, "pay.bank.example")
    said = message("pay.bank.example", address("pay.bank.example", "203.0.113.11"))
    forged = Packet(location.remote(4, 99), mapping.outer, Udp(DNS, mapping.outer_port, said))
    mapping.uplink.send(forged)
    expect([location.lan], lambda each: each.source == forged.source, what="the stranger's datagram")
    learn(location, 60)
    assert not rule_for(location, "203.0.113.11")


def test_a_name_server_of_a_clients_own_teaches_nobody(location: NatTestbed) -> None:
    """Anyone can run a name server that maps any name to any address."""
    name, server = "pay.bank.example", "203.0.113.13"
    answer(location, ask(location, name, server=STRANGE), message(name, address(name, server)))
    learn(location, 62)
    assert not rule_for(location, server)
    [said] = [each for each in location.daemon.json("status")["health"] if each["code"] == "dns-answer-rejected"]
    assert location.remote(4, STRANGE) in said["text"], said
    assert "name_servers" in said["fix"], said


def test_circles_and_noise_harm_nobody(location: NatTestbed) -> None:
    pid = location.daemon.pid
    generator = random.Random(SEED)
    loop = struct.pack("!6H", 7, 0x8180, 1, 1, 0, 0) + b"\xc0\x0c" + struct.pack("!HH", A, IN) + b"\xc0\x0c"
    circle = message(
        "a.bank.example",
        Record(wire_name("a.bank.example"), CNAME, wire_name("b.bank.example")),
        Record(wire_name("b.bank.example"), CNAME, wire_name("a.bank.example")),
    )
    for said in (loop, circle, b"", b"\0", bytes(11)):
        answer(location, ask(location, "a.bank.example"), said)
    true = message("a.bank.example", address("a.bank.example", "203.0.113.12"))
    mapping = ask(location, "a.bank.example")
    for _ in range(300):
        noise = bytearray(true)
        for _ in range(generator.randrange(1, 8)):
            noise[generator.randrange(len(noise))] = generator.randrange(256)
        answer(
            location, mapping, bytes(noise[: generator.randrange(len(noise)) if generator.random() < 0.3 else None])
        )
    learn(location, 61)
    assert location.daemon.pid == pid
