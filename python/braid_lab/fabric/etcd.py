"""A real etcd of one server, for controllers that share their state."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from braid_lab.net.namespace import Namespace
from braid_lab.process import Process
from braid_lab.product import unpacked

PROGRAM = unpacked("etcd-server", "usr/bin/etcd")


@dataclass
class EtcdServer:
    """A running server. Its clients are on its own machine, or in its namespace."""

    port: int
    process: Process
    scheme: str = "http"

    def url(self, host: str = "127.0.0.1") -> str:
        """Return the address for clients; it listens at all of the loopback's."""
        return f"{self.scheme}://{host}:{self.port}"

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let it answer nothing for the length of a block."""
        self.process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.signal(signal.SIGCONT)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody listens at."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def etcd(folder: Path, place: Namespace | None = None, *options: str, scheme: str = "http") -> Iterator[EtcdServer]:
    """Run a server for the length of a block, in the current namespace if none is given; its data is in `folder`."""
    port, peers = free_ports(2) if place is None else (2379, 2380)
    listen, peer = f"{scheme}://0.0.0.0:{port}", f"http://127.0.0.1:{peers}"
    argv: list[str | Path] = [PROGRAM, "--data-dir", folder / "etcd", "--listen-client-urls", listen]
    argv += ["--advertise-client-urls", f"{scheme}://127.0.0.1:{port}", "--listen-peer-urls", peer]
    argv += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", *options]
    folder.mkdir(parents=True, exist_ok=True)
    with Process(argv, log=folder / "etcd-server", namespace=place.name if place else None) as process:
        process.wait_stderr("ready to serve client requests", timeout=60)
        yield EtcdServer(port, process, scheme)
