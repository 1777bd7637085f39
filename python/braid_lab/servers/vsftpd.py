"""vsftpd with anonymous access to the files of a folder, in passive mode."""

from __future__ import annotations

import stat
from pathlib import Path

from braid_lab.net import scratch
from braid_lab.product import unpacked

PORT = 21


def program() -> Path:
    """Return where `tools/setup bench` unpacks it."""
    return unpacked("vsftpd", "usr/sbin/vsftpd")


def prepare(folder: Path, address: str, *, rate: int = 0) -> Path:
    """Write its configuration into a folder; return the folder of files.

    `rate` is in bytes per second, 0 for unlimited.
    """
    shared = folder / "files"
    for each in (shared, folder / "empty"):
        each.mkdir()
        each.chmod(0o755)
    # vsftpd reads files as an unprivileged user, who may traverse these folders but not list them.
    for above in (folder, *folder.parents):
        if above.is_relative_to(scratch.ROOT):
            above.chmod(above.stat().st_mode | stat.S_IXOTH)
    words = {
        "listen": "YES",
        "background": "NO",
        "listen_address": address,
        "listen_port": PORT,
        "anonymous_enable": "YES",
        "no_anon_password": "YES",
        # The user that owns the files' home and reads them.
        "ftp_username": "daemon",
        "anon_root": shared,
        "anon_max_rate": rate,
        "secure_chroot_dir": folder / "empty",
        "seccomp_sandbox": "NO",
        "xferlog_enable": "NO",
    }
    _configuration(folder).write_text("".join(f"{word}={value}\n" for word, value in words.items()))
    return shared


def argv(folder: Path) -> list[str | Path]:
    """Return the command that serves a prepared folder."""
    return [program(), _configuration(folder)]


def _configuration(folder: Path) -> Path:
    return folder / "vsftpd.conf"
