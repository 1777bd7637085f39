"""Addresses of the race experiments: each is reached by a policy, or over one fixed uplink.

The path cache remembers a destination by its /24, so every round has a new /24 for each policy, as ten minutes lie
between two rounds in the paper. Rules by destination select the policy or the uplink of an address, so one daemon
serves all at the same time. The addresses are public ones and exist only inside the lab's namespaces: private ones
are not raced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

Policy = Literal["race", "fastest", "rr"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

#: First bytes of the addresses of each policy.
OCTETS: Mapping[Policy, int] = {"race": 81, "fastest": 82, "rr": 83}

#: First byte of the first uplink's addresses; uplinks are counted from 1.
FIRST_PINNED_OCTET = 91

#: A /24 each; a place is the second byte.
ROUNDS = 256


def chosen_address(policy: Policy, place: int, number: int) -> str:
    """Return an address at a place (1 to 255) that `policy` decides; each round's is new to Braid."""
    return f"{OCTETS[policy]}.{place}.{number % ROUNDS}.1"


def pinned_address(index: int, place: int, number: int) -> str:
    """Return an address at a place that is always reached over the uplink with this index, from 1."""
    return f"{FIRST_PINNED_OCTET + index - 1}.{place}.{number % ROUNDS}.1"


def networks(place: int, uplinks: int) -> list[str]:
    """Return all networks of a place."""
    return [f"{octet}.{place}.0.0/16" for octet in _octets(uplinks)]


def everything(uplinks: int) -> list[str]:
    """Return the networks of all places."""
    return [f"{octet}.0.0.0/8" for octet in _octets(uplinks)]


def _octets(uplinks: int) -> list[int]:
    return [*OCTETS.values(), *range(FIRST_PINNED_OCTET, FIRST_PINNED_OCTET + uplinks)]


def configuration(
    uplinks: Iterable[str],
    *,
    policies: Iterable[Policy] = POLICIES,
    capacity: str | None = None,
    watched: bool = True,
) -> str:
    """Return the configuration of this plan; without `watched` Braid runs no health checks."""
    names = list(uplinks)
    text = 'policy = "rr"\n'
    for name in names:
        text += f'\n[[uplink]]\nname = "{name}"\ndevice = "{name}"\n'
        text += f'capacity = "{capacity}"\n' if capacity else ""
    for policy in policies:
        text += f'\n[[rule]]\nname = "by-{policy}"\ndestination = "{OCTETS[policy]}.0.0.0/8"\nuse = "{policy}"\n'
    for octet, name in enumerate(names, start=FIRST_PINNED_OCTET):
        text += f'\n[[rule]]\nname = "over-{name}"\ndestination = "{octet}.0.0.0/8"\nuse = "{name}"\n'
    return text + ("" if watched else "\n[liveness]\nenabled = false\n")
