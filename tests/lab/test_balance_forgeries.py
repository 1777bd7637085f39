"""Packets of `balance/hostile` are as their attacks describe them, and outages are counted from bad connections."""

from __future__ import annotations

import itertools
import random

import pytest

from braid_lab.clients.new_connections import Attempt
from braid_lab.experiments.balance import forgeries
from braid_lab.experiments.balance.forgeries import Connection, Forger, Known
from braid_lab.experiments.balance.hostile import outage
from braid_lab.packets.codec import Flag, Icmp, Packet, Tcp, decode, echo, encode

KNOWN = Known(
    ["100.64.1.2", "2001:db8:1::2"],
    ["1.1.1.1", "2606:4700:4700::1111"],
    ["198.51.100.1", "198.51.100.2", "2001:db8:ffff::1", "2001:db8:ffff::2"],
    [Connection("100.64.1.2", 40000, "198.51.100.1", 80)],
)
BLIND = (
    forgeries.icmp_on_probes,
    forgeries.icmp_on_flows,
    forgeries.echo_replies,
    forgeries.resets,
    forgeries.segments,
    forgeries.race_answers,
    forgeries.dns_answers,
    forgeries.fragments,
    forgeries.flood,
)
SYN = Packet("100.64.1.2", "198.51.100.1", Tcp(40000, 80, Flag.SYN, 0xFFFF_FFFF))


@pytest.mark.parametrize("forge", BLIND)
def test_blind_packets_are_well_formed_and_go_to_the_host(forge: Forger) -> None:
    for packet in itertools.islice(forge(KNOWN, random.Random(1)), 200):
        assert not decode(encode(packet)).faults, packet
        assert packet.dest in KNOWN.addresses
        assert packet.source not in KNOWN.addresses


def test_an_error_about_a_flow_quotes_it() -> None:
    for packet in itertools.islice(forgeries.icmp_on_flows(KNOWN, random.Random(1)), 50):
        quote = decode(packet.icmp().data, quoted=True)
        assert (quote.source, quote.dest, quote.tcp().source_port) == ("100.64.1.2", "198.51.100.1", 40000)


def test_an_observer_answers_what_it_has_seen_with_the_right_numbers() -> None:
    probe = Packet("100.64.1.2", "1.1.1.1", echo(4, 77, 5))
    error = forgeries.error_about(probe)
    assert error is not None
    assert decode(error.icmp().data).icmp().rest == probe.icmp().rest
    for answer in (forgeries.reset_of(SYN), forgeries.answer_to(SYN)):
        assert answer is not None
        assert (answer.source, answer.dest, answer.tcp().ack) == (SYN.dest, SYN.source, 0)
    data = Packet("100.64.1.2", "198.51.100.1", Tcp(40000, 80, Flag.ACK, 7, 9))
    reset = forgeries.reset_of(data)
    assert reset is not None
    assert (reset.tcp().flags, reset.tcp().seq) == (Flag.RST, 9)


def test_an_observer_leaves_the_rest_alone() -> None:
    answered = Packet("198.51.100.1", "100.64.1.2", Icmp(3, 3, data=encode(SYN)))
    reset = Packet("100.64.1.2", "198.51.100.1", Tcp(40000, 80, Flag.RST))
    for seen in (answered, reset):
        assert [each(seen) for each in (forgeries.error_about, forgeries.reset_of, forgeries.answer_to)] == [None] * 3


def attempts(*seconds: float | None) -> list[Attempt]:
    """Connections, one a second, that took this long; a negative one failed then."""
    return [
        Attempt(
            number, float(number), None if took is None else abs(took), error="refused" if took and took < 0 else None
        )
        for number, took in enumerate(seconds)
    ]


def test_an_outage_lasts_from_the_first_bad_connection_to_the_next_good_one() -> None:
    assert outage(attempts(0.1, 0.5, 0.1)) == 0
    assert outage(attempts(0.1, -0.1, -0.1, 0.1)) == 2
    assert outage(attempts(0.1, 5.0, 0.1)) == 5
    assert outage(attempts(0.1, -0.1, 0.1, -0.1)) == 1
    assert outage(attempts(0.1, None, None)) == 1
