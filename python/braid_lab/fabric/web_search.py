"""Flows of a data centre that answers web searches, with Poisson arrivals.

Sizes are those of "DCTCP", Alizadeh and others, SIGCOMM 2010, Fig. 4, as "pFabric", SIGCOMM 2013, and CONGA and
LetFlow after it use them: half of the flows have less than 71 kB, and the three in a hundred with 10 MB and more
carry a third of all bytes. There they run at 10 Gbit/s; the lab's lines have a two-thousandth of that, and take a
tenth of each size.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from dataclasses import dataclass

#: Bytes of a packet in the distribution.
PACKET = 1460
#: Packets, and the share of flows that have at most so many; linear between them.
PACKETS = (1, 6, 13, 19, 33, 53, 133, 667, 1333, 3333, 6667, 20000)
SHARES = (0.0, 0.15, 0.2, 0.3, 0.4, 0.53, 0.6, 0.7, 0.8, 0.9, 0.97, 1.0)
#: Part of each size that a flow has in the lab.
SCALE = 0.1


@dataclass(frozen=True)
class Flow:
    """A flow that begins `at` seconds after the first moment, by places in the lists of clients and servers."""

    at: float
    client: int
    server: int
    bytes: int


def size(share: float) -> int:
    """Return the bytes that this share of all flows does not exceed, in the lab's scale."""
    after = min(bisect.bisect_right(SHARES, share), len(SHARES) - 1)
    low, high = SHARES[after - 1], SHARES[after]
    packets = PACKETS[after - 1] + (share - low) / (high - low) * (PACKETS[after] - PACKETS[after - 1])
    return max(1, round(packets * PACKET * SCALE))


def mean_bytes() -> float:
    """Return the mean size, in the lab's scale."""
    parts = zip(SHARES, SHARES[1:], PACKETS, PACKETS[1:], strict=False)
    return SCALE * PACKET * sum((high - low) * (small + large) / 2 for low, high, small, large in parts)


def flows(chance: random.Random, racks: Sequence[Sequence[int]], mbit: float, seconds: float) -> list[Flow]:
    """Plan flows for `seconds`, between hosts of different racks, so that each host sends `mbit` in the mean."""
    hosts = [(rack, host) for rack, members in enumerate(racks) for host in members]
    rate = len(hosts) * 1e6 * mbit / 8 / mean_bytes()
    plan = []
    at = chance.expovariate(rate)
    while at < seconds:
        rack, server = chance.choice(hosts)
        client = chance.choice([host for other, host in hosts if other != rack])
        plan.append(Flow(at, client, server, size(chance.random())))
        at += chance.expovariate(rate)
    return plan
