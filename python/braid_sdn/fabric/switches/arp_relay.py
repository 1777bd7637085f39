"""ARP and ND proxy: answers requests for known hosts, and floods all others."""

from __future__ import annotations

from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import mac_text, tagged
from braid_sdn.fabric.plan.plan import Plan
from braid_sdn.fabric.view.hosts import Hosts, address_reply, address_request
from braid_sdn.openflow.messages import PacketOut, ToSwitch

#: Limit of held requests; more are a storm, and hosts repeat theirs.
MAX_HELD_REQUESTS = 256


@dataclass
class ArpProxy:
    """Holds requests until rules lead back to the requesting hosts."""

    _held: list[tuple[PortId, bytes]] = field(default_factory=list)

    def handle(self, hosts: Hosts, arrived: PortId, frame: bytes) -> list[tuple[int, ToSwitch]]:
        """Take in a host's frame; return messages to send at once."""
        question = address_request(frame)
        if question is None or question.mac != mac_text(frame[6:12]):
            return []
        found = hosts.by_address(question.wanted)
        # A request for the host's own address is duplicate address detection: flooded.
        if found is not None and found.mac != question.mac:
            return [(arrived.switch, PacketOut((arrived.port,), address_reply(question, found)))]
        if len(self._held) < MAX_HELD_REQUESTS:
            self._held.append((arrived, frame))
        return []

    def release(self, plan: Plan) -> list[tuple[int, ToSwitch]]:
        """Return messages that flood the held requests, once rules reach all known hosts."""
        if not self._held or plan.flood is None:
            return []
        out: list[tuple[int, ToSwitch]] = []
        for (here, port), frame in self._held:
            onward = tuple(sorted(plan.flood.ports.get(here, ())))
            beside = tuple(sorted(plan.outside.get(here, frozenset()) - {port}))
            if onward:
                out.append((here, PacketOut(onward, tagged(frame, plan.flood.tag))))
            if beside:
                out.append((here, PacketOut(beside, frame)))
        self._held.clear()
        return out
