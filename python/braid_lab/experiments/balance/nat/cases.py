"""What a behaviour is, and the list of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from braid_lab.process import LabError

if TYPE_CHECKING:
    from braid_lab.experiments.balance.nat.testbed import NatTestbed

#: Who is inside: clients behind a gateway, the machine's own sockets.
Role = Literal["gateway", "host"]

BOTH = (4, 6)
#: IPv6 has nothing like it: headers have no checksum, datagrams always one.
ONLY_V4 = (4,)

Body = Callable[["NatTestbed", int], None]


class MissingBehaviourError(LabError):
    """The behaviour is not there."""


@dataclass(frozen=True)
class Case:
    """One behaviour: `body` raises LabError if it is not there.

    `deviation` says why it is not meant to be there; docs/nat.md has the same reason at length.
    """

    name: str
    source: str
    role: Role
    families: tuple[int, ...]
    deviation: str
    body: Body


@dataclass(frozen=True)
class Verdict:
    """What became of one behaviour in one setting."""

    #: As in the figure `pass_NAME`.
    name: str
    source: str
    deviation: str
    #: Why it is not there; empty if it is.
    missed: str
    #: Whether devices finished checksums and cut segments.
    offload: bool = True


_cases: list[Case] = []


def case(
    source: str, *, role: Role = "gateway", families: tuple[int, ...] = BOTH, deviation: str = ""
) -> Callable[[Body], Body]:
    """Register a function, by its name, as the behaviour that `source` asks for."""

    def register(body: Body) -> Body:
        _cases.append(Case(body.__name__, source, role, families, deviation, body))
        return body

    return register


def cases(role: Role) -> list[Case]:
    """Return the registered cases of a role."""
    return [each for each in _cases if each.role == role]


def check(good: object, text: str) -> None:
    """Raise MissedError unless `good`."""
    if not good:
        raise MissingBehaviourError(text)


def run_cases(role: Role, machine: NatTestbed, *, offload: bool) -> list[Verdict]:
    """Try all behaviours of a role; a host's own have names that say so."""
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
    """Try one behaviour; return why it is not there, or nothing."""
    try:
        body(machine, family)
    except TimeoutError:
        return "nothing reached the socket"
    except LabError as error:
        return str(error)
    return ""
