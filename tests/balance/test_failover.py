"""An uplink fails under running traffic: the effect on new connections, open ones, QUIC and other traffic."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from braid_lab.experiments.balance.uplink_failure import Location, ended, held_by, seen, watch_until_calm
from braid_lab.net.faults import black_hole, unplugged
from braid_lab.net.topology import Topology, Uplink
from braid_lab.observe import ask_tcp, ask_udp, by_uplink, states, verdicts
from braid_lab.process import Process, wait_until
from braid_lab.product import Braid
from conftest import (
    LINES,
    PAIRS_OF_LOCATION_FAMILY_AND_FAULT,
    PLAIN,
    ROUND_ROBIN,
    MakeNetwork,
    StartBraid,
)

Trouble = Callable[[Uplink], AbstractContextManager[float]]

#: Time limit: a longer outage is a failure even on a slow machine; `balance/failover` has the exact figures.
SOON_S = 4.0

#: Interval of new connections, ms: light traffic.
LIGHT_INTERVAL_MS = 25

#: Longer than any silence that kills an uplink, and than any gap between two ticks on a busy machine.
SLEEP_S = 3.0


def wait_dead(daemon: Braid, name: str, timeout: float = SOON_S) -> None:
    wait_until(lambda: states(daemon)[name] in ("dead", "down"), what=f"{name} to be found dead", timeout=timeout)


def wait_told(location: Location, held: Process, uplink: Uplink, family: int) -> None:
    """Wait until every open connection on an uplink has been reset; those on the other one must not be."""
    dead = location.address(uplink, family)
    doomed = held_by(held).count(dead)
    assert doomed > 0
    wait_until(lambda: len(ended(held)) >= doomed, what="the connections to be told", timeout=SOON_S)
    assert [(each.via, each.error) for each in ended(held)] == [(dead, "ECONNRESET")] * doomed


def only(net: Topology, seen_as: list[tuple[str, int]], uplink: Uplink) -> bool:
    """Return whether all flows that servers saw are on this uplink."""
    return all(count == 0 for name, count in by_uplink(net, seen_as).items() if name != uplink.name)


@pytest.mark.parametrize(
    ("datapath", "location", "family"),
    [
        *(
            pytest.param("ebpf", place, family, id=f"{place}-ipv{family}")
            for place in ("host", "gateway")
            for family in (4, 6)
        ),
        pytest.param("packet-in", "gateway", 4, id="packet-in"),
        pytest.param("group", "host", 6, id="group"),
    ],
    indirect=True,
)
def test_a_silent_line_gets_no_new_flows(location: Location, family: int, start_braid: StartBraid) -> None:
    daemon = start_braid(location.net)
    dsl, lte = location.net.uplinks.values()
    with location.start("new_connections", LIGHT_INTERVAL_MS, *location.net.servers(family)) as fresh:
        wait_until(lambda: len(seen(fresh)) > 20, what="traffic")
        with black_hole(lte) as began:
            assert watch_until_calm(fresh, began) < SOON_S
            wait_dead(daemon, "lte")
            server = location.net.server(1, family)
            assert only(location.net, ask_tcp(location.application, 6, server), dsl)
            assert only(location.net, [one for (one,) in ask_udp(location.application, 6, server)], dsl)
            # A second later it would be back, which is another verdict.
            found = [event for event in daemon.json("events")["events"] if event["kind"] == "verdict"]
    assert [event["uplink"] for event in found] == ["lte"]
    # Not by probes alone: its own traffic had shown it.
    assert re.match(r"[1-9]\d* packets out, 0 back", found[0]["evidence"])


def test_open_connections_on_a_silent_line_are_told(location: Location, family: int, start_braid: StartBraid) -> None:
    start_braid(location.net)
    lte = location.net.uplinks["lte"]
    with location.start("open_connections", 4, 4, location.net.server(1, family)) as held:
        held_by(held)
        with black_hole(lte):
            wait_told(location, held, lte, family)


def test_open_connections_on_an_unplugged_line_are_told(
    location: Location, family: int, start_braid: StartBraid
) -> None:
    daemon = start_braid(location.net)
    dsl, lte = location.net.uplinks.values()
    with location.start("open_connections", 4, 4, location.net.server(1, family)) as held:
        held_by(held)
        with unplugged(lte):
            wait_told(location, held, lte, family)
            wait_dead(daemon, "lte")
            assert only(location.net, ask_tcp(location.application, 6, location.net.server(1, family)), dsl)


def test_connections_that_only_wait_are_told_without_any_traffic(location: Location, start_braid: StartBraid) -> None:
    start_braid(location.net)
    lte = location.net.uplinks["lte"]
    with location.start("open_connections", 4, 0, location.net.server()) as held:
        held_by(held)
        with black_hole(lte):
            wait_told(location, held, lte, 4)


@pytest.mark.parametrize(
    ("datapath", "location", "family", "how"),
    [
        pytest.param(kind, *values, id=f"{kind}-{name}")
        for kind in ("ebpf", "packet-in")
        for name, values in PAIRS_OF_LOCATION_FAMILY_AND_FAULT.items()
        # Only a silent uplink needs other means there.
        if kind == "ebpf" or name == "gateway-ipv6-silent"
    ],
    indirect=["datapath", "location", "family"],
)
def test_a_quic_download_moves_and_arrives_whole(
    location: Location, family: int, how: Trouble, start_braid: StartBraid
) -> None:
    start_braid(location.net)
    dsl, lte = location.net.uplinks.values()
    size = 8_000_000
    with location.start("http3_download", location.net.server(1, family), size) as download:
        assert download.wait_output(r"^from (\S+)\n").group(1) == location.address(dsl, family)
        download.wait_output("^flowing")
        with how(dsl):
            output = download.wait(timeout=30)
    end = json.loads(output.stdout.splitlines()[-1])
    assert (end["bytes"], end["error"]) == (size, None)
    assert end["via"] == location.address(lte, family)
    assert end["pause"] < 2 * SOON_S


def test_a_device_that_is_removed_ends_its_connections_alone(
    make_network: MakeNetwork, family: int, start_braid: StartBraid
) -> None:
    location = Location("gateway", make_network(*PLAIN, lan_clients=1))
    daemon = start_braid(location.net)
    dsl, lte = location.net.uplinks.values()
    server = location.net.server(1, family)
    with location.start("open_connections", 4, 4, server) as held:
        held_by(held)
        location.net.host.ip("link delete lte")
        wait_told(location, held, lte, family)
        wait_until(lambda: states(daemon).get("lte") in (None, "down"), what="the device to be missed")
        assert only(location.net, ask_tcp(location.application, 6, server), dsl)


def test_a_renamed_device_harms_nobody_else(make_network: MakeNetwork, start_braid: StartBraid) -> None:
    location = Location("host", make_network(*PLAIN))
    daemon = start_braid(location.net, *ROUND_ROBIN)
    lte = location.net.uplinks["lte"]
    with location.start("open_connections", 4, 4, location.net.server()) as held:
        held_by(held)
        location.net.host.ip("link set lte down", "link set lte name mobile", "link set mobile up")
        location.net.host.ip(*(f"route add {route.replace('dev lte', 'dev mobile')}" for route in lte.defaults()[:1]))
        wait_until(lambda: states(daemon).get("mobile") == "up", what="the device under its new name")
        assert by_uplink(location.net, ask_tcp(location.net.host, 6, location.net.server())) == {"dsl": 3, "lte": 3}
        assert {each.via for each in ended(held)} <= {lte.address4}


def test_nothing_is_torn_down_while_no_line_works(location: Location, start_braid: StartBraid) -> None:
    daemon = start_braid(location.net)
    dsl, lte = location.net.uplinks.values()
    with location.start("open_connections", 2, 2, location.net.server()) as held:
        held_by(held)
        with black_hole(dsl), black_hole(lte):
            # The flows of the first to fail may be reset: the other one still counts as up.
            dead = {("dsl", "dead"), ("lte", "dead")}
            wait_until(lambda: dead <= set(verdicts(daemon)), what="both to be found dead", timeout=10)
            assert len({each.via for each in ended(held)}) <= 1
        # The first to come back takes over; flows of the other one may be reset then.
        wait_until(lambda: "up" in states(daemon).values(), what="a line to be back", timeout=20)
        assert len(ask_tcp(location.application, 4, location.net.server())) == 4


@pytest.mark.parametrize("after_ms", [0, 150, 300, 400, 600])
def test_a_daemon_killed_in_the_middle_of_a_death_is_taken_over(
    make_network: MakeNetwork, after_ms: int, start_braid: StartBraid
) -> None:
    location = Location("host", make_network(*LINES))
    daemon = start_braid(location.net)
    dsl, lte = location.net.uplinks.values()
    with (
        location.start("open_connections", 4, 4, location.net.server()) as held,
        location.start("new_connections", LIGHT_INTERVAL_MS, *location.net.servers()) as fresh,
    ):
        held_by(held)
        wait_until(lambda: len(seen(fresh)) > 20, what="traffic")
        with black_hole(lte) as began:
            # The time matters, not a condition: a failure is detected in well under half a second.
            time.sleep(max(0.0, began + after_ms / 1000 - time.monotonic()))
            daemon.kill9()
            daemon.up()
            wait_told(location, held, lte, 4)
            assert watch_until_calm(fresh, began) < 2 * SOON_S
            assert only(location.net, ask_tcp(location.application, 6, location.net.server()), dsl)


@pytest.mark.parametrize("location", ["gateway"], indirect=True)
def test_a_machine_that_slept_finds_nobody_dead(location: Location, start_braid: StartBraid) -> None:
    daemon = start_braid(location.net)
    pid = daemon.pid
    with location.start("new_connections", LIGHT_INTERVAL_MS, *location.net.servers()) as fresh:
        wait_until(lambda: len(seen(fresh)) > 20, what="traffic")
        for _ in range(2):
            # Stopped for longer than any silence that kills an uplink, under traffic: all timers are late at once.
            os.kill(pid, signal.SIGSTOP)
            time.sleep(SLEEP_S)
            os.kill(pid, signal.SIGCONT)
            begun = time.monotonic()
            wait_until(lambda: seen(fresh)[-1].at > begun + 2, what="two seconds of traffic")  # noqa: B023
        assert all(each.good for each in seen(fresh))
    assert verdicts(daemon) == []
