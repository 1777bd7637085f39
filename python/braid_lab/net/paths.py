"""A host whose uplinks reach several destinations, each by an emulated path of its own.

                       ┌ tanet ── isp ─┬═══ de
                       │               ├═══ us          (═══ a path: its own delay and loss)
    host ── uplinks ───┤               └═══ jp
                       └ hinet ── isp ─┬═══ de
                                       …

The access links themselves are plain and fast unless they are emulated as well: a connection is limited by its path,
so the best uplink differs by destination and changes with time. IPv4 only.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from braid_lab.net import scratch
from braid_lab.net.links import Emulated, End, LinkSpec, emulated
from braid_lab.net.namespace import Namespace, namespace
from braid_lab.net.topology import Uplink, UplinkSpec, add_resolvers, attach

#: An uplink's name and a destination's.
PathKey = tuple[str, str]


@dataclass
class Paths:
    """A running network; all of it is removed when its block ends."""

    host: Namespace
    uplinks: dict[str, Uplink]
    destinations: dict[str, Namespace]
    #: The emulated path of every pair.
    links: dict[PathKey, Emulated]
    scratch: Path
    stack: contextlib.ExitStack = field(repr=False)

    def uplink_of(self, address: str) -> str:
        """Return the name of the uplink whose address a destination saw."""
        return next(each.name for each in self.uplinks.values() if each.address4 == address)


@contextlib.contextmanager
def paths(
    uplinks: Sequence[str],
    destinations: Mapping[str, Sequence[str]],
    *,
    line: LinkSpec,
    access: Mapping[str, LinkSpec] | None = None,
    congestion_control: str = "cubic",
    segments: int | None = None,
) -> Iterator[Paths]:
    """Build the network: the destinations with their networks, and every path at first like `line`.

    `access` has the access links that are emulated, by uplink.
    With `segments`, servers never have more segments than that in flight to a client: the rate of such a connection
    then depends on its round trip alone.
    """
    with contextlib.ExitStack() as stack:
        folder = scratch.directory()
        host = stack.enter_context(namespace("host"))
        far = {
            name: stack.enter_context(_destination(name, networks, congestion_control))
            for name, networks in destinations.items()
        }
        made: dict[str, Uplink] = {}
        links: dict[PathKey, Emulated] = {}
        for index, name in enumerate(uplinks, start=1):
            isp = stack.enter_context(namespace(f"isp-{name}"))
            isp.sysctl(ipv4__ip_forward=1, ipv4__conf__all__rp_filter=1)
            add_resolvers(isp)
            spec = UplinkSpec(name, (access or {}).get(name), families=frozenset({4}))
            made[name] = attach(stack, folder, host, isp, index, spec)
            for number, (destination, networks) in enumerate(destinations.items(), start=1):
                ends = End(isp, f"to-{destination}"), End(far[destination], f"from-{name}"[:15])
                # Independent random numbers, else all paths would lose packets at once.
                own = replace(
                    line, seed=None if line.seed is None else line.seed * len(uplinks) * len(far) + len(links)
                )
                links[name, destination] = stack.enter_context(emulated(*ends, own, scratch=folder))
                _address(*ends, index, number, networks, segments)
        yield Paths(host, made, far, links, folder, stack)


@contextlib.contextmanager
def _destination(name: str, networks: Sequence[str], congestion_control: str) -> Iterator[Namespace]:
    with namespace(name, congestion_control=congestion_control) as made:
        made.sysctl(ipv4__conf__all__rp_filter=1)
        # The server answers on every address of these networks.
        made.ip(*(f"route add local {network} dev lo" for network in networks))
        yield made


def _address(near: End, far: End, index: int, number: int, networks: Sequence[str], segments: int | None) -> None:
    """Give a path's ends their addresses and routes."""
    bound = f"cwnd lock {segments}" if segments else ""
    here, there = (f"100.96.{index}.{4 * number + side}" for side in (1, 2))
    near.namespace.ip(
        f"address add {here}/30 dev {near.device}",
        *(f"route add {network} via {there} dev {near.device}" for network in networks),
    )
    far.namespace.ip(
        f"address add {there}/30 dev {far.device}",
        f"route add 100.64.{index}.0/24 via {here} dev {far.device} {bound}",
    )
    # Resolves both ends' addresses before anything is measured.
    near.namespace.run(["ping", "-c", "1", "-W", "5", there])


def path_keys(uplinks: Sequence[str], destinations: Sequence[str]) -> list[PathKey]:
    """Return every pair, uplinks of one destination together."""
    return [(uplink, destination) for destination, uplink in itertools.product(destinations, uplinks)]
