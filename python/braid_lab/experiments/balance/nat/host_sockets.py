"""Sockets of the machine itself: its kernel checks every checksum and sequence number of replies."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator

from braid_lab.experiments.balance.nat.cases import ONLY_V4, case, check
from braid_lab.experiments.balance.nat.fragments import LARGE, collect
from braid_lab.experiments.balance.nat.testbed import SERVICE, UPLINKS, NatTestbed
from braid_lab.packets.codec import Flag, Icmp, Packet, Tcp, Udp, echo, encode, too_big, unreachable
from braid_lab.packets.fragments import split
from braid_lab.packets.tap import Arrived, Port, expect

SYN, ACK = Flag.SYN, Flag.ACK
#: Longest wait for a packet to one of the machine's own sockets.
RECEIVE_TIMEOUT_S = 3.0
# Linux socket options that Python does not name.
SO_NO_CHECK = 11
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_DO = 10, 23, 2
IP_MTU, IPV6_MTU = 14, 24
HEADERS = {4: 40, 6: 60}

_sequence = itertools.count(1)


@contextlib.contextmanager
def _socket(bench: NatTestbed, family: int, kind: int, protocol: int = 0) -> Iterator[socket.socket]:
    """Open a socket on the machine."""
    with bench.host.inside():
        made = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, kind, protocol)
    with made:
        made.settimeout(RECEIVE_TIMEOUT_S)
        yield made


def _seen(bench: NatTestbed, dest: str, kind: type[Udp | Icmp] = Udp) -> Arrived:
    """Return the next packet of a kind to `dest` that leaves the machine, reassembled and valid."""
    ports = list(bench.uplinks.values())
    wanted = f"{kind.__name__} outside"
    port, packet = expect(ports, lambda each: each.dest == dest and isinstance(each.body, kind), what=wanted)
    check(not packet.faults, f"spoilt on its way out: {packet}")
    return port, packet


@case("RFC 4787 REQ-1, REQ-8", role="host")
def udp_socket_has_one_mapping(bench: NatTestbed, family: int) -> None:
    """All remotes see the same address and port of a socket, and any of them may reply."""
    with _socket(bench, family, socket.SOCK_DGRAM) as asker:
        seen = set()
        for number in (1, 2, 3):
            asker.sendto(b"hello", (bench.remote(family, number), SERVICE))
            port, packet = _seen(bench, bench.remote(family, number))
            seen.add((port.device, packet.source, packet.udp().source_port))
        check(len(seen) == 1, f"seen as {seen}")
        for number in (1, 77):
            answer = Udp(SERVICE + number, packet.udp().source_port, b"answer")
            port.send(Packet(bench.remote(family, number), packet.source, answer))
            check(asker.recvfrom(100)[0] == b"answer", "another answer came")


@case("RFC 768, RFC 3022 §4.1", role="host", families=ONLY_V4)
def udp_without_checksum_stays_without(bench: NatTestbed, family: int) -> None:
    """A socket with checksums disabled sends and receives datagrams without one."""
    with _socket(bench, family, socket.SOCK_DGRAM) as asker:
        asker.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        asker.sendto(b"hello", (bench.remote(family), SERVICE))
        port, packet = _seen(bench, bench.remote(family))
        check(not packet.udp().checksum, f"sent with a checksum: {packet}")
        answer = Udp(SERVICE, packet.udp().source_port, b"answer", checksum=False)
        port.send(Packet(packet.dest, packet.source, answer))
        check(asker.recv(100) == b"answer", "another answer came")


@case("RFC 5508 REQ-1", role="host")
def echo_passes_both_ways(bench: NatTestbed, family: int) -> None:
    """A ping is answered with its own identifier."""
    protocol = socket.IPPROTO_ICMP if family == 4 else socket.IPPROTO_ICMPV6
    with _socket(bench, family, socket.SOCK_RAW, protocol) as pinger:
        request = Packet("192.0.0.8" if family == 4 else "::", bench.remote(family), echo(family, 710))
        # The kernel computes ICMPv6 checksums; this code computes ICMP's.
        pinger.sendto(encode(request)[20 if family == 4 else 40 :], (bench.remote(family), 0))
        port, packet = _seen(bench, bench.remote(family), Icmp)
        reply = echo(family, packet.icmp().ident, reply=True)
        port.send(Packet(packet.dest, packet.source, reply))
        while True:
            got = pinger.recv(1000)[20 if family == 4 else 0 :]
            if got[0] == reply.type:
                break
        check(int.from_bytes(got[4:6]) == 710, f"the reply's id is {int.from_bytes(got[4:6])}")


@case("RFC 5508 REQ-4", role="host")
def icmp_error_reaches_the_socket(bench: NatTestbed, family: int) -> None:
    """A connected socket gets "connection refused"."""
    with _socket(bench, family, socket.SOCK_DGRAM) as asker:
        asker.connect((bench.remote(family), SERVICE))
        asker.send(b"hello")
        port, packet = _seen(bench, bench.remote(family))
        port.send(Packet(packet.dest, packet.source, unreachable(encode(packet))))
        try:
            asker.recv(100)
        except ConnectionRefusedError:
            return
        check(False, "the socket heard nothing of it")


@case("RFC 1191 §6.3, RFC 8201 §5.3", role="host")
def path_mtu_reaches_the_socket(bench: NatTestbed, family: int) -> None:
    """After a router's "fragmentation needed" the stack knows the path MTU."""
    level, discover, mtu = (
        (socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_MTU)
        if family == 4
        else (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_MTU)
    )
    remote = bench.remote(family, 60 + next(_sequence))
    with _socket(bench, family, socket.SOCK_DGRAM) as asker:
        asker.setsockopt(level, discover, PMTUDISC_DO)
        asker.connect((remote, SERVICE))
        asker.send(bytes(1330))
        port, packet = _seen(bench, remote)
        port.send(Packet(bench.router(family), packet.source, too_big(encode(packet)[:1200], 1290)))
        with contextlib.suppress(OSError):
            # The error itself, "message too long", is reported once.
            asker.send(b"again")
        known = asker.getsockopt(level, mtu)
        check(known == 1290, f"the stack knows {known}")


