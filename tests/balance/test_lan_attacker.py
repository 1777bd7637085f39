"""A hostile client in the LAN: it is stopped, with a named reason, and nobody else is affected."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator

import pytest

from braid_lab.experiments.balance.nat.fragments import LARGE, collect
from braid_lab.experiments.balance.nat.testbed import SERVICE, Mapping, NatTestbed, bench
from braid_lab.packets.codec import Flag, FragmentInfo, Packet, Raw, Tcp, Udp, echo, encode, unreachable
from braid_lab.packets.fragments import split
from braid_lab.process import LabError, wait_until

#: Uplinks with few ports and a small table, so that a test can exhaust them.
TIGHT = """
[[uplink]]
name = "dsl"
device = "dsl"
ports = "20000-20031"
[[uplink]]
name = "lte"
device = "lte"
ports = "20000-20031"
[datapath]
max_flows = 1024
"""

EVIL, GOOD = 1, 2
FLOOD = 2000
SEED = 20261122


@pytest.fixture(scope="module")
def roomy() -> Iterator[NatTestbed]:
    with bench("gateway", offload=False) as made:
        yield made


@pytest.fixture
def tight() -> Iterator[NatTestbed]:
    with bench("gateway", offload=False, configuration=TIGHT) as made:
        yield made


class Bystander:
    """Another client, with a connection and a mapping from before, and new ones."""

    def __init__(self, location: NatTestbed, family: int) -> None:
        self._place, self._family = location, family
        self._tcp = location.open_tcp(family, client=GOOD, remote=50)
        self._udp = location.open_udp(family, client=GOOD, remote=50)

    def is_well(self) -> None:
        self._place.carries(self._tcp)
        _, sent = self._place.out(self._udp.request())
        assert (sent.source, sent.udp().source_port) == (self._udp.outer, self._udp.outer_port)
        self._place.back(self._udp.uplink, self._udp.answer())
        self._place.carries(self._place.open_tcp(self._family, client=GOOD, remote=51))
        self._place.open_udp(self._family, client=GOOD, remote=51)


def flood(location: NatTestbed, family: int, packets: Iterable[Packet]) -> None:
    """Let a client send these packets, and take outgoing ones from the wires before they are full."""
    for number, packet in enumerate(packets):
        location.lan.send(packet)
        if number % 100 == 99:
            location.settled(family)
    location.settled(family)


def counted(location: NatTestbed, before: dict[str, int]) -> dict[str, int]:
    now = location.reasons()
    return {name: now[name] - before.get(name, 0) for name in now if now[name] != before.get(name, 0)}


def outside(location: NatTestbed, family: int) -> list[Packet]:
    return [packet for port, packet in location.settled(family) if port is not location.lan]


SPOOFED = {
    4: ["8.8.8.8", "198.51.100.9", "192.0.0.8", "100.64.1.2", "100.64.2.77", "10.9.8.7"],
    6: ["2001:db8:ffff::9", "64:ff9b:1:6272::8", "2001:db8:1::2", "2001:db8:2::77", "fd99::1"],
}


@pytest.mark.parametrize("family", [4, 6])
def test_spoofed_sources_open_nothing(roomy: NatTestbed, family: int) -> None:
    other = Bystander(roomy, family)
    before = roomy.reasons()
    remote = roomy.remote(family, 60)
    for source in SPOOFED[family]:
        for number in range(20):
            roomy.lan.send(Packet(source, remote, Tcp(3000 + number, SERVICE, Flag.SYN, 1)))
            roomy.lan.send(Packet(source, remote, Udp(3000 + number, SERVICE, b"spoofed")))
            roomy.lan.send(Packet(source, remote, echo(family, 3000 + number)))
    left = [each for each in outside(roomy, family) if each.dest == remote]
    assert not left, left[:3]
    changes = counted(roomy, before)
    assert changes.get("lan_spoofed", 0) > 0, changes
    inner = {each["inner"].rpartition(":")[0].strip("[]") for each in roomy.daemon.json("flows")["flows"]}
    assert not inner & set(SPOOFED[family]), inner
    other.is_well()


@pytest.mark.parametrize("family", [4, 6])
def test_odd_tcp_flags_open_no_connection(roomy: NatTestbed, family: int) -> None:
    other = Bystander(roomy, family)
    established = roomy.daemon.json("status")["flows"]["established"]
    for flags in range(64):
        odd = Tcp(roomy.port(), SERVICE, Flag(flags), 1, 1, b"x" * (flags % 3))
        roomy.lan.send(Packet(roomy.client(family, EVIL), roomy.remote(family, 61), odd))
    roomy.settled(family)
    assert roomy.daemon.json("status")["flows"]["established"] == established
    other.is_well()


@pytest.mark.parametrize("family", [4, 6])
def test_a_flood_of_syns_pushes_out_its_like_only(roomy: NatTestbed, family: int) -> None:
    other = Bystander(roomy, family)
    source, remote = roomy.client(family, EVIL), roomy.remote(family, 62)
    syns = (Packet(source, remote, Tcp(1024 + number, SERVICE, Flag.SYN, number)) for number in range(FLOOD))
    flood(roomy, family, syns)
    other.is_well()


@pytest.mark.parametrize("family", [4, 6])
def test_a_flood_of_fragments_harms_no_others(roomy: NatTestbed, family: int) -> None:
    """Fragments whose first one never comes must not displace those whose first one does."""
    other = Bystander(roomy, family)
    before = roomy.reasons()
    source, remote = roomy.client(family, EVIL), roomy.remote(family, 63)
    pieces = (
        Packet(source, remote, Raw(17, bytes(200)), ident=ident, piece=FragmentInfo(1400, ident % 2 == 0))
        for ident in range(FLOOD)
    )
    flood(roomy, family, pieces)
    assert [name for name in counted(roomy, before) if "fragment" in name], counted(roomy, before)
    mapping = roomy.open_udp(family, client=GOOD, remote=64)
    for each in split(mapping.request(LARGE), 1280, 0x7001)[::-1]:
        roomy.lan.send(each)
    _, got = collect(list(roomy.uplinks.values()), lambda each: each.dest == mapping.remote)
    assert not got.faults
    assert got.udp().data == LARGE
    other.is_well()


@pytest.mark.parametrize("family", [4, 6])
def test_lying_headers_are_named_and_go_nowhere(roomy: NatTestbed, family: int) -> None:
    other = Bystander(roomy, family)
    before = roomy.reasons()
    source, remote = roomy.client(family, EVIL), roomy.remote(family, 65)
    bodies = [
        Raw(6, bytes(4)),
        Raw(6, bytes(12) + b"\xf0" + bytes(7)),
        Raw(17, bytes(7)),
        Raw(17, b"\x0b\xb8\x13\x88\x00\x03\x00\x00"),
        Raw(1 if family == 4 else 58, b"\x08"),
        Raw(17, b""),
    ]
    for body in bodies:
        roomy.lan.send(Packet(source, remote, body))
    left = [each for each in outside(roomy, family) if each.dest == remote]
    assert not left, left
    assert [name for name in counted(roomy, before) if "malformed" in name], counted(roomy, before)
    other.is_well()


@pytest.mark.parametrize("family", [4, 6])
def test_icmp_errors_about_others_flows_change_nothing(roomy: NatTestbed, family: int) -> None:
    """A client may claim that another one's connection is unreachable; at most that claim is forwarded."""
    mapping = roomy.open_tcp(family, client=GOOD, remote=66)
    quote = encode(mapping.reply(Flag.ACK, b"data"))
    inside = dataclasses.replace(mapping.reply(Flag.ACK), dest=mapping.inside)
    for quoted in (quote, encode(inside)):
        roomy.lan.send(Packet(roomy.client(family, EVIL), mapping.remote, unreachable(quoted)))
    roomy.settled(family)
    roomy.carries(mapping)


