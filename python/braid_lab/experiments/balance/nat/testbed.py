"""A gateway, or a lone host, with every wire in the hands of the test.

    clients ── lan0 ─ host ─┬─ dsl (1500 bytes) ── internet
                            └─ lte (1400 bytes) ── internet

Every device is a TAP: packets of clients and servers are written to it byte by byte, and packets of the machine are
read from it. Neighbours are static, because nothing here answers ARP or neighbour solicitations.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from braid_lab.datapath import needs_whole_packets
from braid_lab.experiments.balance.nat.cases import Role, check
from braid_lab.net import scratch
from braid_lab.net.links import End, set_offload
from braid_lab.net.namespace import Namespace, namespace
from braid_lab.packets.codec import Flag, Icmp, Packet, Raw, Tcp, Udp
from braid_lab.packets.tap import Arrived, Port, expect
from braid_lab.product import Braid, braid

#: MTU of each uplink: one smaller than the LAN's, as behind PPPoE or LTE.
UPLINKS = {"dsl": 1500, "lte": 1400}
CLIENTS = 3
#: A server's port where the number does not matter.
SERVICE = 5000
#: Source ports of clients: below the ranges that Braid and the stack draw from.
FIRST_PORT, LAST_PORT = 2000, 16000

#: Unanswered packets here would look like a dying line, so health checks are off.
CONFIGURATION = "[liveness]\nenabled = false\n"


@dataclass(frozen=True)
class Mapping:
    """An inside port, a remote, and the outer address and port that the remote sees."""

    uplink: Port
    inside: str
    inside_port: int
    outer: str
    outer_port: int
    remote: str
    remote_port: int

    def request(self, data: bytes = b"request", **fields: bool) -> Packet:
        """Return a datagram from inside."""
        return Packet(self.inside, self.remote, Udp(self.inside_port, self.remote_port, data, **fields))

    def answer(self, data: bytes = b"answer", **fields: bool) -> Packet:
        """Return a datagram from the remote."""
        return Packet(self.remote, self.outer, Udp(self.remote_port, self.outer_port, data, **fields))

    def segment(self, flags: Flag, data: bytes = b"", *, seq: int = 1001, ack: int = 9001) -> Packet:
        """Return a TCP segment from inside."""
        return Packet(self.inside, self.remote, Tcp(self.inside_port, self.remote_port, flags, seq, ack, data))

    def reply(self, flags: Flag, data: bytes = b"", *, seq: int = 9001, ack: int = 1001) -> Packet:
        """Return a TCP segment from the remote."""
        return Packet(self.remote, self.outer, Tcp(self.remote_port, self.outer_port, flags, seq, ack, data))


class NatTestbed:
    """The machine, its wires, and the packets between them."""

    def __init__(
        self,
        role: Role,
        host: Namespace,
        lan: Port,
        uplinks: dict[str, Port],
        daemon: Braid,
        options: Sequence[str],
    ) -> None:
        """Use `bench`."""
        self.host, self.lan, self.uplinks, self.daemon = host, lan, uplinks, daemon
        #: Options of the daemon.
        self.options = options
        self._ports = itertools.cycle(range(FIRST_PORT, LAST_PORT))
        self._marks = itertools.count(1)
        # Opened now, so that opening them later does not swallow packets that others wait for.
        self._pilots = {family: self._open_pilots(family) for family in (4, 6) if role == "gateway"}

    # Addresses.

    def client(self, family: int, number: int = 1) -> str:
        """Return the address of a client, counted from 1."""
        return f"192.168.8.{100 + number}" if family == 4 else f"fd00:8::{100 + number}"

    def remote(self, family: int, number: int = 1) -> str:
        """Return the address of a host in the internet."""
        return f"198.51.100.{number}" if family == 4 else f"2001:db8:ffff::{number}"

    def router(self, family: int) -> str:
        """Return the address of a router on the path to it."""
        return self.remote(family, 250 if family == 4 else 9999)

    def outer(self, uplink: Port, family: int) -> str:
        """Return the machine's address on an uplink."""
        return outer(list(self.uplinks.values()).index(uplink) + 1, family)

    def port(self) -> int:
        """Return a client's port that no case has used yet."""
        return next(self._ports)

    # Packets.

    def out(self, packet: Packet) -> Arrived:
        """Let a client send; return what reaches the internet, reassembled and valid."""
        self.lan.send(packet)
        port, sent = expect(list(self.uplinks.values()), lambda each: each.dest == packet.dest, what="packet outside")
        check(not sent.faults, f"spoilt on its way out: {sent}")
        return port, sent

    def back(self, uplink: Port, packet: Packet) -> Packet:
        """Let a host in the internet send to an uplink; return what reaches the LAN, reassembled and valid."""
        uplink.send(packet)
        _, got = expect([self.lan], lambda each: _is_of(each, packet), what="packet in the LAN")
        check(not got.faults, f"spoilt on its way in: {got}")
        return got

    def settled(self, family: int) -> list[Arrived]:
        """Return all arrivals so far; pilot packets sent last show that everything before them has arrived."""
        seen: list[Arrived] = []
        for pilot in self._pilots[family]:
            mark = f"pilot {next(self._marks)}".encode()
            self.lan.send(pilot.request(mark))
            expect([*self.uplinks.values(), self.lan], _has(mark), what="pilot outside", passing=seen)
            pilot.uplink.send(pilot.answer(mark))
            expect([*self.uplinks.values(), self.lan], _has(mark), what="pilot inside", passing=seen)
        return [each for each in seen if not _is_chatter(each[1])]

    def _open_pilots(self, family: int) -> list[Mapping]:
        found: dict[str, Mapping] = {}
        # A policy may decide otherwise which client takes which uplink, or which uplinks are used at all.
        for number in range(4 * CLIENTS):
            pilot = self.open_udp(family, client=1 + number % CLIENTS, remote=99)
            found.setdefault(pilot.uplink.device, pilot)
            if len(found) == len(self.uplinks):
                break
        return list(found.values())

    # Exchanges.

    def open_udp(
        self, family: int, *, client: int = 1, remote: int = 1, port: int = 0, remote_port: int = SERVICE
    ) -> Mapping:
        """Let a client send a datagram and a remote reply."""
        mapping = self.send_udp(family, client=client, remote=remote, port=port, remote_port=remote_port)
        got = self.back(mapping.uplink, mapping.answer())
        check((got.dest, got.udp().dest_port) == (mapping.inside, mapping.inside_port), f"answer went to {got}")
        return mapping

    def send_udp(
        self, family: int, *, client: int = 1, remote: int = 1, port: int = 0, remote_port: int = SERVICE
    ) -> Mapping:
        """Let a client send a datagram; return the resulting mapping."""
        inside, port = self.client(family, client), port or self.port()
        packet = Packet(inside, self.remote(family, remote), Udp(port, remote_port, b"first"))
        uplink, sent = self.out(packet)
        return Mapping(uplink, inside, port, sent.source, sent.udp().source_port, packet.dest, remote_port)

    def send_syn(
        self, family: int, *, client: int = 1, remote: int = 1, port: int = 0, remote_port: int = SERVICE
    ) -> Mapping:
        """Let a client send a SYN; return the resulting mapping."""
        inside, port = self.client(family, client), port or self.port()
        packet = Packet(inside, self.remote(family, remote), Tcp(port, remote_port, Flag.SYN, 1000, mss=1460))
        uplink, sent = self.out(packet)
        return Mapping(uplink, inside, port, sent.source, sent.tcp().source_port, packet.dest, remote_port)

    def open_tcp(self, family: int, **who: int) -> Mapping:
        """Let a client connect, in three steps."""
        mapping = self.send_syn(family, **who)
        got = self.back(mapping.uplink, mapping.reply(Flag.SYN | Flag.ACK, seq=9000))
        check((got.dest, got.tcp().dest_port) == (mapping.inside, mapping.inside_port), f"SYN/ACK went to {got}")
        self.out(mapping.segment(Flag.ACK))
        return mapping

    def carries(self, mapping: Mapping) -> None:
        """Check that a connection carries data both ways by the same mapping."""
        uplink, sent = self.out(mapping.segment(Flag.ACK | Flag.PSH, b"up"))
        seen = (uplink, sent.source, sent.tcp().source_port)
        check(seen == (mapping.uplink, mapping.outer, mapping.outer_port), f"data left as {seen}")
        got = self.back(mapping.uplink, mapping.reply(Flag.ACK | Flag.PSH, b"down"))
        check((got.dest, got.tcp().dest_port) == (mapping.inside, mapping.inside_port), f"data went to {got}")

    def clashing(self, family: int, mappings: list[Mapping]) -> tuple[Mapping, Mapping]:
        """Return two of the mappings that share an uplink: of three on two uplinks, two must."""
        for one, other in itertools.combinations(mappings, 2):
            if one.uplink is other.uplink:
                return one, other
        raise AssertionError(f"{family}: three mappings on three of two uplinks")

    def reasons(self) -> dict[str, int]:
        """Return the datapath's counters by reason."""
        counts: dict[str, int] = self.daemon.json("status")["reasons"]
        return counts


