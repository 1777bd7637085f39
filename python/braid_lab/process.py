"""Child programs, none of which outlives the lab.

Every child is started through `setpriv --pdeathsig KILL` or by the fork server, so it dies with us even when we are
killed; normally its context manager ends it. Output goes to files, which stay for the post-mortem.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from braid_lab import fork_server
from braid_lab.setns import inside

T = TypeVar("T")

#: Interval of polling a condition; short compared with everything waited for.
POLL_SECONDS = 0.01


class LabError(Exception):
    """The lab cannot go on; the text is meant for the person at the terminal."""


class CommandError(LabError):
    """A command ended with an unexpected status."""

    def __init__(self, argv: Sequence[str], status: int, output: str) -> None:
        """Keep the parts, so that tests can inspect them."""
        self.argv = list(argv)
        self.status = status
        self.output = output
        super().__init__(f"{' '.join(argv)}: exit status {status}\n{output.strip()}")


@dataclass(frozen=True)
class Output:
    """Output and status of a finished command."""

    status: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        """Both streams, for messages."""
        return self.stdout + self.stderr


#: Prefix that ends a command with the thread that starts it.
WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


def run(
    argv: Sequence[str | Path],
    *,
    namespace: str | None = None,
    text: str | None = None,
    timeout: float = 60.0,
    check: bool = True,
    env: Mapping[str, str] | None = None,
) -> Output:
    """Run a command to its end and return its output; `text` is its standard input.

    Raises CommandError if it fails and `check` is set, LabError if it is missing or takes over `timeout` seconds.
    """
    words = [str(word) for word in argv]
    try:
        if fork_server.takes(words):
            done = fork_server.run(words, namespace=namespace, text=text, timeout=timeout, env=env)
        else:
            with inside(namespace):
                done = subprocess.run(
                    [*WITH_US, *words],
                    input=text,
                    stdin=subprocess.DEVNULL if text is None else None,
                    capture_output=True,
                    text=True,
                    timeout=timeout,
                    env={**os.environ, **env} if env else None,
                    check=False,
                )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(words)}: still running after {timeout:g} s") from error
    except OSError as error:
        # The namespace is gone.
        done = subprocess.CompletedProcess(words, 1, "", str(error))
    if check and done.returncode != 0:
        raise CommandError(words, done.returncode, done.stdout + done.stderr)
    return Output(done.returncode, done.stdout, done.stderr)


def wait_until(
    condition: Callable[[], T | None], *, what: str, timeout: float = 10.0, poll: float = POLL_SECONDS
) -> T:
    """Wait until `condition` returns a true value and return it; LabError names `what` otherwise."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise LabError(f"timed out after {timeout:g} s waiting for {what}")
        time.sleep(poll)


def state_of(pid: int) -> list[str] | None:
    """Return the fields of a process's proc(5) stat from the third on; None if there is no such process."""
    # The process may end between opening and reading.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # The second field, the program's name, may contain anything; the text after its last ')' may not.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return None


def processor_seconds(pid: int) -> float:
    """Return a process's processor time, in user mode and in the kernel on its behalf."""
    fields = state_of(pid)
    if fields is None:
        raise LabError(f"process {pid} is gone, and its processor time with it")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Process:
    """A running program, with its output in `<log>.out` and `<log>.err`."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        log: Path,
        namespace: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start it at once; use `with`, or call `stop`."""
        self.argv = [str(word) for word in argv]
        self.out = log.with_suffix(".out")
        self.err = log.with_suffix(".err")
        self._child: subprocess.Popen[bytes] | fork_server.Forked
        with Path(os.devnull).open("rb") as empty, self.out.open("wb") as out, self.err.open("wb") as err:
            if fork_server.takes(self.argv):
                streams = [each.fileno() for each in (empty, out, err)]
                self._child = fork_server.server().start(self.argv, streams, namespace=namespace, env=env)
                return
            with inside(namespace):
                self._child = subprocess.Popen(
                    [*WITH_US, *self.argv],
                    stdin=empty,
                    stdout=out,
                    stderr=err,
                    env={**os.environ, **env} if env else None,
                )

    @property
    def pid(self) -> int:
        """The program's own process id, which `setpriv` preserves."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self._child.poll() is None

    def stdout(self) -> str:
        """Its standard output so far."""
        return self.out.read_text(errors="replace")

    def stderr(self) -> str:
        """Its standard error so far."""
        return self.err.read_text(errors="replace")

    def wait_output(self, pattern: str, *, timeout: float = 10.0) -> re.Match[str]:
        """Wait for output that matches `pattern`; LabError with its output if it ends or stays silent."""
        return self._wait_for(pattern, self.stdout, timeout)

    def wait_stderr(self, pattern: str, *, timeout: float = 10.0) -> re.Match[str]:
        """Wait for such a line on its standard error."""
        return self._wait_for(pattern, self.stderr, timeout)

    def _wait_for(self, pattern: str, told: Callable[[], str], timeout: float) -> re.Match[str]:
        def seen() -> re.Match[str] | None:
            match = re.search(pattern, told(), re.MULTILINE)
            if match is None and not self.running:
                raise LabError(f"{' '.join(self.argv)}: ended early\n{self.stdout()}{self.stderr()}".rstrip())
            return match

        return wait_until(seen, what=f"/{pattern}/ from {self.argv[0]}", timeout=timeout)

    def wait(self, *, timeout: float = 60.0) -> Output:
        """Wait until it ends by itself."""
        try:
            status = self._child.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{' '.join(self.argv)}: still running after {timeout:g} s") from error
        return Output(status, self.stdout(), self.stderr())

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._child.send_signal(number)

    def stop(self, *, grace: float = 5.0) -> Output:
        """Send SIGTERM, kill after `grace` seconds, and return the output."""
        if self.running:
            self._child.terminate()
        try:
            self._child.wait(grace)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        return Output(self._child.wait(), self.stdout(), self.stderr())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _stop(number: int, _frame: object) -> None:
    """Unwind all context managers once; further signals must not interrupt the clean-up."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


@contextlib.contextmanager
def unwind_on_signals() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into an exception, so that every exit takes the same path."""
    before = {each: signal.signal(each, _stop) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
