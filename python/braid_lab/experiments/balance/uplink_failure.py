"""Trials in which an uplink dies: what new connections, open ones and a QUIC download notice of it.

Each trial starts a daemon that knows nothing yet, lets traffic run until everything has been seen to work, takes one
of the two uplinks away, and looks at what the programs in front of it live through.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import dataclass
from typing import Literal

from braid_lab.clients.http3_download import Downloaded
from braid_lab.clients.new_connections import (
    CONNECTION_TIMEOUT_SECONDS,
    PROMPT_CONNECTION_SECONDS,
    Attempt,
    attempts,
    outage,
)
from braid_lab.net.faults import black_hole, unplugged
from braid_lab.net.links import LinkSpec
from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import Topology, Uplink, UplinkSpec
from braid_lab.process import LabError, Process, wait_until
from braid_lab.product import Braid, braid

LocationName = Literal["host", "gateway"]

#: Light traffic: a new connection this often, every other one over the uplink that dies.
LIGHT_INTERVAL_MS = 25.0
#: Where tens of milliseconds are to be told apart.
DENSE_INTERVAL_MS = 8.0

#: Connections seen to work before the uplink is taken away: measured round trips and an even share for both.
WARM_ATTEMPTS = 24

#: How long a client may take to start and to get going on a busy machine.
START_SECONDS = 30.0

#: What is not over after this counts as lasting this long.
MAX_OUTAGE_SECONDS = 8.0

#: All is well again when every connection of so long a time was good.
CALM_SECONDS = 0.6

#: Open connections of each kind; more than one is on the uplink that dies.
OPEN_CONNECTIONS = 4

#: A DSL and an LTE line. Slow ones, because the lab's QUIC ends are Python and several run at once: one that lags
#: behind its line reads the packets that move a connection as late as all others, and that would be measured instead.
UPLINKS = (
    UplinkSpec("dsl", LinkSpec(rate="8Mbit/s", delay="15ms", queue="250ms")),
    UplinkSpec("lte", LinkSpec(rate="10Mbit/s", delay="40ms", queue="250ms")),
)

#: A download of two seconds; the black hole comes when a tenth of it is there.
DOWNLOAD_BYTES = 2_000_000


@dataclass(frozen=True)
class Location:
    """Where the application is: on the host that runs Braid, or on a client behind it."""

    name: LocationName
    net: Topology

    @property
    def application(self) -> Namespace:
        """The namespace of the programs whose traffic is watched."""
        return self.net.clients[0] if self.net.clients else self.net.host

    def address(self, uplink: Uplink, family: int) -> str:
        """Return the address that servers see flows of an uplink come from."""
        return uplink.address4 if family == 4 else uplink.address6

    def start(self, program: str, *words: object, tag: str = "") -> Process:
        """Start one of the lab's clients beside us; `tag` tells several of one kind apart."""
        argv = [sys.executable, "-m", f"braid_lab.clients.{program}", *map(str, words)]
        log = self.net.scratch / f"{self.application.name}-{program}{tag}"
        return Process(argv, log=log, namespace=self.application.name)

    def daemon(self) -> contextlib.AbstractContextManager[Braid]:
        """Run a new daemon for a trial."""
        return braid(self.net.host, self.net.scratch / f"braid-{self.net.host.name}")

    def victim(self, turn: int) -> Uplink:
        """Return the uplink that is to die, the other one every turn."""
        uplinks = list(self.net.uplinks.values())
        return uplinks[turn % len(uplinks)]


def seen(fresh: Process) -> list[Attempt]:
    """Return the connections of a running `fresh` whose fate is known by now."""
    now = time.monotonic()
    return attempts(fresh.stdout(), now)


def _warm(fresh: Process) -> None:
    wait_until(
        lambda: sum(each.good for each in seen(fresh)) >= WARM_ATTEMPTS or not fresh.running,
        what="connections over both uplinks",
        timeout=START_SECONDS,
    )


