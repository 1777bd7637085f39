"""Endless parallel downloads, counted over a fixed time.

Run as `python -m braid_lab.clients.bulk CONNECTIONS WARMUP_S SECONDS ADDRESS…`. The warm-up, in which windows open
and queues fill, is not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time

from braid_lab.clients.http1 import Connection

#: Interval of the goodput samples.
SAMPLE_SECONDS = 0.25


class Meter:
    """Counts the bytes of all connections."""

    def __init__(self) -> None:
        """Start at zero."""
        self.bytes = 0

    def add(self, count: int) -> None:
        """Count."""
        self.bytes += count


async def load(connections: int, warmup: float, seconds: float, addresses: list[str]) -> dict[str, object]:
    """Download and return the goodput in Mbit/s, in total and over time."""
    meter = Meter()

    async def one(address: str) -> None:
        channel = await Connection.open(address)
        await channel.get("/stream", count=meter.add)

    tasks = [asyncio.create_task(one(addresses[number % len(addresses)])) for number in range(connections)]
    samples = [(time.monotonic(), 0)]
    for _ in range(round((warmup + seconds) / SAMPLE_SECONDS)):
        await asyncio.sleep(SAMPLE_SECONDS)
        samples.append((time.monotonic(), meter.bytes))
        for task in tasks:
            if task.done():
                task.result()
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    start = samples[0][0]
    counted = [(at, total) for at, total in samples if at - start >= warmup - SAMPLE_SECONDS / 2]
    (first, before), (last, after) = counted[0], counted[-1]
    course = [
        {"s": round(at - start, 3), "mbit": 8e-6 * (total - earlier) / (at - then)}
        for (then, earlier), (at, total) in itertools.pairwise(samples)
    ]
    return {"mbit": 8e-6 * (after - before) / (last - first), "course": course}


def main() -> None:
    """Download and print the result."""
    connections, warmup, seconds, *addresses = sys.argv[1:]
    json.dump(asyncio.run(load(int(connections), float(warmup), float(seconds), addresses)), sys.stdout)


if __name__ == "__main__":
    main()
