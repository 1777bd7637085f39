"""What happens to uplinks in the field: they fall silent, are unplugged, and come back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from braid_lab.net.topology import Uplink
from braid_lab.process import LabError


def _swallow(uplink: Uplink, on: bool) -> None:
    if uplink.emulator is None:
        raise LabError(f"{uplink.name} is no emulated line")
    uplink.emulator.blackhole(on)


@contextlib.contextmanager
def black_hole(uplink: Uplink) -> Iterator[float]:
    """Swallow everything on an emulated line, without a sign of it at the device; yields when it began."""
    began = time.monotonic()
    _swallow(uplink, True)
    try:
        yield began
    finally:
        _swallow(uplink, False)


@contextlib.contextmanager
def unplugged(uplink: Uplink) -> Iterator[float]:
    """Take the carrier from an emulated line's device at the host, with all that is under way; yields when it began."""
    near = uplink.near
    began = time.monotonic()
    near.namespace.ip(f"link set {near.device} carrier off")
    _swallow(uplink, True)
    try:
        yield began
    finally:
        _swallow(uplink, False)
        near.namespace.ip(f"link set {near.device} carrier on")
