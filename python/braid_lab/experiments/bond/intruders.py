"""Packets of attackers who see nothing of a bond, or one of its lines; pure.

A stranger is given all that can be guessed or read somewhere: the hub's address and public key (another client has
it, and whoever finds a token that was used), and both ends of each link with their ports. An observer sees and
answers what goes over one line, and knows the hub's public key as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from braid_lab.experiments.bond import attacks
from braid_lab.packets.codec import (
    PORT_UNREACHABLE,
    TIME_EXCEEDED,
    UNREACHABLE,
    Icmp,
    Packet,
    Udp,
    encode,
    too_big,
)
from braid_lab.remote_hub import PORT

#: Packets a second of guesses, and of floods.
GUESSES, FLOOD = 500.0, 2000.0

#: Smallest MTU that a forged "too big" claims.
TINY_MTU = 68

#: Forged replies to one initiation.
FORGED_COOKIES = 5


@dataclass(frozen=True)
class Known:
    """Everything that an attacker may assume."""

    hub: str
    #: The hub's public key, base64.
    key: str
    #: Address and port of the client's end of each link, as the hub sees them.
    ends: Sequence[tuple[str, int]]


Forger = Callable[[Known, random.Random], Iterator[Packet]]
Reactor = Callable[[Known, Packet, random.Random], list[Packet]]


@dataclass(frozen=True)
class Blind:
    """An attack of a stranger, and its packets a second."""

    name: str
    forge: Forger
    rate: float = GUESSES


@dataclass(frozen=True)
class Reaction:
    """An attack of the observer: the packets with which it reacts to one from the client."""

    name: str
    react: Reactor
    #: True if the packet itself goes no further.
    holds: bool = False
    #: True if the hub is restarted meanwhile, so that there are handshakes to attack.
    restarts: bool = False


def _stranger(chance: random.Random) -> tuple[str, int]:
    """Return an address and port of nobody."""
    return f"192.0.2.{chance.randrange(1, 255)}", chance.randrange(1024, 1 << 16)


def _to_client(known: Known, end: tuple[str, int], payload: bytes) -> Packet:
    return Packet(known.hub, end[0], Udp(PORT, end[1], payload))


def _to_hub(known: Known, end: tuple[str, int], payload: bytes) -> Packet:
    return Packet(end[0], known.hub, Udp(end[1], PORT, payload))


def _data(chance: random.Random) -> bytes:
    return bytes([attacks.DATA | chance.randrange(4)]) + chance.randbytes(chance.randrange(24, 200))


def icmp_errors(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Errors about the bond's datagrams, to both of its ends."""
    while True:
        end, payload = chance.choice(known.ends), _data(chance)
        quote = chance.choice((_to_hub, _to_client))(known, end, payload)
        data = encode(quote)[:64]
        kind = chance.randrange(3)
        error = Icmp(UNREACHABLE[4], chance.choice((0, 1, 3, 13)), data=data)
        if kind == 1:
            error = Icmp(TIME_EXCEEDED[4], data=data)
        elif kind == 2:
            error = too_big(data, chance.choice((TINY_MTU, 576, 1280)))
        yield Packet(_stranger(chance)[0], quote.source, error)


