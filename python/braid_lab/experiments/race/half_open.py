"""Half-open connections that a race leaves at the server."""

from __future__ import annotations

import contextlib
import time

from braid_lab.net.namespace import Namespace
from braid_lab.process import LabError, wait_until

#: An abandoned handshake waits for minutes, a reset one is gone within a round trip. None for this long: all that
#: were in flight have come and gone.
QUIET_SECONDS = 0.7

SETTLE_TIMEOUT_SECONDS = 3.0


def half_open(server: Namespace) -> int:
    """Return how many half-open connections a server has now."""
    return len(server.run(["ss", "-tnH", "state", "syn-recv"]).stdout.splitlines())


def left_over(server: Namespace) -> int:
    """Wait until no half-open connection has been there for a while; return how many remain at the end."""
    busy = time.monotonic()

    def quiet() -> bool:
        nonlocal busy
        if half_open(server):
            busy = time.monotonic()
        return time.monotonic() - busy > QUIET_SECONDS

    with contextlib.suppress(LabError):
        wait_until(quiet, what="handshakes to end", timeout=SETTLE_TIMEOUT_SECONDS, poll=0.05)
    return half_open(server)
