"""Pure parts of the race experiments: rounds drawn from a seed, addresses, figures from choices."""

from __future__ import annotations

import math
import statistics
import tomllib

import pytest

from braid_lab.experiments.race import address_plan
from braid_lab.experiments.race.figures import (
    Choice,
    by_destination,
    hit_ratio,
    law_mbit,
    of_best,
    over_destinations,
    percentile,
)
from braid_lab.experiments.race.rounds import COV, UPLINKS, USUAL_RTT_MS, PathTrace, apart_ms, draw


def test_a_round_is_always_the_same_and_no_two_are_alike() -> None:
    assert draw(1, 7) == draw(1, 7)
    assert draw(1, 7).traces != draw(1, 8).traces
    assert draw(1, 7).traces != draw(2, 7).traces
    assert {draw(1, number).order for number in range(40)} > {("de", "us", "jp"), ("jp", "us", "de")}


def test_a_path_shakes_as_much_as_the_paper_measured() -> None:
    """[ofrp] §3.1: "the largest Coefficient-of-variance (CoV) is only 0.045"."""
    traces = [trace for number in range(40) for trace in draw(1, number).traces.values()]
    # The median, because excursions are not part of the paper's value.
    assert statistics.median(trace.cov(60, 120) for trace in traces) == pytest.approx(COV, rel=0.1)
    # Close in time, values are alike: the round trip "is short-time stable".
    steps = [abs(trace.at(60.1) - trace.at(60)) / trace.at(60) for trace in traces]
    assert statistics.fmean(steps) < COV / 2


def test_the_best_uplink_changes_and_round_robin_is_as_good_as_in_the_paper() -> None:
    """[ofrp] Fig. 6: round robin gives 0.69 of the best; here a path's rate is limited by its round trip."""
    ratios = []
    rounds = [draw(1, number) for number in range(120)]
    for destination in USUAL_RTT_MS:
        rates = [[1 / each.traces[uplink, destination].mean(0, 2) for uplink in UPLINKS] for each in rounds]
        ratios.append(sum(map(statistics.fmean, rates)) / sum(map(max, rates)))
        best = {row.index(max(row)) for row in rates}
        assert best == {0, 1, 2}
    assert statistics.fmean(ratios) == pytest.approx(0.70, abs=0.03)


def test_unusually_long_round_trips_are_rare() -> None:
    """[ofrp] §4.2: "the unusual large RTT seriously degrades the throughput provided by one links"."""
    traces = [trace for number in range(60) for trace in draw(1, number).traces.values()]
    # Some last the whole time, some come and go; only the latter differ from another usual round trip.
    struck = sum(max(trace.between(0, 120)) > 1.4 * min(trace.between(0, 120)) for trace in traces)
    assert 0.02 < struck / len(traces) < 0.1


def test_a_course_is_looked_up() -> None:
    trace = PathTrace(0.0, ((0.0, 100.0), (0.1, 200.0), (0.2, 300.0)))
    assert [trace.at(each) for each in (-1, 0, 0.05, 0.1, 0.19, 5)] == [100, 100, 100, 200, 200, 300]
    assert trace.mean(0.0, 0.2) == pytest.approx(150)
    assert trace.cov(0.1, 0.2) == 0
    assert apart_ms([30.0, 10.0, 25.0]) == 15


def choice(
    chosen: str | None, destination: str = "de", *, best: float = 10, rtts: tuple[float, float] = (20, 50)
) -> Choice:
    return Choice(
        "race", destination, 1, chosen, {"dsl": best, "lte": 5.0}, dict(zip(("dsl", "lte"), rtts, strict=True))
    )


def test_figures_from_choices() -> None:
    """[ofrp] §4.3: "the number of the hit rounds" over "the number of the total rounds"; §4.4: ratio of means."""
    some = [choice("dsl"), choice("lte"), choice(None), choice("dsl", best=20)]
    assert hit_ratio(some) == 0.5
    assert of_best(some) == pytest.approx((10 + 5 + 0 + 20) / (10 + 10 + 10 + 20))
    # The line with the highest rate is the best one, whatever its round trip.
    assert choice("lte", best=4).hit
    assert choice("dsl").apart
    assert not choice("dsl", rtts=(20, 29)).apart


def test_destinations_count_the_same() -> None:
    some = [choice("dsl"), choice("dsl"), choice("lte"), choice("lte", "jp")]
    assert [len(each) for each in by_destination(some).values()] == [3, 1]
    value, spread = over_destinations(some, hit_ratio)
    assert value == pytest.approx((2 / 3 + 0) / 2)
    assert spread == pytest.approx((0, 2 / 3))


def test_rates_by_window_and_by_loss() -> None:
    assert law_mbit(100, 0, segments=90) == pytest.approx(8e-6 * 1448 * 90 / 0.1)
    assert law_mbit(100, 0.01, segments=90) == pytest.approx(8e-6 * 1448 * math.sqrt(150) / 0.1)
    assert law_mbit(100, 1e-6, segments=90) == law_mbit(100, 0, segments=90)


def test_every_address_is_for_one_policy_or_one_uplink() -> None:
    text = address_plan.configuration(UPLINKS, capacity="20 Mbit/s", watched=False)
    known = tomllib.loads(text)
    uses = {rule["destination"].partition(".")[0]: rule["use"] for rule in known["rule"]}
    assert [
        uses[address_plan.chosen_address(policy, 1, 5).partition(".")[0]] for policy in address_plan.POLICIES
    ] == [*address_plan.POLICIES]
    pinned = [uses[address_plan.pinned_address(index, 1, 5).partition(".")[0]] for index in (1, 2, 3)]
    assert pinned == [*UPLINKS]
    assert known["liveness"] == {"enabled": False}
    assert {each["capacity"] for each in known["uplink"]} == {"20 Mbit/s"}
    # Path cache entries of one round's /24 are of no use in the next.
    prefixes = {
        address_plan.chosen_address("race", 1, number).rpartition(".")[0] for number in range(address_plan.ROUNDS)
    }
    assert len(prefixes) == address_plan.ROUNDS
    assert "81.1.0.0/16" in address_plan.networks(1, 3)


def test_percentiles_are_values_that_were_there() -> None:
    assert percentile([5, 1, 4, 2, 3], 0.5) == 3
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile([7], 0.99) == 7
