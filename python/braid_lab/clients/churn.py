"""Flows of all kinds for any length of time: long ones, and an endless series of short ones.

Run as `python -m braid_lab.clients.churn TCP UDP QUIC PER_SECOND ADDRESS…`. It keeps TCP connections, UDP sockets and
UDP sockets to QUIC's port in use, each with two requests per second, and opens PER_SECOND short connections. Prints
one line of JSON per event, with `Event`'s fields, and totals on SIGTERM. Lost flows are opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from braid_lab.servers.catalog import ECHO_PORT, QUIC_PORT

REQUEST_INTERVAL_SECONDS = 0.5
#: A flow is lost when nothing has arrived for this long: longer than Braid takes to leave a dying uplink, with time
#: to spare for TCP's retransmissions.
FLOW_TIMEOUT_SECONDS = 6.0
SHORT_FLOW_TIMEOUT_SECONDS = 5.0
#: Pause before a lost flow is opened again.
RECONNECT_SECONDS = 0.2

Kind = Literal["tcp", "udp", "quic", "short"]


@dataclass(frozen=True)
class Event:
    """Loss of a flow; times are seconds of the monotonic clock."""

    kind: Kind
    opened: float
    at: float
    #: The flow's address at the server when it opened; empty if it never did.
    outer: str
    why: str


totals: Counter[str] = Counter()


def _lost(kind: Kind, opened: float, outer: str, why: object) -> None:
    totals[f"{kind}_lost"] += 1
    event = Event(kind, opened, time.monotonic(), outer, str(why) or type(why).__name__)
    sys.stdout.write(json.dumps(dataclasses.asdict(event)) + "\n")
    sys.stdout.flush()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
    """Connect; return the connection and our address at the server."""
    reader, writer = await asyncio.open_connection(address, ECHO_PORT)
    try:
        line = await reader.readline()
        if not line:
            raise ConnectionError("closed at once")
        return reader, writer, line.decode().split()[0]
    except BaseException:
        writer.close()
        raise


async def keep_tcp(address: str) -> None:
    """Keep one connection in use."""
    while True:
        opened, outer = time.monotonic(), ""
        try:
            async with asyncio.timeout(FLOW_TIMEOUT_SECONDS):
                reader, writer, outer = await connect(address)
        except (OSError, TimeoutError):
            # Failures to open are measured by the short connections.
            totals["tcp_refused"] += 1
            await asyncio.sleep(RECONNECT_SECONDS)
            continue
        totals["tcp_opened"] += 1
        try:
            while True:
                writer.write(b"still there?\n")
                async with asyncio.timeout(FLOW_TIMEOUT_SECONDS):
                    if not await reader.readline():
                        raise ConnectionError("closed by the server")
                totals["tcp_answers"] += 1
                await asyncio.sleep(REQUEST_INTERVAL_SECONDS)
        except (OSError, TimeoutError) as error:
            _lost("tcp", opened, outer, error)
        finally:
            writer.close()


async def keep_udp(kind: Literal["udp", "quic"], address: str) -> None:
    """Keep one socket in use: like games and QUIC, it sends requests whether or not replies come."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    port = QUIC_PORT if kind == "quic" else ECHO_PORT
    while True:
        opened, outer = time.monotonic(), ""
        heard = opened
        totals[f"{kind}_opened"] += 1
        with socket.socket(family, socket.SOCK_DGRAM) as asker:
            asker.setblocking(False)
            asker.connect((address, port))
            for number in itertools.count():
                if time.monotonic() - heard > FLOW_TIMEOUT_SECONDS:
                    _lost(kind, opened, outer, "silence")
                    break
                # ICMP errors about earlier datagrams end nothing.
                with contextlib.suppress(OSError):
                    await loop.sock_sendall(asker, str(number).encode())
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(REQUEST_INTERVAL_SECONDS):
                        answer = await loop.sock_recv(asker, 200)
                    outer = outer or answer.decode().split()[1]
                    heard = time.monotonic()
                    totals[f"{kind}_answers"] += 1
                await asyncio.sleep(REQUEST_INTERVAL_SECONDS)


async def open_short(address: str) -> None:
    """Open one connection, send one request, close it."""
    began = time.monotonic()
    totals["short_opened"] += 1
    try:
        async with asyncio.timeout(SHORT_FLOW_TIMEOUT_SECONDS):
            _, writer, _ = await connect(address)
            writer.close()
    except (OSError, TimeoutError) as error:
        _lost("short", began, "", error)


async def churn(tcp: int, udp: int, quic: int, per_second: float, addresses: list[str]) -> None:
    """Run until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    turn = itertools.cycle(addresses)
    tasks = {asyncio.create_task(keep_tcp(next(turn))) for _ in range(tcp)}
    tasks |= {asyncio.create_task(keep_udp("udp", next(turn))) for _ in range(udp)}
    tasks |= {asyncio.create_task(keep_udp("quic", next(turn))) for _ in range(quic)}
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not stopped.is_set():
        short = asyncio.create_task(open_short(next(turn)))
        tasks.add(short)
        short.add_done_callback(tasks.discard)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), 1 / per_second)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    sys.stdout.write(json.dumps({"totals": totals}) + "\n")


def main() -> None:
    """Parse the arguments and run."""
    tcp, udp, quic, per_second, *addresses = sys.argv[1:]
    asyncio.run(churn(int(tcp), int(udp), int(quic), float(per_second), addresses))


if __name__ == "__main__":
    main()
