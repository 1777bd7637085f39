"""The initial root of a virtual machine: busybox, the modules needed for the real root, and a script.

Formats: cpio "newc" (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst) and depmod's
modules.dep.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path

from braid_lab.process import LabError, run

_DIRECTORY, _FILE, _EXECUTABLE = 0o40755, 0o100644, 0o100755


def initramfs(modules: Path, names: Sequence[str], busybox: Path, script: str) -> bytes:
    """Return an archive whose `/init` loads the modules in `names`, then runs `script` with busybox's shell.

    `modules` is a kernel's folder, lib/modules/RELEASE. A name that it does not list is taken as built in; a machine
    that lacks it does not boot, and its console says so.
    """
    archive = _Archive()
    for folder in ("bin", "modules", "proc", "sys", "dev", "lower", "upper", "root"):
        archive.add(folder, _DIRECTORY)
    archive.add("bin/busybox", _EXECUTABLE, busybox.read_bytes())
    lines = ["#!/bin/busybox sh", "b=/bin/busybox"]
    for number, file in enumerate(load_order(dependencies(modules), names)):
        archive.add(f"modules/{number}.ko", _FILE, _content(modules / file))
        lines.append(f"$b insmod /modules/{number}.ko")
    archive.add("init", _EXECUTABLE, ("\n".join(lines) + "\n" + script).encode())
    return archive.finish()


def dependencies(modules: Path) -> dict[str, list[str]]:
    """Return each module's dependencies, by file as in modules.dep; depmod creates it if it is missing."""
    listing = modules / "modules.dep"
    if not listing.exists():
        base = modules.parents[2]
        # depmod only looks below lib/modules; packages of newer suites have usr/lib/modules.
        if base.name == "usr":
            base = base.parent
            if not (base / "lib").exists():
                (base / "lib").symlink_to("usr/lib")
        run(["depmod", "--basedir", base, modules.name], timeout=120)
    found = {}
    for line in listing.read_text().splitlines():
        file, _, needed = line.partition(":")
        found[file] = needed.split()
    return found


def load_order(needs: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """Return the files to load, each after its dependencies."""
    files = {_module_name(file): file for file in needs}
    order: dict[str, None] = {}
    for name in names:
        if name in files:
            # modules.dep lists all dependencies of a module, the first to load at the end.
            for file in [*reversed(needs[files[name]]), files[name]]:
                order.setdefault(file)
    return list(order)


def _module_name(file: str) -> str:
    """Return a module's name; the kernel does not distinguish `-` and `_`."""
    return Path(file).name.partition(".ko")[0].replace("-", "_")


def _content(file: Path) -> bytes:
    data = file.read_bytes()
    if file.suffix == ".xz":
        return lzma.decompress(data)
    if file.suffix != ".ko":
        raise LabError(f"{file}: a module is .ko or .ko.xz")
    return data


class _Archive:
    """Builder of a cpio archive; all entries belong to root."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, name: str, mode: int, data: bytes = b"") -> None:
        """Append a file or a directory."""
        path = name.encode() + b"\0"
        #         ino                uid gid nlink mtime size          devices        name            check
        numbers = (len(self._parts), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        header = b"070701" + b"".join(b"%08X" % number for number in numbers)
        self._parts += [_padded(header + path), _padded(data)]

    def finish(self) -> bytes:
        """Return the archive."""
        self.add("TRAILER!!!", 0)
        return b"".join(self._parts)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
