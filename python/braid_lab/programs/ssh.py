"""OpenSSH: somebody types in a shell, and rsync fetches a file."""

from __future__ import annotations

import shlex
from pathlib import Path

from braid_lab.net import scratch
from braid_lab.process import run
from braid_lab.product import unpacked
from braid_lab.programs.session import RATE, Download, Place, Program, Session, Telling, not_found
from braid_lab.serve.servers import random_file

PORT = 22

#: sshd wants a user of its own, a folder below /run, and root's account open: it gets them in a mount namespace of
#: its own, and the machine keeps what it has. The arguments are passwd, shadow, what /run is to be, the lab's folder
#: there and in that, sshd and its configuration.
IN_ITS_OWN_WORLD = (
    'mount --bind "$1" /etc/passwd && mount --bind "$2" /etc/shadow && mount --rbind "$4" "$5" && '
    'mount --rbind "$3" /run && exec "$6" -D -e -f "$7"'
)


def sshd() -> Path:
    """Return where tools/setup unpacks the server."""
    return unpacked("openssh-server", "usr/sbin/sshd")


def _missing(*programs: str) -> str | None:
    return not_found(*programs) or (None if sshd().exists() else "sshd is not unpacked (tools/setup)")


def serve(place: Place) -> None:
    """Start a server at which root may log in with the key of the place's folder."""
    folder = place.folder
    for name in ("host_key", "key"):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", folder / name])
    words = {
        "ListenAddress": place.server,
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "key.pub",
        "StrictModes": "no",
        "PermitRootLogin": "yes",
        "PasswordAuthentication": "no",
        "UsePAM": "no",
        "PidFile": "none",
    }
    configuration = folder / "sshd_config"
    configuration.write_text("".join(f"{word} {value}\n" for word, value in words.items()))
    passwd, shadow = folder / "passwd", folder / "shadow"
    passwd.write_text(f"root:x:0:0:root:{folder}:/bin/sh\nsshd:x:101:65534::/run/sshd:/usr/sbin/nologin\n")
    shadow.write_text("root:*:19000:0:99999:7:::\n")
    world = folder / "run"
    ours = world / scratch.ROOT.name
    ours.mkdir(parents=True)
    (world / "sshd").mkdir(mode=0o755)
    words_of_sh = [passwd, shadow, world, scratch.ROOT, ours, sshd(), configuration]
    shell: list[str | Path] = ["sh", "-c", IN_ITS_OWN_WORLD, "sh", *words_of_sh]
    place.serve("sshd", ["unshare", "--mount", "--propagation", "private", *shell], port=PORT)


def client(place: Place) -> list[str]:
    """Return the words of an `ssh` that logs in there, without the address."""
    options = {
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "BatchMode": "yes",
        "LogLevel": "ERROR",
    }
    chosen = [word for option, value in options.items() for word in ("-o", f"{option}={value}")]
    return ["ssh", "-F", "none", "-i", str(place.folder / "key"), "-l", "root", *chosen]


class Ssh(Program):
    """A line is typed five times a second, and the terminal at the far end shows it."""

    name = "ssh"

    def missing(self) -> str | None:
        """It takes both ends of OpenSSH."""
        return _missing("ssh", "ssh-keygen")

    def serve(self, place: Place) -> None:
        """Start sshd."""
        serve(place)

    def begin(self, place: Place) -> Session:
        """Log in and type."""
        return Telling(place.start_module("typist", *client(place), "-tt", place.server, "cat"))


class Rsync(Program):
    """A file comes over ssh."""

    name = "rsync"

    def missing(self) -> str | None:
        """It takes rsync and both ends of OpenSSH."""
        return _missing("rsync", "ssh", "ssh-keygen")

    def serve(self, place: Place) -> None:
        """Start sshd, which starts rsync's far end."""
        serve(place)
        random_file(place.folder / "asked", place.size)

    def begin(self, place: Place) -> Session:
        """Fetch it at a limited rate."""
        got, asked = place.empty("got"), place.folder / "asked"
        # A sparse file is written as it comes, any other 256 KB at once.
        words = [
            "--sparse",
            f"--bwlimit={RATE // 1024}",
            "--rsh",
            shlex.join(client(place)),
            f"{place.server}:{asked}",
        ]
        return Download(place.start("rsync", ["rsync", *words, f"{got}/"]), got, (asked, got / "asked"))
