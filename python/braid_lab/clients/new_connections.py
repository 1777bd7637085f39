"""Opens new connections at a fixed interval, as light traffic does, and reports the outcome of each.

Run as `python -m braid_lab.clients.new_connections SPACING_MS ADDRESS…`; runs until SIGTERM, then lets open
connections finish. Prints a line of JSON when a connection starts and another when it ends, each an `Attempt`, for
`attempts`.
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

#: By then a person has long reloaded the page.
CONNECTION_TIMEOUT_SECONDS = 5.0

#: A slower connection has lost a packet: the first repetition of a SYN comes after a second (RFC 6298 §2), and the
#: lab's lines themselves need a quarter of this.
PROMPT_CONNECTION_SECONDS = 0.5


@dataclass(frozen=True)
class Attempt:
    """One connection: opened, one request, closed."""

    number: int
    #: Time of the start, CLOCK_MONOTONIC, which all namespaces share.
    at: float
    #: Time until the server's reply; None while the connection is in progress.
    seconds: float | None = None
    #: The address that the server saw.
    via: str | None = None
    error: str | None = None

    @property
    def good(self) -> bool:
        """True if its user noticed no delay."""
        return self.error is None and self.seconds is not None and self.seconds <= PROMPT_CONNECTION_SECONDS


def attempts(output: str, now: float) -> list[Attempt]:
    """Return the results that a run of this program has printed, without attempts that may still turn out good."""
    # The last piece is an incomplete line, or empty.
    latest = {each.number: each for each in (Attempt(**json.loads(line)) for line in output.split("\n")[:-1])}
    return [each for each in latest.values() if each.seconds is not None or now - each.at > PROMPT_CONNECTION_SECONDS]


def outage(attempts: Sequence[Attempt], since: float) -> float:
    """Return the delay that an event at `since` caused for connections that began after it, in seconds.

    It is the longest extra wait of any of them, beyond the time that nine of ten earlier connections over the same
    uplink (the one that answered in the end) took. A connection that begins right after a line has died waits until
    the failure is detected and handled, so this is how long new connections were stuck, even if they succeed at last.

    If connections were not good at all (an error, or longer than any without packet loss), the delay is at least the
    time from `since` until the first good one begins after the last bad one; with none after it, until the last one.
    """
    later = sorted((each for each in attempts if each.at >= since), key=lambda each: each.at)
    usual = _usual_seconds([each for each in attempts if each.at < since])
    waits = [each.seconds - usual.get(each.via, 0.0) for each in later if each.seconds is not None]
    bad = [place for place, each in enumerate(later) if not each.good]
    stuck = later[min(bad[-1] + 1, len(later) - 1)].at - since if bad else 0.0
    return max(stuck, *waits, 0.0)


def _usual_seconds(before: Sequence[Attempt]) -> dict[str | None, float]:
    """Return the usual duration of good connections, by the address that the server sees."""
    taken: dict[str | None, list[float]] = {}
    for each in before:
        if each.good and each.seconds is not None:
            taken.setdefault(each.via, []).append(each.seconds)
    return {via: sorted(seconds)[9 * (len(seconds) - 1) // 10] for via, seconds in taken.items()}


async def attempt(begun: Attempt, address: str) -> Attempt:
    """Open one connection and ask for the address that the server sees."""
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
