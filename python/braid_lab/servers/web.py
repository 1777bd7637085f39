"""A rate-limited web server: files of a folder, and git repositories through git's own `http-backend`.

Run as `python -m braid_lab.servers.web ADDRESS FOLDER RATE`; RATE is in bytes per second per connection. Prints
`ready`.
"""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import IO, Any
from urllib.parse import urlsplit

from braid_lab.process import WITH_US
from braid_lab.servers.catalog import HTTP_PORT

#: Bytes per write: several writes in 100 ms at any sensible rate.
CHUNK_BYTES = 4096


class RateLimitedHandler(http.server.SimpleHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, rate: int, **named: Any) -> None:
        self._rate = rate
        super().__init__(*args, **named)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send the source's data at the limited rate."""
        # Delays are not made up for: the next piece is due a fixed time after this one.
        while piece := source.read(CHUNK_BYTES):
            outputfile.write(piece)
            time.sleep(len(piece) / self._rate)

    def do_GET(self) -> None:
        """Send a file, or git's list of references."""
        if ".git/" in self.path:
            self._git(b"")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        """Pass a git client's request to git."""
        self._git(self.rfile.read(int(self.headers.get("content-length", 0))))

    def _git(self, body: bytes) -> None:
        asked = urlsplit(self.path)
        environment = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(self.directory),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
            "PATH_INFO": asked.path,
            "QUERY_STRING": asked.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "CONTENT_LENGTH": str(len(body)),
            "REMOTE_ADDR": self.client_address[0],
        }
        argv = [*WITH_US, "git", "http-backend"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as backend:
            assert backend.stdin is not None  # noqa: S101
            assert backend.stdout is not None  # noqa: S101
            backend.stdin.write(body)
            backend.stdin.close()
            try:
                self._relay(backend.stdout)
            finally:
                backend.kill()

    def _relay(self, answer: IO[bytes]) -> None:
        """Forward a CGI program's response; its end ends the connection."""
        headers = []
        while line := answer.readline().strip():
            name, _, value = line.decode().partition(":")
            headers.append((name, value.strip()))
        status = next((value for name, value in headers if name.lower() == "status"), "200 OK")
        self.send_response(int(status.split()[0]))
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.copyfile(answer, self.wfile)


class QuietServer(http.server.ThreadingHTTPServer):
    """A server that ignores clients that disconnect."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors of this program only."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve until SIGTERM."""
    address, folder, rate = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with QuietServer((address, HTTP_PORT), partial(RateLimitedHandler, rate=int(rate), directory=folder)) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
