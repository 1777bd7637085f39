"""Attack packets for the hub: each kind is wrong only in the way that its counter records."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import random

from braid_lab.experiments.bond import attacks
from braid_lab.experiments.bond.intruders import BLIND, REACTIONS, Known
from braid_lab.packets.codec import Packet, Udp, decode, encode

#: Data on link 1 for session 0x0a0b0c, packet 70,000, with 40 sealed bytes.
GOOD = bytes.fromhex("410a0b0c00011170") + bytes(range(40))


def test_a_good_packet_is_read_as_it_is() -> None:
    assert attacks.is_data(GOOD)
    assert attacks.number(GOOD) == 70_000
    assert not attacks.is_data(bytes([1]) + GOOD[1:]), "a handshake"
    assert not attacks.is_data(GOOD[: attacks.HEADER_BYTES])


def test_a_forgery_differs_by_a_sealed_bit_and_has_a_number_of_its_own() -> None:
    made = [attacks.forged(GOOD, nth) for nth in range(100)]
    assert len({attacks.number(each) for each in made}) == 100
    for each in made:
        assert each[:4] == GOOD[:4]
        flipped = [one ^ other for one, other in zip(each[8:], GOOD[8:], strict=True)]
        assert sum(flip.bit_count() for flip in flipped) == 1


def test_what_is_old_is_beyond_the_window_and_not_below_zero() -> None:
    assert [attacks.number(attacks.old(GOOD, nth)) for nth in (0, 99)] == [53_000, 52_901]


def test_cuts_leave_too_little_of_a_tag_or_of_a_header() -> None:
    assert {len(GOOD) - len(attacks.truncated(GOOD, nth)) for nth in range(100)} == set(range(1, 17))
    assert {len(attacks.stub(GOOD, nth)) for nth in range(100)} == set(range(1, 9))


def test_sessions_and_links_are_others() -> None:
    made = {attacks.wrong_session(GOOD, nth)[1:4] for nth in range(100)}
    assert len(made) == 100
    assert GOOD[1:4] not in made
    assert attacks.wrong_link(GOOD, 0)[0] == attacks.DATA | attacks.NO_LINK
    assert attacks.wrong_link(GOOD, 0)[1:] == GOOD[1:]
    assert not any(attacks.is_data(attacks.junk(GOOD, nth)) for nth in range(100))


def test_a_costly_knock_has_the_mac_that_the_protocol_asks_for() -> None:
    """docs/protocol.md: 16 bytes of HMAC with key SHA256("braid mac" ‖ responder's public key)."""
    knock = attacks.costly_initiation("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", 7)
    assert len(knock) == attacks.INITIATION_BYTES
    key = hashlib.sha256(b"braid mac" + bytes(range(32))).digest()
    assert knock[-32:-16] == hmac.new(key, knock[:-32], hashlib.sha256).digest()[:16]
    assert knock != attacks.costly_initiation("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", 8)


HUB = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


def test_a_cookie_is_read_out_of_a_reply_to_the_same_initiation_and_proves_an_address() -> None:
    """docs/protocol.md: `mac2` is 16 bytes of HMAC, keyed by the cookie, over the datagram before it."""
    knock, other = attacks.costly_initiation(HUB, 7), attacks.costly_initiation(HUB, 8)
    cookie = bytes(range(16))
    reply = attacks.cookie_reply(HUB, knock, cookie, bytes(16))
    assert (reply[:2], len(reply)) == (bytes([3, knock[1]]), 50)
    assert attacks.cookie_in(HUB, knock, reply) == cookie
    assert attacks.cookie_in(HUB, other, reply) is None
    assert attacks.cookie_in(HUB, knock, reply[:-1]) is None
    made = attacks.proven(knock, cookie)
    assert made[:-16] == knock[:-16]
    assert made[-16:] == hmac.new(cookie, knock[:-16], hashlib.sha256).digest()[:16]


def test_what_a_stranger_sends_about_a_bond_is_well_formed_and_names_its_ends() -> None:
    known = Known("203.0.113.9", HUB, (("100.64.1.2", 40001), ("100.64.2.2", 40002)))
    for attack in BLIND:
        for packet in itertools.islice(attack.forge(known, random.Random(1)), 200):
            read = decode(encode(packet))
            assert not read.faults, (attack.name, read.faults)
            ends = {known.hub, *(address for address, _ in known.ends)}
            assert read.dest in ends, attack.name


def test_an_observer_reacts_to_packets_of_the_bond_alone() -> None:
    known = Known("203.0.113.9", HUB, (("100.64.1.2", 40001),))
    other = Packet("100.64.1.2", "198.51.100.1", Udp(40001, 53, GOOD))
    data = Packet("100.64.1.2", known.hub, Udp(40001, 27243, GOOD))
    knock = Packet("100.64.1.2", known.hub, Udp(40001, 27243, attacks.costly_initiation(HUB, 7)))
    for reaction in REACTIONS:
        assert reaction.react(known, other, random.Random(1)) == []
        made = [*reaction.react(known, data, random.Random(1)), *reaction.react(known, knock, random.Random(1))]
        assert made, reaction.name
        for answer in made:
            assert not decode(encode(answer)).faults
            assert known.hub in (answer.source, answer.dest)
