"""ICMP: RFC 5508, and the error translation that RFC 4787 and RFC 5382 require."""

from __future__ import annotations

import dataclasses

from braid_lab.experiments.balance.nat.cases import ONLY_V4, case, check
from braid_lab.experiments.balance.nat.testbed import SERVICE, Mapping, NatTestbed
from braid_lab.packets.codec import (
    TIME_EXCEEDED,
    Flag,
    Icmp,
    Packet,
    Tcp,
    Udp,
    decode,
    echo,
    encode,
    too_big,
    unreachable,
)
from braid_lab.packets.tap import Arrived, expect

#: An IPv4 router need not quote more than the header and 8 bytes.
CERTAIN_BYTES = {4: 28, 6: 1232}


def _error_about(bench: NatTestbed, mapping: Mapping, error: Icmp) -> Packet:
    """Let a router in the internet send an error; return it as the LAN receives it, its source unchanged."""
    router = bench.router(6 if ":" in mapping.inside else 4)
    got = bench.back(mapping.uplink, Packet(router, mapping.outer, error))
    check(got.dest == mapping.inside, f"the error went to {got.dest}")
    check((got.icmp().type, got.icmp().code) == (error.type, error.code), f"it became {got}")
    return got


def _quotes(got: Packet, original: Packet) -> None:
    """Check that an error quotes a packet as its sender sent it."""
    quoted = decode(got.icmp().data, quoted=True)
    check(not quoted.faults, f"the quote is spoilt: {quoted}")
    check((quoted.source, quoted.dest) == (original.source, original.dest), f"the quote is of {quoted}")
    ends = [
        (each.body.source_port, each.body.dest_port)
        for each in (quoted, original)
        if isinstance(each.body, Udp | Tcp)
    ]
    check(len(ends) == 2 and ends[0] == ends[1], f"the quote's ports are {ends}")


@case("RFC 5508 REQ-1")
def echo_passes_both_ways(bench: NatTestbed, family: int) -> None:
    """A ping's replies come back with its own identifier."""
    request = Packet(bench.client(family), bench.remote(family), echo(family, 700))
    for _ in range(2):
        uplink, sent = bench.out(request)
        reply = Packet(request.dest, sent.source, echo(family, sent.icmp().ident, reply=True))
        got = bench.back(uplink, reply)
        check((got.dest, got.icmp().ident) == (request.source, 700), f"the reply went to {got}")


@case("RFC 5508 REQ-1")
def echo_ids_are_kept_apart(bench: NatTestbed, family: int) -> None:
    """Two clients that ping the same server with the same identifier both get their own replies."""
    taken: dict[tuple[str, int], str] = {}
    sent = []
    for number in (1, 2, 3):
        request = Packet(bench.client(family, number), bench.remote(family, 4), echo(family, 701))
        uplink, packet = bench.out(request)
        outside = (packet.source, packet.icmp().ident)
        check(outside not in taken, f"{request.source} and {taken.get(outside)} both are {outside}")
        taken[outside] = request.source
        sent.append((uplink, request, packet))
    for uplink, request, packet in sent:
        got = bench.back(uplink, Packet(packet.dest, packet.source, echo(family, packet.icmp().ident, reply=True)))
        check((got.dest, got.icmp().ident) == (request.source, 701), f"the reply went to {got}")


@case("RFC 5508 REQ-3", deviation="a wrong checksum is translated and stays wrong, so that the client drops it")
def icmp_error_with_a_wrong_checksum_is_dropped(bench: NatTestbed, family: int) -> None:
    """An error that was damaged in transit is not forwarded."""
    mapping = bench.open_udp(family)
    _, sent = bench.out(mapping.request())
    mapping.uplink.send(Packet(bench.router(family), mapping.outer, unreachable(encode(sent))), spoil=True)
    inside = [packet for port, packet in bench.settled(family) if port is bench.lan]
    check(not inside, f"the LAN got {inside}")


@case("RFC 5508 REQ-3")
def icmp_error_with_a_wrong_checksum_stays_wrong(bench: NatTestbed, family: int) -> None:
    """Translation does not repair a damaged error: receivers that check it drop it."""
    mapping = bench.open_udp(family)
    _, sent = bench.out(mapping.request())
    mapping.uplink.send(Packet(bench.router(family), mapping.outer, unreachable(encode(sent))), spoil=True)
    inside = [packet for port, packet in bench.settled(family) if port is bench.lan]
    check(all(each.faults for each in inside), f"the LAN got {inside}")