def watch_until_calm(fresh: Process, since: float) -> float:
    """Wait until new connections are all good again and return how long they were not, in seconds."""

    def calm() -> bool:
        known = seen(fresh)
        # What began right after `since` shows that it is bad only by lasting too long.
        settled = since + max(outage(known, since), PROMPT_CONNECTION_SECONDS)
        return bool(known) and known[-1].at - settled > CALM_SECONDS

    with contextlib.suppress(LabError):
        wait_until(calm, what="new connections to be good again", timeout=MAX_OUTAGE_SECONDS)
    # The last ones end before the uplink comes back, which would help them.
    fresh.stop(grace=2 * CONNECTION_TIMEOUT_SECONDS)
    return min(MAX_OUTAGE_SECONDS, outage(seen(fresh), since))


@dataclass(frozen=True)
class Silent:
    """What a silent black hole meant, in seconds."""

    new_flow_outage: float
    #: When the last connection on the dead uplink was told.
    tcp_told: float
    #: Connections on the other uplink that ended without need.
    wronged: int


@dataclass(frozen=True)
class EndedConnection:
    """The end of a connection that was held open."""

    number: int
    kind: Literal["waiting", "sending"]
    via: str
    at: float
    error: str


def silent(location: Location, family: int, turn: int) -> Silent:
    """Black-hole an uplink under light traffic and a few open connections."""
    server, victim = location.net.server(1, family), location.victim(turn)
    with (
        location.daemon(),
        location.start("open_connections", OPEN_CONNECTIONS, OPEN_CONNECTIONS, server) as held,
        location.start("new_connections", LIGHT_INTERVAL_MS, *location.net.servers(family)) as fresh,
    ):
        dead = location.address(victim, family)
        doomed = held_by(held).count(dead)
        if not doomed:
            raise LabError(f"no open connection is on {victim.name}")
        _warm(fresh)
        with black_hole(victim) as began:
            _wait_for_ends(held, dead, doomed)
            lasted = watch_until_calm(fresh, began)
        ends = ended(held)
    resets = [each.at - began for each in ends if each.via == dead and each.error == "ECONNRESET"]
    return Silent(
        lasted,
        max(resets) if len(resets) == doomed else MAX_OUTAGE_SECONDS,
        sum(each.via != dead for each in ends),
    )


def held_by(held: Process) -> list[str]:
    """Return the address of each connection that a running `held` has opened."""
    addresses: list[str] = json.loads(held.wait_output(r"^\[.*\]\n", timeout=START_SECONDS).group())
    return addresses


def ended(held: Process) -> list[EndedConnection]:
    """Return which of them have ended."""
    return [EndedConnection(**json.loads(line)) for line in held.stdout().split("\n")[1:-1]]


def _wait_for_ends(held: Process, dead: str, count: int) -> None:
    """Wait until so many connections by this address have ended, or for as long as we have patience."""
    with contextlib.suppress(LabError):
        wait_until(
            lambda: sum(each.via == dead for each in ended(held)) >= count,
            what="connections to be told",
            timeout=MAX_OUTAGE_SECONDS,
        )


def carrier(location: Location, family: int, turn: int) -> float:
    """Unplug an uplink and return for how long new connections suffer, in seconds."""
    with (
        location.daemon(),
        location.start("new_connections", DENSE_INTERVAL_MS, *location.net.servers(family)) as fresh,
    ):
        _warm(fresh)
        with unplugged(location.victim(turn)) as began:
            return watch_until_calm(fresh, began)


def download(location: Location, family: int, _: int) -> Downloaded:
    """Black-hole the uplink that an HTTP/3 download is on, and return what the download was like."""
    with (
        location.daemon(),
        location.start("http3_download", location.net.server(1, family), DOWNLOAD_BYTES) as client,
    ):
        seen = client.wait_output(r"^from (\S+)\n", timeout=START_SECONDS).group(1)
        victim = next(each for each in location.net.uplinks.values() if location.address(each, family) == seen)
        client.wait_output(r"^flowing\n", timeout=START_SECONDS)
        with black_hole(victim) as began:
            return _end_of(client, began)


def _end_of(client: Process, began: float) -> Downloaded:
    """Wait for a download's end; one that does not end was stalled for as long as counts."""
    try:
        # A busy machine may need far longer than the line does.
        output = client.wait(timeout=START_SECONDS)
    except LabError:
        return Downloaded(0, MAX_OUTAGE_SECONDS, began, None, "no end")
    if output.status != 0:
        return Downloaded(0, MAX_OUTAGE_SECONDS, began, None, output.stderr.strip().splitlines()[-1])
    return Downloaded(**json.loads(output.stdout.splitlines()[-1]))
