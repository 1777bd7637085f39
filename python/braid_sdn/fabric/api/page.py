"""The fabric's page for browsers: its files, what it shows of the API, and what an operator may do there.

It is served by a thread of its own (`braid_sdn.web.listener`), and asks the controller's loop for all but its files.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

from braid_sdn.fabric.api.events import Event, event_number
from braid_sdn.fabric.api.live import Live
from braid_sdn.fabric.api.server import Api
from braid_sdn.web.access import WebAccess, WebSettings
from braid_sdn.web.auth import Role
from braid_sdn.web.files import login_form, page_files
from braid_sdn.web.guard import Admitted, Guard
from braid_sdn.web.listener import Listener, WebThread, bind
from braid_sdn.web.messages import Answer, Arrival

#: The page's own files.
FOLDER = Path(__file__).parents[1] / "page"
#: Prefix of the page's files in the state directory, and the command that prints its tokens.
STATE_PREFIX = "fabric-web"
LOGIN_COMMAND = "braid sdn fabric web token"

#: Requests of the API that show, as far as the page may send them.
SHOWN = (
    "status",
    "hosts",
    "paths",
    "policies",
    "acl",
    "tenants",
    "explain",
    "events",
    "figures",
    "topology.svg",
    "openapi.json",
)
API = "/v1/fabric/"
STREAM = f"{API}stream"
EVENT_STREAM = "text/event-stream"


class Page:
    """Answers requests that have a session."""

    def __init__(self, api: Api, live: Live) -> None:
        """Show one controller, whose loop is the running one."""
        self._api = api
        self._live = live
        self._loop = asyncio.get_running_loop()
        self._files = page_files(FOLDER)

    async def answer(self, admitted: Admitted) -> Answer:
        """Answer a request, from any loop."""
        request = admitted.request
        if not request.shows:
            return await self._on_loop(self._change(request.method, request.target))
        if request.path in self._files:
            return self._files[request.path]
        if request.path == STREAM:
            last = event_number(request.header("last-event-id") or "")
            return Answer(200, kind=EVENT_STREAM, pieces=self._follow(last or 0))
        if request.path.startswith(API) and request.path.removeprefix(API) in SHOWN:
            return await self._on_loop(self._show(request.target))
        return _error(404, f"there is no {request.path}")

    async def _on_loop(self, asked: Coroutine[Any, Any, Answer]) -> Answer:
        """Ask the controller on its own loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._loop))

    async def _follow(self, number: int) -> AsyncGenerator[bytes, None]:
        """Yield events after one, and snapshots, for as long as somebody reads them."""
        turn = -1
        while True:
            frame = asyncio.run_coroutine_threadsafe(self._live.frame(turn, number), self._loop)
            turn, number, piece = await asyncio.wrap_future(frame)
            yield piece

    async def _show(self, target: str) -> Answer:
        shown = self._api.answer(f"GET {target} HTTP/1.1", [])
        return Answer(shown.status, shown.body, shown.kind)

    async def _change(self, method: str, target: str) -> Answer:
        done = await self._api.change(f"{method} {target} HTTP/1.1")
        return (
            _error(405, f"{method} {target} is not for the page") if done is None else Answer(done.status, done.body)
        )


def _error(status: int, text: str) -> Answer:
    return Answer(status, json.dumps({"error": text}).encode() + b"\n")


def serve(page: Page, access: WebAccess, settings: WebSettings, log: Callable[[Event], None]) -> WebThread:
    """Begin to serve a page; raises OSError with the reason why it cannot be."""

    def on_login(arrival: Arrival, role: Role | None) -> None:
        facts = {"source": str(arrival.source)}
        if role is None:
            log(Event("page-token-refused", facts, warning=True))
        else:
            log(Event("page-login", {**facts, "role": role.word}))

    identity = access.identity(settings, time.time())
    listening = bind(*settings.listen)
    guard = Guard(access.auth, settings.names, login_form(), LOGIN_COMMAND, on_login)
    listener = Listener(guard, page.answer, identity.context if identity else None)
    thread = WebThread(listener, listening)
    thread.start()
    return thread
