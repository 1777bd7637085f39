"""Simulated OpenFlow switches that cost next to nothing, to measure the controller in large networks.

    python -m braid_lab.fabric.lean_switches ADDRESS PORT fat-tree:12:1000 | generated:500:SEED:HOSTS

Unlike `fake_switches`, these forward no frames but the controller's own discovery, and its questions to hosts, which
answer: a rule is kept as the bytes in which it came. They take part in the handshake, and answer port descriptions,
statistics, barriers and echoes. Rules do not expire, so the controller must stay.

On SIGUSR1 every host tells its address, on the next one it asks for another host's, and on SIGUSR2 the first wire is
pulled. A line of JSON tells after the first SIGUSR1 when all hosts can be reached (the switch of each delivers to it,
and every switch with hosts has a rule of a tree to that), after the next one when both ends of each request have a
rule for the other that leads to a tree, and after SIGUSR2 when no packet can enter the pulled wire.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator

from os_ken.ofproto import ofproto_v1_3 as of  # type: ignore[import-untyped]

from braid_lab.fabric.shapes import Shape
from braid_lab.fabric.simulated_switches import (
    FLOW,
    PORT_STATS,
    SimulatedNetwork,
    SwitchConnection,
    port_description,
    serve,
    shape_of,
)
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import LLDP
from braid_sdn.fabric.switches.rules import ARP, DELIVERY, DESTINATIONS, PATHS, TREES
from braid_sdn.fabric.view.address_frames import arp
from braid_sdn.openflow.messages import CVLAN, Port

#: Of a flow-mod: the cookie, table, command, hard timeout and priority (OpenFlow 1.3 §A.3.4.1).
FLOW_MOD = struct.Struct("!8xQ8xBB2xHH")
#: Bytes before its match.
MATCH_AT = 48
#: Headers of match fields (§A.2.3.3): an exact destination, and a VID.
TO_HOST = b"\x80\x00\x06\x06"
OF_VLAN = b"\x80\x00\x0c\x02"
OF_METADATA = b"\x80\x00\x04\x08"
#: Priority of a tree's rules, and the instruction that only its root's rule has.
TREE_PRIORITY = 10
TO_DELIVERY = struct.pack("!HHB3x", of.OFPIT_GOTO_TABLE, 8, DELIVERY)
#: The first host's address.
FIRST_ADDRESS = 0x0A000001
#: Bytes of rules in one part of a reply.
MAX_PART_BYTES = 60_000

Key = tuple[int, int, bytes]


class LeanSwitch(SwitchConnection):
    """One switch's connection and rules."""

    def __init__(self, network: LeanNetwork, dpid: int) -> None:
        """Use `LeanNetwork`."""
        super().__init__(dpid, {})
        self.network = network
        #: Cookie, hard timeout and instructions of each rule.
        self.rules: dict[Key, tuple[int, int, bytes]] = {}
        #: Its hosts and the trees that are not in place yet, and the hosts that its own ones have asked for, with
        #: what leads to their trees.
        self.missing: set[bytes] = set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the controller gave the switch up."""
        super().connection_lost(exc)
        self.network.report(lost=self.dpid)

    def message(self, kind: int, xid: int, data: bytes) -> None:
        """Handle a message of the controller."""
        if kind == of.OFPT_FLOW_MOD:
            self._flow_mod(data)
        elif kind == of.OFPT_PACKET_OUT:
            self._packet_out(data)
        elif kind == of.OFPT_BARRIER_REQUEST:
            self.tell(of.OFPT_BARRIER_REPLY, xid)
        elif kind == of.OFPT_ECHO_REQUEST:
            self.tell(of.OFPT_ECHO_REPLY, xid, data[8:])
        elif kind == of.OFPT_MULTIPART_REQUEST:
            self._statistics(xid, int.from_bytes(data[8:10], "big"), data)

    def _flow_mod(self, data: bytes) -> None:
        cookie, table, command, hard, priority = FLOW_MOD.unpack_from(data)
        size = int.from_bytes(data[MATCH_AT + 2 : MATCH_AT + 4], "big")
        match = data[MATCH_AT : MATCH_AT + size]
        key = (table, priority, match)
        before = self.rules.pop(key, None)
        if before is not None:
            self.network.removed(key, before[0])
        if command == of.OFPFC_ADD:
            self.rules[key] = (cookie, hard, data[MATCH_AT + (size + 7) // 8 * 8 :])
            self.network.added(key, cookie)
            if table == PATHS and priority == TREE_PRIORITY and match[4:8] == OF_VLAN:
                self.network.reach(self, match[8:10], is_root=TO_DELIVERY in self.rules[key][2])
            if self.missing:
                self.missing.discard(_reached(table, match))
                self.network.look_for_rules(self)
        self.network.look_for_dead_ends(self.dpid, key)

    def _packet_out(self, data: bytes) -> None:
        (length,) = struct.unpack_from("!H", data, 16)
        frame = data[24 + length :]
        for at in range(24, 24 + length, 16):
            (port,) = struct.unpack_from("!I", data, at + 4)
            self.network.carry(PortId(self.dpid, port), frame)

    def _statistics(self, xid: int, kind: int, data: bytes) -> None:
        entries: Iterator[bytes]
        if kind == of.OFPMP_PORT_DESC:
            entries = (port_description(port) for port in self.ports.values())
        elif kind == of.OFPMP_PORT_STATS:
            age = int(time.monotonic() - self.network.began)
            entries = (PORT_STATS.pack(port, *[0] * 12, age, 0) for port in self.ports)
        elif kind == of.OFPMP_FLOW:
            entries = self._listed(data[16])
        else:
            # As switches without meters do.
            error = struct.pack("!HH", of.OFPET_BAD_REQUEST, of.OFPBRC_BAD_MULTIPART)
            self.tell(of.OFPT_ERROR, xid, error + data[:64])
            return
        part: list[bytes] = []
        size = 0
        for entry in entries:
            if size + len(entry) > MAX_PART_BYTES:
                body = struct.pack("!HH4x", kind, of.OFPMPF_REPLY_MORE) + b"".join(part)
                self.tell(of.OFPT_MULTIPART_REPLY, xid, body)
                part, size = [], 0
            part.append(entry)
            size += len(entry)
        self.tell(of.OFPT_MULTIPART_REPLY, xid, struct.pack("!HH4x", kind, 0) + b"".join(part))

    def _listed(self, only: int) -> Iterator[bytes]:
        for (table, priority, match), (cookie, hard, instructions) in self.rules.items():
            if only in (of.OFPTT_ALL, table):
                padded = match + bytes(-len(match) % 8) + instructions
                length = FLOW.size + len(padded)
                yield FLOW.pack(length, table, 0, 0, priority, 0, hard, 0, cookie, 0, 0) + padded


def _reached(table: int, match: bytes) -> bytes:
    """Return the host or switch that a rule leads to, as in a switch's `missing`."""
    if table == TREES and match[4:8] == OF_METADATA:
        return bytes((TREES,)) + match[8:16]
    return bytes((table,)) + match[8:14] if match[4:8] == TO_HOST else b""


