"""Attack packets for the hub: each kind is wrong only in the way that its counter records."""

from __future__ import annotations

import hashlib
import hmac

from braid_lab.experiments.bond import attacks

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
