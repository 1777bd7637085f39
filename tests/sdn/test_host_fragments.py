"""Fragments through the host's controller; `balance/nat` has them on real packets."""

from __future__ import annotations

import struct

from braid_sdn.host.flow_rules import OUTBOUND
from braid_sdn.host.fragments import HOLD_TIME, MAX_HELD, MAX_HELD_PER_SOURCE, Fragments
from braid_sdn.host.packets import Fragment, parse, parse_fragment

from .test_host_balancer import DSL, INSIDE, Bridge, echo, tcp, udp


def piece(frame: bytes, *, offset: int, more: bool, ident: int = 7, source: str = "192.0.0.8") -> bytes:
    """Return a frame of IPv4 as a fragment; the payload is the caller's."""
    head = bytearray(frame)
    struct.pack_into("!HH", head, 18, ident, offset // 8 | more << 13)
    head[26:30] = bytes(int(part) for part in source.split("."))
    return bytes(head)


def fragment(number: int, source: str = "192.0.0.8") -> Fragment:
    made = parse_fragment(piece(udp(5000), offset=800, more=False, ident=number, source=source))
    assert made is not None
    return made


def test_a_later_fragment_waits_for_the_first_and_follows_it() -> None:
    bridge = Bridge()
    later = piece(udp(0x4142, to=0x4344), offset=32, more=False)
    assert bridge.receive(INSIDE, later) == []
    first, second = bridge.receive(INSIDE, piece(udp(5000, to=6000), offset=0, more=True))
    (flow,) = bridge.balancer.table.flows.values()
    assert (first.ports, second.ports) == ((DSL,), (DSL,))
    ports = struct.unpack_from("!HH", first.data, 34)
    assert ports == (flow.outer[1], 6000)
    # The later one has no ports: its payload stays.
    assert second.data[34:] == later[34:]
    assert second.data[26:30] == flow.outer[0].packed
    # Those that come after the first one follow at once.
    (third,) = bridge.receive(INSIDE, later)
    assert third.data == second.data
    assert flow.tx.packets == 3


def test_fragments_of_no_flow_are_dropped() -> None:
    bridge = Bridge()
    # A connection begins with a whole SYN.
    assert bridge.receive(INSIDE, piece(tcp(40000), offset=0, more=True)) == []
    assert bridge.receive(DSL, piece(echo(0, 1, "198.51.100.1", "100.64.0.2"), offset=0, more=True)) == []
    assert len(bridge.balancer.table) == 0
    assert bridge.flow_rules(OUTBOUND) == []


def test_waiting_fragments_are_few_of_each_source_and_not_for_long() -> None:
    held = Fragments()
    taken = [held.hold(0.0, INSIDE, fragment(number)) for number in range(MAX_HELD_PER_SOURCE + 1)]
    assert taken == [True] * MAX_HELD_PER_SOURCE + [False]
    others = [held.hold(0.0, INSIDE, fragment(1, source=f"10.0.{n >> 8}.{n & 255}")) for n in range(MAX_HELD)]
    assert others.count(True) == MAX_HELD - MAX_HELD_PER_SOURCE
    assert held.note_first(HOLD_TIME, INSIDE, fragment(0), 1) == []
    assert held.hold(HOLD_TIME, INSIDE, fragment(2))


def test_what_is_no_fragment_is_none_and_one_too_short_for_ports_too() -> None:
    assert parse_fragment(udp(5000)) is None
    assert parse(piece(udp(5000), offset=0, more=True)) is None
    assert parse_fragment(piece(udp(5000), offset=0, more=True)[:38]) is None
