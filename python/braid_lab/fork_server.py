"""Python programs that begin as a fork of a process that is running already.

A new interpreter starts in 20 ms, and imports asyncio or an implementation of QUIC in 60 to 300 ms more. Most of the
lab's servers and clients live for a second or two, so that would be much of their processor time. The fork server is
one process for each process of the lab. It has imported what its programs import, and forks for each of them:

    start(words) ── words, streams ──▶ fork server ── fork ──▶ the program
                 ◀── process id, then exit status ──

A program has the environment, working directory and standard streams that a new interpreter would have, and it
ends in the same way. A module of the lab must not compute at import what depends on the moment.

The server ends when the lab does, and its programs end with it. Run as `python -m braid_lab.fork_server DESCRIPTOR`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from braid_lab import setns

#: Bytes of a request: mostly the environment.
MAX_REQUEST = 1 << 17
#: A process id, or an exit status as subprocess has it.
NUMBER = struct.Struct("=i")
#: Packages whose modules are imported in the server. All have their `main` behind a check of `__name__`.
OURS = ("braid_lab.", "braid_sdn.")
PR_SET_PDEATHSIG = 1


def takes(words: Sequence[str]) -> bool:
    """Return whether a command is a Python program for the server: `python -m MODULE …` or `python -c CODE …`."""
    return len(words) > 2 and words[0] == sys.executable and words[1] in ("-m", "-c")


class Forked:
    """A program of the server: what the lab uses of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], told: int) -> None:
        """Wait for its process id; `told` is the pipe from the server."""
        self.words = list(words)
        self.returncode: int | None = None
        self._told = told
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, told)
        pid = self._read()
        if pid is None:
            raise RuntimeError(f"{' '.join(words)}: the fork server has ended")
        self.pid = pid

    def _read(self) -> int | None:
        """Return the next number, or None if there is no server any more."""
        said = os.read(self._told, NUMBER.size)
        return NUMBER.unpack(said)[0] if said else None

    def _has_ended(self, milliseconds: float | None) -> bool:
        waiting = select.poll()
        waiting.register(self._told, select.POLLIN)
        return bool(waiting.poll(milliseconds))

    def poll(self) -> int | None:
        """Return its exit status, or None if it runs."""
        with self._lock:
            if self.returncode is None and self._has_ended(0):
                # A program without its server was killed.
                status = self._read()
                self.returncode = -signal.SIGKILL if status is None else status
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended and return its exit status; raises subprocess.TimeoutExpired."""
        if self.returncode is None and not self._has_ended(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired(self.words, timeout or 0)
        status = self.poll()
        assert status is not None  # noqa: S101
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            # It may just have ended.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The server of this process."""

    def __init__(self) -> None:
        """Start it."""
        self._owner = os.getpid()
        self._requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            words = [sys.executable, "-m", __name__, str(its.fileno())]
            # It ends when the other end of its socket is closed: a parent death signal would come when the thread
            # ends that needed it first.
            self._child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[its.fileno()]
            )
        atexit.register(self._close)

    def _close(self) -> None:
        """End it; a forked child that ends must leave it to its parent."""
        if os.getpid() == self._owner:
            self._requests.close()
            self._child.wait()

    def start(
        self,
        words: Sequence[str],
        streams: Sequence[int],
        *,
        namespace: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Forked:
        """Start a program with these three standard streams, in a network namespace if one is given."""
        request = {
            "words": list(words[1:]),
            "namespace": namespace,
            "env": {**os.environ, **(env or {})},
            "directory": str(Path.cwd()),
        }
        told, tells = os.pipe()
        try:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [*streams, tells])
        finally:
            os.close(tells)
        return Forked(words, told)


_starting = threading.Lock()


@functools.cache
def _of_process(owner: int) -> ForkServer:  # noqa: ARG001
    return ForkServer()


def server() -> ForkServer:
    """Return the server of this process, which starts with its first program."""
    with _starting:
        return _of_process(os.getpid())


