"""Takes the messages of alarms: webhooks on port 80 and e-mail on port 25.

Run as `python -m braid_lab.servers.messages ADDRESS FILE`. Each message becomes a line of JSON in FILE, with the way
in which it came. Prints `ready`.
"""

from __future__ import annotations

import http.server
import json
import sys
import threading
from email.message import Message
from pathlib import Path
from typing import Any

from aiosmtpd import handlers
from aiosmtpd.controller import Controller

from braid_lab.servers.catalog import HTTP_PORT

SMTP_PORT = 25


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

    def __init__(self, messages: MessageFile) -> None:
        super().__init__()
        self._messages = messages

    def handle_message(self, message: Message) -> None:
        """Take one e-mail."""
        body = message.get_payload(decode=True)
        text = body.decode() if isinstance(body, bytes) else ""
        self._messages.add("mail", to=message["X-RcptTo"], subject=message["Subject"], text=text)


def main() -> None:
    """Serve until the process ends."""
    address, path = sys.argv[1:]
    messages = MessageFile(Path(path))

    class Webhook(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            messages.add("webhook", path=self.path, body=json.loads(body))
            self.send_response(204)
            self.end_headers()

    Controller(MailHandler(messages), hostname=address, port=SMTP_PORT).start()
    with http.server.ThreadingHTTPServer((address, HTTP_PORT), Webhook) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
