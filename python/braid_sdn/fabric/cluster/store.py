"""The interface to what outlives a controller: an operator's policies, and which of several controllers leads.

`FileStore` is the default: one controller, which always leads. `EtcdStore` is for several, of which one leads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from braid_sdn.fabric.model import Problem
from braid_sdn.fabric.plan.policies import Policies


class StoreError(Exception):
    """Policies that are not kept, with the HTTP status of the answer."""

    def __init__(self, text: str, status: int = 500) -> None:
        """Keep the status."""
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Member:
    """One of several controllers."""

    name: str
    #: Address of its API, for people and edges; empty if it serves none but its socket.
    address: str = ""

    def __str__(self) -> str:
        return f"{self.name} (at {self.address})" if self.address else self.name


@dataclass(frozen=True)
class Standing:
    """The last answer of the store."""

    #: Number of the present leadership, or of the last known one: the next one's is higher. 0 is unknown, and there
    #: is none with a single controller.
    generation: int = 0
    #: The leader; None if nobody leads, or nobody knows.
    leader: Member | None = None
    policies: Policies = field(default_factory=Policies)
    #: Why what is kept cannot be read, in which case `policies` are those read before, or none; empty if it can.
    unread: str = ""


@dataclass(frozen=True)
class Cluster:
    """One controller among several, as it is shown."""

    me: Member
    leads: bool
    leader: Member | None
    generation: int
    problems: tuple[Problem, ...] = ()


class Store(Protocol):
    """Keeps what outlives a controller."""

    @property
    def me(self) -> Member | None:
        """The controller itself; None if it is the only one."""

    @property
    def standing(self) -> Standing:
        """Return what is known of it now."""

    def leads(self) -> bool:
        """Return true if this controller may change switches at this moment. Cheap: it is asked before each send."""

    def problems(self) -> Sequence[Problem]:
        """Return what is wrong with the store and with the other controllers."""

    async def keep(self, policies: Policies) -> None:
        """Write policies down. Once it returns they are kept, whatever fails; raises StoreError."""

    def set_digest(self, digest: str) -> None:
        """Have others know this controller's configuration by another digest from now on."""

    async def surpass(self, generation: int) -> None:
        """Have this leadership's generation be later than one that a switch knows, if that is possible."""

    async def run(self, changed: Callable[[], None]) -> None:
        """Follow the store until cancelled; `changed` is called when the standing, or what is wrong, may be another.

        A leader steps down when it is cancelled.
        """
