"""Flows of a web search: their sizes are the published ones, and their arrivals make up the load."""

from __future__ import annotations

import random
import statistics

from braid_lab.fabric.web_search import SCALE, Flow, flows, mean_bytes, size

RACKS = (range(3), range(3, 6), range(6, 9))


def planned(seconds: float = 4000.0) -> list[Flow]:
    return flows(random.Random(1), RACKS, 6.0, seconds)


def test_sizes_are_those_of_the_distribution() -> None:
    assert [size(share) / (1460 * SCALE) for share in (0.0, 0.15, 0.7, 0.97, 1.0)] == [1, 6, 667, 6667, 20000]
    assert 70_000 < size(0.5) / SCALE < 71_000
    shares = [size((number + 0.5) / 100_000) for number in range(100_000)]
    assert abs(statistics.fmean(shares) / mean_bytes() - 1) < 0.001
    assert 0.3 < sum(each for each in shares if each > 1e7 * SCALE * 0.97) / sum(shares) < 0.4


def test_each_host_sends_its_load() -> None:
    sent = dict.fromkeys(range(9), 0)
    for flow in planned():
        sent[flow.server] += flow.bytes
    assert all(abs(8e-6 * each / 4000 / 6.0 - 1) < 0.1 for each in sent.values()), sent


def test_no_flow_stays_in_its_rack() -> None:
    assert {(flow.client // 3, flow.server // 3) for flow in planned(400.0)} == {
        (one, other) for one in range(3) for other in range(3) if one != other
    }


def test_a_plan_is_that_of_its_seed() -> None:
    assert planned(20.0) == planned(20.0)
    assert planned(20.0) != flows(random.Random(2), RACKS, 6.0, 20.0)
