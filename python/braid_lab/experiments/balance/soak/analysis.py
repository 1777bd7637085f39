"""Analysis of a soak's records: losses with and without a matching outage, and growth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from braid_lab.clients.churn import Event
from braid_lab.experiments.balance.soak.faults import Outage

HOUR_S = 3600.0


@dataclass(frozen=True)
class DaemonSample:
    """The daemon's state at one time."""

    at: float
    #: Number of the daemon's process, counted up by every restart.
    life: int
    rss: int
    maps: int
    flows: int
    #: Bytes of all files in the run directory: log, events, state.
    files: int


def explained(lost: Event, outages: Sequence[Outage], addresses: Mapping[str, str]) -> bool:
    """Return whether the flow's uplink failed while the flow was open."""
    name = addresses.get(lost.outer)
    return any(each.uplink == name and each.began <= lost.at and each.ended >= lost.opened for each in outages)


def slope(times: Sequence[float], values: Sequence[float], *others: Sequence[float]) -> float:
    """Return the growth of `values` per hour that `others` do not explain (least squares)."""
    columns = [np.asarray(times), *map(np.asarray, others), np.ones(len(times))]
    found, *_ = np.linalg.lstsq(np.stack(columns, axis=1), np.asarray(values), rcond=None)
    return float(found[0]) * HOUR_S


def rss_growth(samples: Sequence[DaemonSample], settle_s: float) -> float:
    """Return a daemon's memory growth, bytes per hour, over all its processes, each without its first `settle_s`."""
    began = {each.life: each.at for each in reversed(samples)}
    used = [each for each in samples if each.at - began[each.life] >= settle_s]
    lives = sorted({each.life for each in used})
    # A column per process but the last, which is the constant: each has its own offset.
    columns = [[float(each.life == life) for each in used] for life in lives[:-1]]
    return slope([each.at for each in used], [each.rss for each in used], *columns)


def map_growth(samples: Sequence[DaemonSample]) -> float:
    """Return the growth of maps in bytes per hour beyond what their flows take."""
    times, maps, flows = zip(*((each.at, each.maps, each.flows) for each in samples), strict=True)
    return slope(times, maps, flows)
