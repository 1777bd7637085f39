"""The operator's settings; all are optional."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.acl import Acl
from braid_sdn.fabric.plan.forecast import Scheduler
from braid_sdn.fabric.plan.mdi import Thresholds
from braid_sdn.fabric.switches.flood_limit import NO_LIMIT
from braid_sdn.fabric.switches.updater import DRAIN
from braid_sdn.fabric.tenants import PortName, Tenants
from braid_sdn.fabric.view.hosts import HOST_LIFETIME


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """Location and key of an edge."""

    name: str
    #: A switch's name or datapath id in hex.
    switch: str
    #: The port's name or number there.
    port: str
    #: True if it returns our probes; an edge that should and does not gets no tagged paths.
    probe: bool = True
    #: Key for requests over TCP; without one the edge must use the Unix socket.
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class HostSettings:
    """A host that stays where the configuration says."""

    mac: str
    #: A switch's name or datapath id in hex.
    switch: str
    #: The port's name or number there.
    port: str
    addresses: frozenset[str] = frozenset()
    #: The VID of its frames, if the port is a trunk.
    vid: int = 0


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Capacity of a link between two switches, each way."""

    between: tuple[str, str]
    #: bit/s; infinite if the ports' speed says it.
    capacity: float
    #: The ports' names or numbers; empty if the entry is about all links between the two switches.
    ports: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class FloodSettings:
    """Rate of what each port of hosts may have flooded, bit/s; infinite if there is no limit."""

    #: None: what the links of the flood's tree carry decides.
    limit: float | None = NO_LIMIT
    #: Of single ports, by their switch's name or datapath id in hex and their name or number there.
    ports: Mapping[PortName, float] = field(default_factory=dict)

    @property
    def is_off(self) -> bool:
        """True if no port has a limit."""
        return self.limit == NO_LIMIT and all(limit == NO_LIMIT for limit in self.ports.values())

    def text(self) -> str:
        """Return it for people."""
        limit = "auto" if self.limit is None else _rate_text(self.limit)
        return ", ".join([limit, *(f"{':'.join(place)} {_rate_text(each)}" for place, each in self.ports.items())])


def _rate_text(limit: float) -> str:
    return "off" if limit == NO_LIMIT else f"{limit / 1e6:g} Mbit/s"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a fabric's controller."""

    #: Authenticates our probes: 16 bytes or more, the same for controllers that share a fabric.
    key: bytes
    #: Names of switches by datapath id.
    names: dict[int, str] = field(default_factory=dict)
    edges: tuple[EdgeSettings, ...] = ()
    links: tuple[LinkSettings, ...] = ()
    hosts: tuple[HostSettings, ...] = ()
    #: The packets of hosts that the fabric carries.
    acl: Acl = field(default_factory=Acl)
    #: Seconds without a sign of life after which a host is forgotten.
    host_lifetime: float = HOST_LIFETIME
    #: True if switches with fast failover groups lead packets around a port that is down by themselves.
    failover: bool = True
    flood: FloodSettings = field(default_factory=FloodSettings)
    #: Groups of ports that are kept apart.
    tenants: Tenants = field(default_factory=Tenants)
    limits: Thresholds = field(default_factory=Thresholds)
    scheduler: Scheduler = Scheduler.EARLIEST_ARRIVAL
    #: The largest packet that hosts send, bytes; None: not configured, and links need to carry a full frame's.
    frame_bytes: int | None = None
    #: Seconds for packets in flight to arrive when paths change.
    drain: float = DRAIN


def is_host_mac(text: str) -> bool:
    """Return true if a text is the MAC address of one host, in lower case."""
    return bool(re.fullmatch(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", text)) and not int(text[:2], 16) & 1
