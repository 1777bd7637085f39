"""UDP: RFC 4787."""

from __future__ import annotations

import dataclasses
import time

from braid_lab.experiments.balance.nat.cases import ONLY_V4, case, check
from braid_lab.experiments.balance.nat.testbed import SERVICE, NatTestbed
from braid_lab.packets.codec import Packet, Udp, encode, unreachable
from braid_lab.packets.tap import expect
from braid_lab.process import wait_until

QUIC = 443


@case("RFC 4787 REQ-1")
def udp_mapping_is_endpoint_independent(bench: NatTestbed, family: int) -> None:
    """All remotes see the same address and port of a client's port."""
    port = bench.port()
    seen = {
        (each.outer, each.outer_port)
        for remote, remote_port in ((1, SERVICE), (2, SERVICE), (1, SERVICE + 1))
        for each in [bench.send_udp(family, port=port, remote=remote, remote_port=remote_port)]
    }
    check(len(seen) == 1, f"one port is seen as {seen}")


@case("RFC 4787 REQ-2", deviation="each new mapping takes an uplink by policy; hash-source and sticky pair them")
def udp_pooling_is_paired(bench: NatTestbed, family: int) -> None:
    """All ports of a client have the same outer address."""
    seen = {bench.send_udp(family).outer for _ in range(4)}
    check(len(seen) == 1, f"one client is seen as {seen}")


@case("RFC 4787 §4.2.1")
def udp_port_is_preserved(bench: NatTestbed, family: int) -> None:
    """A client's port is kept unless it is taken."""
    mapping = bench.send_udp(family)
    check(mapping.outer_port == mapping.inside_port, f"port {mapping.inside_port} became {mapping.outer_port}")


@case("RFC 4787 REQ-3")
def udp_ports_are_not_overloaded(bench: NatTestbed, family: int) -> None:
    """Two clients with the same port get different outer ports, and replies reach the right one."""
    port = bench.port()
    mappings = [bench.open_udp(family, client=client, port=port) for client in (1, 2, 3)]
    one, other = bench.clashing(family, mappings)
    check(one.outer_port != other.outer_port, f"both are {one.outer}:{one.outer_port}")


@case("RFC 4787 REQ-3a", deviation="on a conflict the port comes from the uplink's range, which lies above 1023")
def udp_low_port_stays_low(bench: NatTestbed, family: int) -> None:
    """Clients with the same port below 1024 all keep one below 1024."""
    # The IPv6 case has this port to itself, too: mappings of the two versions differ in their addresses.
    mappings = [bench.send_udp(family, client=client, port=123) for client in (1, 2, 3)]
    for each in bench.clashing(family, mappings):
        check(each.outer_port < 1024, f"port 123 became {each.outer_port}")


@case("RFC 4787 REQ-4")
def udp_port_parity_is_preserved(bench: NatTestbed, family: int) -> None:
    """An even port stays even and an odd one odd, also on a conflict (RTP and RTCP)."""
    for _ in range(6):
        port = bench.port()
        for client in (1, 2, 3):
            mapping = bench.send_udp(family, client=client, port=port)
            check(mapping.outer_port % 2 == port % 2, f"port {port} became {mapping.outer_port}")


@case("RFC 4787 REQ-6")
def udp_outbound_packets_refresh_a_mapping(bench: NatTestbed, family: int) -> None:
    """Every packet from inside restarts a mapping's idle time."""
    mapping = bench.open_udp(family)

    def idle_ms() -> float | None:
        inner = (
            f"{mapping.inside}:{mapping.inside_port}" if family == 4 else f"[{mapping.inside}]:{mapping.inside_port}"
        )
        flows = bench.daemon.json("flows")["flows"]
        return next((float(each["idle_ms"]) for each in flows if each["inner"] == inner), None)

    # A switch's flows are read once a second, and on a busy machine it takes a while to ask: more than the mapping is
    # old, at times. Without a packet since it would be older than the packet by its age before.
    before = wait_until(idle_ms, what="the mapping in braid flows")
    wait_until(lambda: next((idle for idle in [idle_ms()] if idle and idle > before + 500), None), what="its age")
    sent = time.monotonic()
    bench.out(mapping.request())

    def is_no_older() -> bool:
        idle = idle_ms()
        return idle is not None and idle <= 1000 * (time.monotonic() - sent)

    wait_until(is_no_older, what="no more idle time than since the last packet", timeout=5)


@case("RFC 4787 REQ-8")
def udp_filtering_is_endpoint_independent(bench: NatTestbed, family: int) -> None:
    """Any remote may send to a mapping, not only those that the client has sent to."""
    mapping = bench.send_udp(family)
    stranger = Packet(bench.remote(family, 77), mapping.outer, Udp(7777, mapping.outer_port, b"hello"))
    got = bench.back(mapping.uplink, stranger)
    check((got.dest, got.udp().dest_port) == (mapping.inside, mapping.inside_port), f"went to {got}")


