"""The daemon's page for browsers, over HTTP as a program in a namespace sees it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braid_lab.net.namespace import Namespace
from braid_lab.process import Process
from braid_lab.product import Braid

#: Its address in tests: plain HTTP on the machine itself.
LISTEN = "127.0.0.1:8080"
#: The lines of a configuration that do so.
WEB = f'[web]\nlisten = "{LISTEN}"\n'


@dataclass(frozen=True)
class Answer:
    """An answer over HTTP."""

    status: int
    head: str
    body: str

    @property
    def json(self) -> Any:
        """Its body, decoded."""
        return json.loads(self.body)

    def header(self, name: str) -> str:
        """Return a header's value; empty if there is none."""
        for line in self.head.splitlines():
            key, _, value = line.partition(": ")
            if key.lower() == name:
                return value
        return ""


@dataclass
class Visitor:
    """A program that asks for the page, at first without a session."""

    place: Namespace
    #: A folder for the stream.
    scratch: Path
    url: str = f"http://{LISTEN}"
    cookie: str = ""

    def ask(self, path: str, *options: str) -> Answer:
        """Send a request by curl, with its options; a certificate is not checked."""
        cookie = ["--cookie", self.cookie] if self.cookie else []
        said = self.place.run(["curl", "-ksS", "-i", "--max-time", "20", *cookie, *options, f"{self.url}{path}"])
        head, _, body = (
            said.stdout.partition("\n\n") if "\r" not in said.stdout else said.stdout.partition("\r\n\r\n")
        )
        return Answer(int(head.split()[1]), head, body)

    def log_in(self, token: str) -> Answer:
        """Log in, and keep the session if there is one."""
        answer = self.ask("/login", "--data-urlencode", f"token={token}")
        self.cookie = answer.header("set-cookie").partition(";")[0]
        return answer

    def change(self, path: str, *options: str) -> Answer:
        """Send a request that changes something, as the page does: POST without a body, or by curl's options."""
        token = self.ask("/session").json["csrf_token"]
        return self.ask(path, *(options or ("-X", "POST")), "-H", f"X-CSRF-Token: {token}")

    @contextlib.contextmanager
    def stream(self) -> Iterator[Stream]:
        """Follow the stream of snapshots and events."""
        argv = ["curl", "-ksSN", "--max-time", "60", "--cookie", self.cookie, f"{self.url}/v1/stream"]
        log = self.scratch / f"stream-{id(self)}"
        with Process(argv, log=log, namespace=self.place.name) as process:
            yield Stream(process)


@dataclass
class Stream:
    """A stream of snapshots and events."""

    process: Process

    def messages(self, kind: str) -> list[dict[str, Any]]:
        """Return the messages of a kind so far, `snapshot` or `event`."""
        found = []
        whole, _, _ = self.process.stdout().rpartition("\n\n")
        for message in whole.split("\n\n"):
            fields = dict(line.partition(": ")[::2] for line in message.splitlines())
            if fields.get("event") == kind:
                found.append(json.loads(fields["data"]))
        return found

    def states(self) -> dict[str, str]:
        """Return the uplinks' states in the latest snapshot."""
        snapshots = self.messages("snapshot")
        return {each["name"]: each["state"] for each in snapshots[-1]["uplinks"]} if snapshots else {}


def token(daemon: Braid, role: str = "operator", *words: str) -> str:
    """Return a login token."""
    text: str = daemon.json("web", "token", "--role", role, *words)["token"]
    return text
