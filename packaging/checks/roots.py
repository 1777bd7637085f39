"""Minimal Debian systems of any suite and architecture, kept below `.tools/roots`, and commands run in them.

Each is made once, by mmdebstrap and from the mirror that this machine itself is set up with, and never changed:
commands run on a copy that is gone with them. They do so in namespaces of their own, of users too, so that nothing of
this machine is theirs to change. Programs of other architectures are run by qemu-user-static, of which the kernel is
told in that namespace alone (Linux 6.7; an older kernel must know of it already, as Debian sets it up).
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from braid_lab.kernels.packages import KEYRING, mirror
from braid_lab.process import LabError
from braid_lab.product import repository

ROOTS = repository() / ".tools" / "roots"

#: How long making one may take, s: a slow network, and a processor that is emulated.
MAKING_TIMEOUT = 3600

#: Debian's names of architectures, by the kernel's.
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}

#: The beginning of a program for arm64, and which bits of it count, as Debian's qemu-user-static has them.
_ARM64 = (
    r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff",
)
_FOREIGN = rf"""
if [ ! -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ]; then
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    printf '%s' ':qemu-aarch64:M::{":".join(_ARM64)}:/usr/bin/qemu-aarch64-static:F' \
        > /proc/sys/fs/binfmt_misc/register
fi
"""

#: A copy to be thrown away of the system at $1, with the folders $2 and $3 in it, in which $4 is run.
_ENTER = r"""
ip link set lo up
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir="$1",upperdir=/mnt/upper,workdir=/mnt/work,userxattr overlay /mnt/root
mount -t proc proc /mnt/root/proc
mount --rbind /dev /mnt/root/dev
mount --rbind /sys /mnt/root/sys
mkdir /mnt/root/packages /mnt/root/project
mount --bind "$2" /mnt/root/packages
mount --bind "$3" /mnt/root/project
exec chroot /mnt/root /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive sh -euc "$4"
"""


@dataclass(frozen=True)
class Root:
    """A minimal Debian system."""

    suite: str
    #: As Debian calls it.
    architecture: str
    #: Packages beside those that every system has, with what they depend on.
    packages: tuple[str, ...] = ()

    def path(self) -> Path:
        """Return where it is; make it if it is not there."""
        name = "-".join((self.suite, self.architecture, *self.packages))
        made = ROOTS / name
        if made.exists():
            return made
        ROOTS.mkdir(parents=True, exist_ok=True)
        new = ROOTS / f"{name}.new"
        shutil.rmtree(new, ignore_errors=True)
        words = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--skip=check/qemu"]
        words += [f"--architectures={self.architecture}", f"--keyring={KEYRING}"]
        words += [f"--include={','.join(self.packages)}"] if self.packages else []
        done = _contained([*words, self.suite, str(new), mirror()], timeout=MAKING_TIMEOUT)
        if done.returncode != 0:
            raise LabError(f"{name} could not be made:\n{done.stdout}")
        new.rename(made)
        return made

    def run(self, script: str, *, packages: Path, timeout: float = 600) -> str:
        """Run a shell's commands in a copy of it, to the first that fails, and return what they said.

        The folder `packages` is at /packages, the project at /project; there is no network. LabError if one fails.
        """
        words = ["sh", "-euc", _ENTER, "sh", str(self.path()), str(packages), str(repository()), script]
        done = _contained(words, "--net", timeout=timeout)
        if done.returncode != 0:
            raise LabError(f"{self.suite} {self.architecture}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout


def native() -> str:
    """Return what Debian calls this machine's architecture."""
    return MACHINES[platform.machine()]


def _contained(words: list[str], *namespaces: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a command as root of namespaces of its own, where files have the owners that they have here."""
    foreign = "" if native() == "arm64" else _FOREIGN
    inner = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *namespaces]
    inner += ["sh", "-euc", f'{foreign}exec "$@"', "sh", *words]
    # Nobody is root of a new namespace before its parent has said who is.
    waits = ["unshare", "--user", "sh", "-c", 'echo; read -r _; exec "$@"', "sh", *inner]
    with subprocess.Popen(
        waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None  # noqa: S101
        child.stdout.readline()
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{child.pid}/{kind}").write_text("0 0 65536\n")
        try:
            said, _ = child.communicate("\n", timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
    return subprocess.CompletedProcess(words, child.returncode, said, "")
