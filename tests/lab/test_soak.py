"""The soak's analysis: explained and unexplained losses, and growth."""

from __future__ import annotations

import pytest

from braid_lab.clients.churn import Event
from braid_lab.experiments.balance.soak.analysis import DaemonSample, explained, map_growth, rss_growth
from braid_lab.experiments.balance.soak.faults import Outage

ADDRESSES = {"100.64.1.2": "dsl", "100.64.2.2": "lte"}
OUTAGES = [Outage("dsl", "black hole", 100, 104)]


def lost(outer: str, opened: float, at: float) -> Event:
    return Event("tcp", opened, at, outer, "reset")


@pytest.mark.parametrize(
    ("event", "excused"),
    [
        (lost("100.64.1.2", 50, 101), True),
        (lost("100.64.1.2", 50, 120), True),
        (lost("100.64.1.2", 50, 99), False),
        (lost("100.64.1.2", 105, 120), False),
        (lost("100.64.2.2", 50, 101), False),
        (lost("192.0.2.1", 50, 101), False),
    ],
)
def test_only_the_flows_own_uplink_excuses_its_loss(event: Event, excused: bool) -> None:
    assert explained(event, OUTAGES, ADDRESSES) == excused


def sample(at: float, life: int, rss: float, flows: int = 0) -> DaemonSample:
    return DaemonSample(at, life, int(rss), 1_000_000 + 336 * flows, flows, 0)


def test_growth_is_that_of_a_life_and_not_of_restarts() -> None:
    lives = [sample(second, 1, 10e6 + 100 * second) for second in range(60)]
    lives += [sample(second, 2, 20e6 + 100 * second) for second in range(60, 120)]
    assert rss_growth(lives, settle_s=5) == pytest.approx(360_000, rel=0.05)


def test_maps_that_follow_their_flows_do_not_grow() -> None:
    samples = [sample(second, 1, 1e6, flows=second * 17 % 100 + second) for second in range(100)]
    assert map_growth(samples) == pytest.approx(0, abs=1)
