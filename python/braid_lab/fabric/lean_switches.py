"""Simulated OpenFlow switches that cost next to nothing, to measure the controller in large networks.

    python -m braid_lab.fabric.lean_switches ADDRESS PORT fat-tree:12:1000 | generated:500:SEED:HOSTS

Unlike `fake_switches`, these forward no frames but the controller's own discovery: a rule is kept as the bytes in
which it came. They take part in the handshake, and answer port descriptions, statistics, barriers and echoes. Rules
do not expire, so the controller must stay.

On SIGUSR1 every host sends one frame, on SIGUSR2 the first wire is pulled. A line of JSON tells after SIGUSR1 when
every switch with a host has a rule for each host, and after SIGUSR2 when no packet can enter the pulled wire.
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
from braid_sdn.fabric.switches.rules import DESTINATIONS
from braid_sdn.openflow.messages import Port

#: Of a flow-mod: the cookie, table, command, hard timeout and priority (OpenFlow 1.3 §A.3.4.1).
FLOW_MOD = struct.Struct("!8xQ8xBB2xHH")
#: Bytes before its match.
MATCH_AT = 48
#: Headers of match fields (§A.2.3.3): an exact destination, and a VID.
TO_HOST = b"\x80\x00\x06\x06"
OF_VLAN = b"\x80\x00\x0c\x02"
#: Bytes with which the MACs of our hosts begin.
HOST_PREFIX = b"\x02\x00"
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
        #: Hosts for which it has a rule.
        self.reached: set[bytes] = set()

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
        host = match[8:14] if table == DESTINATIONS and match[4:8] == TO_HOST else b""
        if command == of.OFPFC_ADD:
            self.rules[key] = (cookie, hard, data[MATCH_AT + (size + 7) // 8 * 8 :])
            self.network.added(key, cookie)
            if host.startswith(HOST_PREFIX):
                self.reached.add(host)
                self.network.look_for_hosts(self)
        elif host:
            self.reached.discard(host)
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
        #: Switches that have not got a rule for each host yet.
        self._unreached: set[LeanSwitch] = set()
        #: Rules that lead into the pulled wire by its port, and their tags.
        self._dead: dict[tuple[int, Key], tuple[int, int]] = {}
        self._since = 0.0

    def carry(self, source: PortId, frame: bytes) -> None:
        """Deliver a discovery frame to the other end of a wire."""
        target = self.peer.get(source)
        if target is not None and int.from_bytes(frame[12:14], "big") == LLDP:
            self.switches[target.switch].tell_packet(target.port, frame)

    # Hosts.

    def send_from_hosts(self) -> None:
        """Send a frame from every host, as one that is switched on does."""
        self._since = time.monotonic()
        self._unreached = {self.switches[port.switch] for port in self.hosts}
        for port, frame in self.first_frames():
            self.switches[port.switch].tell_packet(port.port, frame)

    def look_for_hosts(self, switch: LeanSwitch) -> None:
        """Report if all switches with hosts now have a rule for each host."""
        if switch in self._unreached and len(switch.reached) == len(self.hosts):
            self._unreached.discard(switch)
            if not self._unreached:
                took = time.monotonic() - self._since
                self.report(hosts_s=took, rules=max(len(each.rules) for each in self.switches.values()))

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


async def _main(host: str, port: int, word: str) -> None:
    network = LeanNetwork(shape_of(word))
    await serve(network.connect(host, port), on_hosts=network.send_from_hosts, on_wire=network.pull)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
