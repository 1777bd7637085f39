"""Troubles of lines, daemons and hubs in a week, one after another."""

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

#: For how long a line is away that flaps, and one whose network changes the access point, s.
FLAP_SECONDS, ROAM_SECONDS = 0.1, 0.15

#: For how long nobody watches after a crash, as systemd's RestartSec= says, s.
CRASH_SECONDS = 2.0

#: For how long a line is dead, s.
DEAD_SECONDS = 4.0


@dataclass
class Side:
    """A network with programs: one with Braid, and perhaps a hub, or one without."""

    name: Literal["braid", "plain"]
    net: Topology
    daemon: Braid | None = None
    hub: Hub | None = None
    #: With what the daemon was started.
    options: tuple[str, ...] = ()

    def braid(self) -> Braid:
        """Return the daemon of a side that has one."""
        assert self.daemon is not None  # noqa: S101
        return self.daemon


@dataclass(frozen=True)
class Fault:
    """Something that happens to a line, else to what only a side with Braid has."""

    name: str
    act: Callable[[Side, Uplink], None]
    of: Literal["line", "daemon", "hub"]


def _interrupted(uplink: Uplink, without: Sequence[str], again: Sequence[str], seconds: float) -> None:
    uplink.near.namespace.ip(*without)
    # It is away this long; nothing is waited for.
    time.sleep(seconds)
    uplink.near.namespace.ip(*again)


def flap_route(_: Side, uplink: Uplink) -> None:
    """The default routes are deleted and added again."""
    _interrupted(uplink, faults.without_route(uplink), faults.with_route(uplink), FLAP_SECONDS)


def flap_address(_: Side, uplink: Uplink) -> None:
    """The addresses are removed and added again."""
    _interrupted(uplink, faults.without_address(uplink), faults.with_address(uplink), FLAP_SECONDS)


def flap_carrier(_: Side, uplink: Uplink) -> None:
    """A plug is pulled and put back."""
    _interrupted(uplink, faults.without_carrier(uplink), faults.with_carrier(uplink), FLAP_SECONDS)


def renew(_: Side, uplink: Uplink) -> None:
    """A DHCP client sets again what it has."""
    uplink.near.namespace.ip(*faults.with_address(uplink))


def roam(_: Side, uplink: Uplink) -> None:
    """The network changes its access point, and the DHCP client asks for the same address again."""
    back = [*faults.with_carrier(uplink), *faults.with_address(uplink)]
    _interrupted(uplink, faults.without_carrier(uplink), back, ROAM_SECONDS)


def die(_: Side, uplink: Uplink) -> None:
    """A line carries nothing, without a sign of it, and comes back much later."""
    with faults.black_hole(uplink):
        time.sleep(DEAD_SECONDS)


def renumber(_: Side, uplink: Uplink) -> None:
    """A line gets another address, and keeps it."""
    faults.change_address(uplink, uplink.address4, uplink.address4.rpartition(".")[0] + ".77")


def restart(side: Side, _: Uplink) -> None:
    """The daemon is ended and started again, as `systemctl restart` does."""
    side.braid().stop()
    side.braid().up(*side.options)


def crash(side: Side, _: Uplink) -> None:
    """The daemon is killed, and started again as systemd does."""
    side.braid().kill9()
    time.sleep(CRASH_SECONDS)
    side.braid().up(*side.options)


def restart_hub(side: Side, _: Uplink) -> None:
    """The hub is ended and started again, as `systemctl restart` does."""
    assert side.hub is not None  # noqa: S101
    side.hub.stop()
    side.hub.start()


def crash_hub(side: Side, _: Uplink) -> None:
    """The hub is killed, and started again as systemd does."""
    assert side.hub is not None  # noqa: S101
    side.hub.kill9()
    time.sleep(CRASH_SECONDS / 2)
    side.hub.start()


def upgrade(side: Side, uplink: Uplink) -> None:
    """A new version takes over, as the package's postinst has it do: new file, then daemon and hub restarted."""
    replace(side.braid().program)
    restart(side, uplink)
    if side.hub is not None:
        restart_hub(side, uplink)


def replace(program: Path) -> None:
    """Put another file in the place of a program, as dpkg does."""
    new = program.with_suffix(".dpkg-new")
    shutil.copy2(binary(), new)
    new.rename(program)


#: Lines that come back as they were: none of this should cost a session where one line works.
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

#: Troubles that sessions outlive only in a tunnel.
BOND_FAULTS = (
    Fault("line dead", die, "line"),
    Fault("hub restarted", restart_hub, "hub"),
    Fault("hub killed", crash_hub, "hub"),
)

#: This too. It happens once, since the other troubles of lines give back the address that was there first.
RENUMBERED = Fault("new address", renumber, "line")
