"""A Chromium that a test drives: pages are opened, typed into, looked at and photographed.

It speaks the DevTools protocol over a pipe. So it may run in a namespace of its own, which no port of a driver
program could be reached in, and needs no such program.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from braid_lab.process import WITH_US, LabError
from braid_lab.programs.browser import BROWSERS, OPTIONS, browser_program
from braid_lab.setns import inside

#: Longest wait for an answer of the browser, in seconds.
ANSWER_SECONDS = 30.0

#: Puts the pipe's ends where Chromium looks for them.
START = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'


@dataclass
class Tab:
    """An open tab, and what its page complained about."""

    process: subprocess.Popen[bytes]
    commands: int
    answers: int
    session: str = ""
    #: Errors of its scripts, messages of its console, and refusals by its security policy.
    complaints: list[str] = field(default_factory=list)
    _number: int = 0
    _unread: bytes = b""
    _events: list[dict[str, Any]] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            message = self._read(deadline, method)
            if message.get("id") == self._number:
                if "error" in message:
                    raise LabError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _read(self, deadline: float, awaited: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self.answers, 1 << 20) if ready else b""
            if not more:
                raise LabError(f"the browser does not answer {awaited} (exit status {self.process.poll()})")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        told = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = told["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description") or details["text"])
            case "Log.entryAdded":
                self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self._events.append(message)

    def requested(self) -> list[str]:
        """Return the addresses of all requests so far."""
        return [event["params"]["request"]["url"] for event in self._events]

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    @contextlib.contextmanager
    def without_memory(self) -> Iterator[None]:
        """Be another tab for the length of a block: without cache, cookies, connections and names of earlier ones."""
        outer, self.session = self.session, ""
        context = self.call("Target.createBrowserContext", disposeOnDetach=True)["browserContextId"]
        try:
            made = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=made, flatten=True)["sessionId"]
            self.call("Page.enable")
            yield
        finally:
            self.session = ""
            self.call("Target.disposeBrowserContext", browserContextId=context)
            self.session = outer

    def evaluate(self, expression: str) -> Any:
        """Return the value of a script's expression, or of what it promises."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise LabError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, condition: str, timeout: float = 10.0) -> Any:
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(LabError):
                # A page that is about to be replaced cannot answer.
                if value := self.evaluate(condition):
                    return value
            if time.monotonic() > deadline:
                text = self.evaluate("document.body.innerText")
                raise LabError(
                    f"waited {timeout:.0f} s in vain for {condition}; complaints {self.complaints}\n{text}"
                )
            time.sleep(0.02)

    def type(self, selector: str, text: str, *, enter: bool = False) -> None:
        """Type into a field, as a person would: it gets the focus, and every key arrives."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)
        if enter:
            self.press("Enter", "\r")

    def press(self, key: str, text: str = "") -> None:
        """Press a key."""
        codes = {"Enter": 13, "Tab": 9, " ": 32}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def tab_through(self, presses: int) -> set[str]:
        """Press the Tab key so often, and return all that had the focus, by id or else by the name of its tag."""
        reached = set()
        for _ in range(presses):
            self.press("Tab")
            reached.add(self.evaluate("document.activeElement.id || document.activeElement.tagName"))
        return reached

    def add_script(self, text: str) -> None:
        """Put a script into the document, as foreign text would that was taken for HTML."""
        script = f"Object.assign(document.createElement('script'), {{text: {json.dumps(text)}}})"
        self.evaluate(f"document.body.append({script})")

    def click(self, selector: str) -> None:
        """Press a button."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def look(self, width: int, height: int, scheme: str) -> None:
        """Give the window a size in CSS pixels, and the user a preference: `light` or `dark`."""
        scale = 2 if width < 600 else 1
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, file: Path) -> None:
        """Write a picture of the whole page."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(picture["data"]))


@contextlib.contextmanager
def browser(
    namespace: str | None,
    options: Sequence[str] = (),
    around: Callable[[Sequence[str]], Sequence[str]] = list,
) -> Iterator[Tab]:
    """Run Chromium with a new profile, and yield its tab; `around` may turn its command line into another."""
    program = browser_program()
    if program is None:
        raise LabError(f"{BROWSERS[0]} not found (tools/setup bench)")
    commands_out, commands = os.pipe()
    answers, answers_in = os.pipe()
    with tempfile.TemporaryDirectory(prefix="braid-browser-", ignore_cleanup_errors=True) as profile:
        words = [program, *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={profile}", *options, "about:blank"]
        start = ["bash", "-c", START, "bash", str(commands_out), str(answers_in)]
        with inside(namespace):
            process = subprocess.Popen(
                [*WITH_US, *start, *around(words)],
                pass_fds=(commands_out, answers_in),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        os.close(commands_out)
        os.close(answers_in)
        try:
            tab = Tab(process, commands, answers)
            targets = tab.call("Target.getTargets")["targetInfos"]
            page = next(target["targetId"] for target in targets if target["type"] == "page")
            tab.session = tab.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                tab.call(f"{domain}.enable")
            yield tab
        finally:
            os.close(commands)
            os.close(answers)
            process.kill()
            process.wait()