def outputs(instructions: bytes) -> set[int]:
    """Return the ports to which a rule's applied actions send (OpenFlow 1.3 §A.2.4, §A.2.5)."""
    ports = set()
    at = 0
    while at < len(instructions):
        kind, length = struct.unpack_from("!HH", instructions, at)
        inner = at + 8
        while kind == of.OFPIT_APPLY_ACTIONS and inner < at + length:
            action, size, port = struct.unpack_from("!HHI", instructions, inner)
            if action == of.OFPAT_OUTPUT:
                ports.add(port)
            inner += size
        at += length
    return ports


class LeanNetwork(SimulatedNetwork[LeanSwitch]):
    """A shape's switches, and the wires between them."""

    def __init__(self, shape: Shape) -> None:
        """Create it; see `connect`."""
        super().__init__(shape, lambda dpid: LeanSwitch(self, dpid))
        self.began = time.monotonic()
        #: Number of rules that put a tag on packets, by tag.
        self.tagging: Counter[int] = Counter()
        #: Roots of trees by their tags, and switches with a rule of a tree whose root is not known yet.
        self._roots: dict[bytes, int] = {}
        self._rootless: dict[bytes, list[LeanSwitch]] = {}
        #: Switches that miss rules, and how the time that they take is called.
        self._waiting: set[LeanSwitch] = set()
        self._phase = ""
        #: Rules that lead into the pulled wire by its port, and their tags.
        self._dead: dict[tuple[int, Key], tuple[int, int]] = {}
        self._since = 0.0

    def carry(self, source: PortId, frame: bytes) -> None:
        """Deliver a discovery frame to the other end of a wire, and a question to the host that it asks for."""
        target, kind = self.peer.get(source), int.from_bytes(frame[12:14], "big")
        if kind == CVLAN:
            kind = int.from_bytes(frame[16:18], "big")
        if target is not None and kind == LLDP:
            self.switches[target.switch].tell_packet(target.port, frame)
        elif target is None and kind == ARP:
            number = int.from_bytes(frame[38:42], "big") - FIRST_ADDRESS
            if 0 <= number < len(self.hosts) and self.hosts[number] == source:
                self.switches[source.switch].tell_packet(source.port, _reply(number, frame))

    # Hosts.

    def send_from_hosts(self) -> None:
        """Have every host tell its address, as one that is switched on does; the next time, ask for another one."""
        if self._phase:
            self._ask()
            return
        inhabited = {port.switch for port in self.hosts}
        trees = {dpid: _tree(PATHS, dpid) for dpid in inhabited}
        for dpid in inhabited:
            self.switches[dpid].missing = {tree for root, tree in trees.items() if root != dpid}
        for number, port in enumerate(self.hosts):
            self.switches[port.switch].missing.add(bytes((DELIVERY,)) + _mac(number))
        self._begin("hosts_s", inhabited)
        for number, port in enumerate(self.hosts):
            self.switches[port.switch].tell_packet(port.port, _request(number, number))

    def _ask(self) -> None:
        """Have every host ask for the address of one at another switch."""
        count = len(self.hosts)
        pairs = []
        for number, port in enumerate(self.hosts):
            away = (other % count for other in range(number + 1, number + count))
            target = next((other for other in away if self.hosts[other].switch != port.switch), None)
            if target is None:
                continue
            pairs.append((number, target))
            for here, there in ((number, target), (target, number)):
                switch = self.switches[self.hosts[here].switch]
                wanted = {bytes((DESTINATIONS,)) + _mac(there), _tree(TREES, self.hosts[there].switch)}
                switch.missing |= wanted - {_reached(table, match) for table, _, match in switch.rules}
        self._begin("asked_s", {dpid for dpid, switch in self.switches.items() if switch.missing})
        for number, target in pairs:
            port = self.hosts[number]
            self.switches[port.switch].tell_packet(port.port, _request(number, target))

    def _begin(self, phase: str, switches: set[int]) -> None:
        self._phase = phase
        self._since = time.monotonic()
        self._waiting = {self.switches[dpid] for dpid in switches}
        if not self._waiting:
            self._report_rules()

    def reach(self, switch: LeanSwitch, tag: bytes, *, is_root: bool) -> None:
        """Take in that a switch has a rule of a tree, or the one at its root, by which its tag is known."""
        if is_root:
            self._roots[tag] = switch.dpid
        root = self._roots.get(tag)
        if root is None:
            self._rootless.setdefault(tag, []).append(switch)
            return
        for each in (switch, *self._rootless.pop(tag, ())):
            each.missing.discard(_tree(PATHS, root))
            self.look_for_rules(each)

    def look_for_rules(self, switch: LeanSwitch) -> None:
        """Report if no switch misses a rule any more."""
        if not switch.missing and switch in self._waiting:
            self._waiting.discard(switch)
            if not self._waiting:
                self._report_rules()

    def _report_rules(self) -> None:
        took = time.monotonic() - self._since
        self.report(**{self._phase: took, "rules": max(len(each.rules) for each in self.switches.values())})

    # A pulled wire.

    def added(self, key: Key, cookie: int) -> None:
        """Count a new rule."""
        if cookie & 0xFFFFFFFF and OF_VLAN not in key[2]:
            self.tagging[cookie & 0xFFFFFFFF] += 1

    def removed(self, key: Key, cookie: int) -> None:
        """Take a rule out of the count."""
        if cookie & 0xFFFFFFFF and OF_VLAN not in key[2]:
            self.tagging[cookie & 0xFFFFFFFF] -= 1

    def pull(self) -> None:
        """Pull the first wire: both its ports lose their link."""
        ends = self.first_wire()
        for end in ends:
            switch = self.switches[end.switch]
            for key, (cookie, _, instructions) in switch.rules.items():
                if OF_VLAN in key[2] and end.port in outputs(instructions) and self.tagging[cookie & 0xFFFFFFFF]:
                    self._dead[end.switch, key] = end.port, cookie & 0xFFFFFFFF
        self.report(leading_into_it=len(self._dead))
        self._since = time.monotonic()
        for end in ends:
            del self.peer[end]
            switch = self.switches[end.switch]
            port = switch.ports[end.port]
            switch.ports[end.port] = Port(port.number, port.name, port.mac, False, port.speed)
            switch.tell_port(switch.ports[end.port])
        if not self._dead:
            # On a busy machine its latency may have been measured as long, so that no tree leads by it.
            self.report(left_s=0.0)

    def look_for_dead_ends(self, dpid: int, changed: Key) -> None:
        """Report if no packet can enter the pulled wire any more, now that a rule has changed."""
        if not self._dead:
            return
        dead = self._dead.get((dpid, changed))
        if dead is not None:
            port, _ = dead
            rule = self.switches[dpid].rules.get(changed)
            if rule is None or port not in outputs(rule[2]):
                del self._dead[dpid, changed]
        elif OF_VLAN in changed[2]:
            return
        else:
            self._dead = {key: (port, tag) for key, (port, tag) in self._dead.items() if self.tagging[tag]}
        if not self._dead:
            self.report(left_s=time.monotonic() - self._since)

    def report(self, **facts: float) -> None:
        """Write a line of JSON."""
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def _tree(table: int, root: int) -> bytes:
    """Return what a switch misses while a table has no rule of the tree to a switch."""
    return bytes((table,)) + struct.pack("!Q", root)


def _mac(number: int) -> bytes:
    return b"\x02\x00" + struct.pack("!I", number + 1)


def _request(number: int, target: int) -> bytes:
    """Return a host's request for an address; for its own, a gratuitous one."""
    return arp(1, _mac(number), _address(number), _address(target))


def _reply(number: int, request: bytes) -> bytes:
    """Return a host's reply to a request for its address."""
    asker = request[22:28]
    return arp(2, _mac(number), _address(number), request[28:32], to=asker, target=asker)


def _address(number: int) -> bytes:
    return struct.pack("!I", FIRST_ADDRESS + number)


async def _main(host: str, port: int, word: str) -> None:
    network = LeanNetwork(shape_of(word))
    await serve(network.connect(host, port), on_hosts=network.send_from_hosts, on_wire=network.pull)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
