"""Faults of lines, daemons and hubs, one after another."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from braid_lab.net import faults
from braid_lab.net.topology import Topology, Uplink
from braid_lab.product import Braid, binary
from braid_lab.remote_hub import Hub

#: Downtime of a flapping line, and of one that roams to another access point, s.
FLAP_SECONDS, ROAM_SECONDS = 0.1, 0.15

#: Time without a daemon after a crash: systemd's RestartSec=, s.
CRASH_SECONDS = 2.0

#: Time for which a line is dead, s.
DEAD_SECONDS = 4.0


@dataclass
class Side:
    """A network with programs: with Braid and perhaps a hub, or without."""

    name: Literal["braid", "plain"]
    net: Topology
    daemon: Braid | None = None
    hub: Hub | None = None
    #: Options of the daemon.
    options: tuple[str, ...] = ()

    def braid(self) -> Braid:
        """Return the daemon of a side that has one."""
        assert self.daemon is not None  # noqa: S101
        return self.daemon


@dataclass(frozen=True)
class Fault:
    """A fault of a line, or of a daemon or hub, which only a side with Braid has."""

    name: str
    act: Callable[[Side, Uplink], None]
    of: Literal["line", "daemon", "hub"]


def _interrupted(uplink: Uplink, without: Sequence[str], again: Sequence[str], seconds: float) -> None:
    uplink.near.namespace.ip(*without)
    # Not a synchronisation: the downtime.
    time.sleep(seconds)
    uplink.near.namespace.ip(*again)


def flap_route(_: Side, uplink: Uplink) -> None:
    """Delete and add the default routes."""
    _interrupted(uplink, faults.without_route(uplink), faults.with_route(uplink), FLAP_SECONDS)


def flap_address(_: Side, uplink: Uplink) -> None:
    """Remove and add the addresses."""
    _interrupted(uplink, faults.without_address(uplink), faults.with_address(uplink), FLAP_SECONDS)


def flap_carrier(_: Side, uplink: Uplink) -> None:
    """Pull a plug and put it back."""
    _interrupted(uplink, faults.without_carrier(uplink), faults.with_carrier(uplink), FLAP_SECONDS)


def renew(_: Side, uplink: Uplink) -> None:
    """Set the current addresses and routes again, as a DHCP client does on renewal."""
    uplink.near.namespace.ip(*faults.with_address(uplink))


def roam(_: Side, uplink: Uplink) -> None:
    """Change the access point; the DHCP client then requests the same address."""
    back = [*faults.with_carrier(uplink), *faults.with_address(uplink)]
    _interrupted(uplink, faults.without_carrier(uplink), back, ROAM_SECONDS)


def die(_: Side, uplink: Uplink) -> None:
    """Make a line a black hole for a while, without a sign of it."""
    with faults.black_hole(uplink):
        time.sleep(DEAD_SECONDS)


def renumber(_: Side, uplink: Uplink) -> None:
    """Change a line's address for good."""
    faults.change_address(uplink, uplink.address4, uplink.address4.rpartition(".")[0] + ".77")


def restart(side: Side, _: Uplink) -> None:
    """Stop and start the daemon, as `systemctl restart` does."""
    side.braid().stop()
    side.braid().up(*side.options)


def crash(side: Side, _: Uplink) -> None:
    """Kill the daemon, and start it as systemd does."""
    side.braid().kill9()
    time.sleep(CRASH_SECONDS)
    side.braid().up(*side.options)


def restart_hub(side: Side, _: Uplink) -> None:
    """Stop and start the hub, as `systemctl restart` does."""
    assert side.hub is not None  # noqa: S101
    side.hub.stop()
    side.hub.start()


def crash_hub(side: Side, _: Uplink) -> None:
    """Kill the hub, and start it as systemd does."""
    assert side.hub is not None  # noqa: S101
    side.hub.kill9()
    time.sleep(CRASH_SECONDS / 2)
    side.hub.start()


def upgrade(side: Side, uplink: Uplink) -> None:
    """Upgrade as the package's postinst does: replace the file, then restart daemon and hub."""
    replace(side.braid().program)
    restart(side, uplink)
    if side.hub is not None:
        restart_hub(side, uplink)


def replace(program: Path) -> None:
    """Replace a program's file, as dpkg does."""
    new = program.with_suffix(".dpkg-new")
    shutil.copy2(binary(), new)
    new.rename(program)


#: Lines that come back unchanged: no session should end where one line works.
LINK_FAULTS = (
    Fault("route flaps", flap_route, "line"),
    Fault("address flaps", flap_address, "line"),
    Fault("carrier flaps", flap_carrier, "line"),
    Fault("lease renewed", renew, "line"),
    Fault("roams", roam, "line"),
)

DAEMON_FAULTS = (
    Fault("daemon restarted", restart, "daemon"),
    Fault("daemon killed", crash, "daemon"),
    Fault("package upgraded", upgrade, "daemon"),
)

#: Faults that sessions survive only in a tunnel.
BOND_FAULTS = (
    Fault("line dead", die, "line"),
    Fault("hub restarted", restart_hub, "hub"),
    Fault("hub killed", crash_hub, "hub"),
)

#: Also survivable. It happens once, since the other faults of lines restore the original address.
RENUMBERED = Fault("new address", renumber, "line")