@case(
    "RFC 5508 REQ-3a",
    families=ONLY_V4,
    deviation="a quote's wrong header checksum is translated and stays wrong",
)
def icmp_error_with_a_wrong_quote_is_dropped(bench: NatTestbed, family: int) -> None:
    """An error with a damaged quoted IP header is not forwarded."""
    mapping = bench.open_udp(family)
    _, sent = bench.out(mapping.request())
    quote = bytearray(encode(sent))
    quote[10] ^= 0x55
    mapping.uplink.send(Packet(bench.router(family), mapping.outer, unreachable(bytes(quote))))
    inside = [packet for port, packet in bench.settled(family) if port is bench.lan]
    check(not inside, f"the LAN got {inside}")


@case("RFC 5508 REQ-4, RFC 4787 REQ-12")
def icmp_error_about_udp_is_translated(bench: NatTestbed, family: int) -> None:
    """The client gets "port unreachable" about the datagram that it sent, with valid checksums."""
    mapping = bench.open_udp(family)
    request = mapping.request(b"is anybody there?")
    _, sent = bench.out(request)
    _quotes(_error_about(bench, mapping, unreachable(encode(sent))), request)


@case("RFC 5508 REQ-4")
def icmp_error_about_udp_without_checksum_is_translated(bench: NatTestbed, family: int) -> None:
    """A quote may be as short as a header and 8 bytes, and a zero checksum stays zero."""
    mapping = bench.open_udp(family)
    request = mapping.request(b"12", checksum=family == 6)
    _, sent = bench.out(request)
    got = _error_about(bench, mapping, unreachable(encode(sent)[: CERTAIN_BYTES[family]]))
    _quotes(got, request)
    quoted = decode(got.icmp().data, quoted=True)
    check(quoted.udp().checksum == (family == 6), f"the quote became {quoted}")


@case("RFC 5382 REQ-9")
def icmp_error_about_tcp_is_translated(bench: NatTestbed, family: int) -> None:
    """Only 8 bytes of a segment need be quoted; the client can still identify it."""
    mapping = bench.open_tcp(family)
    request = mapping.segment(Flag.ACK | Flag.PSH, b"data")
    _, sent = bench.out(request)
    quote = encode(sent)[: 28 if family == 4 else 48]
    got = _error_about(bench, mapping, unreachable(quote))
    _quotes(got, request)
    quoted = decode(got.icmp().data, quoted=True)
    check(quoted.tcp().seq == request.tcp().seq, f"the quote became {quoted}")


@case("RFC 5382 REQ-10")
def icmp_error_keeps_a_connection(bench: NatTestbed, family: int) -> None:
    """An error, which anyone can forge, ends no connection."""
    mapping = bench.open_tcp(family)
    _, sent = bench.out(mapping.segment(Flag.ACK | Flag.PSH, b"data"))
    _error_about(bench, mapping, unreachable(encode(sent)))
    bench.carries(mapping)


@case("RFC 5508 REQ-6")
def icmp_error_about_an_echo_is_translated(bench: NatTestbed, family: int) -> None:
    """Traceroute by ping: the router's "time exceeded" names the client's identifier, and the ping goes on."""
    request = Packet(bench.client(family), bench.remote(family, 5), echo(family, 702))
    uplink, sent = bench.out(request)
    error = Icmp(TIME_EXCEEDED[family], data=encode(sent))
    got = bench.back(uplink, Packet(bench.router(family), sent.source, error))
    quoted = decode(got.icmp().data, quoted=True)
    check(not quoted.faults and quoted.source == request.source, f"the quote became {quoted}")
    check(quoted.icmp().ident == 702, f"the quoted id is {quoted.icmp().ident}")
    reply = Packet(request.dest, sent.source, echo(family, sent.icmp().ident, reply=True))
    check(bench.back(uplink, reply).icmp().ident == 702, "the ping ended")


@case("RFC 5508 REQ-4a")
def icmp_error_about_nothing_of_ours_stays_outside(bench: NatTestbed, family: int) -> None:
    """An error about a packet that nobody inside has sent is not forwarded."""
    uplink = bench.uplinks["dsl"]
    never = Packet(bench.outer(uplink, family), bench.remote(family), Udp(1999, 1999, b"never sent"))
    uplink.send(Packet(bench.router(family), never.source, unreachable(encode(never))))
    inside = [packet for port, packet in bench.settled(family) if port is bench.lan]
    check(not inside, f"the LAN got {inside}")


def _refused(bench: NatTestbed, mapping: Mapping, error: Icmp, source: str) -> Packet:
    """Let a host in the LAN send an error about the mapping's last reply; return what the remote gets."""
    bench.lan.send(Packet(source, mapping.remote, error))
    wanted = mapping.remote
    _, sent = expect([mapping.uplink], lambda each: each.dest == wanted, what="error outside")
    check(not sent.faults, f"spoilt: {sent}")
    check(sent.source == mapping.outer, f"the error comes from {sent.source}")
    return sent


