"""A file to be fetched over HTTP and FTP, as people have them: Python's own server, and vsftpd."""

from __future__ import annotations

import contextlib
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from braid_lab.fabric.ovs import Station
from braid_lab.net import scratch
from braid_lab.process import LabError, Process, wait_until
from braid_lab.product import repository

NAME = "file"
HTTP_PORT, FTP_PORT = 8000, 21

#: `tools/setup bench` unpacks it there: installed it would be started, and listen at every address.
VSFTPD = Path(".tools/vsftpd/usr/sbin/vsftpd")


@dataclass(frozen=True)
class Files:
    """Servers of one file."""

    address: str
    bytes: int

    def fetch(self, place: Station, kind: str) -> float:
        """Fetch it by `http` or `ftp`; return the goodput, Mbit/s, from the start of the program to its end."""
        port = {"http": HTTP_PORT, "ftp": FTP_PORT}[kind]
        began = time.monotonic()
        where = f"{kind}://{self.address}:{port}/{NAME}"
        # No disk is in the way, and what came is counted, so that nothing short passes for the whole.
        words = ["--fail", "--silent", "--show-error", "--output", "/dev/null"]
        got = place.place.run(["curl", *words, "--write-out", "%{size_download}", where], timeout=600).stdout
        seconds = time.monotonic() - began
        if int(got) != self.bytes:
            raise LabError(f"{kind}: {got.strip()} of {self.bytes} bytes came")
        return 8e-6 * self.bytes / seconds


def has_ftp() -> bool:
    """Return true if vsftpd is there."""
    return (repository() / VSFTPD).exists()


def _ftp_configuration(folder: Path, address: str) -> str:
    words = {
        "listen": "YES",
        "background": "NO",
        "listen_address": address,
        "listen_port": FTP_PORT,
        "anonymous_enable": "YES",
        "no_anon_password": "YES",
        # Somebody whose home is there; files are read as him.
        "ftp_username": "daemon",
        "anon_root": folder / "files",
        "secure_chroot_dir": folder / "empty",
        "seccomp_sandbox": "NO",
        "xferlog_enable": "NO",
    }
    return "".join(f"{word}={value}\n" for word, value in words.items())


@contextlib.contextmanager
def files(station: Station, folder: Path, size: int) -> Iterator[Files]:
    """Serve a file of so many bytes from a station, by FTP only if there is a server for it (`has_ftp`)."""
    shared, log = folder / "files", folder / f"files-{station.name}"
    for each in (shared, folder / "empty"):
        each.mkdir()
        each.chmod(0o755)
    # vsftpd reads files as somebody who is not root: he may pass on the way there, and see nothing else.
    for above in (folder, *folder.parents):
        if above.is_relative_to(scratch.ROOT):
            above.chmod(above.stat().st_mode | stat.S_IXOTH)
    with (shared / NAME).open("wb") as file:
        file.truncate(size)
    (shared / NAME).chmod(0o644)
    configuration = folder / "vsftpd.conf"
    configuration.write_text(_ftp_configuration(folder, station.address))
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
    if has_ftp():
        servers[FTP_PORT] = [repository() / VSFTPD, configuration]
    with contextlib.ExitStack() as stack:
        for port, argv in servers.items():
            process = Process(argv, log=log.with_suffix(f".{port}"), namespace=station.place.name)
            stack.enter_context(process)

        def listen() -> bool:
            said = station.place.run(["ss", "-ltn"]).stdout
            return all(f"{station.address}:{port} " in said for port in servers)

        wait_until(listen, what="file servers to listen")
        yield Files(station.address, size)