def run(
    words: Sequence[str],
    *,
    namespace: str | None,
    text: str | None,
    timeout: float,
    env: Mapping[str, str] | None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as `subprocess.run` does; `text` is its standard input."""
    with (
        open(os.memfd_create("stdin"), "w+") as given,  # noqa: PTH123
        open(os.memfd_create("stdout")) as out,  # noqa: PTH123
        open(os.memfd_create("stderr")) as err,  # noqa: PTH123
    ):
        given.write(text or "")
        given.seek(0)
        streams = [each.fileno() for each in (given, out, err)]
        child = server().start(words, streams, namespace=namespace, env=env)
        try:
            status = child.wait(timeout)
        except BaseException:
            child.kill()
            child.wait()
            raise
        # The program has written at the position that our descriptor shares.
        for each in (out, err):
            os.lseek(each.fileno(), 0, os.SEEK_SET)
        return subprocess.CompletedProcess(list(words), status, out.read(), err.read())


def _import(words: Sequence[str]) -> None:
    """Import a program's module, and with it all that it imports; the program itself tells of errors."""
    option, name = words[:2]
    if option == "-m" and name.startswith(OURS) and name != __name__:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # Objects that no collection touches stay in memory that all programs share.
    gc.freeze()


@dataclass(frozen=True)
class Program:
    """A program in its new process: the request, its streams, the pipe to the lab, and the server."""

    request: dict[str, Any]
    streams: list[int]
    tells: int
    parent: int

    def run(self) -> NoReturn:
        """Run it in this process, and end as an interpreter does.

        Only its modules are not torn down one by one, which would take longer than the fork.
        """
        status: Any = 0
        try:
            self._begin()
            self._main()
        except SystemExit as end:
            status = end.code or 0
            if not isinstance(status, int):
                sys.stderr.write(f"{status}\n")
                status = 1
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            status = 1
            if isinstance(error, KeyboardInterrupt):
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
        # As multiprocessing has it, for its forks.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status & 0xFF)

    def _begin(self) -> None:
        """Take on what a new process of this program would have."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.parent:
            raise SystemExit(1)
        for target, descriptor in enumerate(self.streams):
            os.dup2(descriptor, target)
            os.close(descriptor)
        _tell(self.tells, os.getpid())
        os.close(self.tells)
        os.environ.clear()
        os.environ.update(self.request["env"])
        os.chdir(self.request["directory"])
        if self.request["namespace"] is not None:
            setns.enter(self.request["namespace"])

    def _main(self) -> None:
        option, program, *arguments = self.request["words"]
        sys.argv = [option, *arguments]
        if option == "-m":
            # It runs under another name, beside what was imported of it.
            sys.modules.pop(program, None)
            sys.path[0] = self.request["directory"]
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = ""
            main = types.ModuleType("__main__")
            sys.modules["__main__"] = main
            exec(compile(program, "<string>", "exec"), vars(main))  # noqa: S102


def _serve(requests: socket.socket) -> Program | None:
    """Fork for each request; returns the program in its new process, and None when the lab has ended."""
    # Process ids and pipes of running programs, by the descriptor that tells of their end.
    programs: dict[int, tuple[int, int]] = {}
    waiting = select.poll()
    waiting.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor in programs:
                pid, tells = programs.pop(descriptor)
                waiting.unregister(descriptor)
                _tell(tells, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(tells)
                os.close(descriptor)
                continue
            text, received, _, _ = socket.recv_fds(requests, MAX_REQUEST, 4)
            if not text:
                return None
            *streams, tells = received
            request = json.loads(text)
            _import(request["words"])
            ours = os.getpid()
            pid = os.fork()
            if pid == 0:
                for each in (*programs, *(pipe for _, pipe in programs.values())):
                    os.close(each)
                requests.close()
                return Program(request, streams, tells, ours)
            end = os.pidfd_open(pid)
            programs[end] = pid, tells
            waiting.register(end, select.POLLIN)
            for each in streams:
                os.close(each)


def _tell(pipe: int, number: int) -> None:
    # The lab may have lost interest.
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, NUMBER.pack(number))


def main() -> None:
    """Serve; in each forked process, run its program."""
    interrupted = signal.getsignal(signal.SIGINT)
    # A key at the terminal interrupts all of the lab; the lab then ends its programs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    program = _serve(socket.socket(fileno=int(sys.argv[1])))
    if program is not None:
        signal.signal(signal.SIGINT, interrupted)
        program.run()


if __name__ == "__main__":
    main()
