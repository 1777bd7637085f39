"""Limits what hosts may have flooded: broadcasts, multicasts, and packets to hosts that nobody knows.

Each port of hosts has two meters, and at a trunk each tenant there: one for the packets by which hosts find
addresses (ARP, neighbour and router solicitations and advertisements, DHCP), and one for all others that are flooded.
So a host whose storm is cut off still resolves addresses, and a storm of requests takes nothing from a multicast.
They are in the table of destinations, for packets from that port which no rule for a host matches: what goes to a
known host meets none.

The meters count bits, because links do: a limit by packets that lets a video of 20 Mbit/s pass lets a storm of full
frames take several times what a storm of small ones takes.

A switch's numbers of meters are in thirds: those of ports which flood the controller, whose meters have the ports'
numbers, then the other two; the last number is for all such ports that are beyond the first third. Which number is
whose follows from the port, at a trunk from the place of the tenant among all of the switch's, so a controller that
starts anew gives the same ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from braid_sdn.fabric.switches.rules import (
    COOKIE,
    DESTINATIONS,
    TO_CONTROLLER,
    TREES,
    UNANSWERED,
    configuration,
    requests,
    unicast,
)
from braid_sdn.fabric.tenants import METADATA_MASK, metadata_of
from braid_sdn.openflow.messages import Match, Rule, SetMeter

#: Part of the slowest link of the flood's tree that a port may fill by `limit = "auto"`. The smallest frames take 1.5
#: times their length of a line, with tag, preamble and gap, so half leaves others a quarter at the worst.
AUTO_SHARE = 0.5
#: The most that "auto" gives a port, bit/s: hosts' own cables and processors take each flooded packet as well.
MAX_AUTO_LIMIT = 100e6
#: The slowest that a port is taken for by what its switch says, bit/s: no Ethernet is slower.
MIN_SPEED = 10e6

#: The least that can be configured, bit/s: a full frame each second and a half.
MIN_LIMIT = 8_000

#: Kilobits a second of the packets by which a port's hosts find addresses: some 400 requests by ARP, or 70 by DHCP.
ADDRESS_RATE = 200

#: Seconds of its limit that a port may send at once after a silence, since a longer burst would fill queues in front
#: of slow links. Kilobits at the least: no packet passes that is longer than a meter's burst; a jumbo frame has 72.
BURST_TIME = 0.1
MIN_BURST = 80
#: The same of the packets by which hosts find addresses: hosts behind one port may all start at once.
ADDRESS_BURST_TIME = 0.5

#: Priorities in the table of destinations.
_OTHERS, _ADDRESSES = 1, 3

#: The most that a meter can be given, kilobits a second, and at once.
MAX_RATE = 0xFFFFFFFF

#: A port's limit where it has none.
NO_LIMIT = math.inf


@dataclass(frozen=True, slots=True)
class Limited:
    """A port of hosts, or a tenant at a trunk, with its limit."""

    port: int
    tenant: int
    #: Numbers of its meters.
    meter: int
    address_meter: int
    #: Kilobits a second; no rule depends on it.
    rate: int = field(compare=False)

    def meters(self) -> tuple[SetMeter, SetMeter]:
        """Return its meters."""
        return _meters(self.meter, self.address_meter, self.rate)


# Ports of the same number have the same ones at many switches, and the same rules.
@functools.lru_cache(maxsize=4096)
def _meters(meter: int, address_meter: int, rate: int) -> tuple[SetMeter, SetMeter]:
    of_addresses = min(ADDRESS_RATE, rate)
    return (
        SetMeter(meter, rate, _burst(rate, BURST_TIME), by_bits=True),
        SetMeter(address_meter, of_addresses, _burst(of_addresses, ADDRESS_BURST_TIME), by_bits=True),
    )


def _third(highest: int) -> int:
    return max(0, highest - 1) // 3


def muting_meter(port: int, highest: int) -> int:
    """Return the meter of a port that floods the controller, at a switch with this highest meter for limits."""
    return port if port <= _third(highest) else highest


def _burst(rate: int, seconds: float) -> int:
    return max(MIN_BURST, round(seconds * rate))


@functools.lru_cache(maxsize=4096)
def limited(port: int, tenant: int, limit: float, slot: int, highest: int) -> Limited | None:
    """Return a port with its limit, bit/s; None if it has none, or the switch has no meter for it.

    `slot` is its place among those of the switch, from 1, and `highest` the switch's highest meter.
    """
    third = _third(highest)
    if math.isinf(limit) or not 0 < slot <= third:
        return None
    rate = min(max(1, round(limit / 1000)), MAX_RATE)
    return Limited(port, tenant, third + slot, 2 * third + slot, rate)


@dataclass(frozen=True)
class SwitchLimits:
    """The limits of a switch's ports."""

    ports: tuple[Limited, ...] = ()
    #: By their numbers.
    meters: Mapping[int, SetMeter] = field(default_factory=dict)
    #: Number of ports, and of tenants at trunks, for which the switch has too few meters, links or not.
    missing: int = 0


def of_switch(
    limits: Mapping[tuple[int, int], float],
    trunks: Mapping[int, Mapping[int, int]],
    links: Collection[int],
    highest: int,
) -> SwitchLimits:
    """Return what is limited at a switch.

    `limits` are those of each port, at a trunk of each tenant there, bit/s, `trunks` the tenants by VIDs of all, and
    `links` the ports that are links.
    """
    # Trunks' tenants have places from the other end.
    shared = [(port, tenant) for port, vids in sorted(trunks.items()) for tenant in dict.fromkeys(vids.values())]
    slots = {each: _third(highest) - number for number, each in enumerate(shared)}
    last = max((port for port, _ in limits), default=0)
    made = []
    for (port, tenant), limit in limits.items():
        slot = slots.get((port, tenant), port)
        if slot == port or slot > last:
            made.append(limited(port, tenant, limit, slot, highest))
    found = [each for each in made if each is not None]
    ports = tuple(each for each in found if each.port not in links)
    meters = {meter.number: meter for each in ports for meter in each.meters()}
    return SwitchLimits(ports, meters, sum(limit != NO_LIMIT for limit in limits.values()) - len(found))


@functools.lru_cache(maxsize=4096)
def rules_of(each: Limited, *, everywhere: bool) -> tuple[Rule, ...]:
    """Return the rules of a port; `everywhere` if its switch has a rule for each host."""
    metadata = metadata_of(each.tenant)
    whole = Match(in_port=each.port, metadata=(metadata, METADATA_MASK) if metadata is not None else None)
    made = [
        Rule(DESTINATIONS, _ADDRESSES, match, (), TREES, COOKIE, meter=each.address_meter)
        for match in (*requests(whole), *configuration(whole))
    ]
    made.append(Rule(DESTINATIONS, _OTHERS, whole, (), TREES, COOKIE, meter=each.meter))
    if not everywhere:
        made.append(Rule(DESTINATIONS, UNANSWERED, unicast(whole), (TO_CONTROLLER,), TREES, COOKIE, meter=each.meter))
    return tuple(made)
