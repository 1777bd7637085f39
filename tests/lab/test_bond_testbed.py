"""The testbed and demand of [l3b], and the analysis of numbered datagrams."""

from __future__ import annotations

import itertools
import tomllib

import pytest

from braid_lab.clients.paced_udp import results
from braid_lab.experiments.bond import testbed
from braid_lab.experiments.bond.paper_multi import burst, idle_delay, overflow_delay


def test_the_ramp_is_the_papers() -> None:
    """[l3b] §5.2: 63 to 105 Mbit/s in 15 s, 10 s there, 15 s back."""
    ramp = testbed.ramp()
    assert len(ramp) * testbed.STEP_SECONDS == pytest.approx(40)
    assert ramp[0] == ramp[-1] == 63
    assert max(ramp) == 105
    assert ramp.count(105.0) * testbed.STEP_SECONDS == pytest.approx(10)
    growth = {round(later / earlier, 9) for earlier, later in itertools.pairwise(ramp[:75])}
    assert len(growth) == 1, "exponentially"
    assert len(testbed.ramp(scale=0.5)) * testbed.STEP_SECONDS == pytest.approx(20, abs=0.5)


def test_a_packet_on_the_line_is_as_long_as_the_papers() -> None:
    assert testbed.PAYLOAD_BYTES + 6 + 32 + 28 == 1492
    assert testbed.per_second(64) * 1492 * 8 == pytest.approx(64e6)
    # A line with 64 Mbit/s left for those packets, Ethernet headers included.
    assert testbed.LINKS["fixed"].mbit == pytest.approx(64 * 1506 / 1492)


def test_the_mobile_line_is_the_dearer_one() -> None:
    read = tomllib.loads(testbed.configuration("overflow"))
    assert read["bond"] == {"scheduler": "overflow", "fallback": "block"}
    assert [(each["name"], each["tier"]) for each in read["uplink"]] == [("fixed", 1), ("mobile", 2)]


def test_the_papers_parameters_are_in_the_configuration() -> None:
    read = tomllib.loads(testbed.configuration("overflow", testbed.Overflow(k=0.5, t_dwd_ms=250)))
    assert read["bond"]["overflow"] == {"k": 0.5, "t_dwd": "250 ms", "w_max": 45}


def test_flows_have_their_demand_between_two_times() -> None:
    one, other = testbed.steps([(45.0, 0, 1), (30.0, 0.4, 0.8)], 1.0)
    assert one == [45.0] * 5
    assert other == [0, 0, 30.0, 30.0, 0]


def test_what_overtakes_is_in_order_and_what_was_overtaken_is_not() -> None:
    one, other = ("192.0.2.1", 1), ("192.0.2.1", 2)
    found = results([(10.0, one, 0), (10.01, one, 2), (10.02, one, 1), (10.15, one, 3), (10.16, one, 3)])
    assert found["received"] == [3, 1]
    assert found["in_order"] == [2, 1]
    assert found["packets"] == 4, "a copy does not count"
    assert results([])["packets"] == 0
    both = results([(10.0, one, 1), (10.01, other, 0), (10.02, other, 1)])
    assert both["in_order"] == [3], "flows have orders of their own"


def test_what_the_mobile_line_takes_over_and_gives_back_is_timed() -> None:
    trace = [(5.05, 75, 0, 0), (5.15, 75, 2, 9), (5.25, 75, 10, 3), (12.05, 45, 11, 0), (12.15, 45, 0.5, 0)]
    rows = [
        {"s": at, "demand_mbit": demand, "mobile_mbit": mobile, "dropped": dropped}
        for at, demand, mobile, dropped in trace
    ]
    assert overflow_delay(rows, 5.0, 12.0) == pytest.approx(0.25), "nine tenths of 11 Mbit/s"
    assert idle_delay(rows, 12.0, 20.0) == pytest.approx(0.15)
    assert burst(rows, 5.0) == 12


def test_what_did_not_happen_while_a_flow_lasted_is_no_figure() -> None:
    trace = [(5.05, 75, 3), (11.95, 75, 3), (12.05, 45, 8), (19.95, 45, 8), (20.05, 45, 0)]
    rows = [{"s": at, "demand_mbit": demand, "mobile_mbit": mobile} for at, demand, mobile in trace]
    assert overflow_delay(rows, 5.0, 12.0) is None, "the fixed line's room after its end is none of its doing"
    assert idle_delay(rows, 12.0, 20.0) is None, "the next flow has begun"
    assert idle_delay(rows, 12.0, 21.0) == pytest.approx(8.05)
    assert overflow_delay([], 5.0, 12.0) is None
    assert idle_delay([], 12.0, 20.0) is None
