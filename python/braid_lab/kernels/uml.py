"""A kernel that is itself a program (Debian's user-mode-linux), with the C library of its own suite.

It needs a C library at least as new as itself, which this machine may not have. So it gets its own loader and library
in the folder that it runs in, and the loader's path in the executable is changed to that folder. `xstate.c` stands
between it and a processor whose registers it has no room for.
"""

from __future__ import annotations

from pathlib import Path

from braid_lab.kernels.packages import fetch
from braid_lab.process import LabError, run

#: Stands in front of the C library's ptrace().
_XSTATE = Path(__file__).with_name("xstate.c")

_LOADER = b"/lib64/ld-linux-x86-64.so.2\0"
_OURS = b"./loader\0"


def program(suite: str, package: Path) -> Path:
    """Return a program that boots the kernel of an unpacked package user-mode-linux of `suite`."""
    folder = package / "run"
    start = folder / "boot"
    if not start.exists():
        library = fetch(suite, "libc6")
        folder.mkdir(exist_ok=True)
        patched = with_loader((package / "usr/bin/linux.uml").read_bytes())
        (folder / "linux").write_bytes(patched)
        (folder / "linux").chmod(0o755)
        libraries = sorted(library.glob("**/x86_64-linux-gnu/*.so*"))
        for file in libraries:
            _link(folder / file.name, file)
        loaders = [file for file in libraries if file.name == "ld-linux-x86-64.so.2"]
        if len(loaders) != 1:
            raise LabError(f"{library.name} has {len(loaders)} loaders")
        _link(folder / "loader", loaders[0])
        options = ("-O2", "-fPIC", "-shared", "-nostdlib", "-ffreestanding", "-fno-stack-protector")
        run(["clang-14", *options, "-I/usr/include/x86_64-linux-gnu", "-o", folder / "xstate.so", _XSTATE])
        # Written last: a folder that has it is complete.
        variables = "LD_LIBRARY_PATH=. LD_PRELOAD=./xstate.so"
        start.write_text(f'#!/bin/sh\ncd "{folder}" && {variables} exec ./linux "$@"\n')
        start.chmod(0o755)
    return start


def with_loader(executable: bytes) -> bytes:
    """Return the executable with its loader's path changed to the current folder."""
    if executable.count(_LOADER) != 1:
        raise LabError(f"the kernel's program does not name {_LOADER.decode()!r} once")
    return executable.replace(_LOADER, _OURS.ljust(len(_LOADER), b"\0"))


def _link(link: Path, file: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(file)
