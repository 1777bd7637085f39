"""OpenSSH: typing in a shell, and a file transfer by rsync."""

from __future__ import annotations

import shlex
from pathlib import Path

from braid_lab.net import scratch
from braid_lab.process import run
from braid_lab.product import unpacked
from braid_lab.programs.session import RATE, Download, Program, ProgramEnv, Session, TimestampingClient, not_found
from braid_lab.servers.catalog import random_file

PORT = 22

#: sshd needs a user of its own, a folder below /run, and an unlocked root account. It gets them in a mount namespace
#: of its own, and the machine is unchanged. The arguments are passwd, shadow, the replacement of /run, the lab's
#: folder there and in that, sshd and its configuration.
IN_ITS_OWN_WORLD = (
    'mount --bind "$1" /etc/passwd && mount --bind "$2" /etc/shadow && mount --rbind "$4" "$5" && '
    'mount --rbind "$3" /run && exec "$6" -D -e -f "$7"'
)


def sshd() -> Path:
    """Return where tools/setup unpacks the server."""
    return unpacked("openssh-server", "usr/sbin/sshd")


def _missing(*programs: str) -> str | None:
    return not_found(*programs) or (None if sshd().exists() else "sshd is not unpacked (tools/setup)")


def serve(env: ProgramEnv) -> None:
    """Start a server that accepts root with the key in the environment's folder."""
    folder = env.folder
    for name in ("host_key", "key"):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", folder / name])
    words = {
        "ListenAddress": env.server,
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
    env.serve("sshd", ["unshare", "--mount", "--propagation", "private", *shell], port=PORT)


def client(env: ProgramEnv) -> list[str]:
    """Return an `ssh` command that logs in there, without the address."""
    options = {
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "BatchMode": "yes",
        "LogLevel": "ERROR",
    }
    chosen = [word for option, value in options.items() for word in ("-o", f"{option}={value}")]
    return ["ssh", "-F", "none", "-i", str(env.folder / "key"), "-l", "root", *chosen]


class Ssh(Program):
    """A line is typed five times a second, and the terminal at the far end shows it."""

    name = "ssh"

    def missing(self) -> str | None:
        """Requires both ends of OpenSSH."""
        return _missing("ssh", "ssh-keygen")

    def serve(self, env: ProgramEnv) -> None:
        """Start sshd."""
        serve(env)

    def begin(self, env: ProgramEnv) -> Session:
        """Log in and type."""
        return TimestampingClient(env.start_module("typist", *client(env), "-tt", env.server, "cat"))


class Rsync(Program):
    """Fetches a file over ssh."""

    name = "rsync"

    def missing(self) -> str | None:
        """Requires rsync and both ends of OpenSSH."""
        return _missing("rsync", "ssh", "ssh-keygen")

    def serve(self, env: ProgramEnv) -> None:
        """Start sshd, which starts rsync's far end."""
        serve(env)
        random_file(env.folder / "asked", env.size)

    def begin(self, env: ProgramEnv) -> Session:
        """Fetch the file at a limited rate."""
        got, asked = env.empty("got"), env.folder / "asked"
        # A sparse file is written as it arrives, any other in blocks of 256 KB.
        words = [
            "--sparse",
            f"--bwlimit={RATE // 1024}",
            "--rsh",
            shlex.join(client(env)),
            f"{env.server}:{asked}",
        ]
        return Download(env.start("rsync", ["rsync", *words, f"{got}/"]), got, (asked, got / "asked"))
