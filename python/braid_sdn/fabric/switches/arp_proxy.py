"""Who asks for an address, and what becomes of the question: answered for hosts that are known, else sent to all."""

from __future__ import annotations

from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import mac_text, tagged
from braid_sdn.fabric.plan.plan import Plan
from braid_sdn.fabric.view.hosts import Hosts, address_reply, address_request
from braid_sdn.openflow.messages import PacketOut, ToSwitch

#: Questions that may wait; more at once are a storm, and asked again by those who mean them.
MAX_HELD_REQUESTS = 256


@dataclass
class ArpProxy:
    """Questions that wait until their askers can be reached: the answer must find its way."""

    _held: list[tuple[PortId, bytes]] = field(default_factory=list)

    def handle(self, hosts: Hosts, arrived: PortId, frame: bytes) -> list[tuple[int, ToSwitch]]:
        """Take a host's frame in; returns what to send at once."""
        question = address_request(frame)
        if question is None or question.mac != mac_text(frame[6:12]):
            return []
        found = hosts.by_address(question.wanted)
        # Who asks for its own address wants to know whether anybody else has it.
        if found is not None and found.mac != question.mac:
            return [(arrived.switch, PacketOut((arrived.port,), address_reply(question, found)))]
        if len(self._held) < MAX_HELD_REQUESTS:
            self._held.append((arrived, frame))
        return []

    def release(self, plan: Plan) -> list[tuple[int, ToSwitch]]:
        """All known hosts can be reached: return what sends the questions that waited on, as rules would have."""
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
