"""Short flaps cost no connection: a renewed lease, a new access point, a replugged cable."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from braid_lab.experiments.balance.uplink_failure import Location, ended, held_by
from braid_lab.net.faults import (
    with_address,
    with_carrier,
    with_route,
    without_address,
    without_carrier,
    without_route,
)
from braid_lab.net.topology import Uplink
from braid_lab.observe import states
from braid_lab.process import wait_until
from braid_lab.product import Braid
from conftest import StartBraid

#: Shorter than every grace period; a flap that a busy machine made longer than this shows nothing.
SHORT_S = 0.2

#: The longest grace period, and time for its consequences.
OVER_S = 1.5

TRIES = 3

Words = Callable[[Uplink], list[str]]


@pytest.mark.parametrize(
    ("away", "back"),
    [
        pytest.param(without_route, with_route, id="route"),
        pytest.param(without_address, with_address, id="address"),
        pytest.param(without_carrier, with_carrier, id="carrier"),
    ],
)
def test_a_flap_resets_nobody(
    location: Location, family: int, away: Words, back: Words, start_braid: StartBraid
) -> None:
    daemon = start_braid(location.net)
    lte = location.net.uplinks["lte"]
    for _ in range(TRIES):
        with location.start("open_connections", 4, 4, location.net.server(1, family)) as held:
            assert location.address(lte, family) in held_by(held)
            # The second time it must prove itself for longer than the grace period.
            took = [flap(location, daemon, lte, away, back) for _ in range(2)]
            if max(took) > SHORT_S:
                continue
            assert ended(held) == []
            kinds = [event["kind"] for event in daemon.json("events")["events"]]
            assert {"uplink-gone", "uplink-changed"} & set(kinds), kinds
            return
    pytest.fail(f"this machine cannot flap a line for {SHORT_S} s")


def flap(location: Location, daemon: Braid, uplink: Uplink, away: Words, back: Words) -> float:
    """Take a line away for 0.1 s, wait until new flows use it again, and return how long it was away."""
    began = time.monotonic()
    location.net.host.ip(*away(uplink))
    # The daemon must notice the flap, or the test shows nothing.
    time.sleep(0.1)
    location.net.host.ip(*back(uplink))
    took = time.monotonic() - began
    # Later resets of connections can only be waited for.
    time.sleep(OVER_S)
    wait_until(lambda: states(daemon).get(uplink.name) == "up", what=f"{uplink.name} to be up again", timeout=60)
    return took
