"""Computation of outages and pauses, and the clients through a network without Braid."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import pytest

from braid_lab.clients.http3_download import longest_pause
from braid_lab.clients.new_connections import Attempt, attempts, outage
from braid_lab.fixtures import serve
from braid_lab.net.faults import black_hole
from braid_lab.net.links import LinkSpec
from braid_lab.net.topology import UplinkSpec, network
from braid_lab.process import Process, wait_until


def series(*qualities: bool) -> list[Attempt]:
    """Return connections begun at 0, 1, 2… seconds."""
    return [
        Attempt(number, float(number), 0.1 if good else 3.0, "198.51.100.9") for number, good in enumerate(qualities)
    ]


@pytest.mark.parametrize(
    ("qualities", "since", "seconds"),
    [
        ((True, True, True, True), 0.5, 0.0),
        # One of them took 3 s instead of 0.1.
        ((True, False, True, True), 0.5, 2.9),
        # No new one was good for longer than any of them took.
        ((True, False, True, False, True), 0.5, 3.5),
        # Connections that began before the event do not count as new.
        ((False, True, True, True), 0.5, 0.1),
        # It never recovered within the observed time.
        ((True, True, False, False, False, False), 0.5, 4.5),
    ],
)
def test_an_outage_is_the_longest_wait_and_lasts_until_connections_are_good(
    qualities: tuple[bool, ...], since: float, seconds: float
) -> None:
    assert outage(series(*qualities), since) == pytest.approx(seconds)


def test_a_wait_that_ends_soon_is_an_outage_too_and_each_uplink_has_its_usual_time() -> None:
    usual = [Attempt(1, 0.0, 0.04, "dsl"), Attempt(2, 0.1, 0.16, "lte"), Attempt(3, 0.2, 0.04, "dsl")]
    # Begun on the failed one, answered over the other; the last is as fast as usual.
    after = [Attempt(4, 0.3, 0.46, "lte"), Attempt(5, 0.5, 0.26, "lte"), Attempt(6, 0.8, 0.16, "lte")]
    assert outage([*usual, *after], 0.25) == pytest.approx(0.3)
    assert all(each.good for each in after)


def test_connections_under_way_count_once_they_take_too_long() -> None:
    known = [Attempt(1, 10.0, 0.1, "a"), Attempt(2, 10.1), Attempt(3, 10.55)]
    output = "".join(json.dumps(asdict(each)) + "\n" for each in [Attempt(1, 10.0), *known]) + '{"numb'
    assert attempts(output, now=10.7) == known[:2]
    assert [each.good for each in attempts(output, now=10.7)] == [True, False]


def test_the_longest_pause_is_found() -> None:
    assert longest_pause([1.0, 1.1, 2.5, 2.6]) == pytest.approx((1.4, 1.1))
    assert longest_pause([1.0]) == (0.0, 0.0)


def test_a_silent_second_shows_in_every_client() -> None:
    with network([UplinkSpec("dsl", LinkSpec(rate="20Mbit/s", delay="5ms"))]) as net:
        serve(net, "http1", "http3")

        def start(program: str, *words: str) -> Process:
            argv = [sys.executable, "-m", f"braid_lab.clients.{program}", *words]
            return Process(argv, log=net.scratch / program, namespace=net.host.name)

        with (
            start("new_connections", "20", net.server()) as fresh,
            start("open_connections", "1", "1", net.server()) as held,
            start("http3_download", net.server(1, 6), "4000000") as download,
        ):
            held.wait_output(r"^\[.*\]\n")
            download.wait_output("^flowing")
            with black_hole(net.uplinks["dsl"]) as since:
                wait_until(
                    lambda: any(each.at > since + 0.2 and not each.good for each in attempts(fresh.stdout(), 1e9)),
                    what="a connection to be stuck",
                )
            end = json.loads(download.wait().stdout.splitlines()[-1])
            fresh.stop(grace=10)
            seen = attempts(fresh.stdout(), 1e9)
        assert 0.2 < outage(seen, since) < 5
        assert {each.via for each in seen if each.good} == {net.uplinks["dsl"].address4}
        assert (end["bytes"], end["error"], end["via"]) == (4_000_000, None, net.uplinks["dsl"].address6)
        assert end["pause"] > 0.2
        # A line that is silent for a second ends no connection by itself.
        assert held.stdout().count("\n") == 1
