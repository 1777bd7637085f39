"""Memory allocations of running threads, counted by the kernel from outside.

Uprobes on the C library's allocating functions, one counter per function and thread: the program is the one that
users run, unmodified.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

from braid_lab.process import LabError

ALLOCATORS = ("malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc")

#: perf_event_open, which the C library does not wrap.
SYSTEM_CALLS = {"x86_64": 298, "aarch64": 241}

UPROBE_TYPE = Path("/sys/bus/event_source/devices/uprobe/type")

#: struct perf_event_attr up to config2, and its size: version 5.
ATTRIBUTES, ATTRIBUTES_BYTES = "=IIQQQQQIIQQ", 112


class Counters:
    """Running counters."""

    def __init__(self, files: list[int]) -> None:
        """Use `counted_allocations`."""
        self._files = files

    def total(self) -> int:
        """Return the number of calls so far."""
        return sum(struct.unpack("=Q", os.read(each, 8))[0] for each in self._files)


@contextlib.contextmanager
def counted_allocations(pid: int, thread: str) -> Iterator[Counters]:
    """Count allocations of a process's threads with this name prefix, for the length of a block."""
    tasks = [path for path in Path(f"/proc/{pid}/task").iterdir() if (path / "comm").read_text().startswith(thread)]
    if not tasks:
        raise LabError(f"process {pid} has no thread called {thread}")
    with contextlib.ExitStack() as stack:
        files = [_open_counter(int(task.name), *_symbol_offset(pid, name)) for task in tasks for name in ALLOCATORS]
        for each in files:
            stack.callback(os.close, each)
        yield Counters(files)


def _symbol_offset(pid: int, name: str) -> tuple[str, int]:
    """Return the file of a C library's function, and its offset there.

    A process with the same library has it at the same offset, so our own library is searched.
    """
    library = ctypes.CDLL(None)
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, _, *path = line.split(maxsplit=5)
        start, end = (int(word, 16) for word in span.split("-"))
        if start <= address < end:
            if path and path[0] in Path(f"/proc/{pid}/maps").read_text():
                return path[0], address - start + int(offset, 16)
            break
    raise LabError(f"process {pid} does not use the C library that we do: its calls of {name} cannot be counted")


def _open_counter(task: int, path: str, offset: int) -> int:
    """Return the descriptor of a counter of a thread's calls at an address."""
    if not UPROBE_TYPE.exists():
        raise LabError("this kernel has no uprobes, so calls cannot be counted")
    name = ctypes.create_string_buffer(path.encode())
    kind = int(UPROBE_TYPE.read_text())
    words = struct.pack(ATTRIBUTES, kind, ATTRIBUTES_BYTES, 0, 0, 0, 0, 0, 0, 0, ctypes.addressof(name), offset)
    attributes = ctypes.create_string_buffer(words.ljust(ATTRIBUTES_BYTES, b"\0"))
    number = SYSTEM_CALLS.get(platform.machine())
    if number is None:
        raise LabError(f"calls cannot be counted on {platform.machine()}")
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    file: int = system_call(number, attributes, task, -1, -1, 0)
    if file < 0:
        raise LabError(f"cannot count calls in {path}: {os.strerror(ctypes.get_errno())}")
    return file
