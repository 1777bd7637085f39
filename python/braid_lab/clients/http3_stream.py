"""A download over HTTP/3 of any length, and the bytes that arrive in each bin of time.

Run as `python -m braid_lab.clients.http3_stream ADDRESS SECONDS [--from ADDRESS]`; prints the bytes of every bin
since it began to connect, and the reason if the connection broke early.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

from braid_lab.clients.http3 import connected
from braid_lab.clients.tcp_stream import BIN_SECONDS

#: More than arrives in any such time.
MAX_BYTES = 200_000_000


async def receive(address: str, seconds: float, source: str | None) -> dict[str, object]:
    """Download for `seconds`; return the bytes per bin since the start."""
    began = time.monotonic()
    bins = [0] * round(seconds / BIN_SECONDS)

    def count(some: int) -> None:
        at = int((time.monotonic() - began) / BIN_SECONDS)
        if at < len(bins):
            bins[at] += some

    broken = None
    async with connected(address, source=source) as client:
        try:
            async with asyncio.timeout(began + seconds - time.monotonic()):
                await client.get(f"/bytes/{MAX_BYTES}", count=count)
                broken = "ended by the server"
        except TimeoutError:
            pass
        except ConnectionError as error:
            broken = str(error)
    return {"bin_s": BIN_SECONDS, "bytes": bins, "broken": broken}


def main() -> None:
    """Download and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--from", dest="source")
    options = parser.parse_args()
    json.dump(asyncio.run(receive(options.address, options.seconds, options.source)), sys.stdout)


if __name__ == "__main__":
    main()