def outer(index: int, family: int) -> str:
    """Return the machine's address on the uplink with this index."""
    return f"100.64.{index}.2" if family == 4 else f"2001:db8:{index}::2"


def _is_of(got: Packet, sent: Packet) -> bool:
    """Return true if a packet is the one that was sent, and not one of Braid that has a client repeat itself."""
    if got.source != sent.source or type(got.body) is not type(sent.body):
        return False
    return not (isinstance(got.body, Tcp) and isinstance(sent.body, Tcp)) or got.body.seq == sent.body.seq


def _has(mark: bytes) -> Callable[[Packet], bool]:
    return lambda packet: isinstance(packet.body, Udp) and packet.body.data == mark


def _is_chatter(packet: Packet) -> bool:
    """Return true for packets that the stack sends by itself: neighbour discovery, multicast reports."""
    return packet.family == 6 and packet.dest.startswith("ff0") and isinstance(packet.body, Icmp | Raw)


@contextlib.contextmanager
def bench(role: Role, *, offload: bool, configuration: str = "") -> Iterator[NatTestbed]:
    """Build the machine and start Braid on it, with `configuration` (TOML) added to the settings needed here."""
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(namespace(role))
        # The checks compare single errors, and the kernel's rate limit would drop some.
        host.unlimit_icmp_errors()
        uplinks = {}
        for index, (name, mtu) in enumerate(UPLINKS.items(), start=1):
            uplinks[name] = _port(stack, host, name, index, offload=offload)
            _connect(host, uplinks[name], index, mtu)
        lan = _port(stack, host, "lan0", 9, offload=offload)
        if role == "gateway":
            _serve_lan(host, lan)
        run_dir = scratch.directory() / f"braid-{host.name}"
        words = _configured(run_dir, configuration)
        daemon = stack.enter_context(braid(host, run_dir, *words))
        for index, port in enumerate(uplinks.values(), start=1):
            # A bridge does not use the kernel's neighbour entries.
            for gateway in _gateways(index):
                port.announce(gateway)
        yield NatTestbed(role, host, lan, uplinks, daemon, words)


