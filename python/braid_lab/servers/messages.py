"""Takes the messages of alarms: webhooks on ports 80 and 443, and e-mail on ports 25, 465 (TLS) and 587 (STARTTLS).

Run as `python -m braid_lab.servers.messages ADDRESS FILE CERTIFICATE`; CERTIFICATE is a PEM file with its key. Each
message becomes a line of JSON in FILE, with the port to which it came. Prints `ready`.
"""

from __future__ import annotations

import http.server
import json
import ssl
import sys
import threading
from email.message import Message
from pathlib import Path
from typing import Any

from aiosmtpd import handlers
from aiosmtpd.controller import Controller

from braid_lab.servers.catalog import HTTP_PORT

HTTPS_PORT = 443
SMTP_PORT = 25
SMTPS_PORT = 465
SUBMISSION_PORT = 587


class MessageFile:
    """The file of messages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def add(self, kind: str, **message: Any) -> None:
        """Append a message."""
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps({"kind": kind, **message}) + "\n")


class MailHandler(handlers.Message):
    """Takes e-mail."""

    def __init__(self, messages: MessageFile, port: int) -> None:
        super().__init__()
        self._messages = messages
        self._port = port

    def handle_message(self, message: Message) -> None:
        """Take one e-mail."""
        body = message.get_payload(decode=True)
        text = body.decode() if isinstance(body, bytes) else ""
        self._messages.add("mail", port=self._port, to=message["X-RcptTo"], subject=message["Subject"], text=text)


def main() -> None:
    """Serve until the process ends."""
    address, path, certificate = sys.argv[1:]
    messages = MessageFile(Path(path))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)

    class Webhook(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            messages.add("webhook", port=self.connection.getsockname()[1], path=self.path, body=json.loads(body))
            self.send_response(204)
            self.end_headers()

    for port, options in (
        (SMTP_PORT, {}),
        (SMTPS_PORT, {"ssl_context": tls}),
        (SUBMISSION_PORT, {"tls_context": tls, "require_starttls": True}),
    ):
        Controller(MailHandler(messages, port), hostname=address, port=port, **options).start()
    http_server = http.server.ThreadingHTTPServer((address, HTTP_PORT), Webhook)
    https_server = http.server.ThreadingHTTPServer((address, HTTPS_PORT), Webhook)
    https_server.socket = tls.wrap_socket(https_server.socket, server_side=True)
    threading.Thread(target=https_server.serve_forever, daemon=True).start()
    with http_server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        http_server.serve_forever()


if __name__ == "__main__":
    main()