@case("Braid: QUIC is a flow per remote")
def quic_filtering_is_per_remote(bench: NatTestbed, family: int) -> None:
    """Only the contacted server may reply to a QUIC flow; other packets reach nobody inside."""
    mapping = bench.open_udp(family, remote_port=QUIC)
    mapping.uplink.send(Packet(bench.remote(family, 77), mapping.outer, Udp(QUIC, mapping.outer_port, b"hello")))
    inside = [packet for port, packet in bench.settled(family) if port is bench.lan]
    check(not inside, f"the LAN got {inside}")


@case("RFC 4787 REQ-9")
def udp_hairpin(bench: NatTestbed, family: int) -> None:
    """A client reaches another one by its outer address, and appears with its own outer address (REQ-9a)."""
    there = bench.open_udp(family, client=1)
    here = bench.open_udp(family, client=2)
    call = Packet(here.inside, there.outer, Udp(here.inside_port, there.outer_port, b"hairpin"))
    bench.lan.send(call)
    _, got = expect([bench.lan], lambda each: each.dest == there.inside, what="packet back in the LAN")
    check(not got.faults, f"spoilt: {got}")
    check(got.udp().dest_port == there.inside_port, f"arrived at port {got.udp().dest_port}")
    check((got.source, got.udp().source_port) == (here.outer, here.outer_port), f"came from {got.source}")


@case("RFC 4787 REQ-11")
def udp_mapping_is_the_same_under_conflict(bench: NatTestbed, family: int) -> None:
    """A client that did not get its own port still has one mapping for all remotes, open to all."""
    port = bench.port()
    mappings = [bench.send_udp(family, client=client, port=port) for client in (1, 2, 3)]
    _, loser = bench.clashing(family, mappings)
    client = mappings.index(loser) + 1
    again = bench.send_udp(family, client=client, remote=5, port=port, remote_port=SERVICE + 5)
    check((again.outer, again.outer_port) == (loser.outer, loser.outer_port), f"{loser} became {again}")
    stranger = Packet(bench.remote(family, 78), loser.outer, Udp(7777, loser.outer_port, b"hello"))
    check(bench.back(loser.uplink, stranger).dest == loser.inside, "a stranger's packet went elsewhere")


@case("RFC 4787 REQ-12")
def udp_icmp_error_keeps_the_mapping(bench: NatTestbed, family: int) -> None:
    """A "port unreachable" in reply ends nothing."""
    mapping = bench.open_udp(family)
    uplink, sent = bench.out(mapping.request())
    bench.back(uplink, Packet(bench.router(family), mapping.outer, unreachable(encode(sent))))
    _, again = bench.out(mapping.request())
    check((again.source, again.udp().source_port) == (mapping.outer, mapping.outer_port), f"moved to {again}")
    bench.back(mapping.uplink, mapping.answer())


@case("RFC 768, RFC 3022 §4.1", families=ONLY_V4)
def udp_without_checksum_stays_without(bench: NatTestbed, family: int) -> None:
    """A datagram without a checksum gets none, in both directions, on the slow path and on the fast path."""
    mapping = bench.open_udp(family)
    for _ in range(2):
        _, sent = bench.out(mapping.request(checksum=False))
        check(not sent.udp().checksum, f"sent with a checksum: {sent}")
        got = bench.back(mapping.uplink, mapping.answer(checksum=False))
        check(not got.udp().checksum, f"delivered with a checksum: {got}")


@case("RFC 1812 §5.3.1")
def hop_limit_goes_down_by_one(bench: NatTestbed, family: int) -> None:
    """Every packet loses one hop, on either path."""
    mapping = bench.open_udp(family)
    for _ in range(2):
        _, sent = bench.out(dataclasses.replace(mapping.request(), hops=40))
        got = bench.back(mapping.uplink, dataclasses.replace(mapping.answer(), hops=50))
        check((sent.hops, got.hops) == (39, 49), f"40 became {sent.hops}, 50 became {got.hops}")


@case("RFC 2474, RFC 3168")
def dscp_and_ecn_are_kept(bench: NatTestbed, family: int) -> None:
    """DSCP and ECN are not changed."""
    mapping = bench.open_udp(family)
    for _ in range(2):
        _, sent = bench.out(dataclasses.replace(mapping.request(), tos=0xB9))
        got = bench.back(mapping.uplink, dataclasses.replace(mapping.answer(), tos=0x2A))
        check((sent.tos, got.tos) == (0xB9, 0x2A), f"0xb9 became {sent.tos:#x}, 0x2a {got.tos:#x}")


@case("RFC 791 §3.1, RFC 8200 §4")
def options_are_kept(bench: NatTestbed, family: int) -> None:
    """Options between the IP and UDP headers pass unchanged."""
    # IPv4: router alert; IPv6: a destination options header, all padding.
    options = bytes([148, 4, 0, 0]) if family == 4 else bytes([1, 4, 0, 0, 0, 0])
    mapping = bench.open_udp(family)
    _, sent = bench.out(dataclasses.replace(mapping.request(), options=options))
    check(sent.options == options, f"options became {sent.options.hex()}")
    got = bench.back(mapping.uplink, dataclasses.replace(mapping.answer(), options=options))
    check(got.options == options, f"options became {got.options.hex()}")
