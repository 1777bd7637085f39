"""A year's faults of a gateway, a few seconds each: line failures, address changes, daemon crashes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from braid_lab.net.topology import Topology, Uplink
from braid_lab.process import LabError
from braid_lab.product import Braid

#: Length of a line's outage, s; in the full form sometimes ten times that.
OUTAGE_S = (1.5, 4.0)
#: Least time given to a new daemon.
SETTLE_S = 0.2
POLICIES = ("rr", "wrr", "hash-source", "hash-pair", "least-loaded")
STICKY = ("off", "10 s", "10 min")
FAILBACKS = ("new-flows", "move-quic", "move-idle")
#: An unknown policy: the file must be rejected as a whole.
BAD = 'policy = "best"\n'


@dataclass(frozen=True)
class Outage:
    """A time in which an uplink, or one of its addresses, carried no flows."""

    uplink: str
    why: str
    began: float
    ended: float


class FaultInjector:
    """Applies one fault after another to a host, and records them."""

    def __init__(self, net: Topology, daemon: Braid, options: list[str], seed: int, pause: Callable[[float], None]):
        """Create an injector; `pause` waits for the given seconds, and lets the caller sample meanwhile."""
        self._net, self._daemon, self._options = net, daemon, options
        self._random = random.Random(seed)
        self._pause = pause
        self._file = Path(options[options.index("--config") + 1])
        #: The uplink of every address that was ever used.
        self.addresses = {
            address: uplink.name for uplink in net.uplinks.values() for address in (uplink.address4, uplink.address6)
        }
        self._current = {uplink.name: (uplink.address4, uplink.address6) for uplink in net.uplinks.values()}
        self._renumbered = 0
        self.outages: list[Outage] = []
        self.done: dict[str, int] = {}
        self.restarts = 0

    def inject_one(self, *, may_kill: bool) -> str:
        """Apply a fault and record its name."""
        weights: dict[Callable[[], None], int] = {
            self.black_hole: 3,
            self.device_down: 1,
            self.renumber: 1,
            self.reload: 2,
            self.bad_reload: 1,
        }
        if may_kill:
            weights[self.kill] = 2
        if len(self._up()) < 2:
            # The last working line is spared.
            weights = {each: weight for each, weight in weights.items() if each not in self._deadly()}
        return self.do(self._random.choices(list(weights), list(weights.values()))[0])

    def do(self, what: Callable[[], None]) -> str:
        """Apply one of the faults below."""
        what()
        name = what.__name__
        self.done[name] = self.done.get(name, 0) + 1
        return name

    def _deadly(self) -> list[Callable[[], None]]:
        return [self.black_hole, self.device_down, self.renumber]

    def _up(self) -> list[Uplink]:
        shown = self._daemon.json("uplinks")["uplinks"]
        return [self._net.uplinks[each["name"]] for each in shown if each["state"] == "up"]

    @contextmanager
    def _outage(self, uplink: Uplink, why: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.outages.append(Outage(uplink.name, why, began, time.monotonic()))

    def black_hole(self) -> None:
        """Make a line a black hole for a while, without a sign at its device."""
        uplink = self._random.choice(self._up())
        if uplink.emulator is None:
            raise LabError("only emulated lines can be black holes")
        with self._outage(uplink, "black hole"):
            uplink.emulator.blackhole(True)
            self._pause(self._random.uniform(*OUTAGE_S))
            uplink.emulator.blackhole(False)

    def device_down(self) -> None:
        """Take a device down, and with it its addresses and routes; restore all."""
        uplink = self._random.choice(self._up())
        with self._outage(uplink, "device down"):
            self._net.host.ip(f"link set {uplink.near.device} down")
            self._pause(self._random.uniform(*OUTAGE_S))
            self._net.host.ip(f"link set {uplink.near.device} up")
            self._address(uplink, *self._current[uplink.name], verb="replace")

    def renumber(self) -> None:
        """Change a line's addresses, as after a forced reconnection."""
        uplink = self._random.choice(self._up())
        self._renumbered += 1
        last = 10 + self._renumbered % 200
        fresh = f"100.64.{uplink.index}.{last}", f"2001:db8:{uplink.index}::{last:x}"
        before = self._current[uplink.name]
        with self._outage(uplink, "renumbered"):
            self._address(uplink, *fresh, verb="replace")
            device = uplink.near.device
            self._net.host.ip(
                f"address delete {before[0]}/24 dev {device}", f"address delete {before[1]}/64 dev {device}"
            )
            # Deleting a device's first address removes the others of its subnet, unless they are promoted.
            self._address(uplink, *fresh, verb="replace")
        self._current[uplink.name] = fresh
        self.addresses |= dict.fromkeys(fresh, uplink.name)

    def _address(self, uplink: Uplink, v4: str, v6: str, *, verb: str) -> None:
        device = uplink.near.device
        routes = (route.replace(f"src {uplink.address4}", f"src {v4}") for route in uplink.defaults())
        self._net.host.ip(
            f"address {verb} {v4}/24 dev {device}",
            f"address {verb} {v6}/64 dev {device} nodad",
            *(f"route {verb} {route}" for route in routes),
        )

    def reload(self) -> None:
        """Reload with another policy and other weights."""
        self._file.write_text(configuration(self._net, self._random))
        self._daemon.call("reload")

    def bad_reload(self) -> None:
        """Reload a file with an error: it is rejected, and nothing changes."""
        before = self._file.read_text()
        self._file.write_text(BAD)
        refused = self._daemon.call("reload", check=False)
        self._file.write_text(before)
        if refused.status == 0:
            raise LabError("a configuration with an unknown policy was accepted")

    def kill(self) -> None:
        """Kill the daemon, and start it again some time later."""
        self._daemon.kill9()
        self._pause(self._random.uniform(0.2, 1.0))
        self._daemon.up(*self._options)
        self.restarts += 1
        # Every process is sampled, however short its life.
        self._pause(SETTLE_S)


def configuration(net: Topology, generator: random.Random) -> str:
    """Return a random configuration that has all uplinks."""
    uplinks = "".join(
        f'[[uplink]]\nname = "{name}"\ndevice = "{name}"\ncapacity = "{generator.randint(10, 50)} Mbit/s"\n'
        for name in net.uplinks
    )
    favourite = generator.choice(list(net.uplinks))
    rules = (
        f'[[rule]]\nname = "one"\ndestination = "{net.server(1)}"\nuse = "{favourite}"\n'
        f'[[rule]]\nname = "two"\ndestination = "{net.server(2, 6)}"\nuse = "{generator.choice(POLICIES)}"\n'
    )
    return (
        f'policy = "{generator.choice(POLICIES)}"\nsticky = "{generator.choice(STICKY)}"\n'
        f'failback = "{generator.choice(FAILBACKS)}"\n{uplinks}{rules if generator.random() < 0.7 else ""}'
    )
