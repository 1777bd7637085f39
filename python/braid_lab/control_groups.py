"""Control groups of the machine, for programs that rules tell apart by theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from braid_lab.process import LabError


def hierarchy() -> Path:
    """Return the mount point of control groups."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] == "cgroup2":
            return Path(before.split()[4])
    raise LabError("no cgroup2 hierarchy is mounted")


def inside(group: Path, words: Sequence[str]) -> list[str]:
    """Return the command that runs another one in a control group, which is made if it is not there."""
    script = 'mkdir -p "$0" && echo $$ > "$0/cgroup.procs" && exec "$@"'
    return ["sh", "-c", script, str(group), *words]
