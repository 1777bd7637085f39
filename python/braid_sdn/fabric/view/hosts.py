"""Hosts: their ports and addresses, and replies to ARP requests and neighbour solicitations for them."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from braid_sdn.fabric.model import PortId, Problem
from braid_sdn.fabric.monitor.probe import mac_bytes, mac_text
from braid_sdn.fabric.plan.plan import Host

#: Hosts learned at one port: more look like a flood of forged addresses.
MAX_HOSTS_PER_PORT = 256

#: IP addresses learned for one host.
MAX_ADDRESSES_PER_HOST = 16

#: A host that is at another place this often within FLAPPING_WINDOW seconds is two hosts with one address, or a loop.
MAX_MOVES = 5
FLAPPING_WINDOW = 10.0

ARP = b"\x08\x06"
IPV6 = b"\x86\xdd"
_ARP_BODY = struct.Struct("!HHBBH6s4s6s4s")


@dataclass(frozen=True, slots=True)
class AddressRequest:
    """An ARP request or a neighbour solicitation."""

    #: The requesting host.
    mac: str
    address: str
    wanted: str


@dataclass
class Hosts:
    """All known hosts."""

    known: dict[str, Host] = field(default_factory=dict)
    #: Number of hosts that came, moved or went.
    changes: int = 0
    _at: dict[PortId, set[str]] = field(default_factory=dict)
    _by_address: dict[str, str] = field(default_factory=dict)
    _moves: dict[str, list[float]] = field(default_factory=dict)
    _crowded: set[PortId] = field(default_factory=set)

    def see(self, now: float, mac: str, port: PortId) -> bool:
        """Learn a packet's source; return true if the host is new or has moved."""
        raw = mac_bytes(mac)
        # Group addresses are invalid sources; so is the null address.
        if raw[0] & 1 or not any(raw):
            return False
        host = self.known.get(mac)
        if host is not None and host.port == port:
            return False
        if len(self._at.get(port, ())) >= MAX_HOSTS_PER_PORT:
            self._crowded.add(port)
            return False
        if host is not None:
            recent = [at for at in self._moves.get(mac, []) if now - at < FLAPPING_WINDOW] + [now]
            self._moves[mac] = recent[-2 * MAX_MOVES :]
            if len(recent) > MAX_MOVES:
                return False
        if host is not None:
            self._at[host.port].discard(mac)
        self._put(replace(host, port=port) if host else Host(mac, port))
        return True

    def adopt(self, hosts: Iterable[Host]) -> None:
        """Take over hosts from switches' rules, unless they are known already."""
        for host in hosts:
            if host.mac not in self.known:
                self._put(host)

    def _put(self, host: Host) -> None:
        self.known[host.mac] = host
        self._at.setdefault(host.port, set()).add(host.mac)
        self.changes += 1

    def learn_address(self, mac: str, address: str) -> None:
        """Learn that a host claims an address; the last claim wins."""
        host = self.known.get(mac)
        if host is None or address in host.addresses or address in ("0.0.0.0", "::"):  # noqa: S104
            return
        if len(host.addresses) >= MAX_ADDRESSES_PER_HOST:
            return
        before = self.known.get(self._by_address.get(address, ""))
        if before is not None:
            self.known[before.mac] = replace(before, addresses=before.addresses - {address})
        self.known[mac] = replace(host, addresses=host.addresses | {address})
        self._by_address[address] = mac

    def by_address(self, address: str) -> Host | None:
        """Return the host with this address."""
        return self.known.get(self._by_address.get(address, ""))

    def at(self, port: PortId) -> list[Host]:
        """Return the hosts at a port, by MAC address."""
        return [self.known[mac] for mac in sorted(self._at.get(port, ()))]

    def ports(self) -> set[PortId]:
        """Return the ports with hosts."""
        return {port for port, macs in self._at.items() if macs}

    def find(self, word: str) -> Host | None:
        """Return the host with this MAC or IP address."""
        word = word.lower()
        return self.known.get(word) or self.by_address(word)

    def lose_port(self, port: PortId) -> bool:
        """Forget the hosts at a port that is now a link, or gone; return true if there were any."""
        lost = self._at.pop(port, set())
        self.changes += bool(lost)
        for mac in lost:
            for address in self.known.pop(mac).addresses:
                self._by_address.pop(address, None)
        self._crowded.discard(port)
        return bool(lost)

    def problems(self, now: float, port_name: dict[PortId, str]) -> list[Problem]:
        """Return problems with hosts."""
        found = []
        for mac, moves in sorted(self._moves.items()):
            if sum(1 for at in moves if now - at < FLAPPING_WINDOW) > MAX_MOVES:
                often = f"seen at {MAX_MOVES} and more places within {FLAPPING_WINDOW:g} s"
                text = f"{often}: a loop, or two hosts with one address"
                found.append(Problem("host-flapping", mac, text))
        for port in sorted(self._crowded):
            text = f"more than {MAX_HOSTS_PER_PORT} hosts: further ones are not learned"
            found.append(Problem("crowded-port", port_name.get(port, str(port)), text))
        return found


