"""The loads: the generator's roles and iperf3, each as one call that returns its measurement."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braid_lab.experiments.balance.ab_testbed import AbTestbed, Side
from braid_lab.net.namespace import Namespace
from braid_lab.process import LabError, Output, Process
from braid_lab.product import binary

#: Server ports shared by all loads, and ports whose sources are counted separately.
PORTS = "7000-7015"
COUNTED_PORTS = "7100-7103"
CROWD_PORTS = "7200-7215"

#: Most connections of one process: where even root may not raise the limit, it is 20,000 files.
CONNECTIONS_PER_PROCESS = 12_500

#: Parallel connections of a bulk transfer: two per uplink.
STREAMS = 6

_serial = itertools.count(1)


def _last_line(output: Output, what: str) -> dict[str, Any]:
    if output.status != 0:
        raise LabError(f"{what}: {output.text.strip()}")
    answer: dict[str, Any] = json.loads(output.stdout.splitlines()[-1])
    return answer


def _log(net: AbTestbed, role: str) -> Path:
    return net.scratch / f"load-{next(_serial)}-{role}.log"


def _generator(role: str, *words: str) -> list[str]:
    return [str(binary("braid-load")), role, *words]


def _targets(side: Side, ports: str = PORTS) -> list[str]:
    return [*(word for server in side.servers for word in ("--to", server)), "--ports", ports]


def _generate(net: AbTestbed, role: str, *words: str, timeout: float = 60.0) -> dict[str, Any]:
    """Run one role of the generator in the client to its end."""
    with Process(_generator(role, *words), log=_log(net, role), namespace=net.client.name) as load:
        return _last_line(load.wait(timeout=timeout), f"braid-load {role}")


@contextlib.contextmanager
def servers(net: AbTestbed) -> Iterator[Process]:
    """Run the generator's server and iperf3's in the internet; yields the former."""
    with bulk_server(net.internet, _log(net, "iperf3-server")), server(net, PORTS) as process:
        yield process


@contextlib.contextmanager
def server(net: AbTestbed, ports: str) -> Iterator[Process]:
    """Run a server of the generator on these ports; `finished` stops it and returns the sources it counted."""
    datagrams = [word for side in net.sides() for word in ("--datagrams-on", side.servers[0])]
    words = _generator("serve", "--ports", ports, *datagrams)
    with Process(words, log=_log(net, "serve"), namespace=net.internet.name) as process:
        process.wait_output('"ready":true')
        yield process


def finished(process: Process, *, timeout: float = 30.0) -> dict[str, Any]:
    """Tell a waiting role (serve, hold) to go on, and return its last line."""
    process.signal(signal.SIGTERM)
    return _last_line(process.wait(timeout=timeout), " ".join(process.argv[:2]))


@contextlib.contextmanager
def bulk_server(internet: Namespace, log: Path) -> Iterator[None]:
    """Run iperf3's server."""
    with Process(["iperf3", "--server", "--forceflush"], log=log, namespace=internet.name) as process:
        process.wait_output("Server listening")
        yield


def _iperf3(side: Side, seconds: float, *words: str) -> list[str]:
    # Whole seconds only: iperf3 reads "0.7" as 0, which means for ever.
    time_words = ["--time", str(max(1, round(seconds)))]
    return ["iperf3", "--client", side.servers[0], *time_words, "--json", *words]


def bulk(net: AbTestbed, side: Side, seconds: float, *, down: bool) -> float:
    """Return the goodput of parallel transfers, Mbit/s."""
    words = _iperf3(side, seconds, "--parallel", str(STREAMS), *(["--reverse"] if down else []))
    report = json.loads(net.client.run(words).stdout)
    bits: float = report["end"]["sum_received"]["bits_per_second"]
    return bits / 1e6


def connect_rate(net: AbTestbed, side: Side, seconds: float) -> float:
    """Return how many connections per second can be opened, each closed at once."""
    answer = _generate(net, "connect", *_targets(side), "--seconds", f"{seconds:g}")
    if answer["failed"]:
        raise LabError(f"{side.name}: {answer['failed']} connections failed: {answer['first_failure']}")
    return float(answer["rate"])


def connect_times(net: AbTestbed, side: Side, seconds: float, rate: float) -> dict[str, float]:
    """Return percentiles of the connection time, microseconds, at a moderate connection rate."""
    paced = ["--workers", "1", "--rate", f"{rate:g}", "--seconds", f"{seconds:g}"]
    answer = _generate(net, "connect", *_targets(side), *paced)
    if answer["failed"]:
        raise LabError(f"{side.name}: {answer['failed']} connections failed: {answer['first_failure']}")
    times: dict[str, float] = answer["connect_us"]
    return times


