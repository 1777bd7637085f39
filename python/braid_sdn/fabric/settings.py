"""What the operator says about the network; all of it may be left out."""

from __future__ import annotations

from dataclasses import dataclass, field

from braid_sdn.fabric.plan.mdi import Thresholds
from braid_sdn.fabric.switches.updater import DRAIN


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """Where an edge is."""

    name: str
    #: A switch's name or datapath id in hex.
    switch: str
    #: The port's name or number there.
    port: str
    #: Whether it sends our probes back; one that should and does not gets no tagged paths.
    probe: bool = True
    #: What it shows when it asks over TCP; without one it can ask on the controller's machine alone.
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What a link between two switches can carry, each way."""

    between: tuple[str, str]
    #: bit/s.
    capacity: float


@dataclass(frozen=True, slots=True)
class Settings:
    """How the controller of one fabric behaves."""

    #: Authenticates our probes: 16 bytes or more, the same for controllers that share a fabric.
    key: bytes
    #: Names of switches by datapath id.
    names: dict[int, str] = field(default_factory=dict)
    edges: tuple[EdgeSettings, ...] = ()
    links: tuple[LinkSettings, ...] = ()
    limits: Thresholds = field(default_factory=Thresholds)
    #: Seconds that packets under way get when paths change.
    drain: float = DRAIN
