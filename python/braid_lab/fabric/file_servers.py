"""Servers of one file over HTTP and FTP, as in common use: Python's own server, and vsftpd."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from braid_lab.fabric.ovs import Station
from braid_lab.process import LabError, Process, wait_until
from braid_lab.servers import vsftpd

NAME = "file"
HTTP_PORT = 8000


@dataclass(frozen=True)
class Files:
    """Servers of one file."""

    address: str
    bytes: int

    def fetch(self, place: Station, kind: str) -> float:
        """Fetch it by `http` or `ftp`; return the goodput, Mbit/s, over the program's whole run time."""
        port = {"http": HTTP_PORT, "ftp": vsftpd.PORT}[kind]
        began = time.monotonic()
        where = f"{kind}://{self.address}:{port}/{NAME}"
        # No disk is involved, and the received bytes are counted, so a short download does not pass.
        words = ["--fail", "--silent", "--show-error", "--output", "/dev/null"]
        got = place.place.run(["curl", *words, "--write-out", "%{size_download}", where], timeout=600).stdout
        seconds = time.monotonic() - began
        if int(got) != self.bytes:
            raise LabError(f"{kind}: {got.strip()} of {self.bytes} bytes came")
        return 8e-6 * self.bytes / seconds

    def fetch_time(self, place: Station) -> float:
        """Fetch it by HTTP; return the seconds from the first SYN to the last byte."""
        words = ["--fail", "--silent", "--show-error", "--output", "/dev/null"]
        written = ["--write-out", "%{size_download} %{time_total}"]
        where = f"http://{self.address}:{HTTP_PORT}/{NAME}"
        got, seconds = place.place.run(["curl", *words, *written, where], timeout=60).stdout.split()
        if int(got) != self.bytes:
            raise LabError(f"http: {got} of {self.bytes} bytes came")
        return float(seconds)


@contextlib.contextmanager
def files(station: Station, folder: Path, size: int) -> Iterator[Files]:
    """Serve a file of `size` bytes from a station; by FTP only if a server is installed (`vsftpd.program`)."""
    log = folder / f"files-{station.name}"
    shared = vsftpd.prepare(folder, station.address)
    with (shared / NAME).open("wb") as file:
        file.truncate(size)
    (shared / NAME).chmod(0o644)
    http = [
        sys.executable,
        "-m",
        "http.server",
        str(HTTP_PORT),
        "--bind",
        station.address,
        "--directory",
        str(shared),
    ]
    servers: dict[int, list[str | Path]] = {HTTP_PORT: [*http]}
    if vsftpd.program().exists():
        servers[vsftpd.PORT] = vsftpd.argv(folder)
    with contextlib.ExitStack() as stack:
        for port, argv in servers.items():
            process = Process(argv, log=log.with_suffix(f".{port}"), namespace=station.place.name)
            stack.enter_context(process)

        def listen() -> bool:
            return all(station.place.listens(station.address, port) for port in servers)

        wait_until(listen, what="file servers to listen")
        yield Files(station.address, size)