def connect_count(net: AbTestbed, side: Side, count: int, ports: str) -> int:
    """Open `count` connections one after the other at a moderate pace; return how many succeeded."""
    answer = _generate(
        net,
        "connect",
        *_targets(side, ports),
        "--count",
        str(count),
        "--workers",
        "1",
        "--exchange",
        "--seconds",
        "20",
    )
    opened: int = answer["opened"]
    return opened


def small_packets(net: AbTestbed, side: Side, seconds: float, *, flows: int = 64) -> float:
    """Return how many 64-byte frames per second arrive."""
    answer = _generate(net, "udp-rate", *_targets(side), "--flows", str(flows), "--seconds", f"{seconds:g}")
    return float(answer["rate"])


def syn_flood(net: AbTestbed, side: Side, count: int, seed: int) -> dict[str, Any]:
    """Send spoofed SYNs from the LAN to the address that drops them."""
    # All ports: a flood of one port ends once address translation has used all ports for that remote.
    where = ["--to", side.hole, "--ports", "1-65535", "--from", side.lan]
    return _generate(net, "syn-flood", *where, "--count", str(count), "--seed", str(seed), "--seconds", "45")


@dataclass(frozen=True)
class Held:
    """Connections that are kept open."""

    processes: list[Process]
    held: int
    #: Time it took to open them.
    seconds: float

    def alive(self) -> int:
        """Probe every connection and return how many answered."""
        for process in self.processes:
            process.signal(signal.SIGTERM)
        return sum(result(process)["alive"] for process in self.processes)


@contextlib.contextmanager
def hold(net: AbTestbed, side: Side, count: int, *, proof_seconds: float = 15.0) -> Iterator[Held]:
    """Open `count` connections and keep them, with as many processes at either end as needed.

    `proof_seconds` limits how long `Held.alive` waits for replies.
    """
    crowd = -(-count // CONNECTIONS_PER_PROCESS)
    serve = _generator("serve", "--ports", CROWD_PORTS, "--threads", "1")
    with contextlib.ExitStack() as stack:
        for _ in range(crowd):
            process = stack.enter_context(Process(serve, log=_log(net, "crowd"), namespace=net.internet.name))
            process.wait_output('"ready":true')
        holders, begin = [], time.monotonic()
        for number in range(crowd):
            share = (number + 1) * count // crowd - number * count // crowd
            bounds = ["--count", str(share), "--workers", "1", "--proof-seconds", f"{proof_seconds:g}"]
            words = [*_targets(side, CROWD_PORTS), *bounds]
            argv = _generator("hold", *words)
            holders.append(stack.enter_context(Process(argv, log=_log(net, "hold"), namespace=net.client.name)))
        for process in holders:
            process.wait_output(r'"held":.*', timeout=60)
        seconds = time.monotonic() - begin
        held = sum(json.loads(process.stdout().splitlines()[0])["held"] for process in holders)
        yield Held(holders, held, seconds)


@contextlib.contextmanager
def ping_train(net: AbTestbed, side: Side, *, rate: float, seconds: float, flows: int) -> Iterator[Process]:
    """Start a train of numbered datagrams; `result` of the process reports losses."""
    words = ["--rate", f"{rate:g}", "--seconds", f"{seconds:g}", "--flows", str(flows)]
    argv = _generator("ping-train", *_targets(side), *words)
    with Process(argv, log=_log(net, "ping-train"), namespace=net.client.name) as process:
        yield process


@contextlib.contextmanager
def download(net: AbTestbed, side: Side, *, mbit: int, seconds: float) -> Iterator[Process]:
    """Start a paced download over all uplinks, reported every tenth of a second."""
    paced = f"{mbit // STREAMS}M"
    words = ["--reverse", "--parallel", str(STREAMS), "--bitrate", paced, "--interval", "0.1"]
    argv = _iperf3(side, seconds, *words)
    with Process(argv, log=_log(net, "download"), namespace=net.client.name) as process:
        yield process


def result(process: Process, *, timeout: float = 30.0) -> dict[str, Any]:
    """Wait for the end of a ping train and return what it counted."""
    return _last_line(process.wait(timeout=timeout), process.argv[0])


@dataclass(frozen=True)
class Downloaded:
    """Result of a paced download."""

    retransmits: int
    #: Goodput of every tenth of a second, Mbit/s.
    mbit: list[float]


def downloaded(process: Process, *, timeout: float = 30.0) -> Downloaded:
    """Wait for the end of a download; LabError if one of its connections broke."""
    output = process.wait(timeout=timeout)
    report = json.loads(output.stdout)
    if output.status != 0 or "error" in report:
        raise LabError(f"iperf3: {report.get('error', output.stderr)}")
    mbit = [interval["sum"]["bits_per_second"] / 1e6 for interval in report["intervals"]]
    return Downloaded(report["end"]["sum_sent"]["retransmits"], mbit)
