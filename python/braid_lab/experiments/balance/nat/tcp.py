"""TCP: RFC 5382."""

from __future__ import annotations

import dataclasses

from braid_lab.experiments.balance.nat.cases import case, check
from braid_lab.experiments.balance.nat.testbed import SERVICE, UPLINKS, Mapping, NatTestbed
from braid_lab.packets.codec import Flag, Packet, Tcp
from braid_lab.packets.tap import expect

SYN, ACK, FIN, RST = Flag.SYN, Flag.ACK, Flag.FIN, Flag.RST
PER_REMOTE = "each connection takes an uplink of its own, so a mapping is per remote"
#: IP and TCP headers by IP version.
HEADERS = {4: 40, 6: 60}


@case("RFC 5382 REQ-1", deviation=PER_REMOTE)
def tcp_mapping_is_endpoint_independent(bench: NatTestbed, family: int) -> None:
    """All remotes see the same address and port of a client's port."""
    port = bench.port()
    seen = {(each.outer, each.outer_port) for n in (1, 2) for each in [bench.send_syn(family, port=port, remote=n)]}
    check(len(seen) == 1, f"one port is seen as {seen}")


@case("RFC 5382 REQ-2")
def tcp_handshake_opens_a_connection(bench: NatTestbed, family: int) -> None:
    """SYN, SYN/ACK, ACK, then data both ways: the first packets on the slow path, the rest on the fast path."""
    mapping = bench.open_tcp(family)
    for _ in range(3):
        bench.carries(mapping)


@case("RFC 5382 REQ-2a")
def tcp_simultaneous_open(bench: NatTestbed, family: int) -> None:
    """Both sides send a SYN, then both a SYN/ACK: one connection, as in RFC 793 fig. 8."""
    mapping = bench.send_syn(family)
    got = bench.back(mapping.uplink, mapping.reply(SYN, seq=9000, ack=0))
    check(got.tcp().flags == SYN and got.dest == mapping.inside, f"the remote's SYN became {got}")
    _, sent = bench.out(mapping.segment(SYN | ACK, seq=1000, ack=9001))
    check(sent.tcp().source_port == mapping.outer_port, f"the SYN/ACK left as {sent}")
    got = bench.back(mapping.uplink, mapping.reply(SYN | ACK, seq=9000, ack=1001))
    check(got.tcp().flags == SYN | ACK, f"the remote's SYN/ACK became {got}")
    bench.carries(mapping)


@case("RFC 5382 REQ-3")
def tcp_filtering_is_per_remote(bench: NatTestbed, family: int) -> None:
    """Packets of a third party to a connection's port reach nobody inside."""
    mapping = bench.open_tcp(family)
    for flags in (SYN, ACK, RST):
        mapping.uplink.send(
            Packet(bench.remote(family, 77), mapping.outer, Tcp(7777, mapping.outer_port, flags, 9001, 1001))
        )
    inside = [packet for port, packet in bench.settled(family) if port is bench.lan]
    check(not inside, f"the LAN got {inside}")


@case("RFC 5382 REQ-4", deviation="what belongs to no flow is the machine's own, whose stack or firewall answers")
def tcp_unsolicited_syn_waits(bench: NatTestbed, family: int) -> None:
    """An unsolicited SYN is not refused at once: the client's own may be on its way."""
    mapping = bench.open_tcp(family)
    mapping.uplink.send(Packet(bench.remote(family, 78), mapping.outer, Tcp(7777, mapping.outer_port, SYN, 1)))
    answers = [packet for port, packet in bench.settled(family) if packet.dest == bench.remote(family, 78)]
    check(not answers, f"answered by {answers}")


@case("RFC 5382 REQ-4")
def tcp_opens_after_an_unsolicited_syn(bench: NatTestbed, family: int) -> None:
    """A SYN that came too early does not keep the client's own from opening the connection."""
    port = bench.port()
    for uplink in bench.uplinks.values():
        uplink.send(Packet(bench.remote(family), bench.outer(uplink, family), Tcp(SERVICE, port, SYN, 9000)))
    bench.settled(family)
    bench.carries(bench.open_tcp(family, port=port))


@case("RFC 5382 REQ-7", deviation=PER_REMOTE)
def tcp_ports_are_not_overloaded(bench: NatTestbed, family: int) -> None:
    """Two clients with the same port get different outer ports, whatever they connect to."""
    port = bench.port()
    mappings = [bench.send_syn(family, client=n, remote=n, port=port) for n in (1, 2, 3)]
    one, other = bench.clashing(family, mappings)
    check(one.outer_port != other.outer_port, f"both are {one.outer}:{one.outer_port}")


@case("RFC 5382 REQ-7")
def tcp_ports_differ_towards_one_server(bench: NatTestbed, family: int) -> None:
    """Two clients with the same port to the same server get different outer ports; replies reach the right one."""
    port = bench.port()
    mappings = [bench.open_tcp(family, client=n, port=port) for n in (1, 2, 3)]
    one, other = bench.clashing(family, mappings)
    check(one.outer_port != other.outer_port, f"both are {one.outer}:{one.outer_port}")
    for each in mappings:
        bench.carries(each)


@case("RFC 4787 §4.2.1")
def tcp_port_is_preserved(bench: NatTestbed, family: int) -> None:
    """A client's port is kept unless it is taken."""
    mapping = bench.send_syn(family)
    check(mapping.outer_port == mapping.inside_port, f"port {mapping.inside_port} became {mapping.outer_port}")


