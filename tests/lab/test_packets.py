"""The packet tools agree with the kernel on packets, and find every error."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from braid_lab.net.namespace import namespace
from braid_lab.packets.codec import (
    Flag,
    Icmp,
    Packet,
    Raw,
    Tcp,
    Udp,
    decode,
    echo,
    encode,
    ones_sum,
    too_big,
    unreachable,
)
from braid_lab.packets.fragments import join, split
from braid_lab.packets.tap import Port, expect
from braid_lab.process import wait_until

ENDS = {4: ("192.0.2.1", "198.51.100.2"), 6: ("2001:db8::1", "2001:db8:ffff::2")}
BODIES: list[Udp | Tcp | Icmp | Raw] = [
    Udp(5000, 53, b"odd"),
    Udp(5000, 53, b""),
    Tcp(5000, 80, Flag.SYN, 7, mss=1460),
    Tcp(5000, 80, Flag.ACK | Flag.PSH, 0xFFFFFFFF, 1, b"data"),
    Raw(132, b"any other protocol"),
]

both_families = pytest.mark.parametrize("family", [4, 6])


def packet(family: int, body: Udp | Tcp | Icmp | Raw) -> Packet:
    source, dest = ENDS[family]
    return Packet(source, dest, body)


def test_the_sum_is_that_of_rfc_1071() -> None:
    """§3: "the words 00 01, f2 03, f4 f5, f6 f7" sum to ddf2."""
    assert ones_sum(bytes.fromhex("0001f203f4f5f6f7")) == 0xDDF2


@both_families
def test_what_is_encoded_is_decoded(family: int) -> None:
    for body in [*BODIES, echo(family, 7), unreachable(encode(packet(family, BODIES[0])))]:
        made = packet(family, body)
        assert decode(encode(made)) == made
        # Padding of short frames is not part of the packet.
        assert decode(encode(made) + bytes(20)) == made


@both_families
def test_every_flipped_bit_is_a_fault(family: int) -> None:
    data = encode(packet(family, Tcp(5000, 80, Flag.ACK, 1, 1, b"data")))
    # IPv6's header has no checksum of its own; the transport's covers addresses and payload.
    first = 0 if family == 4 else 8
    for at in range(first, len(data)):
        spoilt = bytearray(data)
        spoilt[at] ^= 0x10
        try:
            found = decode(bytes(spoilt))
        except ValueError:
            continue
        # Another protocol number makes it a packet that is not checked.
        assert found.faults or isinstance(found.body, Raw), (at, found)


@both_families
def test_a_quote_may_end_early(family: int) -> None:
    original = packet(family, Tcp(5000, 80, Flag.ACK, 77, 1, b"data"))
    quote = decode(encode(original)[: 28 if family == 4 else 48], quoted=True)
    assert not quote.faults
    assert (quote.tcp().source_port, quote.tcp().seq) == (5000, 77)
    assert decode(encode(original)[:30] if family == 4 else encode(original)[:50]).faults


@both_families
def test_fragments_make_the_whole_again_in_any_order(family: int) -> None:
    whole = packet(family, Udp(5000, 53, bytes(range(256)) * 20))
    pieces = split(whole, 1280, 99)
    assert all(len(encode(each)) <= 1280 for each in pieces)
    assert join(pieces) == join(pieces[::-1]) == whole
    assert join(pieces[1:]) is None
    assert join(pieces[:-1]) is None
    middle = pieces[1].body
    assert isinstance(middle, Raw)
    spoilt = dataclasses.replace(pieces[1], body=Raw(17, b"!" + middle.data[1:]))
    joined = join([pieces[0], spoilt, *pieces[2:]])
    assert joined is not None
    assert joined.faults


@both_families
@pytest.mark.parametrize("offload", [False, True])
def test_the_kernel_takes_what_we_write_and_we_read_what_it_sends(family: int, offload: bool) -> None:
    with namespace("packets") as place:
        port = Port(place, "wire", 1, offload=offload)
        try:
            near, far = ("192.0.2.1", "192.0.2.9") if family == 4 else ("2001:db8::1", "2001:db8::9")
            place.ip(
                f"address add {near}/{24 if family == 4 else 64} dev wire" + (" nodad" if family == 6 else ""),
                f"neighbour add {far} lladdr {port.neighbour} dev wire nud permanent",
            )
            # The kernel takes in packets for an IPv6 address a moment after it was added.
            local = ["ip", f"-{family}", "route", "show", "table", "local"]
            wait_until(lambda: f"local {near} " in place.run(local).stdout, what="the address to be a local one")
            with place.inside():
                asker = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
            with asker:
                asker.settimeout(10)
                asker.bind((near, 6000))
                asker.sendto(b"out", (far, 7000))
                _, sent = expect([port], lambda each: each.dest == far, what="datagram")
                assert (sent.body, sent.faults) == (Udp(6000, 7000, b"out"), ())
                port.send(Packet(far, near, Udp(7000, 6000, b"spoilt")), spoil=True)
                port.send(Packet(far, near, Udp(7000, 6000, b"back")))
                assert asker.recv(100) == b"back"
        finally:
            port.close()


def test_errors_say_their_mtu() -> None:
    for family in (4, 6):
        quote = encode(packet(family, BODIES[0]))
        assert too_big(quote, 1280).mtu == 1280
