"""The product under test: the repository, the binary, and a daemon under the lab's control."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braid_lab import api, datapath
from braid_lab.process import CommandError, LabError, Output, run, state_of, wait_until

if TYPE_CHECKING:
    from braid_lab.datapath import Choice
    from braid_lab.net.namespace import Namespace


@functools.cache
def repository() -> Path:
    """Return the root of this package's repository."""
    for folder in Path(__file__).resolve().parents:
        if (folder / "Cargo.toml").exists():
            return folder
    raise LabError("the lab is not inside Braid's repository: install it from there (make setup)")


@functools.cache
def binary(name: str = "braid") -> Path:
    """Return a built program, from the folder BRAID_BIN if set, else from target/release."""
    chosen = os.environ.get("BRAID_BIN")
    path = (Path(chosen).resolve() if chosen else repository() / "target" / "release") / name
    if not path.exists():
        raise LabError(f"{path} does not exist: run `make build`, or set BRAID_BIN to its folder")
    return path


def unpacked(package: str, program: str) -> Path:
    """Return where tools/setup unpacks a program of a Debian package.

    These packages are not installed: that would start their servers, which listen at every address.
    """
    return repository() / ".tools" / package / program


#: The default configuration file of `braid up` and `braid doctor`.
MACHINES_CONFIGURATION = Path("/etc/braid/braid.toml")


def unconfigured() -> list[str]:
    """Return options that select an empty configuration, even on a machine that has one of its own."""
    return ["--config", "/dev/null"] if MACHINES_CONFIGURATION.exists() else []


#: Commands whose `--json` is an answer of the daemon's API.
PASSED_ON = {
    "status": "/v1/status",
    "uplinks": "/v1/uplinks",
    "flows": "/v1/flows",
    "events": "/v1/events?after=0&wait=0",
    "paths": "/v1/paths",
    "bond": "/v1/bond",
}

#: Exit status of commands that show a degraded state.
DEGRADED = 4


class Braid:
    """The real `braid` in a namespace, with its own run directory."""

    def __init__(self, namespace: Namespace, run_dir: Path, program: Path | None = None) -> None:
        """Start nothing yet; see `up`. `program` replaces the default `binary`."""
        self.namespace = namespace
        self.run_dir = run_dir
        self.program = program or binary()
        self._datapath = datapath.chosen()
        #: The switch of a daemon that needs one.
        self._stack = contextlib.ExitStack()
        self._is_switched = False
        #: The configuration as it was given.
        self._given: Path | None = None
        #: State that survives `braid down`: the hub that was joined, used quotas.
        self.state_dir = run_dir.with_name(f"{run_dir.name}-state")

    def call(self, *words: str | Path, check: bool = True, timeout: float = 30.0) -> Output:
        """Run `braid WORDS…` inside the namespace, without the machine's own configuration."""
        if self._datapath is not None:
            words = self._switched(self._datapath, words)
        own = unconfigured() if words[0] in ("up", "doctor") and "--config" not in words else []
        argv = [self.program, "--run-dir", self.run_dir, "--state-dir", self.state_dir, *words, *own]
        return run(argv, namespace=self.namespace.name, check=check, timeout=timeout)

    def _switched(self, datapath: Choice, words: tuple[str | Path, ...]) -> tuple[str | Path, ...]:
        """Start the switch, write the configuration for it, and return the words with that."""
        if words[0] not in ("up", "reload"):
            return words
        folder = self.run_dir.with_name(f"{self.run_dir.name}-ovs")
        if not self._is_switched:
            self._stack.enter_context(datapath.start(self.namespace, folder))
            self._is_switched = True
        if "--config" in words:
            at = words.index("--config")
            self._given, words = Path(words[at + 1]), (*words[:at], *words[at + 2 :])
        text = self._given.read_text() if self._given is not None else ""
        file = self.run_dir.with_name(f"{self.run_dir.name}-switched.toml")
        file.write_text(datapath.configuration(text, folder))
        return words if words[0] == "reload" else (*words, "--config", file)

    def end(self) -> None:
        """Stop it and restore the machine, also after an error, and end what was started beside it."""
        try:
            self.call("down", check=False)
        finally:
            self._stack.close()
            self._is_switched = False

    def json(self, *words: str) -> dict[str, Any]:
        """Return the output of `braid WORDS… --json`; a degraded state is no error.

        What the command would only pass on is asked of the daemon itself: conditions are polled a hundred times a
        second, and the command takes 10 ms of processor time.
        """
        if len(words) == 1 and words[0] in PASSED_ON:
            # The command itself knows best how to tell that there is no daemon.
            with contextlib.suppress(OSError):
                answer = api.get(self.run_dir / "braid.sock", PASSED_ON[words[0]])
                if answer is not None:
                    return answer
        return self.command_json(*words)

    def command_json(self, *words: str) -> dict[str, Any]:
        """Return that output of the command itself."""
        said = self.call(*words, "--json", check=False)
        if said.status not in (0, DEGRADED):
            raise CommandError(["braid", *words], said.status, said.text)
        answer: dict[str, Any] = json.loads(said.stdout)
        return answer

    def up(self, *options: str | Path) -> Output:
        """Start the daemon; returns when it is ready."""
        return self.call("up", *options)

    def down(self) -> Output:
        """Stop it and restore the machine."""
        return self.call("down")

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        pid: int = self.json("status")["pid"]
        return pid

    def stop(self) -> None:
        """Stop the daemon as `systemctl stop` does, and wait until it has ended; traffic goes on."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """Kill the daemon as a crash would, and wait until it has ended."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        pid = self.pid
        os.kill(pid, number)
        wait_until(lambda: not running(pid), what=f"daemon {pid} to end")


def running(pid: int) -> bool:
    """Return whether a process runs; an ended one that was not yet reaped does not."""
    fields = state_of(pid)
    return fields is not None and fields[0] != "Z"


@contextlib.contextmanager
def braid(namespace: Namespace, run_dir: Path, *options: str | Path, program: Path | None = None) -> Iterator[Braid]:
    """Run `braid up OPTIONS…` for the length of a block and `braid down` after it, also after an error."""
    daemon = Braid(namespace, run_dir, program)
    try:
        daemon.up(*options)
        yield daemon
    finally:
        daemon.end()


def commit() -> tuple[str, bool]:
    """Return the full id of the checked-out commit and whether tracked files differ from it."""

    def git(*words: str) -> str:
        argv = ["git", "-C", str(repository()), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        # A copy without history can still be measured, only without a commit id.
        return "unknown", True
