"""Packets by which an attacker tries to disturb a host that balances; pure.

A blind attacker sees nothing, but is given all that can be guessed: the host's addresses, the targets of its probes,
and both ends of its connections with their ports. What is left to guess are numbers of 16 or 32 bits.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from braid_lab.packets.codec import (
    ECHO_REPLY,
    TIME_EXCEEDED,
    UNREACHABLE,
    Flag,
    FragmentInfo,
    Icmp,
    Packet,
    Raw,
    Tcp,
    Udp,
    echo,
    encode,
    too_big,
)

#: Codes of "unreachable" by which routers and hosts refuse: network, host, protocol, port, prohibited.
REFUSALS = {4: (0, 1, 2, 3, 9, 10, 13), 6: (0, 1, 3, 4, 5, 6)}

#: Smallest MTU that a forged "too big" claims.
TINY_MTU = 68

HTTP_PORT, DNS_PORT = 80, 53

#: The port from which the host's resolver asks, which the attacker knows.
RESOLVER_PORT = 40053

#: A name that has a rule, and the address that a forged answer gives to it.
RULED_NAME, LURE = "pay.bank.example", "203.0.113.66"


@dataclass(frozen=True)
class Connection:
    """One of the host's flows as the internet sees it."""

    outer: str
    outer_port: int
    remote: str
    remote_port: int


@dataclass(frozen=True)
class Known:
    """Everything that the attacker may assume."""

    #: The host's address on each uplink and IP version.
    addresses: Sequence[str]
    #: Targets of its probes.
    targets: Sequence[str]
    servers: Sequence[str]
    connections: Sequence[Connection]

    def of_family(self, addresses: Sequence[str], other: str) -> list[str]:
        """Return those of the same IP version as `other`."""
        return [each for each in addresses if (":" in each) == (":" in other)]


Forger = Callable[[Known, random.Random], Iterator[Packet]]


def _ends(known: Known, chance: random.Random, remotes: Sequence[str]) -> tuple[str, str]:
    """Return one of the host's addresses and a remote of the same IP version."""
    outer = chance.choice(known.addresses)
    return outer, chance.choice(known.of_family(remotes, outer))


def _strangers(chance: random.Random, family: int) -> str:
    """Return an address that nobody has."""
    if family == 4:
        return f"192.0.2.{chance.randrange(1, 255)}"
    return f"2001:db8:dead::{chance.randrange(1, 1 << 16):x}"


def _error(chance: random.Random, quote: Packet) -> Icmp:
    """Return an ICMP error about a packet."""
    data, family = encode(quote), quote.family
    kind = chance.randrange(4)
    if kind == 0:
        return Icmp(TIME_EXCEEDED[family], data=data)
    if kind == 1:
        return too_big(data, chance.choice((TINY_MTU, 576, 1280)))
    return Icmp(UNREACHABLE[family], chance.choice(REFUSALS[family]), data=data)