@case("RFC 4787 REQ-14", role="host")
def fragments_reach_the_socket_in_any_order(bench: NatTestbed, family: int) -> None:
    """A large datagram arrives in fragments, in either order, and another one leaves in fragments."""
    with _socket(bench, family, socket.SOCK_DGRAM) as asker:
        asker.sendto(LARGE, (bench.remote(family), SERVICE))
        port, sent = collect(list(bench.uplinks.values()), lambda each: each.dest == bench.remote(family))
        check(not sent.faults and sent.udp().data == LARGE, f"spoilt on its way out: {sent.faults}")
        answer = Packet(sent.dest, sent.source, Udp(SERVICE, sent.udp().source_port, LARGE[::-1]))
        for turn in (1, -1):
            order = split(answer, 1280, 0x2000 + next(_sequence))[::turn]
            for each in order:
                port.send(each)
            check(asker.recv(10_000) == LARGE[::-1], "other bytes came")


def _connecting(bench: NatTestbed, family: int, asker: socket.socket) -> tuple[Port, Packet]:
    """Start to connect; return the SYN and the port that it left by."""
    asker.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        asker.connect((bench.remote(family), SERVICE))
    asker.settimeout(RECEIVE_TIMEOUT_S)
    # An earlier connection may still be sending its FIN.
    ports = list(bench.uplinks.values())
    port, syn = expect(ports, lambda each: isinstance(each.body, Tcp) and each.body.flags == SYN, what="SYN")
    check(not syn.faults, f"spoilt on its way out: {syn}")
    most = UPLINKS[port.device] - HEADERS[family]
    check((syn.tcp().mss or 0) <= most, f"the SYN is {syn}")
    return port, syn


def _reply(syn: Packet, flags: Flag, data: bytes = b"", *, seq: int = 9001) -> Packet:
    """Return a segment of the server, which has acknowledged the SYN and nothing since."""
    body = Tcp(SERVICE, syn.tcp().source_port, flags, seq, syn.tcp().seq + 1 & 0xFFFFFFFF, data)
    return Packet(syn.dest, syn.source, body)


def _talk(port: Port, syn: Packet, asker: socket.socket) -> None:
    """Exchange data over an open connection."""
    port.send(_reply(syn, ACK | Flag.PSH, b"from the server"))
    check(asker.recv(100) == b"from the server", "other bytes came")
    asker.send(b"from the host")
    _, sent = expect([port], lambda each: isinstance(each.body, Tcp) and bool(each.body.data), what="data")
    check(not sent.faults and sent.tcp().data == b"from the host", f"sent as {sent}")
    check((sent.source, sent.tcp().source_port) == (syn.source, syn.tcp().source_port), f"left as {sent}")


@case("RFC 5382 REQ-2", role="host")
def tcp_socket_connects(bench: NatTestbed, family: int) -> None:
    """SYN, SYN/ACK, ACK, data both ways."""
    for _ in bench.uplinks:
        with _socket(bench, family, socket.SOCK_STREAM) as asker:
            port, syn = _connecting(bench, family, asker)
            port.send(_reply(syn, SYN | ACK, seq=9000))
            expect([port], lambda each: isinstance(each.body, Tcp) and each.body.flags == ACK, what="ACK")
            _talk(port, syn, asker)


@case("RFC 5382 REQ-2a", role="host")
def tcp_simultaneous_open(bench: NatTestbed, family: int) -> None:
    """The remote's SYN crosses ours; both become one connection."""
    with _socket(bench, family, socket.SOCK_STREAM) as asker:
        port, syn = _connecting(bench, family, asker)
        port.send(Packet(syn.dest, syn.source, Tcp(SERVICE, syn.tcp().source_port, SYN, 9000)))
        expect([port], lambda each: isinstance(each.body, Tcp) and each.body.flags == SYN | ACK, what="SYN/ACK")
        port.send(_reply(syn, SYN | ACK, seq=9000))
        _talk(port, syn, asker)


@case("RFC 5382 §4", role="host")
def tcp_refusal_reaches_the_socket(bench: NatTestbed, family: int) -> None:
    """A server's RST ends a connection attempt at once."""
    with _socket(bench, family, socket.SOCK_STREAM) as asker:
        port, syn = _connecting(bench, family, asker)
        port.send(_reply(syn, Flag.RST | ACK, seq=0))
        try:
            asker.recv(1)
        except ConnectionRefusedError:
            return
        check(False, "the socket heard nothing of it")


@case("RFC 4787 §4.2.1", role="host")
def a_sockets_port_is_preserved(bench: NatTestbed, family: int) -> None:
    """Remotes see the port that a program has bound."""
    with _socket(bench, family, socket.SOCK_DGRAM) as asker:
        asker.bind(("", bench.port()))
        asker.sendto(b"hello", (bench.remote(family), SERVICE))
        _, packet = _seen(bench, bench.remote(family))
        bound = asker.getsockname()[1]
        check(packet.udp().source_port == bound, f"port {bound} became {packet.udp().source_port}")
