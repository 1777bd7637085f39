"""Two hosts joined only by several lines: the testbed for MPTCP and for a single path."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from braid_lab.fabric.shapes import Wire
from braid_lab.net.links import Emulated, End, LinkSpec, emulated
from braid_lab.net.namespace import Namespace, namespace
from braid_lab.process import LabError, Process
from braid_lab.servers.catalog import READY

STREAM = [sys.executable, "-m", "braid_lab.clients.tcp_stream"]


@dataclass(frozen=True)
class MultihomedPair:
    """Two hosts with an address on each line."""

    source: Namespace
    target: Namespace
    lines: tuple[Emulated, ...]

    def address(self, line: int, *, target: bool) -> str:
        """Return an end's address on a line, counted from 0."""
        return f"10.78.{line}.{2 if target else 1}"


@contextlib.contextmanager
def multihomed_pair(wires: Sequence[Wire], folder: Path, *, mptcp: bool) -> Iterator[MultihomedPair]:
    """Join two hosts by these lines; with `mptcp` the target announces its other addresses (ADD_ADDR)."""
    with contextlib.ExitStack() as stack:
        source, target = (stack.enter_context(namespace(f"home-{word}")) for word in ("source", "target"))
        lines = []
        for number, wire in enumerate(wires):
            ends = End(source, f"line{number}"), End(target, f"line{number}")
            line = LinkSpec(rate=f"{wire.mbit:g}Mbit/s", delay=f"{wire.delay_ms:g}ms", queue=wire.queue)
            lines.append(stack.enter_context(emulated(*ends, line, scratch=folder)))
            for last, end in enumerate(ends, 1):
                end.namespace.ip(f"address add 10.78.{number}.{last}/24 dev {end.device}")
            if mptcp and number:
                words = ["add", f"10.78.{number}.2", "dev", ends[1].device, "signal"]
                target.run(["ip", "mptcp", "endpoint", *words])
        for place in (source, target):
            most = str(len(wires))
            place.run(["ip", "mptcp", "limits", "set", "subflows", most, "add_addr_accepted", most])
        yield MultihomedPair(source, target, tuple(lines))


@contextlib.contextmanager
def stream_server(place: Namespace, address: str, log: Path) -> Iterator[None]:
    """Run a server at `address` that sends streams to its clients."""
    with Process([*STREAM, "serve", address], log=log, namespace=place.name) as server:
        server.wait_output(READY, timeout=20)
        yield


def received_mbit(place: Namespace, address: str, seconds: float, *options: str) -> float:
    """Receive one stream from a server for `seconds`; return its mean goodput, Mbit/s."""
    told = json.loads(place.run([*STREAM, "take", address, f"{seconds:g}", *options], timeout=seconds + 30).stdout)
    if told["broken"]:
        raise LabError(f"the stream from {address} broke: {told['broken']}")
    mbit: float = 8e-6 * sum(told["bytes"]) / seconds
    return mbit
