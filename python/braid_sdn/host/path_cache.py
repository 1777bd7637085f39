"""The path cache: round trips by destination network and uplink, and the choice of an uplink from them.

docs/race.md has the rules, which are those of the eBPF datapath (`bpf/path_cache/path_cache.h`). Losses are known of
uplinks alone, from the daemon's forecasts: no rule of a switch compares sequence numbers.
"""

from __future__ import annotations

import ipaddress
import math
import random
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from braid_sdn.host.desired import Address, Desired, RaceSettings
from braid_sdn.host.forecast import MAX_RACE_RATIO, Forecast, in_turn

#: Networks that are remembered; the least recently used is evicted.
MAX_NETWORKS = 8192
#: Length of a network's prefix, by IP version.
PREFIX_BITS = {4: 24, 6: 48}
#: A longer round trip moves the remembered one by 1/RTT_DIVISOR of the difference, once in RTT_RISE_S at most.
RTT_DIVISOR, RTT_RISE_S = 4, 1.0
#: Round trip, microseconds, of an uplink that a race has waited for in vain; for that, the cache's time is divided.
UNANSWERED_RTT, UNANSWERED_DIVISOR = 2_000_000, 4

#: Destinations to which no race is run: no uplink leads there, or always the same one.
PRIVATE = tuple(
    ipaddress.ip_network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)


@dataclass(slots=True)
class Path:
    """The path to a network by one uplink. Times are seconds."""

    #: Microseconds.
    rtt: int
    measured: float
    #: The uplink's epoch at that time.
    epoch: int


@dataclass(slots=True)
class _Network:
    paths: dict[int, Path] = field(default_factory=dict)
    #: Races in this second.
    second: int = -1
    races: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The placement of a new flow: by a race, by the cache, or (neither) by the slot table."""

    racers: tuple[int, ...] = ()
    #: Of a race: the uplink that wins if it answers at all.
    preferred: int | None = None
    uplink: int | None = None
    choice: str = ""


def network_of(remote: Address) -> Address:
    """Return the first address of a remote's network."""
    return ipaddress.ip_network((remote, PREFIX_BITS[remote.version]), strict=False)[0]


def is_private(remote: Address) -> bool:
    """Return True for destinations that are not raced."""
    return any(remote in network for network in PRIVATE)


