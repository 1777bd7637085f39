"""Passes broadcast ARP and neighbour solicitations on, which switches leave to the controller.

A request for a known host goes to that host's port alone, and the host answers: so an answer is never older than the
host itself. A request that was not answered, and everything else (gratuitous ARP, probes for duplicates), is flooded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import mac_text, tagged
from braid_sdn.fabric.plan.plan import Flood, Host, Plan
from braid_sdn.fabric.view.address_frames import address_claim, address_probe, address_request, is_left_to_us
from braid_sdn.fabric.view.hosts import Hosts
from braid_sdn.openflow.messages import PacketOut, ToSwitch

#: Limit of held frames; more are a storm, and hosts repeat theirs.
MAX_HELD_FRAMES = 256
#: Seconds within which a host should answer a request; after that requests for it are flooded.
ANSWER_TIMEOUT = 0.5
#: Seconds after which a frame is passed on though rules may not lead to its sender yet: an answer is flooded then,
#: while a host that gets none asks three times in as many seconds, and gives up.
MAX_HOLD = 0.5
#: Addresses whose requests are unanswered.
MAX_UNANSWERED = 4096

Messages = list[tuple[int, ToSwitch]]


#: A port, and the VID of frames there if it is a trunk; 0 otherwise.
Place = tuple[PortId, int]


def to_host(place: Place, frame: bytes) -> tuple[int, PacketOut]:
    """Return the message that sends a frame out of a host's port, with its switch."""
    port, vid = place
    return port.switch, PacketOut((port.port,), tagged(frame, vid) if vid else frame)


@dataclass
class ArpRelay:
    """Holds frames until rules lead back to the hosts that sent them."""

    #: Frames in the order of their arrival; of each its time, its place, and the only place that it goes to; None is
    #: everywhere.
    _held: list[tuple[float, Place, bytes, Place | None]] = field(default_factory=list)
    #: When the first request for an address, of a tenant, was passed on that is unanswered.
    _unanswered: dict[tuple[int, str], float] = field(default_factory=dict)

    def handle(
        self,
        now: float,
        hosts: Hosts,
        arrived: Place,
        frame: bytes,
        *,
        fresh: bool,
        is_up: Callable[[PortId], bool],
    ) -> Messages:
        """Take in a host's frame; return messages to send at once. `fresh` if no rule may lead to its sender yet."""
        tenant = hosts.tenant_of(*arrived)
        claim = address_claim(frame)
        if claim is not None:
            self._unanswered.pop((tenant, claim[1]), None)
        if not is_left_to_us(frame):
            return []
        owner = self._owner(now, hosts, frame, tenant)
        target = (owner.port, owner.vid) if owner is not None and is_up(owner.port) else None
        if target is not None and hosts.tenant_of(*target) != tenant:
            # The port's number is another port's by now.
            target = None
        if target is not None and not fresh:
            return [to_host(target, frame)] if target != arrived else []
        if len(self._held) < MAX_HELD_FRAMES:
            self._held.append((now, arrived, frame, target))
        return []

    def _owner(self, now: float, hosts: Hosts, frame: bytes, tenant: int) -> Host | None:
        """Return the one host that a tenant's request concerns; None if everybody there must get it."""
        question = address_request(frame)
        # Somebody who asks for another host (VRRP, bridges of a WLAN) may be one whose address moves.
        if question is None or question.mac != mac_text(frame[6:12]):
            return None
        found = hosts.by_address(question.wanted, tenant)
        # A request for the host's own address looks for duplicates.
        if found is None or found.mac == question.mac or hosts.is_contested(now, question.wanted, tenant):
            return None
        first = self._unanswered.setdefault((tenant, question.wanted), now)
        if len(self._unanswered) > MAX_UNANSWERED:
            self._unanswered.pop(next(iter(self._unanswered)))
        return found if now - first < ANSWER_TIMEOUT else None

    @property
    def is_holding(self) -> bool:
        """True if a frame waits to be passed on."""
        return bool(self._held)

    def poll_timeout(self) -> float | None:
        """Return when to call `release` at the latest, once there is a flood."""
        return self._held[0][0] + MAX_HOLD if self._held else None

    def release(
        self,
        now: float,
        floods: Mapping[int, Flood],
        plan: Plan,
        tenant_of: Callable[[PortId, int], int],
        edges: Iterable[PortId],
        *,
        in_place: bool,
        switches: Container[int],
    ) -> Messages:
        """Return messages that pass held frames on: all if `in_place`, that is, rules reach all known hosts.

        `switches` are those that are part of the network; all have the rules of each tenant's flood in `floods`. A
        frame goes to ports of the tenant alone at whose port it arrived.
        A host behind one of `edges` (their ports) may answer under a tag, which teaches us nothing of it. So the
        controller asks there for itself, too.
        """
        if not self._held or not floods:
            return []
        out: Messages = []
        due = [each for each in self._held if in_place or now >= each[0] + MAX_HOLD]
        del self._held[: len(due)]
        for _, arrived, frame, target in due:
            tenant = tenant_of(*arrived)
            if (target or arrived)[0].switch not in switches:
                # It has left or is being looked at, and its ports may have other numbers by now.
                continue
            if target is not None:
                # A port may have been given another place meanwhile.
                if tenant_of(*target) == tenant:
                    out.append(to_host(target, frame))
                continue
            port_arrived, _ = arrived
            here, flood = port_arrived.switch, floods.get(tenant)
            if flood is None:
                continue
            onward = tuple(sorted(flood.ports.get(here, ())))
            others = plan.outside_of(here, tenant) - {port_arrived.port}
            beside = tuple(port for port in sorted(others) if tenant_of(PortId(here, port), 0) == tenant)
            if onward:
                out.append((here, PacketOut(onward, tagged(frame, flood.tag))))
            if beside:
                out.append((here, PacketOut(beside, frame)))
            trunks = [each for each in plan.trunks_of(here, tenant) if each[0] != port_arrived.port]
            out += [to_host((PortId(here, port), vid), frame) for port, vid in trunks]
            question = address_request(frame)
            if question is not None and question.wanted != question.address:
                probe = address_probe(question.wanted)
                out += [
                    (port.switch, PacketOut((port.port,), probe))
                    for port in edges
                    if port != port_arrived and tenant_of(port, 0) == tenant
                ]
        return out
