"""Fetches at planned moments, each over a new connection, and reports how long each fetch took.

Run as `python -m braid_lab.clients.flow_mix FILE` with a JSON list of `PlannedFetch`; prints a line of JSON, the
seconds from the planned moment of each to its last byte, in their order, and null for one that failed or was not over
`LINGER_S` after the last one's moment.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from braid_lab.clients.http1 import Connection

#: Seconds for which fetches may go on after the last one's moment.
LINGER_S = 20.0


@dataclass(frozen=True)
class PlannedFetch:
    """A fetch of `bytes` from a server, `at` CLOCK_MONOTONIC, which all namespaces share."""

    at: float
    address: str
    bytes: int


async def fetch(planned: PlannedFetch, until: float) -> float | None:
    """Fetch at the planned moment; return the seconds that it took."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(planned.at - loop.time())
    try:
        async with asyncio.timeout_at(until):
            channel = await Connection.open(planned.address)
            try:
                await channel.get(f"/bytes/{planned.bytes}", count=lambda _: None)
            finally:
                channel.close()
    except (OSError, EOFError):
        return None
    return loop.time() - planned.at


async def fetch_all(plan: list[PlannedFetch]) -> list[float | None]:
    """Fetch all."""
    until = max(each.at for each in plan) + LINGER_S
    return list(await asyncio.gather(*(fetch(each, until) for each in plan)))


def main() -> None:
    """Read the plan, fetch and print."""
    plan = [PlannedFetch(**each) for each in json.loads(Path(sys.argv[1]).read_text())]
    json.dump(asyncio.run(fetch_all(plan)), sys.stdout)


if __name__ == "__main__":
    main()