def _configured(run_dir: Path, more: str) -> list[str]:
    file = run_dir.with_suffix(".toml")
    # Round robin, so that both uplinks are used whatever the packets' round trips.
    policy = "" if "policy" in more else 'policy = "rr"\n'
    file.write_text(policy + more + CONFIGURATION)
    return ["--config", str(file)]


def _port(stack: contextlib.ExitStack, host: Namespace, name: str, number: int, *, offload: bool) -> Port:
    port = Port(host, name, number, offload=offload)
    stack.callback(port.close)
    if needs_whole_packets():
        set_offload(End(host, name), on=False)
    return port


def _connect(host: Namespace, port: Port, index: int, mtu: int) -> None:
    gateway4, gateway6 = _gateways(index)
    host.ip(
        f"link set {port.device} mtu {mtu}",
        f"address add {outer(index, 4)}/24 dev {port.device}",
        f"address add {outer(index, 6)}/64 dev {port.device} nodad",
        *(
            f"neighbour add {gateway} lladdr {port.neighbour} dev {port.device} nud permanent"
            for gateway in (gateway4, gateway6)
        ),
        f"route add default via {gateway4} dev {port.device} metric {100 * index}",
        f"route add ::/0 via {gateway6} dev {port.device} metric {100 * index}",
    )


def _gateways(index: int) -> tuple[str, str]:
    return f"100.64.{index}.1", "fe80::1"


def _serve_lan(host: Namespace, lan: Port) -> None:
    host.sysctl(ipv4__ip_forward=1, ipv6__conf__all__forwarding=1)
    clients = [
        address
        for number in range(1, CLIENTS + 1)
        for address in (f"192.168.8.{100 + number}", f"fd00:8::{100 + number}")
    ]
    host.ip(
        "address add 192.168.8.1/24 dev lan0",
        "address add fd00:8::1/64 dev lan0 nodad",
        *(f"neighbour add {each} lladdr {lan.neighbour} dev lan0 nud permanent" for each in clients),
    )
