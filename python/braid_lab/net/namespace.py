"""Network namespaces that live as long as a block."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from braid_lab import setns
from braid_lab.net import scratch
from braid_lab.process import LabError, Output, run, wait_until
from braid_lab.setns import RUN_NETNS

#: Shows the settings of the namespace that the thread is in.
SYSCTL = Path("/proc/sys/net")
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


@dataclass(frozen=True)
class Namespace:
    """A network namespace by its name in /run/netns."""

    name: str

    @property
    def path(self) -> Path:
        """The file that represents it."""
        return RUN_NETNS / self.name

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        text: str | None = None,
        timeout: float = 60.0,
        check: bool = True,
    ) -> Output:
        """Run a command inside to its end."""
        return run(argv, namespace=self.name, text=text, timeout=timeout, check=check)

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Put the calling thread into it for a block; sockets and devices opened meanwhile stay there."""
        return setns.inside(self.name)

    def ip(self, *commands: str) -> None:
        """Apply `ip` commands in order, in one process; the first that fails raises CommandError."""
        run(["ip", "-n", self.name, "-batch", "-"], text="\n".join(commands) + "\n")

    def sysctl(self, **settings: int | str) -> None:
        """Write settings under net; a double underscore stands for a dot, as in `ipv4__ip_forward`."""
        with self.inside():
            for key, value in settings.items():
                try:
                    (SYSCTL / key.replace("__", "/")).write_text(f"{value}\n")
                except OSError as error:
                    raise LabError(f"{self.name}: {key} = {value}: {error.strerror}") from error

    def unlimit_icmp_errors(self) -> None:
        """Lift the kernel's rate limits on ICMP errors.

        A higher limit is not enough: while one processor refills the kernel's token bucket, an error that another one
        wants to send counts as over the limit.
        """
        # Only types whose bits are set are limited; no ICMPv6 message has type 255.
        self.sysctl(ipv4__icmp_ratemask=0, ipv6__icmp__ratemask=255)

    def counters(self, device: str) -> dict[str, dict[str, int]]:
        """Return a device's kernel counters: `packets`, `bytes`, `dropped` and so on, for `rx` and `tx`."""
        told = json.loads(self.run(["ip", "-json", "-stats", "link", "show", "dev", device]).stdout)
        counted: dict[str, dict[str, int]] = told[0]["stats64"]
        return counted

    def listens(self, address: str, port: int, *, udp: bool = False) -> bool:
        """Return true if a TCP server, or a UDP one, has this address and port."""
        return f" {address}:{port} " in self.run(["ss", "-lun" if udp else "-ltn"]).stdout

    def processes(self) -> list[int]:
        """Return the ids of all processes inside; one of our threads may be there for the moment."""
        with contextlib.suppress(FileNotFoundError):
            inode = self.path.stat().st_ino
            return [pid for pid in _pids() if pid != os.getpid() and _net_inode(pid) == inode]
        return []

    def kill(self) -> None:
        """Kill all processes inside, including daemons that have left our process tree."""

        def empty() -> bool:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.processes()

        wait_until(empty, what=f"the last process of {self.name} to go")

    def delete(self) -> None:
        """Kill all processes inside and remove the namespace, with every device in it."""
        self.kill()
        run(["ip", "netns", "delete", self.name], check=False)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _net_inode(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}/ns/net").st_ino  # noqa: PTH116
    return None


@contextlib.contextmanager
def namespace(tag: str, *, congestion_control: str = "cubic") -> Iterator[Namespace]:
    """Make a namespace with loopback up and TCP as on the paper's hosts (CUBIC by default)."""
    made = Namespace(scratch.name(tag))
    run(["ip", "netns", "add", made.name])
    try:
        made.ip("link set lo up")
        use_congestion_control(made, congestion_control)
        made.sysctl(
            # Runs must not learn from one another: no cached RTT or threshold of an earlier connection.
            ipv4__tcp_no_metrics_save=1,
            # No one else can have these addresses, and nothing may change a second later.
            ipv6__conf__default__accept_dad=0,
        )
        yield made
    finally:
        made.delete()


def use_congestion_control(made: Namespace, algorithm: str) -> None:
    """Set a namespace's default algorithm.

    The kernel accepts only algorithms on the allowed list, and that list is the machine's: it is extended for the
    moment, under a lock since several labs may do so at once, and then restored.
    """
    with (scratch.ROOT / "congestion-control.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = ALLOWED.read_text().strip()
        if algorithm not in before.split():
            try:
                ALLOWED.write_text(f"{before} {algorithm}\n")
            except OSError as error:
                raise LabError(f"congestion control {algorithm}: {error.strerror}") from error
        try:
            made.sysctl(ipv4__tcp_congestion_control=algorithm)
        finally:
            ALLOWED.write_text(before + "\n")


def leftovers() -> list[Namespace]:
    """Return the namespaces of runs whose process is gone."""
    found = []
    for path in sorted(RUN_NETNS.glob(f"{scratch.PREFIX}*")):
        pid = path.name.removeprefix(scratch.PREFIX).partition("-")[0]
        if pid.isdecimal() and not scratch.alive(int(pid)):
            found.append(Namespace(path.name))
    return found


def clean() -> list[str]:
    """Remove what dead runs left behind; return the names of what was removed."""
    removed = []
    for each in leftovers():
        each.delete()
        removed.append(each.name)
    for path in sorted(scratch.ROOT.glob("[0-9]*")):
        if not scratch.alive(int(path.name)):
            scratch.remove(path)
            removed.append(str(path))
    return removed