def messages(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Resets, cookie replies, responses and data from the hub's address, with guessed contents."""
    while True:
        kind = chance.randrange(4)
        if kind == 0:
            payload = attacks.reset(chance.randbytes(3), chance.randbytes(attacks.TOKEN_BYTES))
        elif kind == 1:
            payload = bytes([attacks.COOKIE_REPLY, chance.randrange(4)]) + chance.randbytes(48)
        elif kind == 2:
            payload = bytes([attacks.RESPONSE, chance.randrange(4)]) + chance.randbytes(150)
        else:
            payload = _data(chance)
        yield _to_client(known, chance.choice(known.ends), payload)


def hub_data(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Data for guessed sessions, from the addresses of the client and of nobody."""
    while True:
        end = chance.choice([*known.ends, _stranger(chance)])
        yield _to_hub(known, end, _data(chance))


def lost_sessions(known: Known, chance: random.Random) -> Iterator[Packet]:
    """A flood of data for sessions that do not exist, so that the hub's resets are used up, or told to a stranger."""
    while True:
        yield _to_hub(known, _stranger(chance), _data(chance))


def initiations(known: Known, chance: random.Random) -> Iterator[Packet]:
    """Handshakes with a valid first MAC, from the addresses of the client and of nobody."""
    while True:
        end = chance.choice([*known.ends, _stranger(chance)])
        yield _to_hub(known, end, attacks.costly_initiation(known.key, chance.getrandbits(40)))


BLIND = (
    Blind("icmp_errors", icmp_errors),
    Blind("messages", messages),
    Blind("hub_data", hub_data),
    Blind("lost_sessions", lost_sessions, FLOOD),
    Blind("initiations", initiations, FLOOD),
)


def _payload(known: Known, seen: Packet) -> bytes:
    """Return what the client says to the hub in a packet; nothing if it is another one."""
    body = seen.body
    if not isinstance(body, Udp) or seen.dest != known.hub or body.dest_port != PORT:
        return b""
    return body.data


def _back(seen: Packet, payload: bytes) -> Packet:
    """Return an answer to a packet from where it was going."""
    body = seen.body
    assert isinstance(body, Udp)  # noqa: S101
    return Packet(seen.dest, seen.source, Udp(body.dest_port, body.source_port, payload))


def forged_cookies(known: Known, seen: Packet, chance: random.Random) -> list[Packet]:
    """Answer each initiation by cookie replies, one with a time that nobody can exceed, and data by a random one."""
    payload = _payload(known, seen)
    if attacks.is_data(payload):
        return [_back(seen, bytes([attacks.COOKIE_REPLY, payload[0] & attacks.LINK_BITS]) + chance.randbytes(48))]
    if not attacks.is_initiation(payload):
        return []
    plains = [chance.randbytes(attacks.MAC_BYTES) for _ in range(FORGED_COOKIES)]
    plains = [plains[0] + attacks.LAST_TIME, *plains]
    salts = [chance.randbytes(attacks.SALT_BYTES) for _ in plains]
    replies = [attacks.cookie_reply(known.key, payload, *each) for each in zip(plains, salts, strict=True)]
    return [_back(seen, reply) for reply in replies]


def forged_resets(known: Known, seen: Packet, chance: random.Random) -> list[Packet]:
    """Reset the session of each data packet by a guessed token; answer handshakes by guessed responses."""
    payload = _payload(known, seen)
    if attacks.is_data(payload):
        return [_back(seen, attacks.reset(payload[1:4], chance.randbytes(attacks.TOKEN_BYTES)))]
    if attacks.is_initiation(payload):
        return [_back(seen, bytes([attacks.RESPONSE, payload[1]]) + chance.randbytes(150))]
    return []


def refusals(known: Known, seen: Packet, chance: random.Random) -> list[Packet]:  # noqa: ARG001
    """Say that nobody listens at the hub."""
    if not _payload(known, seen):
        return []
    return [Packet(seen.dest, seen.source, Icmp(UNREACHABLE[4], PORT_UNREACHABLE[4], data=encode(seen)[:64]))]


def _elsewhere(seen: Packet, chance: random.Random) -> Packet:
    """Return the packet as from another address of the line's network and another port."""
    body = seen.body
    assert isinstance(body, Udp)  # noqa: S101
    network = seen.source.rpartition(".")[0]
    source, port = f"{network}.{chance.randrange(3, 255)}", chance.randrange(1024, 1 << 16)
    return Packet(source, seen.dest, Udp(port, body.dest_port, body.data))


def copies(known: Known, seen: Packet, chance: random.Random) -> list[Packet]:
    """Repeat each packet to the hub, as it is and from another address."""
    return [seen, _elsewhere(seen, chance)] if _payload(known, seen) else []


def moved(known: Known, seen: Packet, chance: random.Random) -> list[Packet]:
    """Pass each packet on from another address, so that the hub sees a client with ever new ones."""
    return [_elsewhere(seen, chance)] if _payload(known, seen) else []


REACTIONS = (
    Reaction("seen_cookies", forged_cookies, restarts=True),
    Reaction("seen_resets", forged_resets),
    Reaction("seen_resets_restart", forged_resets, restarts=True),
    Reaction("seen_refusals", refusals),
    Reaction("seen_copies", copies),
    Reaction("seen_addresses", moved, holds=True),
)
