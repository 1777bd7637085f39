"""Directories and namespace names of a run of the lab, and the detection of dead runs."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
from pathlib import Path

from braid_lab.process import LabError, run, state_of

#: The path is short because sockets live here: a Unix socket's address holds 107 bytes.
ROOT = Path("/run/braid-lab")

#: Every namespace of the lab begins with this, the pid of its owner and a dash.
PREFIX = "brl-"

_serial = itertools.count(1)


def start_time(pid: int) -> str | None:
    """Return a process's start time, in clock ticks since boot, or None if there is none; it identifies a pid."""
    fields = state_of(pid)
    return fields[19] if fields else None


def directory() -> Path:
    """Return this process's own directory, made on first use with a note of its owner.

    Every function that makes a namespace or runs a program comes here first, so LabError is raised here if the lab
    lacks root.
    """
    if os.geteuid() != 0:
        raise LabError("network namespaces need root: run it as root, for example with sudo")
    mine = ROOT / str(os.getpid())
    owner = mine / "owner"
    ours = start_time(os.getpid()) or ""
    if not owner.exists() or owner.read_text() != ours:
        # A directory without a note looks abandoned to `clean` of another run, so it appears with its note in it.
        remove(mine)
        new = ROOT / f"new-{os.getpid()}"
        new.mkdir(parents=True, exist_ok=True)
        (new / owner.name).write_text(ours)
        new.rename(mine)
        atexit.register(_remove_own, mine)
    return mine


def _remove_own(mine: Path) -> None:
    """Remove our directory; a forked child that ends must leave it to its parent."""
    if mine.name == str(os.getpid()):
        remove(mine)


def name(tag: str) -> str:
    """Return a name for a namespace that no other run uses."""
    directory()
    return f"{PREFIX}{os.getpid()}-{next(_serial)}-{tag}"


def alive(pid: int) -> bool:
    """Return whether the lab's run with this pid is still alive."""
    started = start_time(pid)
    owner = ROOT / str(pid) / "owner"
    return started is not None and owner.exists() and owner.read_text() == started


def remove(path: Path) -> None:
    """Remove a directory tree, first unmounting what is mounted below it."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((each for each in mounts if Path(each).is_relative_to(path)), reverse=True):
        _umount(mount)
    shutil.rmtree(path, ignore_errors=True)


def _umount(mount: str) -> None:
    run(["umount", "--lazy", mount], check=False)
