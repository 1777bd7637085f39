"""A round on real packets: every policy chooses, then fetches over all uplinks show the best choice."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from braid_lab.clients.fetch import Fetched
from braid_lab.experiments.race.address_plan import pinned_address
from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import Uplink
from braid_lab.process import LabError

T = TypeVar("T")


@dataclass(frozen=True)
class Amount:
    """Amount of a fetch; a slow fetch ends after `limit` s, and its bytes so far give the rate."""

    bytes: int
    limit: float
    #: Interval between the starts of two connections, s.
    spacing: float = 0.0


NO_BYTES = Amount(0, 1.0)


def fetch(place: Namespace, addresses: Sequence[str], amount: Amount = NO_BYTES) -> list[Fetched]:
    """Run `braid_lab.clients.fetch`, all addresses at once."""
    bounds = ["--bytes", str(amount.bytes), "--limit", f"{amount.limit:g}", "--spacing", f"{amount.spacing:g}"]
    timeout = len(addresses) * amount.spacing + amount.limit + 60
    done = place.run([sys.executable, "-m", "braid_lab.clients.fetch", *bounds, *addresses], timeout=timeout)
    return [Fetched(**each) for each in json.loads(done.stdout)]


def choose(host: Namespace, uplinks: Mapping[str, Uplink], addresses: Mapping[T, str]) -> dict[T, str | None]:
    """Open a connection to every address; return the uplinks they took, None where one failed."""
    names = {each.address4: each.name for each in uplinks.values()}
    got = fetch(host, list(addresses.values()))
    return {
        each: None if fetched.via is None else names[fetched.via]
        for each, fetched in zip(addresses, got, strict=True)
    }


def fetch_over_all(
    host: Namespace,
    uplinks: Mapping[str, Uplink],
    places: Mapping[str, int],
    number: int,
    amount: Amount,
) -> dict[tuple[str, str], Fetched]:
    """Fetch over every uplink from every place, all at once.

    LabError if a fetch fails or takes another uplink.
    """
    wanted = [(uplink, name) for name in places for uplink in uplinks.values()]
    addresses = [pinned_address(uplink.index, places[name], number) for uplink, name in wanted]
    known = {}
    for (uplink, name), fetched in zip(wanted, fetch(host, addresses, amount), strict=True):
        if fetched.error or fetched.via != uplink.address4:
            raise LabError(f"fetch from {name} over {uplink.name}: used {fetched.via}: {fetched.error}")
        known[uplink.name, name] = fetched
    return known