@case("RFC 5508 REQ-5")
def icmp_error_of_a_client_is_translated(bench: NatTestbed, family: int) -> None:
    """A client's "port unreachable" reaches the remote, about the packet that the remote sent."""
    mapping = bench.open_udp(family)
    answer = mapping.answer(b"late")
    got = bench.back(mapping.uplink, answer)
    _quotes(_refused(bench, mapping, unreachable(encode(got)), mapping.inside), answer)


@case("RFC 5508 REQ-5a")
def icmp_error_of_a_client_about_nothing_is_dropped(bench: NatTestbed, family: int) -> None:
    """A client's error about a packet that never arrived is not forwarded."""
    never = Packet(bench.remote(family), bench.client(family), Udp(SERVICE, 1998, b"never came"))
    bench.lan.send(Packet(never.dest, never.source, unreachable(encode(never))))
    seen: list[Arrived] = bench.settled(family)
    check(not [each for port, each in seen if port is not bench.lan], f"outside saw {seen}")


@case("RFC 5508 REQ-7", deviation="hairpinned datagrams are carried, ICMP errors about them are not")
def icmp_error_passes_a_hairpin(bench: NatTestbed, family: int) -> None:
    """A client's error about a hairpinned datagram reaches its sender, from the client's outer address."""
    there, here = bench.open_udp(family, client=1), bench.open_udp(family, client=2)
    call = Packet(here.inside, there.outer, Udp(here.inside_port, there.outer_port, b"hairpin"))
    bench.lan.send(call)
    _, got = expect([bench.lan], lambda each: each.dest == there.inside, what="datagram back in the LAN")
    bench.lan.send(Packet(there.inside, got.source, unreachable(encode(got))))
    # Braid has clients repeat acknowledgements once a line goes on, so this may not be the only packet.
    _, error = expect(
        [bench.lan],
        lambda each: each.dest == here.inside and isinstance(each.body, Icmp),
        what="error back in the LAN",
    )
    check(not error.faults, f"spoilt: {error}")
    _quotes(error, call)


@case("RFC 1191 §4, RFC 8201 §4")
def path_mtu_of_the_internet_is_told(bench: NatTestbed, family: int) -> None:
    """A router's "fragmentation needed" about a client's packet arrives with its MTU, for UDP and TCP."""
    udp = bench.open_udp(family)
    request = dataclasses.replace(udp.request(bytes(1200)), dont_fragment=True)
    _, sent = bench.out(request)
    got = _error_about(bench, udp, too_big(encode(sent)[: CERTAIN_BYTES[family]], 1280))
    check(got.icmp().mtu == 1280, f"the size became {got.icmp().mtu}")
    _quotes(got, request)
    tcp = bench.open_tcp(family)
    segment = dataclasses.replace(tcp.segment(Flag.ACK, bytes(1200)), dont_fragment=True)
    _, sent = bench.out(segment)
    got = _error_about(bench, tcp, too_big(encode(sent)[: CERTAIN_BYTES[family]], 1280))
    check(got.icmp().mtu == 1280, f"the size became {got.icmp().mtu}")
    _quotes(got, segment)


@case("RFC 4787 REQ-13")
def path_mtu_of_the_uplink_is_told(bench: NatTestbed, family: int) -> None:
    """The gateway answers a packet that its uplink cannot carry, on the slow path and on the fast path."""
    mapping = _narrow(bench, family)
    for opened in (mapping, dataclasses.replace(mapping, inside_port=bench.port())):
        large = dataclasses.replace(opened.request(bytes(1420)), dont_fragment=True)
        bench.lan.send(large)
        _, got = expect([bench.lan], lambda each: isinstance(each.body, Icmp), what="error of the gateway")
        check(not got.faults and got.dest == large.source, f"the gateway said {got}")
        check(got.icmp().mtu == 1400, f"the size is {got.icmp().mtu}")
        _quotes(got, large)


def _narrow(bench: NatTestbed, family: int) -> Mapping:
    while True:
        mapping = bench.open_udp(family)
        if mapping.uplink.device == "lte":
            return mapping


@case("RFC 1191 §4, RFC 8201 §4")
def path_mtu_of_the_lan_is_told(bench: NatTestbed, family: int) -> None:
    """A "packet too big" of a router inside the LAN reaches the remote."""
    mapping = bench.open_udp(family)
    answer = dataclasses.replace(mapping.answer(bytes(1200)), dont_fragment=True)
    got = bench.back(mapping.uplink, answer)
    router = bench.client(family, 3)
    sent = _refused(bench, mapping, too_big(encode(got)[: CERTAIN_BYTES[family]], 1280), router)
    check(sent.icmp().mtu == 1280, f"the size became {sent.icmp().mtu}")
    _quotes(sent, answer)