def clashing(location: NatTestbed, family: int, port: int) -> list[Mapping]:
    """Let the hostile client have a port on both uplinks."""
    return [location.send_udp(family, client=EVIL, port=port), location.send_udp(family, client=3, port=port)]


@pytest.mark.parametrize("family", [4, 6])
def test_unanswered_mappings_keep_no_port_from_others(tight: NatTestbed, family: int) -> None:
    """Unanswered mappings occupy all ports of both ranges: they are evicted."""
    other = Bystander(tight, family)
    for port in range(20000, 20032):
        clashing(tight, family, port)
    opened = [tight.open_udp(family, client=GOOD, port=20000 + number) for number in range(8)]
    assert len({(each.outer, each.outer_port) for each in opened}) == 8
    other.is_well()


def test_used_up_ports_are_named(tight: NatTestbed) -> None:
    """Answered mappings keep their ports; a request for one of them fails with a reason, and any other port works."""
    other = Bystander(tight, 4)
    for port in range(20000, 20032):
        for client in (EVIL, 3):
            tight.open_udp(4, client=client, port=port)
    before = tight.reasons()
    with pytest.raises(LabError):
        tight.send_udp(4, client=GOOD, port=20007)
    assert counted(tight, before).get("nat_ports_exhausted") == 1
    other.is_well()


def test_a_client_that_fills_the_table_is_limited(tight: NatTestbed) -> None:
    """Beyond its share of a half-full table a client opens nothing new, while others do."""
    other = Bystander(tight, 4)
    # More than half of the table, and than the share of one of two clients. Each further one might be refused.
    opened = [tight.open_udp(4, client=EVIL) for _ in range(1024 // 2 + 1)]

    def limited() -> list[str]:
        return [each["text"] for each in tight.daemon.json("events")["events"] if each["kind"] == "client-limited"]

    (said,) = wait_until(limited, what="the client to be named", timeout=15, poll=0.1)
    assert tight.client(4, EVIL) in said
    before = tight.reasons()
    with pytest.raises(LabError):
        tight.send_udp(4, client=EVIL)
    assert counted(tight, before).get("client_over_limit") == 1
    server = tight.remote(4)
    for client, outcome in ((EVIL, "refused"), (GOOD, "shared")):
        explained = tight.daemon.json("explain", server, "--source", tight.client(4, client))["answers"][0]
        assert explained["outcome"] == outcome, explained
    # Its existing flows go on.
    tight.out(opened[0].request())
    other.is_well()


def anything(location: NatTestbed, generator: random.Random, family: int) -> Packet:
    """Return a packet of any protocol, whole or in fragments, with random content."""
    protocol = generator.choice([1, 6, 17, 41, 44, 47, 50, 58, 132, generator.randrange(256)])
    offset, more = generator.randrange(0, 4000, 8), generator.random() < 0.5
    return Packet(
        location.client(family, EVIL),
        location.remote(family, 67),
        Raw(protocol, generator.randbytes(generator.randrange(80))),
        hops=generator.randrange(256),
        ident=generator.randrange(65536),
        piece=FragmentInfo(offset, more) if generator.random() < 0.2 else None,
    )


@pytest.mark.parametrize("family", [4, 6])
def test_random_packets_harm_nobody(roomy: NatTestbed, family: int) -> None:
    other = Bystander(roomy, family)
    generator = random.Random(SEED)
    flood(roomy, family, (anything(roomy, generator, family) for _ in range(FLOOD)))
    other.is_well()
