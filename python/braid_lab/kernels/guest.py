"""A virtual machine that boots a stock kernel, runs one command on a copy of a root file system, and ends.

    Guest(kernel, root=Path("/"), …).run(["/bin/true"], out=folder)

The root is shared with the guest read-only, with a layer of memory above it, so the guest changes nothing here. Two
kinds of machine: QEMU without hardware acceleration (any architecture, slow: about a minute per boot), and a kernel
that is itself a program (User-Mode Linux: about a second; without BTF and BPF JIT).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from braid_lab.kernels.initramfs import dependencies, initramfs, load_order
from braid_lab.process import LabError, Process
from braid_lab.product import repository

#: The guest's writable folder.
OUT = "/run/out"

#: User-Mode Linux finds its modules here, and the program that loads them.
_LOADS = "/run/loads"

#: Modules that Braid and the lab need.
_WANTED = (
    *("veth", "dummy", "sch_ingress", "sch_htb", "cls_bpf", "act_bpf", "nfnetlink", "nf_tables", "nf_conntrack"),
    *("nf_conntrack_netlink", "nf_nat", "nft_chain_nat", "nft_masq", "nft_ct", "nft_counter", "nft_reject_inet"),
    *("vrf", "ip6_tables", "af_packet", "inet_diag", "tcp_diag", "udp_diag"),
)

#: Modules that a QEMU machine needs to mount its root, beside those built in.
_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")

_SHARE = "trans=virtio,version=9p2000.L,msize=262144"

#: QEMU's command for an architecture of Debian, and the console that its kernel finds.
_QEMU = {
    "amd64": (("qemu-system-x86_64", "-cpu", "max"), "ttyS0"),
    "arm64": (("qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a72"), "ttyAMA0"),
}

MEMORY_MB = 2048


@dataclass(frozen=True)
class Guest:
    """A bootable machine: a kernel, and the root file system that it sees."""

    #: The kernel: an image for QEMU, an executable for User-Mode Linux.
    kernel: Path
    #: Its folder of modules, lib/modules/RELEASE.
    modules: Path
    kind: Literal["qemu", "uml"] = "qemu"
    #: As Debian calls it.
    architecture: str = "amd64"
    root: Path = Path("/")
    #: Folders of this machine that the guest sees read-only at the same path.
    shares: tuple[Path, ...] = field(default_factory=lambda: (repository(),))

    def run(
        self,
        argv: Sequence[str | Path],
        out: Path,
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        append: Sequence[str] = (),
    ) -> int:
        """Boot, run a command in the repository's folder, and return its exit status.

        The guest sees `out` at OUT and may write there; the console is in `out`/console.out. `append` is added to the
        kernel's command line. LabError if the command has not ended after `timeout` seconds.
        """
        out.mkdir(parents=True, exist_ok=True)
        status = out / "status"
        status.unlink(missing_ok=True)
        (out / "main.sh").write_text(_main(argv, env or {}))
        words = self._qemu(out, append) if self.kind == "qemu" else self._uml(out, append)
        with Process(words, log=out / "console") as machine:
            try:
                machine.wait(timeout=timeout)
            except LabError as error:
                raise LabError(f"the guest did not end within {timeout:g} s: {_end_of(machine.stdout())}") from error
        if not status.exists():
            raise LabError(f"the guest ended without a result: {_end_of(machine.stdout() + machine.stderr())}")
        return int(status.read_text())

    def _qemu(self, out: Path, append: Sequence[str]) -> list[str | Path]:
        (out / "initrd").write_bytes(initramfs(self.modules, _MODULES, _busybox(self.root), self._from_initramfs()))
        (program, *machine), console = _QEMU[self.architecture]
        shared = [("root", self.root), ("modules", self.modules)]
        shared += [(f"share{number}", path) for number, path in enumerate(self.shares)]
        words: list[str | Path] = [program, *machine, "-accel", "tcg,thread=multi", "-smp", "2"]
        words += ["-m", str(MEMORY_MB), "-nographic", "-no-reboot", "-nic", "none"]
        words += ["-kernel", self.kernel, "-initrd", out / "initrd"]
        words += ["-append", " ".join([f"console={console}", "panic=-1", "quiet", *append])]
        for tag, path in shared:
            words += ["-virtfs", f"{_local(path, tag)},readonly=on"]
        return [*words, "-virtfs", _local(out, "out")]

    def _from_initramfs(self) -> str:
        """Return the script that mounts these folders and changes to the root."""
        lines = [
            "$b mount -t proc proc /proc",
            "$b mount -t sysfs sys /sys",
            "$b mount -t devtmpfs dev /dev",
            f"$b mount -t 9p -o ro,cache=loose,{_SHARE} root /lower",
            *_layered("$b", lower="/lower", memory="/upper", target="/root"),
            "for each in proc sys dev; do $b mount --move /$each /root/$each; done",
            "for each in run tmp; do $b mount -t tmpfs $each /root/$each; done",
            f"$b mkdir -p /root{OUT} /root/lib/modules/$($b uname -r)",
            f"$b mount -t 9p -o ro,cache=loose,{_SHARE} modules /root/lib/modules/$($b uname -r)",
            f"$b mount -t 9p -o {_SHARE} out /root{OUT}",
        ]
        for number, path in enumerate(self.shares):
            lines.append(f"$b mkdir -p /root{path}")
            lines.append(f"$b mount -t 9p -o ro,cache=loose,{_SHARE} share{number} /root{path}")
        return "\n".join([*lines, f"exec $b chroot /root /bin/sh {OUT}/main.sh"]) + "\n"

    def _uml(self, out: Path, append: Sequence[str]) -> list[str | Path]:
        (out / "init.sh").write_text(self._from_hostfs(out))
        (out / "init.sh").chmod(0o755)
        words = [f"mem={MEMORY_MB}M", "root=/dev/root", "rootfstype=hostfs", f"rootflags={self.root}", "ro", "quiet"]
        words += ["con0=fd:0,fd:1", "con=null", "panic=-1", f"init={out / 'init.sh'}"]
        return [self.kernel, *words, *append]

    def _from_hostfs(self, out: Path) -> str:
        """Return the script of a User-Mode Linux machine, which sees this machine's files."""
        release = self.modules.name
        lines = [
            "#!/bin/sh",
            "mount -t proc proc /proc",
            "mount -t tmpfs memory /mnt",
            "mkdir -p /mnt/memory /mnt/root",
            *(f"insmod {self.modules / file}" for file in self._modules_of_uml()),
            *_layered("", lower="/", memory="/mnt/memory", target="/mnt/root"),
            # Before about Linux 5.11 an overlay above files of this machine is impossible: they are read-only then.
            "if ! /mnt/root/bin/true 2>/dev/null; then",
            "umount /mnt/root && mount -r -t hostfs -o / none /mnt/root",
            "fi",
            "mount -t proc proc /mnt/root/proc",
            "mount -t sysfs sys /mnt/root/sys",
            "mount -t devtmpfs dev /mnt/root/dev",
            "for each in run tmp; do mount -t tmpfs $each /mnt/root/$each; done",
            # Not below /lib/modules: a read-only root need not have it.
            f"mkdir -p /mnt/root{OUT} /mnt/root{_LOADS}/lib/modules/{release}",
            f"mount -t hostfs -o {self.modules} none /mnt/root{_LOADS}/lib/modules/{release}",
            f"mount -t hostfs -o {out} none /mnt/root{OUT}",
        ]
        for path in self.shares:
            lines.append(f"mkdir -p /mnt/root{path}")
            lines.append(f"mount -t hostfs -o {path} none /mnt/root{path}")
            lines.append(f"mount -o remount,ro,bind /mnt/root{path} 2>/dev/null || true")
        return "\n".join([*lines, f"exec chroot /mnt/root /bin/sh {OUT}/main.sh"]) + "\n"

    def _modules_of_uml(self) -> list[str]:
        return load_order(dependencies(self.modules), ["overlay"])


