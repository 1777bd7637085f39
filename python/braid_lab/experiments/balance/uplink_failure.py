"""Trials of an uplink's failure: the effect on new connections, open connections and a QUIC download.

Each trial starts a fresh daemon, runs traffic until everything works, makes one of the two uplinks fail, and records
what the programs notice.
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

#: Light traffic: interval of new connections, every other one over the uplink that fails.
LIGHT_INTERVAL_MS = 25.0
#: Interval of new connections where outages of tens of milliseconds are measured.
DENSE_INTERVAL_MS = 8.0

#: Successful connections before the uplink fails: enough for measured round trips and an even share on both.
WARM_ATTEMPTS = 24

#: Longest start of a client on a busy machine.
START_SECONDS = 30.0

#: Longer outages count as this long.
MAX_OUTAGE_SECONDS = 8.0

#: The outage is over once every connection of this long a time was good.
CALM_SECONDS = 0.6

#: Open connections of each kind; more than one is on the uplink that fails.
OPEN_CONNECTIONS = 4

#: A DSL and an LTE line. They are slow, because the lab's QUIC ends are Python and several run at once: an end that
#: lags behind its line would process the packets that migrate a connection late, and that delay would be measured.
UPLINKS = (
    UplinkSpec("dsl", LinkSpec(rate="8Mbit/s", delay="15ms", queue="250ms")),
    UplinkSpec("lte", LinkSpec(rate="10Mbit/s", delay="40ms", queue="250ms")),
)

#: A download of two seconds; the black hole begins after a tenth of it.
DOWNLOAD_BYTES = 2_000_000


@dataclass(frozen=True)
class Location:
    """The place where the application runs: on the host that runs Braid, or on a client behind it."""

    name: LocationName
    net: Topology

    @property
    def application(self) -> Namespace:
        """The namespace of the programs under test."""
        return self.net.clients[0] if self.net.clients else self.net.host

    def address(self, uplink: Uplink, family: int) -> str:
        """Return the address that servers see for flows of an uplink."""
        return uplink.address4 if family == 4 else uplink.address6

    def start(self, program: str, *words: object, tag: str = "") -> Process:
        """Start one of the lab's clients; `tag` distinguishes several of one kind."""
        argv = [sys.executable, "-m", f"braid_lab.clients.{program}", *map(str, words)]
        log = self.net.scratch / f"{self.application.name}-{program}{tag}"
        return Process(argv, log=log, namespace=self.application.name)

    def daemon(self) -> contextlib.AbstractContextManager[Braid]:
        """Run a fresh daemon for a trial."""
        return braid(self.net.host, self.net.scratch / f"braid-{self.net.host.name}")

    def victim(self, turn: int) -> Uplink:
        """Return the uplink that is to fail; the uplinks take turns."""
        uplinks = list(self.net.uplinks.values())
        return uplinks[turn % len(uplinks)]


def seen(fresh: Process) -> list[Attempt]:
    """Return the connections of a running `new_connections` client whose outcome is known by now."""
    now = time.monotonic()
    return attempts(fresh.stdout(), now)


def _warm(fresh: Process) -> None:
    wait_until(
        lambda: sum(each.good for each in seen(fresh)) >= WARM_ATTEMPTS or not fresh.running,
        what="connections over both uplinks",
        timeout=START_SECONDS,
    )


def watch_until_calm(fresh: Process, since: float) -> float:
    """Wait until all new connections are good again; return the length of the outage, s."""

    def calm() -> bool:
        known = seen(fresh)
        # A connection that began right after `since` shows that it is bad only by its duration.
        settled = since + max(outage(known, since), PROMPT_CONNECTION_SECONDS)
        return bool(known) and known[-1].at - settled > CALM_SECONDS

    with contextlib.suppress(LabError):
        wait_until(calm, what="new connections to be good again", timeout=MAX_OUTAGE_SECONDS)
    # The last ones end before the uplink comes back, which would help them.
    fresh.stop(grace=2 * CONNECTION_TIMEOUT_SECONDS)
    return min(MAX_OUTAGE_SECONDS, outage(seen(fresh), since))


@dataclass(frozen=True)
class Silent:
    """Effects of a silent black hole, s."""

    new_flow_outage: float
    #: When the last connection on the dead uplink got an error.
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
    """Return the address of each connection that a running `open_connections` client has opened."""
    addresses: list[str] = json.loads(held.wait_output(r"^\[.*\]\n", timeout=START_SECONDS).group())
    return addresses


def ended(held: Process) -> list[EndedConnection]:
    """Return those that have ended."""
    return [EndedConnection(**json.loads(line)) for line in held.stdout().split("\n")[1:-1]]


def _wait_for_ends(held: Process, dead: str, count: int) -> None:
    """Wait until `count` connections from this address have ended, or until the longest outage has passed."""
    with contextlib.suppress(LabError):
        wait_until(
            lambda: sum(each.via == dead for each in ended(held)) >= count,
            what="connections to be told",
            timeout=MAX_OUTAGE_SECONDS,
        )


def carrier(location: Location, family: int, turn: int) -> float:
    """Unplug an uplink and return how long new connections suffer, s."""
    with (
        location.daemon(),
        location.start("new_connections", DENSE_INTERVAL_MS, *location.net.servers(family)) as fresh,
    ):
        _warm(fresh)
        with unplugged(location.victim(turn)) as began:
            return watch_until_calm(fresh, began)


def download(location: Location, family: int, _: int) -> Downloaded:
    """Black-hole the uplink of an HTTP/3 download; return the download's record."""
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
    """Wait for a download's end; one that does not end counts as stalled for the longest outage."""
    try:
        # A busy machine may need far longer than the line does.
        output = client.wait(timeout=START_SECONDS)
    except LabError:
        return Downloaded(0, MAX_OUTAGE_SECONDS, began, None, "no end")
    if output.status != 0:
        return Downloaded(0, MAX_OUTAGE_SECONDS, began, None, output.stderr.strip().splitlines()[-1])
    return Downloaded(**json.loads(output.stdout.splitlines()[-1]))
