"""Network namespaces of the calling thread.

A program is started in a namespace by a thread that is there for the moment: `nsenter` would be one program more for
each. `ip netns exec` makes a private mount namespace, in which a daemon's bpffs mount would be lost.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

RUN_NETNS = Path("/run/netns")
CLONE_NEWNET = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def enter(name: str) -> None:
    """Put the calling thread into the namespace of a name, for good."""
    with (RUN_NETNS / name).open() as there:
        _enter(there.fileno())


@contextlib.contextmanager
def inside(name: str | None) -> Iterator[None]:
    """Put the calling thread into a namespace for a block; what it opens and starts meanwhile stays there.

    None leaves it where it is.
    """
    if name is None:
        yield
        return
    with Path("/proc/thread-self/ns/net").open() as here:
        enter(name)
        try:
            yield
        finally:
            _enter(here.fileno())


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
