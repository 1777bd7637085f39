"""What a race leaves behind at the server: handshakes that nobody finishes."""

from __future__ import annotations

import contextlib
import time

from braid_lab.net.namespace import Namespace
from braid_lab.process import LabError, wait_until

#: A handshake that is left waits for minutes, one that is ended is gone within a round trip. None for so long: all
#: that were on their way have come and are gone.
QUIET_SECONDS = 0.7

SETTLE_TIMEOUT_SECONDS = 3.0


def half_open(server: Namespace) -> int:
    """Return how many handshakes wait for their end at a server right now."""
    return len(server.run(["ss", "-tnH", "state", "syn-recv"]).stdout.splitlines())


def left_over(server: Namespace) -> int:
    """Watch a server until no handshake has waited there for a while; return how many still wait in the end."""
    busy = time.monotonic()

    def quiet() -> bool:
        nonlocal busy
        if half_open(server):
            busy = time.monotonic()
        return time.monotonic() - busy > QUIET_SECONDS

    with contextlib.suppress(LabError):
        wait_until(quiet, what="handshakes to end", timeout=SETTLE_TIMEOUT_SECONDS, poll=0.05)
    return half_open(server)
