"""Opens a new connection every so often, as light traffic does, and tells what became of each.

Run as `python -m braid_lab.clients.new_connections SPACING_MS ADDRESS…`; goes on until SIGTERM, then lets what is under way end.
Prints a line of JSON when a connection is begun and another when it is over, each an `Attempt`, for `attempts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from braid_lab.clients.http1 import Connection

#: A person has long reloaded the page by then.
CONNECTION_TIMEOUT_SECONDS = 5.0

#: One that takes longer has met a packet that nobody answered: the first repetition of a SYN comes after a second
#: (RFC 6298 §2), and what the lab's lines need by themselves is a quarter of this.
PROMPT_CONNECTION_SECONDS = 0.5


@dataclass(frozen=True)
class Attempt:
    """One connection: opened, asked one question, closed."""

    number: int
    #: When it was begun, by CLOCK_MONOTONIC, which all namespaces share.
    at: float
    #: Until the server's answer was there; None while it is under way.
    seconds: float | None = None
    #: The address by which the server saw it.
    via: str | None = None
    error: str | None = None

    @property
    def good(self) -> bool:
        """Whether its user noticed nothing."""
        return self.error is None and self.seconds is not None and self.seconds <= PROMPT_CONNECTION_SECONDS


def attempts(output: str, now: float) -> list[Attempt]:
    """Return what a run of this program has printed so far, leaving out what may yet turn out good."""
    # The last piece is a line that is being written, or nothing.
    latest = {each.number: each for each in (Attempt(**json.loads(line)) for line in output.split("\n")[:-1])}
    return [each for each in latest.values() if each.seconds is not None or now - each.at > PROMPT_CONNECTION_SECONDS]


def outage(attempts: Sequence[Attempt], since: float) -> float:
    """Return what an event at `since` cost people who began to connect after it, in seconds.

    That is the longest that one of them waited beyond what is usual: what nine of ten earlier connections by the
    uplink that answered in the end stayed within. Who begins right after a line has died waits until somebody has
    noticed and something is done about it, so this is how long new connections were stuck, also where they succeed
    at last.

    Where connections were not good at all (an error, or longer than any that lost no packet), it is at least the time
    from `since` until the first good one begins after the last bad one; with none after it, until the last one.
    """
    later = sorted((each for each in attempts if each.at >= since), key=lambda each: each.at)
    usual = _usual_seconds([each for each in attempts if each.at < since])
    waits = [each.seconds - usual.get(each.via, 0.0) for each in later if each.seconds is not None]
    bad = [place for place, each in enumerate(later) if not each.good]
    stuck = later[min(bad[-1] + 1, len(later) - 1)].at - since if bad else 0.0
    return max(stuck, *waits, 0.0)


def _usual_seconds(before: Sequence[Attempt]) -> dict[str | None, float]:
    """Return how long good connections take by each address at which servers see us."""
    taken: dict[str | None, list[float]] = {}
    for each in before:
        if each.good and each.seconds is not None:
            taken.setdefault(each.via, []).append(each.seconds)
    return {via: sorted(seconds)[9 * (len(seconds) - 1) // 10] for via, seconds in taken.items()}


async def attempt(begun: Attempt, address: str) -> Attempt:
    """Open one connection and ask who we are."""
    try:
        async with asyncio.timeout(CONNECTION_TIMEOUT_SECONDS):
            channel = await Connection.open(address)
            try:
                via = (await channel.get("/address")).decode().split()[0]
            finally:
                channel.close()
    except (OSError, EOFError) as error:
        return replace(begun, seconds=time.monotonic() - begun.at, error=type(error).__name__)
    return replace(begun, seconds=time.monotonic() - begun.at, via=via)


def print_json(what: Attempt) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(asdict(what)) + "\n")
    sys.stdout.flush()


async def main(spacing: float, addresses: list[str]) -> None:
    """Open connections at a steady pace until told to stop."""
    done = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)

    async def one(number: int, address: str) -> None:
        begun = Attempt(number, time.monotonic())
        print_json(begun)
        print_json(await attempt(begun, address))

    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for number, address in enumerate(itertools.cycle(addresses), start=1):
            tasks.create_task(one(number, address))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(begun + number * spacing):
                    await done.wait()
            if done.is_set():
                return


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) / 1000, sys.argv[2:]))
