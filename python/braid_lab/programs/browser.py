"""Chromium, with a page that sends its server ten requests a second: over HTTP/2, and over HTTP/3."""

from __future__ import annotations

import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from braid_lab.programs.session import Program, ProgramEnv, Session, TimestampingClient
from braid_lab.servers import nginx
from braid_lab.servers.catalog import random_file
from braid_lab.servers.certificate import Certificate
from braid_lab.servers.http3 import TALK

PORT = 443

#: Debian has the browser without and with a window system.
BROWSERS = ("chromium-headless-shell", "chromium")

#: Options for a run without a user, as root, without requests to other servers.
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
    "--enable-logging=stderr",
)

#: Keeps the browser running until it is stopped.
KEEP_RUNNING = "--remote-debugging-port=0"


@dataclass
class Browsing(TimestampingClient):
    """An open page."""

    #: The expected protocol, in browsers' terms: h2 or h3.
    protocol: str

    #: Its console.
    said = re.compile(r'"(arrived|broken|over) ([^"]*)", source:')

    def arrived(self) -> list[float]:
        """Read the console; failed requests are complaints, since the page goes on."""
        moments = []
        for kind, words in self.said.findall(self.new_lines(self.process.err)):
            if kind == "arrived":
                moments.append(float(words) - time.time() + time.monotonic())
            elif kind == "broken":
                self.complaints.append(words)
            elif words != self.protocol:
                self.complaints.append(f"the browser speaks {words} in place of {self.protocol}")
        return moments


class Browser(Program):
    """Chromium."""

    #: Its protocol, in browsers' terms.
    protocol: str

    def missing(self) -> str | None:
        """Requires Chromium."""
        return None if browser_program() else f"{BROWSERS[0]} not found (tools/setup bench)"

    def begin(self, env: ProgramEnv) -> Session:
        """Open the page in a browser with a new profile."""
        words = [
            *OPTIONS,
            KEEP_RUNNING,
            f"--user-data-dir={env.empty('profile')}",
            f"--ignore-certificate-errors-spki-list={(env.folder / 'fingerprint').read_text()}",
            *self.words(env),
            f"https://{env.server}:{PORT}/talk",
        ]
        return Browsing(env.start("chromium", [browser_program() or BROWSERS[0], *words]), self.protocol)

    def words(self, _: ProgramEnv) -> list[str]:
        """Return additional options."""
        return []

    def certificate(self, env: ProgramEnv) -> Path:
        """Make a certificate for the server, and note the fingerprint for the browser."""
        made = Certificate.make()
        made.write(env.folder / "server.pem")
        (env.folder / "fingerprint").write_text(made.fingerprint())
        return env.folder / "server.pem"


def browser_program() -> str | None:
    """Return Chromium's name, if it is installed."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Http2(Browser):
    """HTTP/2 from nginx, over TLS and TCP."""

    name = "http2"
    protocol = "h2"

    def missing(self) -> str | None:
        """Also requires nginx."""
        return super().missing() or (None if nginx.program().exists() else "nginx is not unpacked (tools/setup all)")

    def serve(self, env: ProgramEnv) -> None:
        """Start nginx."""
        pem = self.certificate(env)
        root = env.empty("web")
        (root / "bytes").mkdir()
        random_file(root / "bytes" / "2000", 2000)
        shutil.copy(TALK, root / "talk")
        http = (
            f"default_type text/html;\nserver {{\nlisten {env.server}:{PORT} ssl http2;\nroot {root};\n"
            f"ssl_certificate {pem};\nssl_certificate_key {pem};\n}}\n"
        )
        env.serve("nginx", nginx.command(env.folder, http), port=PORT)


class Http3(Browser):
    """HTTP/3 from aioquic, over QUIC."""

    name = "http3"
    protocol = "h3"

    def serve(self, env: ProgramEnv) -> None:
        """Start the server."""
        words = ["--pem", str(self.certificate(env)), env.server]
        env.serve("http3", [sys.executable, "-m", "braid_lab.servers.http3", *words])

    def words(self, env: ProgramEnv) -> list[str]:
        """Tell the browser that this server speaks HTTP/3."""
        return [f"--origin-to-force-quic-on={env.server}:{PORT}"]