@case("RFC 5382 REQ-8", deviation=PER_REMOTE)
def tcp_hairpin(bench: NatTestbed, family: int) -> None:
    """A client connects to another one by the outer address of its port."""
    there = bench.open_tcp(family, client=1)
    call = Packet(bench.client(family, 2), there.outer, Tcp(bench.port(), there.outer_port, SYN, 1))
    bench.lan.send(call)
    _, got = expect([bench.lan], lambda each: each.dest in (there.inside, call.source), what="packet in the LAN")
    check(got.dest == there.inside and got.tcp().flags == SYN, f"came back as {got}")


@case("RFC 5382 §4")
def tcp_reset_passes(bench: NatTestbed, family: int) -> None:
    """Either side's RST reaches the other."""
    mapping = bench.open_tcp(family)
    _, sent = bench.out(mapping.segment(RST | ACK))
    check(sent.tcp().flags & RST, f"became {sent}")
    mapping = bench.open_tcp(family)
    check(bench.back(mapping.uplink, mapping.reply(RST)).tcp().flags & RST, "the RST was lost")


@case("RFC 7857 §2")
def tcp_forged_reset_ends_nothing(bench: NatTestbed, family: int) -> None:
    """A RST with a wrong sequence number, which the client ignores, leaves the mapping intact."""
    mapping = bench.open_tcp(family)
    bench.back(mapping.uplink, mapping.reply(RST, seq=77_777_777))
    bench.carries(mapping)


@case("RFC 5382 REQ-2")
def tcp_half_closed_connection_carries(bench: NatTestbed, family: int) -> None:
    """After one FIN the other side may go on sending, and the first may go on acknowledging."""
    mapping = bench.open_tcp(family)
    bench.out(mapping.segment(FIN | ACK))
    for _ in range(2):
        got = bench.back(mapping.uplink, mapping.reply(ACK | Flag.PSH, b"more"))
        check(got.dest == mapping.inside, f"went to {got}")
        bench.out(mapping.segment(ACK, seq=1002, ack=9005))
    bench.back(mapping.uplink, mapping.reply(FIN | ACK, seq=9009, ack=1002))
    _, sent = bench.out(mapping.segment(ACK, seq=1002, ack=9010))
    check(sent.tcp().source_port == mapping.outer_port, f"the last ACK left as {sent}")


@case("RFC 5382 REQ-2, RFC 6191")
def tcp_port_is_used_again_after_closing(bench: NatTestbed, family: int) -> None:
    """The same four-tuple can be opened again after both FINs, and after a RST."""
    for last in (FIN | ACK, RST | ACK):
        mapping = bench.open_tcp(family)
        bench.back(mapping.uplink, mapping.reply(FIN | ACK))
        bench.out(mapping.segment(last))
        again = bench.open_tcp(family, port=mapping.inside_port)
        bench.carries(again)


@case("RFC 5382 §3")
def tcp_without_a_flow_is_answered(bench: NatTestbed, family: int) -> None:
    """Segments of a connection older than the gateway reach the server, whose RST tells the client at once."""
    port, remote = bench.port(), bench.remote(family, 3)
    stray = Packet(bench.client(family), remote, Tcp(port, SERVICE, ACK | Flag.PSH, 5, 6, b"stray"))
    uplink, sent = bench.out(stray)
    refusal = Packet(remote, sent.source, Tcp(SERVICE, sent.tcp().source_port, RST, 6))
    got = bench.back(uplink, refusal)
    check((got.dest, got.tcp().dest_port) == (stray.source, port), f"the RST went to {got}")


def _on(bench: NatTestbed, family: int, name: str) -> Mapping:
    """Open connections until one is on the uplink."""
    while True:
        mapping = bench.open_tcp(family)
        if mapping.uplink.device == name:
            return mapping


@case("RFC 4459 §3.2")
def mss_is_clamped_both_ways(bench: NatTestbed, family: int) -> None:
    """SYN and SYN/ACK announce no larger segments than the uplink carries; a smaller MSS is kept."""
    for asked in (1460, 500):
        for _ in bench.uplinks:
            port, remote = bench.port(), bench.remote(family)
            packet = Packet(bench.client(family), remote, Tcp(port, SERVICE, SYN, 1000, mss=asked))
            uplink, sent = bench.out(packet)
            most = min(asked, UPLINKS[uplink.device] - HEADERS[family])
            check(sent.tcp().mss == most, f"{uplink.device}: SYN says {sent.tcp().mss}, not {most}")
            answer = Packet(
                remote,
                sent.source,
                Tcp(SERVICE, sent.tcp().source_port, SYN | ACK, 9000, 1001, mss=asked),
            )
            got = bench.back(uplink, answer)
            check(got.tcp().mss == most, f"{uplink.device}: SYN/ACK says {got.tcp().mss}, not {most}")


@case("RFC 1191, RFC 8201")
def segments_as_large_as_the_uplink_pass(bench: NatTestbed, family: int) -> None:
    """Full segments pass whole in both directions, also on an uplink with a smaller MTU."""
    for name, mtu in UPLINKS.items():
        mapping = _on(bench, family, name)
        data = bytes(mtu - HEADERS[family])
        for _ in range(2):
            packet = dataclasses.replace(mapping.segment(ACK, data), dont_fragment=True)
            # The slow path is as wide as the narrowest uplink until the connection moves to the fast path.
            _, sent = bench.out(packet)
            check(sent.tcp().data == data, f"{name}: {len(sent.tcp().data)} of {len(data)} bytes left")
            got = bench.back(mapping.uplink, dataclasses.replace(mapping.reply(ACK, data), dont_fragment=True))
            check(got.tcp().data == data, f"{name}: {len(got.tcp().data)} of {len(data)} bytes came")