class PathCache:
    """All known paths, and the forecasts of the uplinks."""

    def __init__(self, reasons: Counter[str], chance: random.Random | None = None) -> None:
        """Create an empty one; `reasons` counts what it decides."""
        self._reasons = reasons
        self._chance = chance or random.Random()
        self._settings = RaceSettings()
        self._epochs: dict[int, int] = {}
        self._networks: OrderedDict[Address, _Network] = OrderedDict()
        self._second, self._races = -1, 0
        self.forecasts: dict[int, Forecast] = {}
        self._opened = 0
        #: Networks that have changed, or were evicted, since `changes` was last called.
        self._changed: set[Address] = set()

    def follow(self, desired: Desired) -> None:
        """Take in the settings, and the epochs of the uplinks."""
        self._settings = desired.race
        epochs = {number: uplink.epoch for number, uplink in desired.uplinks.items()}
        if epochs != self._epochs:
            self._epochs = epochs
            self._changed.update(self._networks)

    # Measurements.

    def note_rtt(self, now: float, remote: Address, uplink: int, rtt: int) -> None:
        """Take in a handshake's round trip."""
        known = self._path(remote, uplink)
        rtt = max(rtt, 1)
        age = now - known.measured if known is not None and known.rtt != UNANSWERED_RTT else math.inf
        if known is not None and known.rtt < rtt and age <= self._settings.cache_ttl:
            if age < RTT_RISE_S:
                return
            rtt = (known.rtt * (RTT_DIVISOR - 1) + rtt) // RTT_DIVISOR
        self._set(remote, uplink, Path(rtt, now, self._epochs.get(uplink, 0)))

    def note_unanswered(self, now: float, remote: Address, uplink: int) -> None:
        """Remember that a SYN was left unanswered by this uplink."""
        ttl = self._settings.cache_ttl
        measured = now - ttl + ttl / UNANSWERED_DIVISOR
        self._set(remote, uplink, Path(UNANSWERED_RTT, measured, self._epochs.get(uplink, 0)))

    def forget(self, remote: Address, uplink: int) -> None:
        """Drop what is known of a path that does not answer."""
        network = self._networks.get(network_of(remote))
        if network is not None and network.paths.pop(uplink, None) is not None:
            self._changed.add(network_of(remote))

    def _path(self, remote: Address, uplink: int) -> Path | None:
        network = self._networks.get(network_of(remote))
        path = network.paths.get(uplink) if network is not None else None
        return path if path is not None and path.epoch == self._epochs.get(uplink, 0) else None

    def fresh_rtt(self, now: float, remote: Address, uplink: int) -> int | None:
        """Return a round trip that still counts."""
        path = self._path(remote, uplink)
        return path.rtt if path is not None and now - path.measured <= self._settings.cache_ttl else None

    def _set(self, remote: Address, uplink: int, path: Path) -> None:
        self._touch(network_of(remote)).paths[uplink] = path
        self._changed.add(network_of(remote))

    def _touch(self, prefix: Address) -> _Network:
        network = self._networks.setdefault(prefix, _Network())
        self._networks.move_to_end(prefix)
        if len(self._networks) > MAX_NETWORKS:
            self._changed.add(self._networks.popitem(last=False)[0])
        return network

    # Forecasts.

    def set_forecasts(self, told: Iterable[Mapping[str, Any]]) -> None:
        """Take in the daemon's forecasts; uplinks without one are taken to have nothing."""
        before, self.forecasts = self.forecasts, {}
        for each in told:
            # If all were forgotten at once, the last second's flows would draw the next ones to their uplinks.
            known = before.get(each["id"], Forecast())
            self.forecasts[each["id"]] = Forecast(
                each["capacity"],
                each["spare"],
                each["busy"],
                each["loss"],
                opened=known.opened // 2,
                last_opened=known.last_opened,
            )

    def count_opened(self, uplink: int) -> None:
        """Count a flow that takes a share of the uplink's headroom."""
        forecast = self.forecasts.get(uplink)
        if forecast is not None:
            forecast.opened += 1
            self._opened += 1
            forecast.last_opened = self._opened

    # Choice.

    def plan(
        self,
        now: float,
        remote: Address,
        candidates: list[int],
        *,
        fastest: bool,
        may_race: bool,
        silent: int | None = None,
    ) -> Plan:
        """Place a new flow whose candidates, all of which take it, are these.

        If the uplink `silent` has just left its SYN unanswered, it is raced on all of them.
        """
        if len(candidates) < 2:
            return Plan()
        retries = silent is not None
        if silent is not None and fastest:
            self.note_unanswered(now, remote, silent)
        forecasts = {number: self.forecasts.get(number, Forecast()) for number in candidates}
        scores: dict[int, int] = {}
        for number in candidates:
            rtt = self.fresh_rtt(now, remote, number)
            if rtt is not None:
                scores[number] = forecasts[number].score(rtt) if fastest else rtt
        worthwhile = candidates
        if fastest:
            answer = [each for each in candidates if self.fresh_rtt(now, remote, each) != UNANSWERED_RTT]
            times = {number: forecasts[number].reference_time() for number in answer}
            worthwhile = [each for each in answer if times[each] <= MAX_RACE_RATIO * min(times.values())]
        if fastest:
            best = in_turn(scores, lambda number: forecasts[number].last_opened)
        else:
            best = min(scores, key=lambda number: (scores[number], number), default=None)
        known = all(number in scores for number in worthwhile)
        rate = self._settings.explore_one_in
        explores = known and rate > 0 and self._chance.randrange(rate) == 0
        racers = candidates if explores or retries else worthwhile
        if may_race and not is_private(remote) and (not known or explores or retries):
            if len(racers) > 1 and self._spend(now, remote):
                if racers != candidates:
                    self._reasons["race_crowded"] += 1
                return Plan(tuple(racers), preferred=best if explores and fastest else None)
            if len(racers) == 1:
                # The path by the only worthwhile uplink is unknown.
                best = racers[0]
        if best is None:
            return Plan()
        choice = "predicted" if fastest else "remembered"
        self._reasons[f"path_{choice}"] += 1
        return Plan(uplink=best, choice=choice)

    def _spend(self, now: float, remote: Address) -> bool:
        """Take a race from the budgets of this second; False if one is used up."""
        second, network = int(now), self._touch(network_of(remote))
        if network.second != second:
            network.second, network.races = second, 0
        if self._second != second:
            self._second, self._races = second, 0
        if network.races >= self._settings.per_prefix or self._races >= self._settings.total:
            self._reasons["race_over_rate"] += 1
            return False
        network.races += 1
        self._races += 1
        return True

    def races_in_this_second(self, remote: Address) -> int:
        """Return how many races to the remote's network the second of the last one had."""
        network = self._networks.get(network_of(remote))
        return network.races if network is not None else 0

    # Reports.

    def changes(self, now: float, *, all_of_it: bool) -> list[dict[str, Any]]:
        """Return the networks that have changed; those without paths are forgotten ones."""
        changed = set(self._networks) if all_of_it else self._changed
        self._changed = set()
        told = []
        for prefix in changed:
            network = self._networks.get(prefix, _Network())
            paths = [
                {
                    "uplink": number,
                    "rtt_us": path.rtt,
                    "age_ms": round(1000 * (now - path.measured)),
                    "valid": path.epoch == self._epochs.get(number, 0),
                }
                for number, path in sorted(network.paths.items())
            ]
            told.append({"prefix": str(prefix), "paths": paths})
        return told

    def restore(self, now: float, told: Iterable[Mapping[str, Any]]) -> None:
        """Take in what an earlier instance has saved, where nothing was measured meanwhile."""
        for each in told:
            prefix = ipaddress.ip_address(each["prefix"])
            for path in each["paths"]:
                if path["rtt_us"] is not None and self._path(prefix, path["uplink"]) is None:
                    measured = now - path["age_ms"] / 1000
                    epoch = self._epochs.get(path["uplink"], 0)
                    self._set(prefix, path["uplink"], Path(path["rtt_us"], measured, epoch))
