"""A typist: `python -m braid_lab.clients.typist COMMAND…` types a line five times a second into a program.

Prints the time (CLOCK_MONOTONIC) of every output of the program, and ends with the program's exit status.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

from braid_lab.process import WITH_US

LINE_SECONDS = 0.2
LINE = b"The quick brown fox jumps over the lazy dog.\n"


def _type_lines(program: subprocess.Popen[bytes]) -> None:
    assert program.stdin is not None  # noqa: S101
    try:
        while True:
            program.stdin.write(LINE)
            program.stdin.flush()
            time.sleep(LINE_SECONDS)
    except OSError:
        # The program has ended; the other thread reports how.
        return


def main() -> int:
    """Type, and print when output arrives."""
    program = subprocess.Popen([*WITH_US, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout is not None  # noqa: S101
    threading.Thread(target=_type_lines, args=[program], daemon=True).start()
    while os.read(program.stdout.fileno(), 65536):
        sys.stdout.write(f"{time.monotonic():.4f}\n")
        sys.stdout.flush()
    return program.wait()


if __name__ == "__main__":
    raise SystemExit(main())
