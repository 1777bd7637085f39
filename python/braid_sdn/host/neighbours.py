"""Link-layer addresses of the uplinks' gateways, asked for by ARP and neighbour discovery.

The uplinks' addresses are the kernel's, which answers for them. It is the bridge that writes frames to the gateways,
so the controller asks for their addresses itself, and again every `REFRESH_INTERVAL`: a gateway may be replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from braid_sdn.host.packets import arp_request, neighbour_solicitation
from braid_sdn.openflow.messages import Mac

#: Seconds between two questions while a gateway does not answer, and after it did.
RETRY_INTERVAL, REFRESH_INTERVAL = 0.5, 20.0
#: Seconds after the first question in which a gateway's answer is waited for.
ANSWER_TIME = 2.0


@dataclass(slots=True)
class _Gateway:
    source: str
    target: str
    mac: Mac | None = None
    #: Time of the next question, and of the first one.
    due: float = 0.0
    asked: float | None = None


@dataclass
class Neighbours:
    """Gateways by uplink and IP version. Times are seconds."""

    _gateways: dict[tuple[int, int], _Gateway] = field(default_factory=dict)

    def set(self, wanted: dict[tuple[int, int], tuple[str, str]]) -> None:
        """Ask for these gateways: source address and gateway, by uplink and IP version."""
        for key in [key for key in self._gateways if key not in wanted]:
            del self._gateways[key]
        for key, (source, target) in wanted.items():
            known = self._gateways.get(key)
            if known is None or known.target != target:
                self._gateways[key] = _Gateway(source, target)
            else:
                known.source = source

    def forget_macs(self, uplink: int) -> None:
        """Ask anew: the uplink's device was replaced."""
        for (number, _), gateway in self._gateways.items():
            if number == uplink:
                gateway.mac, gateway.due, gateway.asked = None, 0.0, None

    def mac(self, uplink: int, family: int) -> Mac | None:
        """Return the gateway's MAC, once it has answered."""
        gateway = self._gateways.get((uplink, family))
        return gateway.mac if gateway is not None else None

    def handle_answer(self, now: float, uplink: int, address: str, mac: Mac) -> bool:
        """Take in an answer; return True if it changes the MAC of a gateway."""
        changed = False
        for (number, _), gateway in self._gateways.items():
            if number == uplink and gateway.target == address:
                gateway.due = now + REFRESH_INTERVAL
                changed |= gateway.mac != mac
                gateway.mac = mac
        return changed

    def poll_questions(self, now: float, macs: dict[int, Mac]) -> list[tuple[int, bytes]]:
        """Return uplinks and frames that are due; `macs` are the uplinks' own."""
        frames = []
        for (uplink, family), gateway in self._gateways.items():
            if gateway.due > now:
                continue
            # An answer that does not come leaves the MAC as it is: liveness is not decided here.
            gateway.due = now + RETRY_INTERVAL
            if uplink not in macs:
                continue
            if gateway.asked is None:
                gateway.asked = now
            ask = arp_request if family == 4 else neighbour_solicitation
            frames.append((uplink, ask(macs[uplink], gateway.source, gateway.target)))
        return frames

    def poll_timeout(self) -> float | None:
        """Return the time of the next question."""
        return min((gateway.due for gateway in self._gateways.values()), default=None)

    def is_settled(self, now: float) -> bool:
        """Return True if every gateway has answered, or has had the time to."""
        return all(
            gateway.mac is not None or (gateway.asked is not None and now - gateway.asked > ANSWER_TIME)
            for gateway in self._gateways.values()
        )