def icmp_on_probes(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Errors about echo requests to the targets, half of them with identifier and sequence number zero."""
    while True:
        outer, target = _ends(known, chance, known.targets)
        family = 6 if ":" in outer else 4
        ident, sequence = (0, 0) if chance.random() < 0.5 else (chance.randrange(1 << 16), chance.randrange(1 << 16))
        quote = Packet(outer, target, echo(family, ident, sequence))
        yield Packet(_strangers(chance, family), outer, _error(chance, quote))


def icmp_on_flows(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Errors about segments of known connections; the sequence number is a guess."""
    while True:
        flow = chance.choice(known.connections)
        segment = Tcp(flow.outer_port, flow.remote_port, Flag.ACK, chance.getrandbits(32), chance.getrandbits(32))
        quote = Packet(flow.outer, flow.remote, segment)
        yield Packet(_strangers(chance, quote.family), flow.outer, _error(chance, quote))


def echo_replies(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Answers to probes that nobody saw, from the targets' addresses."""
    while True:
        outer, target = _ends(known, chance, known.targets)
        family = 6 if ":" in outer else 4
        answer = Icmp(ECHO_REPLY[family], rest=chance.randbytes(4), data=chance.randbytes(16))
        yield Packet(target, outer, answer)


def _to_flows(known: Known, chance: random.Random, kinds: Sequence[Flag], size: int) -> Iterator[Packet]:
    while True:
        flow = chance.choice(known.connections)
        segment = Tcp(
            flow.remote_port,
            flow.outer_port,
            chance.choice(kinds),
            chance.getrandbits(32),
            chance.getrandbits(32),
            chance.randbytes(size),
        )
        yield Packet(flow.remote, flow.outer, segment)


def resets(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Resets and ends of known connections, with guessed numbers."""
    return _to_flows(known, chance, (Flag.RST, Flag.RST | Flag.ACK, Flag.FIN | Flag.ACK), 0)


def segments(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Data in known connections, with guessed numbers: gaps that would look like loss."""
    return _to_flows(known, chance, (Flag.ACK, Flag.PSH | Flag.ACK), 512)


def race_answers(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Answers to SYNs of races, from the servers: port and number are guesses."""
    kinds = (Flag.SYN | Flag.ACK, Flag.RST | Flag.ACK, Flag.RST, Flag.SYN)
    while True:
        outer, server = _ends(known, chance, known.servers)
        port = chance.randrange(1024, 1 << 16)
        yield Packet(
            server,
            outer,
            Tcp(HTTP_PORT, port, chance.choice(kinds), chance.getrandbits(32), chance.getrandbits(32)),
        )


def dns_answers(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Answers to the resolver's questions, from its server and to its port, that teach a rule's name."""
    server = known.of_family(known.servers, "0.0.0.0")[0]  # noqa: S104 # an IP version, not an address to bind
    name = b"".join(bytes([len(part)]) + part.encode() for part in RULED_NAME.split(".")) + b"\0"
    record = name + struct.pack("!HHIH4B", 1, 1, 300, 4, *map(int, LURE.split(".")))
    while True:
        outer = chance.choice(known.of_family(known.addresses, server))
        answer = struct.pack("!6H", chance.randrange(1 << 16), 0x8180, 1, 1, 0, 0)
        yield Packet(server, outer, Udp(DNS_PORT, RESOLVER_PORT, answer + name + struct.pack("!HH", 1, 1) + record))


def fragments(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Fragments that never become whole packets, from ever new addresses and from servers."""
    while True:
        outer = chance.choice(known.addresses)
        family = 6 if ":" in outer else 4
        # The first server is left out: with its address and 65,536 numbers any host's reassembly is disturbed.
        source = chance.choice([_strangers(chance, family), *known.of_family(known.servers, outer)[1:]])
        offset = chance.choice((0, 8, 1400))
        piece = FragmentInfo(offset, offset == 0 or chance.random() < 0.9)
        body = Raw(chance.choice((6, 17)), chance.randbytes(64))
        yield Packet(source, outer, body, ident=chance.randrange(1 << 16), piece=piece)


def flood(known: Known, chance: random.Random) -> Iterator[Packet]:
    """SYNs and datagrams for connections that do not exist, from ever new addresses."""
    while True:
        outer = chance.choice(known.addresses)
        source, ports = _strangers(chance, 6 if ":" in outer else 4), [chance.randrange(1024, 1 << 16) for _ in "12"]
        if chance.random() < 0.5:
            yield Packet(source, outer, Tcp(ports[0], ports[1], Flag.SYN, chance.getrandbits(32)))
        else:
            yield Packet(source, outer, Udp(ports[0], ports[1], chance.randbytes(32)))


def flows_of_a_client(source: str, remotes: Sequence[str]) -> Forger:
    """Return a forger of a LAN client that opens connections and datagram flows without end."""

    def made(_: Known, chance: random.Random) -> Iterator[Packet]:
        for number in itertools.count():
            remote, port = remotes[number % len(remotes)], 1024 + number % 60_000
            if chance.random() < 0.5:
                yield Packet(source, remote, Tcp(port, 9, Flag.SYN, chance.getrandbits(32)))
            else:
                yield Packet(source, remote, Udp(port, 9, chance.randbytes(32)))

    return made


def impostors(sources: Sequence[str], remotes: Sequence[str]) -> Forger:
    """Return a forger of a LAN client that takes others' addresses."""

    def made(_: Known, chance: random.Random) -> Iterator[Packet]:
        while True:
            segment = Tcp(chance.randrange(1024, 1 << 16), HTTP_PORT, Flag.SYN, chance.getrandbits(32))
            yield Packet(chance.choice(sources), chance.choice(remotes), segment)

    return made


def error_about(seen: Packet) -> Packet | None:
    """Return the error that ends an echo probe which an attacker has seen; None for other packets."""
    body = seen.body
    if not isinstance(body, Icmp) or body.type not in (8, 128):
        return None
    refused = Icmp(UNREACHABLE[seen.family], 1 if seen.family == 4 else 3, data=encode(seen))
    return Packet(seen.dest, seen.source, refused)


def reset_of(seen: Packet) -> Packet | None:
    """Return the reset that ends a connection which an attacker has seen a segment of; None for other packets."""
    body = seen.body
    if not isinstance(body, Tcp) or body.flags & Flag.RST:
        return None
    if body.flags & Flag.SYN:
        refusal = Tcp(body.dest_port, body.source_port, Flag.RST | Flag.ACK, 0, (body.seq + 1) & 0xFFFF_FFFF)
    else:
        refusal = Tcp(body.dest_port, body.source_port, Flag.RST, body.ack)
    return Packet(seen.dest, seen.source, refusal)


def answer_to(seen: Packet) -> Packet | None:
    """Return the SYN/ACK of a server that does not exist for a SYN that an attacker has seen; None for others."""
    body = seen.body
    if not isinstance(body, Tcp) or body.flags != Flag.SYN:
        return None
    answer = Tcp(
        body.dest_port, body.source_port, Flag.SYN | Flag.ACK, 0x4EED, (body.seq + 1) & 0xFFFF_FFFF, mss=1460
    )
    return dataclasses.replace(Packet(seen.dest, seen.source, answer), hops=60)
