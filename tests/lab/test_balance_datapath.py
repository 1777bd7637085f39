"""Pure parts of the datapath experiment, and its loads through a gateway without Braid."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from braid_lab.experiments.balance import loads, nftables
from braid_lab.experiments.balance.ab_testbed import WEIGHTS, AbTestbed, SideName, ab_testbed
from braid_lab.experiments.balance.figures import Load, Sample, both_ways, ratios, share_error


def sample(load: Load, side: SideName, number: int, value: float) -> Sample:
    return Sample(load, True, number, side, value, steal=0.0)


def test_ratios_pair_neighbours_in_time() -> None:
    samples = [
        sample("connect_rate", "nft", 1, 10),
        sample("connect_rate", "braid", 0, 30),
        sample("connect_rate", "nft", 0, 20),
        sample("connect_rate", "braid", 1, 20),
        Sample("connect_rate", False, 0, "braid", 1, steal=0.0),
    ]
    assert ratios(samples, "connect_rate", offload=True) == [1.5, 2.0]


def test_bulk_is_the_mean_of_both_directions() -> None:
    samples = [
        sample("bulk_down", "braid", 0, 120),
        sample("bulk_down", "nft", 0, 100),
        sample("bulk_up", "braid", 0, 90),
        sample("bulk_up", "nft", 0, 100),
    ]
    assert both_ways(samples, offload=True) == [pytest.approx(1.05)]


@pytest.mark.parametrize(
    ("counts", "error"),
    [
        ({"dsl": 5, "lte": 3, "sat": 1}, 0.0),
        ({"dsl": 9}, 4 / 9),
        ({"dsl": 6, "lte": 2, "sat": 1}, 1 / 9),
        ({}, 1.0),
    ],
)
def test_share_error(counts: dict[str, int], error: float) -> None:
    assert share_error(counts, WEIGHTS) == pytest.approx(error)


def test_rules_number_the_weights_without_gap_or_overlap() -> None:
    text = nftables.ruleset({"a": 5, "b": 3, "c": 1})
    assert "numgen inc mod 9 vmap { 0-4 : jump to_a, 5-7 : jump to_b, 8 : jump to_c }" in text


@pytest.fixture(scope="module")
def baseline() -> Iterator[AbTestbed]:
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(ab_testbed())
        nftables.install(net.nft)
        stack.enter_context(loads.servers(net))
        yield net


def test_baseline_shares_by_weight(baseline: AbTestbed) -> None:
    with loads.server(baseline, loads.COUNTED_PORTS) as server:
        assert loads.connect_count(baseline, baseline.nft, 90, loads.COUNTED_PORTS) == 90
        sources = loads.finished(server)["sources"]
    expected = dict(zip((uplink.address for uplink in baseline.nft.uplinks), (50, 30, 10), strict=True))
    assert sources == expected


def test_loads_measure(baseline: AbTestbed) -> None:
    assert loads.bulk(baseline, baseline.nft, 1, down=True) > 10
    assert loads.connect_rate(baseline, baseline.nft, 0.2) > 100
    assert loads.small_packets(baseline, baseline.nft, 0.2) > 1000
    times = loads.connect_times(baseline, baseline.nft, 0.2, rate=200)
    assert 0 < times["p50"] <= times["p99"] <= times["max"]


def test_held_connections_are_alive(baseline: AbTestbed) -> None:
    with loads.hold(baseline, baseline.nft, 200) as held:
        assert (held.held, held.alive()) == (200, 200)


def test_dead_connections_are_noticed(baseline: AbTestbed) -> None:
    with loads.hold(baseline, baseline.nft, 20, proof_seconds=0.5) as held:
        baseline.nft.gateway.sysctl(ipv4__ip_forward=0)
        try:
            # Each is given up at the common deadline of the check.
            assert held.alive() == 0
        finally:
            baseline.nft.gateway.sysctl(ipv4__ip_forward=1)


def test_flood_sends_what_is_asked(baseline: AbTestbed) -> None:
    assert loads.syn_flood(baseline, baseline.nft, 1000, seed=1)["sent"] == 1000


def test_train_loses_nothing_on_a_quiet_way(baseline: AbTestbed) -> None:
    def lost() -> int:
        with loads.ping_train(baseline, baseline.nft, rate=500, seconds=0.4, flows=3) as train:
            counted = loads.result(train)
        assert (counted["sent"], counted["duplicated"]) == (200, 0)
        return int(counted["lost"])

    # A train delayed by a busy machine leaves in a burst, which may lose a new flow's second datagram.
    assert 0 in (lost() for _ in range(3))
