"""Links between two namespaces: a plain veth pair, an emulated line, a tunnel without Ethernet."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from braid_lab.net.namespace import Namespace
from braid_lab.process import LabError, Process, run
from braid_lab.product import binary

_serial = itertools.count(1)


@dataclass(frozen=True)
class End:
    """One end of a link: a device in a namespace."""

    namespace: Namespace
    device: str

    def __str__(self) -> str:
        return f"{self.namespace.name}:{self.device}"


@dataclass(frozen=True)
class LinkSpec:
    """Parameters of an emulated link, as for `braid emulate`; None means unlimited or none.

    `rate` applies to both directions unless `rate_up` or `rate_down` (seen from the host) is set.
    """

    rate: str | None = None
    rate_up: str | None = None
    rate_down: str | None = None
    delay: str | None = None
    jitter: str | None = None
    loss: str | None = None
    queue: str | None = "100ms"
    aqm: Literal["drop-tail", "codel"] | None = None
    seed: int | None = None
    extra: tuple[str, ...] = ()

    def options(self) -> list[str]:
        """Return the corresponding options."""
        named = {
            "--rate": self.rate,
            "--rate-up": self.rate_up,
            "--rate-down": self.rate_down,
            "--delay": self.delay,
            "--jitter": self.jitter,
            "--loss": self.loss,
            "--queue": self.queue,
            "--aqm": self.aqm,
            "--seed": None if self.seed is None else str(self.seed),
        }
        words = [word for option, value in named.items() if value is not None for word in (option, value)]
        return [*words, *self.extra]


class Emulated:
    """A running `braid emulate`."""

    def __init__(self, process: Process, control: Path) -> None:
        """Use `emulated`."""
        self.process = process
        self.control = control

    def request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request (`set`, `blackhole`, `stats`) to its control socket and return the reply."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(5)
            peer.connect(str(self.control))
            peer.sendall(json.dumps(request).encode() + b"\n")
            line = peer.makefile().readline()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LabError(f"emulator: {answer['error']}")
        return answer

    def blackhole(self, on: bool, direction: Literal["up", "down", "both"] = "both") -> None:
        """Turn the black hole on or off."""
        self.request({"blackhole": {"direction": direction, "on": on}})


@contextlib.contextmanager
def emulated(near: End, far: End, line: LinkSpec, *, scratch: Path) -> Iterator[Emulated]:
    """Join two namespaces by `braid emulate`; its TAP devices vanish with it."""
    control = scratch / f"emulate-{next(_serial)}.sock"
    words = ["emulate", "--a", str(near), "--b", str(far), *line.options(), "--control", str(control)]
    with Process([binary(), *words], log=control.with_suffix(".log")) as process:
        process.wait_output(r'"ready":\s*true', timeout=60)
        yield Emulated(process, control)


@contextlib.contextmanager
def veth(near: End, far: End, *, offload: bool = True) -> Iterator[None]:
    """Join two namespaces by a veth pair; with `offload` off, packets have real sizes and checksums."""
    run(
        [
            *["ip", "link", "add", near.device, "netns", near.namespace.name, "up", "type", "veth"],
            *["peer", "name", far.device, "netns", far.namespace.name],
        ]
    )
    far.namespace.ip(f"link set {far.device} up")
    if not offload:
        for end in (near, far):
            set_offload(end, on=False)
    try:
        yield
    finally:
        near.namespace.run(["ip", "link", "delete", near.device], check=False)


def set_offload(end: End, *, on: bool) -> None:
    """Switch checksum and segmentation offloads of a device: with them on, a veth hides checksum errors."""
    word = "on" if on else "off"
    features = ["tx", "rx", "sg", "tso", "gso", "gro"]
    words = [each for feature in features for each in (feature, word)]
    end.namespace.run(["ethtool", "-K", end.device, *words])


@contextlib.contextmanager
def tunnel(near: End, far: End, *, scratch: Path) -> Iterator[None]:
    """Join two namespaces by a pair of TUN devices: a link without Ethernet, as with a modem or PPP."""
    log = scratch / f"tunnel-{next(_serial)}"
    argv = [sys.executable, "-m", "braid_lab.net.tunnel", str(near), str(far)]
    with Process(argv, log=log) as process:
        process.wait_output("ready")
        yield
