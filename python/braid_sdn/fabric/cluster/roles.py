"""The role of one of several controllers at its switches: OpenFlow 1.3 §6.3.4 and §6.3.5.

The leader is master and all others are slaves: a switch does what its master says alone, and makes a slave of the
master before. The generation of a leadership comes with the request, and a switch refuses one older than it knows. If
the leader's is older, etcd was set up anew or restored, and the leadership is to have a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from braid_sdn.fabric.model import Problem
from braid_sdn.openflow.messages import FromSwitch, Refused, Role, RoleReply, RoleRequest

#: Seconds between two requests for a role that a switch does not give, or has given to somebody else.
REQUEST_INTERVAL = 5.0
#: Seconds for which it is reported that a switch had another master.
RETENTION = 60.0


@dataclass
class Roles:
    """The role that switches are asked for, and those that do not follow. Times are seconds."""

    #: Sent to every switch; None as long as no generation is known.
    request: RoleRequest | None = None
    #: Time at which a switch last refused a change because it has another master.
    _taken: dict[int, float] = field(default_factory=dict)
    #: Switches that know a later generation.
    _stale: set[int] = field(default_factory=set)
    #: The latest that they know.
    _later: int | None = None
    _out: list[tuple[int, RoleRequest]] = field(default_factory=list)

    def set_request(self, generation: int, *, leads: bool) -> bool:
        """Ask for another role from now on; return true if all switches are to be told."""
        wanted = RoleRequest(Role.MASTER if leads else Role.SLAVE, generation) if generation else None
        if wanted == self.request:
            return False
        self.request = wanted
        self._taken.clear()
        self._stale.clear()
        self._later = None
        return wanted is not None

    def handle(self, now: float, dpid: int, message: FromSwitch) -> bool:
        """Take in a switch's message; return true if it concerns the role alone."""
        is_master = self.request is not None and self.request.role is Role.MASTER
        match message:
            case RoleReply(role, generation):
                if role == Role.MASTER:
                    self._stale.discard(dpid)
                elif dpid in self._stale:
                    self._later = max(generation, self._later or 0)
                return True
            case Refused("stale-generation"):
                # As a slave one asks by what one knows, which may be old.
                if is_master:
                    self._stale.add(dpid)
                    self._out.append((dpid, RoleRequest(Role.NOCHANGE, 0)))
                return True
            case Refused("slave") as refused:
                if is_master:
                    self._taken[dpid] = now
                return refused.rule is None and refused.meter is None
        return False

    def handle_gone(self, dpid: int) -> None:
        """Forget a switch whose connection ended."""
        self._taken.pop(dpid, None)
        self._stale.discard(dpid)

    def poll_messages(self) -> list[tuple[int, RoleRequest]]:
        """Return messages to send with their switches."""
        out, self._out = self._out, []
        return out

    def poll_later(self) -> int | None:
        """Return, once, the generation than which this leadership's is to be later."""
        later, self._later = self._later, None
        return later

    def due(self, now: float) -> list[int]:
        """Return the switches that are to be asked again; call it every REQUEST_INTERVAL."""
        self._taken = {dpid: at for dpid, at in self._taken.items() if now - at < RETENTION}
        return sorted(self._taken.keys() | self._stale)

    def problems(self, name: Callable[[int], str]) -> Iterator[Problem]:
        """Yield the switches that do not follow this controller although it leads."""
        for dpid in sorted(self._taken.keys() - self._stale):
            text = "another controller made itself its master, so changes of this one are refused: stop that one"
            yield Problem("second-controller", name(dpid), text)
        for dpid in sorted(self._stale):
            text = (
                "has followed a leader of a later generation than this one's, and refuses it: if that lasts, a "
                "controller with another etcd leads there, which is to be stopped"
            )
            yield Problem("stale-generation", name(dpid), text)
