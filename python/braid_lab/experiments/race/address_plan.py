"""Which address is connected to in what way: by a policy, or over one uplink for certain.

The datapath remembers a destination by its /24, so every round has a /24 of its own for each policy, of which nobody
knows anything yet, as ten minutes lie between two rounds in the paper. Rules by destination tell Braid which policy
or which uplink an address is for, so one daemon serves all at the same moment. The addresses are other people's
and exist inside the lab's namespaces only: private ones are not raced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

Policy = Literal["race", "fastest", "rr"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

#: First bytes of the addresses that a policy is for.
OCTETS: Mapping[Policy, int] = {"race": 81, "fastest": 82, "rr": 83}

#: The same for uplinks, counted from 1.
FIRST_PINNED_OCTET = 91

#: A /24 each; a place is the second byte.
ROUNDS = 256


def chosen_address(policy: Policy, place: int, number: int) -> str:
    """Return the address at a place (1 to 255) for which the policy chooses; a round's is new to Braid."""
    return f"{OCTETS[policy]}.{place}.{number % ROUNDS}.1"


def pinned_address(index: int, place: int, number: int) -> str:
    """Return the address at a place that is reached over the uplink of this index, from 1, whatever policies say."""
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
    """Return the configuration that makes it so; without `watched` Braid asks nobody whether uplinks live."""
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