def address_request(frame: bytes) -> AddressRequest | None:
    """Parse an ARP request or a neighbour solicitation; return None for anything else."""
    kind, body = frame[12:14], frame[14:]
    if kind == ARP and len(body) >= _ARP_BODY.size:
        hardware, protocol, hlen, plen, operation, mac, address, _, target = _ARP_BODY.unpack_from(body)
        if (hardware, protocol, hlen, plen, operation) == (1, 0x0800, 6, 4, 1):
            return AddressRequest(
                mac_text(mac), str(ipaddress.IPv4Address(address)), str(ipaddress.IPv4Address(target))
            )
    if kind == IPV6 and len(body) >= 64 and body[6] == 58 and body[40] == 135:
        source, target = ipaddress.IPv6Address(body[8:24]), ipaddress.IPv6Address(body[48:64])
        return AddressRequest(mac_text(frame[6:12]), str(source), str(target))
    return None


def address_claim(frame: bytes) -> tuple[str, str] | None:
    """Return the (MAC, IP) binding that a frame claims: any ARP, a neighbour solicitation or advertisement."""
    question = address_request(frame)
    if question is not None:
        return question.mac, question.address
    body = frame[14:]
    if frame[12:14] == ARP and len(body) >= _ARP_BODY.size:
        _, _, hlen, plen, _, mac, address, _, _ = _ARP_BODY.unpack_from(body)
        if (hlen, plen) == (6, 4):
            return mac_text(mac), str(ipaddress.IPv4Address(address))
    if frame[12:14] == IPV6 and len(body) >= 64 and body[6] == 58 and body[40] == 136:
        return mac_text(frame[6:12]), str(ipaddress.IPv6Address(body[48:64]))
    return None


def address_reply(question: AddressRequest, host: Host) -> bytes:
    """Return the reply that `host` itself would send."""
    wanted = ipaddress.ip_address(question.wanted)
    header = mac_bytes(question.mac) + mac_bytes(host.mac)
    if isinstance(wanted, ipaddress.IPv4Address):
        asker = ipaddress.IPv4Address(question.address)
        body = _ARP_BODY.pack(
            1, 0x0800, 6, 4, 2, mac_bytes(host.mac), wanted.packed, mac_bytes(question.mac), asker.packed
        )
        return (header + ARP + body).ljust(60, b"\0")
    to = ipaddress.IPv6Address(question.address)
    # A solicitation without a source address (duplicate address detection) is answered to all nodes: RFC 4861 §7.2.4.
    unasked = to == ipaddress.IPv6Address("::")
    if unasked:
        to = ipaddress.IPv6Address("ff02::1")
        header = bytes.fromhex("333300000001") + mac_bytes(host.mac)
    flags = 0x20000000 if unasked else 0x60000000
    advertisement = struct.pack("!BBHI", 136, 0, 0, flags) + wanted.packed + b"\x02\x01" + mac_bytes(host.mac)
    pseudo = wanted.packed + to.packed + struct.pack("!II", len(advertisement), 58)
    checksum = _checksum(pseudo + advertisement)
    advertisement = advertisement[:2] + struct.pack("!H", checksum) + advertisement[4:]
    ip = struct.pack("!IHBB", 0x60000000, len(advertisement), 58, 255) + wanted.packed + to.packed
    return header + IPV6 + ip + advertisement


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
