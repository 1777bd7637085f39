"""Fragments: RFC 4787 REQ-14 requires that they pass in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from braid_lab.experiments.balance.nat.cases import case, check
from braid_lab.experiments.balance.nat.testbed import NatTestbed
from braid_lab.packets.codec import Packet, echo
from braid_lab.packets.fragments import join, split
from braid_lab.packets.tap import Arrived, Port, expect

#: Two full fragments and a small one.
LARGE = bytes(range(256)) * 10
FRAGMENT_MTU = 1280

Order = Callable[[list[Packet]], list[Packet]]


def in_order(pieces: list[Packet]) -> list[Packet]:
    """Order of sending."""
    return pieces


def last_first(pieces: list[Packet]) -> list[Packet]:
    """Last fragment first, as some stacks send and any path may deliver."""
    return pieces[::-1]


def collect(receivers: list[Port], wanted: Callable[[Packet], bool]) -> Arrived:
    """Wait for all fragments of one packet; return it reassembled and checked, and where its last one arrived."""
    pieces: list[Packet] = []

    def complete(got: Packet) -> bool:
        if not wanted(got):
            return False
        pieces.append(got)
        return got.piece is None or join(pieces) is not None

    port, last = expect(receivers, complete, what="last fragment")
    return port, join(pieces) or last


#: A sender never repeats an identification to one receiver within the life of its fragments (RFC 6864).
_idents = itertools.count(0x1000)


def _cross(sender: Port, receivers: list[Port], packet: Packet, order: Order, ident: int | None = None) -> Packet:
    """Send a packet in fragments; return it as reassembled at the receiver."""
    towards = packet.source if receivers[0].device == "lan0" else packet.dest
    for each in order(split(packet, FRAGMENT_MTU, ident or next(_idents))):
        sender.send(each)
    _, got = collect(receivers, lambda each: towards in (each.source, each.dest))
    check(not got.faults, f"spoilt: {got.faults}")
    return got


def _udp(bench: NatTestbed, family: int, order: Order) -> None:
    mapping = bench.open_udp(family)
    uplinks = list(bench.uplinks.values())
    for _ in range(2):
        got = _cross(bench.lan, uplinks, mapping.request(LARGE), order)
        check((got.source, got.udp().source_port) == (mapping.outer, mapping.outer_port), f"left as {got.source}")
        check(got.udp().data == LARGE, "bytes were changed on their way out")
        got = _cross(mapping.uplink, [bench.lan], mapping.answer(LARGE), order)
        check((got.dest, got.udp().dest_port) == (mapping.inside, mapping.inside_port), f"went to {got.dest}")
        check(got.udp().data == LARGE, "bytes were changed on their way in")


@case("RFC 4787 REQ-14")
def fragments_pass_in_order(bench: NatTestbed, family: int) -> None:
    """A large datagram passes both ways."""
    _udp(bench, family, in_order)


@case("RFC 4787 REQ-14a")
def fragments_pass_last_one_first(bench: NatTestbed, family: int) -> None:
    """The fragment with the ports arrives last."""
    _udp(bench, family, last_first)


@case("RFC 4787 REQ-14")
def fragments_of_a_new_flow_pass_last_one_first(bench: NatTestbed, family: int) -> None:
    """The first datagram of a mapping arrives in fragments, last one first."""
    opened = bench.send_udp(family)
    fresh = Packet(opened.inside, opened.remote, opened.request(LARGE).body)
    got = _cross(bench.lan, list(bench.uplinks.values()), fresh, last_first)
    check(got.udp().data == LARGE, "bytes were changed")


@case("RFC 5508 REQ-1, RFC 4787 REQ-14")
def fragmented_echo_passes(bench: NatTestbed, family: int) -> None:
    """A large ping and its reply."""
    request = Packet(bench.client(family), bench.remote(family, 6), echo(family, 703, data=LARGE))
    uplinks = list(bench.uplinks.values())
    for order in (in_order, last_first):
        got = _cross(bench.lan, uplinks, request, order)
        uplink = next(each for each in uplinks if bench.outer(each, family) == got.source)
        reply = Packet(request.dest, got.source, echo(family, got.icmp().ident, reply=True, data=LARGE))
        back = _cross(uplink, [bench.lan], reply, order)
        check((back.dest, back.icmp().ident) == (request.source, 703), f"the reply went to {back.dest}")


@case("RFC 4787 REQ-14")
def fragments_of_two_packets_are_not_mixed(bench: NatTestbed, family: int) -> None:
    """Interleaved fragments of two clients with the same identification reach the right destinations."""
    mappings = [bench.open_udp(family, client=number, remote=40) for number in (1, 2)]
    ident = next(_idents)
    for mapping, mark in zip(mappings, (b"a", b"b"), strict=True):
        got = _cross(mapping.uplink, [bench.lan], mapping.answer(mark * 3000), last_first, ident)
        check((got.dest, got.udp().data[:1]) == (mapping.inside, mark), f"went to {got.dest}")
