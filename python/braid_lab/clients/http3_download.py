"""One long download over HTTP/3, watched for pauses.

Run as `python -m braid_lab.clients.http3_download ADDRESS BYTES`. Prints `from ADDRESS` with the address that the
server sees, `flowing` after the first tenth, and at the end one line of JSON, as in `Downloaded`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from dataclasses import asdict, dataclass

from braid_lab.clients.http3 import connected


@dataclass(frozen=True)
class Downloaded:
    """Result of a download: `pause` in seconds, `began` in CLOCK_MONOTONIC, which all namespaces share."""

    bytes: int
    pause: float
    began: float
    #: The address that the server saw at the end; None if the download failed before.
    via: str | None
    error: str | None


def longest_pause(arrivals: list[float]) -> tuple[float, float]:
    """Return the longest time between two neighbours, and the time of the earlier one."""
    pauses = ((later - earlier, earlier) for earlier, later in itertools.pairwise(arrivals))
    return max(pauses, default=(0.0, 0.0))


async def download(address: str, size: int) -> Downloaded:
    """Download and return the result."""
    arrivals: list[float] = []
    received = 0

    def count(some: int) -> None:
        nonlocal received
        arrivals.append(time.monotonic())
        if received < size / 10 <= received + some:
            print_line("flowing")
        received += some

    async with connected(address) as client:
        print_line(f"from {(await client.get('/address')).decode().split()[0]}")
        try:
            await client.get(f"/bytes/{size}", count=count)
            error, last = None, (await client.get("/address")).decode().split()[0]
        except ConnectionError as failure:
            error, last = str(failure), None
            arrivals.append(time.monotonic())
    pause, began = longest_pause(arrivals)
    return Downloaded(received, pause, began, last, error)


def print_line(line: str) -> None:
    """Print one line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Download and print the result."""
    address, size = sys.argv[1:]
    print_line(json.dumps(asdict(asyncio.run(download(address, int(size))))))


if __name__ == "__main__":
    main()
