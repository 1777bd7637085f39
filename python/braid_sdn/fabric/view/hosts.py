"""Hosts: their ports and addresses, since when nothing was heard of each, and when it is forgotten.

A host is learned by its first packet. Signs of life are its packets to the controller, and the counter of its rule at
each audit. A host that was silent for long is asked for its addresses, at its own port, and forgotten if it does not
answer. Forgetting is harmless: packets to unknown hosts are flooded, and the next packet teaches the host again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace

from braid_sdn.fabric.model import PortId, Problem
from braid_sdn.fabric.monitor.probe import PROBE_MAC, mac_bytes
from braid_sdn.fabric.plan.plan import Host
from braid_sdn.fabric.tenants import NOBODY

#: Hosts learned at one port: more look like a flood of forged addresses.
MAX_HOSTS_PER_PORT = 256

#: IP addresses remembered for one host; a further one replaces the oldest.
MAX_ADDRESSES_PER_HOST = 16

#: A host that is at another place this often within FLAPPING_WINDOW seconds is two hosts with one address, or a loop.
MAX_MOVES = 5
FLAPPING_WINDOW = 10.0

#: Seconds without a sign of life after which a host is forgotten.
HOST_LIFETIME = 300.0
#: The same for a host of which only its first packet is known, as with a flood of forged addresses.
FIRST_LIFETIME = 60.0
#: Seconds for which a port must be down, or gone, until its hosts are forgotten: a cable may only be replugged.
PORT_DOWN_GRACE = 10.0
#: Part of its lifetime before its end in which a silent host is asked, and how often.
REFRESH_PART = 0.25
REFRESH_PROBES = 3
#: Hosts asked at once; the others are asked this many seconds later. 5,000 that were heard in one moment, once, are
#: asked within the quarter of a minute that they have.
MAX_PROBES_AT_ONCE = 64
PROBES_INTERVAL = 0.1
#: Seconds between two looks at all hosts.
AGEING_INTERVAL = 1.0
#: Seconds for which an address that changed its host is flooded to all, and after which a quarrel is over.
CONTEST_WINDOW = 60.0


#: A tenant and an IP address.
Address = tuple[int, str]


@dataclass(slots=True)
class Presence:
    """Signs of life of one host. Times are seconds."""

    heard: float
    #: True if more than its first packet was heard.
    confirmed: bool = False
    #: When it was last asked, and how often since `heard`.
    asked: float = 0.0
    probes: int = 0
    #: Counter of its rule at the last audit.
    packets: int = 0


@dataclass(frozen=True, slots=True)
class Contest:
    """An address that another host took over."""

    #: The former owner.
    mac: str
    at: float
    #: Changes of owner in a row.
    count: int


@dataclass
class Hosts:
    """All known hosts."""

    lifetime: float = HOST_LIFETIME
    known: dict[str, Host] = field(default_factory=dict)
    #: Number of hosts that came, moved or went.
    changes: int = 0
    #: Hosts of the configuration: these stay where they are.
    static: dict[str, Host] = field(default_factory=dict)
    #: The tenant of a port, and of a VID there. Each has addresses of its own.
    tenant_of: Callable[[PortId, int], int] = lambda _port, _vid: NOBODY
    _presence: dict[str, Presence] = field(default_factory=dict)
    _at: dict[PortId, set[str]] = field(default_factory=dict)
    #: By tenant and address.
    _by_address: dict[Address, str] = field(default_factory=dict)
    _moves: dict[str, list[float]] = field(default_factory=dict)
    #: Ports at which a host was not learned lately for want of room.
    _crowded: dict[PortId, float] = field(default_factory=dict)
    #: Since when a port with hosts is down.
    _down: dict[PortId, float] = field(default_factory=dict)
    _contests: dict[Address, Contest] = field(default_factory=dict)
    #: Static hosts that were seen elsewhere: when and where.
    _misplaced: dict[str, tuple[float, PortId]] = field(default_factory=dict)
    _look_at: float | None = None

    # Events.

    def see(self, now: float, mac: str, port: PortId, vid: int = 0) -> bool:
        """Learn the source of a packet, which had this VID; return true if the host is new or has moved."""
        raw = mac_bytes(mac)
        # Group addresses are invalid sources; so are the null address and our own.
        if raw[0] & 1 or not any(raw) or mac == PROBE_MAC:
            return False
        host = self.known.get(mac)
        if host is not None and (host.port, host.vid) == (port, vid):
            self.hear(now, mac)
            return False
        if mac in self.static:
            self._misplaced[mac] = now, port
            return False
        if len(self._at.get(port, ())) >= MAX_HOSTS_PER_PORT:
            self._crowded[port] = now
            return False
        if host is not None:
            recent = [at for at in self._moves.get(mac, []) if now - at < FLAPPING_WINDOW] + [now]
            self._moves[mac] = recent[-2 * MAX_MOVES :]
            if len(recent) > MAX_MOVES:
                return False
        if host is not None:
            self._at[host.port].discard(mac)
        if host is not None and host.tenant != self.tenant_of(port, vid):
            # Another tenant's addresses are other ones.
            self._forget(mac)
            host = None
        self._put(now, replace(host, port=port, vid=vid) if host else Host(mac, port, vid=vid))
        return True

    def hear(self, now: float, mac: str) -> None:
        """Record a sign of life of a known host."""
        presence = self._presence.get(mac)
        if presence is not None:
            presence.confirmed |= now > presence.heard
            presence.heard, presence.probes = now, 0

    def handle_packets(self, now: float, mac: str, port: PortId, packets: int) -> None:
        """Take in the counter of a host's rule at its port."""
        host, presence = self.known.get(mac), self._presence.get(mac)
        if host is None or presence is None or host.port != port or packets == presence.packets:
            return
        presence.packets = packets
        if packets:
            self.hear(now, mac)

    def adopt(self, now: float, hosts: Iterable[Host]) -> None:
        """Take over hosts from switches' rules, unless they are known already."""
        for host in hosts:
            if host.mac not in self.known and host.mac not in self.static:
                self._put(now, host)

    def set_static(self, now: float, hosts: Iterable[Host]) -> bool:
        """Set the configuration's hosts whose switch and port are connected; return true if that moved any."""
        wanted = {host.mac: host for host in hosts}
        before = self.changes
        for mac in self.static.keys() - wanted.keys():
            # Its switch left: from now on it ages as others do.
            self.hear(now, mac)
        self.static = wanted
        for mac, host in wanted.items():
            known = self.known.get(mac)
            if known is None or (known.port, known.vid) != (host.port, host.vid):
                self._forget(mac)
                self._put(now, Host(mac, host.port, vid=host.vid))
            for address in host.addresses:
                self.learn_address(now, mac, address)
        return self.changes != before

    def _put(self, now: float, host: Host) -> None:
        host = replace(host, tenant=self.tenant_of(host.port, host.vid))
        self.known[host.mac] = host
        self._presence[host.mac] = Presence(now)
        self._at.setdefault(host.port, set()).add(host.mac)
        self._look_at = self._look_at if self._look_at is not None else now + AGEING_INTERVAL
        self.changes += 1

    def learn_address(self, now: float, mac: str, address: str) -> Host | None:
        """Learn that a host claims an address; the last claim wins.

        Returns the former owner, once, if it is at another port: it should be asked whether it has the address still.
        """
        host = self.known.get(mac)
        if host is None or address in host.addresses or address in ("0.0.0.0", "::"):  # noqa: S104
            return None
        key = (host.tenant, address)
        before = self.known.get(self._by_address.get(key, ""))
        if before is not None and address in getattr(self.static.get(before.mac), "addresses", ()):
            self._contest(now, key, mac)
            return None
        if len(host.addresses) >= MAX_ADDRESSES_PER_HOST:
            oldest = next(each for each, owner in self._by_address.items() if owner == mac)
            del self._by_address[oldest]
            host = replace(host, addresses=host.addresses - {oldest[1]})
        if before is not None:
            self.known[before.mac] = replace(before, addresses=before.addresses - {address})
            if before.port != host.port:
                self._contest(now, key, before.mac)
        self.known[mac] = replace(host, addresses=host.addresses | {address})
        self._by_address.pop(key, None)
        self._by_address[key] = mac
        return before if before is not None and self._contests.get(key) == Contest(before.mac, now, 1) else None

    def _contest(self, now: float, address: Address, other: str) -> None:
        last = self._contests.get(address)
        again = last is not None and now - last.at < CONTEST_WINDOW
        self._contests[address] = Contest(other, now, last.count + 1 if last is not None and again else 1)

    def lose_port(self, port: PortId) -> bool:
        """Forget the hosts at a port that is now a link; return true if there were any."""
        lost = sorted(self._at.get(port, ()))
        for mac in lost:
            self._forget(mac)
        self._at.pop(port, None)
        self._crowded.pop(port, None)
        self._down.pop(port, None)
        return bool(lost)

    def forget(self, mac: str) -> bool:
        """Forget a host; it is learned anew by its next packet. Return true if it was known."""
        return self._forget(mac) is not None

    def _forget(self, mac: str) -> Host | None:
        host = self.known.pop(mac, None)
        if host is None:
            return None
        self._presence.pop(mac, None)
        self._at.get(host.port, set()).discard(mac)
        for address in host.addresses:
            self._by_address.pop((host.tenant, address), None)
        self.changes += 1
        return host

    # Time.

    def expire(self, now: float, down: Container[PortId], unobserved: Container[PortId]) -> bool:
        """Forget hosts that were silent for too long, or whose port is down; return true if there were any.

        `down` are ports that are down or gone. Hosts at `unobserved` ports, whose switch has lost the controller,
        give no signs of life, and do not age.
        """
        if self._look_at is None or now < self._look_at:
            return False
        self._look_at = now + AGEING_INTERVAL if self.known else None
        before = self.changes
        self._down = {port: self._down.get(port, now) for port in self.ports() if port in down}
        for mac, presence in list(self._presence.items()):
            port = self.known[mac].port
            if mac in self.static:
                continue
            if port in unobserved:
                presence.heard = max(presence.heard, now - self._lifetime(presence) / 2)
            gone = port in self._down and now - self._down[port] >= PORT_DOWN_GRACE
            if gone or now - presence.heard >= self._lifetime(presence):
                self._forget(mac)
        self._contests = {key: each for key, each in self._contests.items() if now - each.at < CONTEST_WINDOW}
        self._crowded = {port: at for port, at in self._crowded.items() if now - at < FIRST_LIFETIME}
        self._misplaced = {mac: each for mac, each in self._misplaced.items() if now - each[0] < FIRST_LIFETIME}
        self._moves = {mac: each for mac, each in self._moves.items() if now - each[-1] < FLAPPING_WINDOW}
        return self.changes != before

    def due_probes(self, now: float) -> list[Host]:
        """Return the hosts that are to be asked for their addresses now, before they would be forgotten."""
        due = []
        for mac, presence in self._presence.items():
            lead = REFRESH_PART * self._lifetime(presence)
            begin = presence.heard + self._lifetime(presence) - lead
            if now < begin or presence.probes >= REFRESH_PROBES or now - presence.asked < lead / (REFRESH_PROBES + 1):
                continue
            if not self.known[mac].addresses or mac in self.static:
                continue
            presence.asked, presence.probes = now, presence.probes + 1
            due.append(self.known[mac])
            if len(due) == MAX_PROBES_AT_ONCE:
                self._look_at = now + PROBES_INTERVAL
                break
        return due

    def _lifetime(self, presence: Presence) -> float:
        return self.lifetime if presence.confirmed else min(self.lifetime, FIRST_LIFETIME)

    def poll_timeout(self) -> float | None:
        """Return when to call `expire`."""
        return self._look_at

    # Queries.

    def silence(self, now: float, mac: str) -> tuple[float, float | None]:
        """Return the seconds since a known host's last sign of life, and until it is forgotten; None: never."""
        presence = self._presence[mac]
        left = None if mac in self.static else max(0.0, presence.heard + self._lifetime(presence) - now)
        return now - presence.heard, left

    def by_address(self, address: str, tenant: int = NOBODY) -> Host | None:
        """Return a tenant's host with this address."""
        return self.known.get(self._by_address.get((tenant, address), ""))

    def is_contested(self, now: float, address: str, tenant: int = NOBODY) -> bool:
        """Return true if another host had this address of a tenant's lately."""
        contest = self._contests.get((tenant, address))
        return contest is not None and now - contest.at < CONTEST_WINDOW

    def at(self, port: PortId) -> list[Host]:
        """Return the hosts at a port, by MAC address."""
        return [self.known[mac] for mac in sorted(self._at.get(port, ()))]

    def ports(self) -> set[PortId]:
        """Return the ports with hosts."""
        return {port for port, macs in self._at.items() if macs}

    def find(self, word: str, tenants: Iterable[int] = (NOBODY,)) -> Host | None:
        """Return the host with this MAC, or IP address in one of these tenants: None if it is in several."""
        word = word.lower()
        known = self.known.get(word)
        found = [host for tenant in tenants if (host := self.by_address(word, tenant)) is not None]
        return known if known is not None else found[0] if len(found) == 1 else None

    def problems(self, now: float, port_name: Callable[[PortId], str]) -> list[Problem]:
        """Return problems with hosts."""
        found = []
        for mac, moves in sorted(self._moves.items()):
            if sum(1 for at in moves if now - at < FLAPPING_WINDOW) > MAX_MOVES:
                often = f"seen at {MAX_MOVES} and more places within {FLAPPING_WINDOW:g} s"
                text = f"{often}: a loop, or two hosts with one address"
                found.append(Problem("host-flapping", mac, text))
        for port, _ in sorted(self._crowded.items()):
            text = f"more than {MAX_HOSTS_PER_PORT} hosts: further ones are not learned, their packets are flooded"
            found.append(Problem("crowded-port", port_name(port), text))
        for address, contest in sorted(self._contests.items()):
            owner = self.known.get(self._by_address.get(address, ""))
            if owner is not None and (contest.count > 1 or owner.mac in self.static):
                both = f"{owner.mac} at {port_name(owner.port)} and {contest.mac} claim it"
                text = f"{both}: give one of them another address, or look for a spoofer"
                found.append(Problem("address-conflict", address[1], text))
        for mac, (_, port) in sorted(self._misplaced.items()):
            text = f"is configured elsewhere, and was seen at {port_name(port)}: not followed"
            found.append(Problem("misplaced-host", mac, text))
        return found