def _layered(prefix: str, *, lower: str, memory: str, target: str) -> list[str]:
    """Return the commands that mount a root with a layer of memory above it."""
    b = f"{prefix} ".lstrip()
    layers = f"lowerdir={lower},upperdir={memory}/changes,workdir={memory}/work"
    return [
        f"{b}mount -t tmpfs memory {memory}",
        f"{b}mkdir {memory}/changes {memory}/work",
        f"{b}mount -t overlay -o {layers} root {target}",
    ]


def _local(path: Path, tag: str) -> str:
    return f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap"


def _busybox(root: Path) -> Path:
    """Return a static busybox of the guest's architecture, from the package busybox-static."""
    for place in ("bin/busybox", "usr/bin/busybox"):
        if (root / place).exists():
            return root / place
    raise LabError(f"{root} has no busybox: apt-get install busybox-static")


def _main(argv: Sequence[str | Path], env: Mapping[str, str]) -> str:
    """Return the script that runs the command in the guest's root and switches the machine off."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    command = shlex.join([str(word) for word in argv])
    return f"""
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
{exports}mount -t cgroup2 cgroup2 /sys/fs/cgroup
# Nothing here loads by name what appears with its module: settings of IPv6, and the device of TUN. A kernel whose
# modules are elsewhere loads none by itself.
if [ -d {_LOADS} ]; then set -- --dirname {_LOADS} {" ".join(_WANTED)}; fi
modprobe --quiet --all ipv6 tun "$@"
ip link set lo up
cd {shlex.quote(str(repository()))}
{command} >{OUT}/command.out 2>{OUT}/command.err
echo $? >{OUT}/status
sync
echo o >/proc/sysrq-trigger
# Both kinds of machine need a moment to end.
exec sleep 60
"""


def _end_of(text: str, lines: int = 15) -> str:
    return "\n".join(text.splitlines()[-lines:])
