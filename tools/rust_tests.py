#!/usr/bin/env python3
"""Runs all tests of the workspace's crates with these arguments (of the test programs), two programs at a time.

`cargo test` runs one program after the other, and many of them wait for packets half of the time. Those that only
compute, in virtual time, fill what is left: they run beside the others, with less right to the processor. The output
of each program comes in one piece once it has ended. A failure ends nothing, so that one run shows all of them.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

CARGO = ["cargo", "test", "--workspace", "--locked"]

#: Programs whose tests know no other time than that of their simulation.
VIRTUAL_TIME = {
    ("braid-core", "suite"),
    ("braid-emulate", "suite"),
    ("braid-multipath", "simulation"),
    ("braid-multipath", "suite"),
    ("braid-uplink", "liveness"),
}


class Program(NamedTuple):
    """A test program that cargo built, and the crate that it is of."""

    target: str
    executable: Path
    folder: Path

    @property
    def package(self) -> str:
        """Its crate."""
        return self.folder.name

    @property
    def in_virtual_time(self) -> bool:
        """True if its tests wait for nothing real."""
        return (self.package, self.target) in VIRTUAL_TIME

    def run(self, arguments: list[str]) -> bool:
        """Run it in its crate's folder, as cargo does, and return whether all went well."""
        ended = subprocess.run(
            [*(["nice"] if self.in_virtual_time else []), self.executable, *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        sys.stdout.buffer.write(f"\n     Running {self.package} {self.target}\n".encode() + ended.stdout)
        sys.stdout.buffer.flush()
        return ended.returncode == 0


def programs() -> list[Program]:
    """Build all test programs, and return them in cargo's order."""
    command = [*CARGO, "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    messages = (json.loads(line) for line in built.stdout.splitlines() if line.startswith(b"{"))
    return [
        Program(message["target"]["name"], Path(message["executable"]), Path(message["manifest_path"]).parent)
        for message in messages
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]
    ]


def failures(of: list[Program], arguments: list[str]) -> list[Program]:
    """Run them one after the other, and return those that failed."""
    return [program for program in of if not program.run(arguments)]


def main() -> None:
    """Build, run and say what failed."""
    arguments = sys.argv[1:]
    found = programs()
    named = {(program.package, program.target) for program in found}
    if missing := VIRTUAL_TIME - named:
        sys.exit(f"rust_tests: there is no such test program: {missing}; mend VIRTUAL_TIME in {__file__}")
    with ThreadPoolExecutor(2) as lanes:
        lists = [[p for p in found if p.in_virtual_time], [p for p in found if not p.in_virtual_time]]
        failed = [program for of in lanes.map(failures, lists, [arguments] * 2) for program in of]
    documentation = subprocess.run([*CARGO, "--doc", "--", *arguments], check=False).returncode
    for program in failed:
        sys.stdout.write(f"rust_tests: failed: {program.package} {program.target} ({program.executable})\n")
    sys.exit(bool(failed) or documentation)


if __name__ == "__main__":
    main()
