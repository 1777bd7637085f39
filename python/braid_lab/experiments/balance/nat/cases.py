"""NAT behaviours and their registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from braid_lab.process import LabError

if TYPE_CHECKING:
    from braid_lab.experiments.balance.nat.testbed import NatTestbed

#: Hosts inside: clients behind a gateway, or the machine's own sockets.
Role = Literal["gateway", "host"]

BOTH = (4, 6)
#: Not applicable to IPv6: its header has no checksum, and its datagrams always have one.
ONLY_V4 = (4,)

Body = Callable[["NatTestbed", int], None]


class MissingBehaviourError(LabError):
    """The behaviour is missing."""


@dataclass(frozen=True)
class Case:
    """One behaviour: `body` raises LabError if it is missing.

    `deviation` says why it is missing on purpose; docs/nat.md gives the reason at length.
    """

    name: str
    source: str
    role: Role
    families: tuple[int, ...]
    deviation: str
    body: Body


@dataclass(frozen=True)
class Verdict:
    """Result of one behaviour in one setting."""

    #: As in the figure `pass_NAME`.
    name: str
    source: str
    deviation: str
    #: Reason why it is missing; empty if it is present.
    missed: str
    #: True if devices finished checksums and cut segments.
    offload: bool = True


_cases: list[Case] = []


def case(
    source: str, *, role: Role = "gateway", families: tuple[int, ...] = BOTH, deviation: str = ""
) -> Callable[[Body], Body]:
    """Register a function, by its name, as the behaviour that `source` requires."""

    def register(body: Body) -> Body:
        _cases.append(Case(body.__name__, source, role, families, deviation, body))
        return body

    return register


def cases(role: Role) -> list[Case]:
    """Return the registered cases of a role."""
    return [each for each in _cases if each.role == role]


def check(good: object, text: str) -> None:
    """Raise MissingBehaviourError unless `good`."""
    if not good:
        raise MissingBehaviourError(text)


def run_cases(role: Role, machine: NatTestbed, *, offload: bool) -> list[Verdict]:
    """Try all behaviours of a role; those of `host` are named after it."""
    prefix = "host_" if role == "host" else ""
    return [
        Verdict(
            f"{prefix}{each.name}_v{family}",
            each.source,
            each.deviation,
            attempt(each.body, machine, family),
            offload,
        )
        for each in cases(role)
        for family in each.families
    ]


def attempt(body: Body, machine: NatTestbed, family: int) -> str:
    """Try one behaviour; return why it is missing, or ""."""
    try:
        body(machine, family)
    except TimeoutError:
        return "nothing reached the socket"
    except LabError as error:
        return str(error)
    return ""
