"""A page load with failures: repeated requests, and failed ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from braid_lab.clients import page
from braid_lab.clients.http1 import Connection
from braid_lab.clients.page import OBJECTS, Visit

ADDRESSES = ["192.0.2.1", "192.0.2.2"]


class Server:
    """Stands for all servers; fails as told."""

    def __init__(self, breaks: Callable[[int], bool]) -> None:
        """Fail the request with this number, counted over all connections from 1, if `breaks` says so."""
        self.breaks = breaks
        self.requests = 0
        self.opened = 0

    async def open(self, _address: str) -> Server:
        self.opened += 1
        return self

    async def get(self, path: str, *, count: Callable[[int], None]) -> bytes:
        self.requests += 1
        number = self.requests
        await asyncio.sleep(0)
        if self.breaks(number):
            raise ConnectionResetError
        count(int(path.removeprefix("/bytes/")))
        return b""

    def close(self) -> None:
        """There is nothing to close."""


def visit(monkeypatch: pytest.MonkeyPatch, server: Server, retries: int) -> Visit:
    monkeypatch.setattr(Connection, "open", server.open)
    one = Visit(page.page(1, 1), ADDRESSES, retries=retries)
    asyncio.run(one.load())
    return one


def test_nothing_is_repeated_when_all_goes_well(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(lambda _: False)
    one = visit(monkeypatch, server, retries=1)
    assert (one.retried, one.failed, server.opened) == (0, 0, 42)
    assert server.requests == sum(OBJECTS)
    assert sum(flow.bytes for flow in one.flows) == page.page(1, 1).total


def test_what_breaks_is_asked_for_once_more_on_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(lambda number: number in (50, 60, 70))
    one = visit(monkeypatch, server, retries=1)
    assert (one.retried, one.failed, server.opened) == (3, 0, 45)
    assert sum(flow.bytes for flow in one.flows) == page.page(1, 1).total


def test_what_breaks_twice_has_failed_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(lambda number: number > sum(OBJECTS) - 10)
    one = visit(monkeypatch, server, retries=1)
    assert (one.retried, one.failed) == (10, 10)
    assert one.halfway.is_set()


def test_without_retries_the_first_failure_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExceptionGroup):
        visit(monkeypatch, Server(lambda number: number == 20), retries=0)
