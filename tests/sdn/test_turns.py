"""Turns of the loop: however much comes at once, each is short, and all of it is handled in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from braid_sdn.fabric import service
from braid_sdn.fabric.api.events import Event
from braid_sdn.fabric.config import Config
from braid_sdn.fabric.service import Service
from braid_sdn.fabric.settings import Settings
from braid_sdn.openflow.messages import Echo, FromSwitch, Hello, ToSwitch
from braid_sdn.openflow.pump import Pump
from braid_sdn.openflow.server import MAX_WAITING_BYTES, Connection, Server
from braid_sdn.openflow.turns import MAX_TURN, Turns

from .fuzzing import DPID, Ear, Wire, introduction
from .virtual import KEY

#: An answer to an echo, as a switch sends it.
REPLY = bytes.fromhex("0403000800000001")


class Clock:
    """A stopwatch that stands still unless something takes time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def turns_of_loop(done: Callable[[], bool]) -> int:
    """Let the loop go round until something is done; return how often it did."""
    for rounds in range(10_000):
        if done():
            return rounds
        await asyncio.sleep(0)
    raise AssertionError("it is never done")


class SlowEar(Ear):
    """Takes half of a turn for each message, and remembers in which turn it was told of it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.dpids: list[int] = []
        self.gone: list[int] = []
        self.in_turn: list[float] = []

    def message(self, now: float, dpid: int, message: FromSwitch) -> None:  # noqa: ARG002
        self.clock.now += MAX_TURN / 2
        self.dpids.append(dpid)

    def disconnected(self, now: float, dpid: int, why: str) -> None:  # noqa: ARG002
        self.clock.now += MAX_TURN / 2
        self.gone.append(dpid)


class PausedWire(Wire):
    """Tells whether it is read from."""

    reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


def connect(server: Server, dpid: int) -> tuple[Connection, PausedWire]:
    connection, wire = Connection(server), PausedWire()
    connection.connection_made(wire)
    connection.data_received(introduction().replace(DPID.to_bytes(8, "big"), dpid.to_bytes(8, "big")))
    return connection, wire


def test_messages_of_many_switches_are_handled_in_many_turns() -> None:
    async def story() -> None:
        clock = Clock()
        ear = SlowEar(clock)
        server = Server(ear, turns=Turns(clock))
        connections = [connect(server, dpid)[0] for dpid in range(1, 41)]
        for connection in connections:
            # As the loop does for all sockets that have something.
            connection.data_received(REPLY)
        assert ear.dpids == [1, 2]
        # Two in each.
        assert await turns_of_loop(lambda: len(ear.dpids) == 40) >= 18
        assert ear.dpids == list(range(1, 41))
        assert server.turns.longest < 2 * MAX_TURN

    asyncio.run(story())


def test_a_switch_with_many_messages_keeps_no_other_waiting_and_is_not_read_from_meanwhile() -> None:
    async def story() -> None:
        clock = Clock()
        ear = SlowEar(clock)
        server = Server(ear, turns=Turns(clock))
        (busy, wire), (other, _) = connect(server, 1), connect(server, 2)
        count = 2 * MAX_WAITING_BYTES // len(REPLY)
        busy.data_received(REPLY * count)
        assert not wire.reads
        other.data_received(REPLY)
        assert 2 not in ear.dpids
        await turns_of_loop(lambda: 2 in ear.dpids)
        assert len(ear.dpids) <= 6
        clock_goes = MAX_TURN / 2
        # The rest takes no time, so that the test takes little.
        server.turns._stopwatch = lambda: clock_goes
        await turns_of_loop(lambda: wire.reads)
        assert ear.dpids.count(1) == count

    asyncio.run(story())


def test_switches_that_leave_all_at_once_are_reported_in_turns_and_come_back_after_that() -> None:
    async def story() -> None:
        clock = Clock()
        ear = SlowEar(clock)
        server = Server(ear, turns=Turns(clock))
        connections = [connect(server, dpid)[0] for dpid in range(1, 11)]
        for connection in connections:
            connection.connection_lost(None)
        assert ear.gone == [1, 2]
        # It connects while its former connection's end waits for its turn.
        connect(server, 10)
        await turns_of_loop(lambda: len(ear.hellos) == 11)
        assert ear.gone == list(range(1, 11))
        assert not ear.codes
        assert list(server.switches) == [10]

    asyncio.run(story())


def test_what_has_arrived_before_a_timeout_is_handled_before_it() -> None:
    async def story() -> None:
        clock = Clock()
        ear = SlowEar(clock)
        server = Server(ear, turns=Turns(clock))
        handled: list[int] = []
        pump = Pump(lambda: None, lambda _: handled.append(len(ear.dpids)), server.turns)
        for connection in [connect(server, dpid)[0] for dpid in range(1, 9)]:
            connection.data_received(REPLY)
        pump._due()
        await turns_of_loop(lambda: bool(handled))
        assert handled == [8]

    asyncio.run(story())


def test_a_timeout_that_ends_in_an_error_does_not_end_the_next_one() -> None:
    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        handled: list[float] = []

        def handle(now: float) -> None:
            handled.append(now)
            if len(handled) == 1:
                raise RuntimeError("an error of the first one")

        due = asyncio.get_running_loop().time()
        pump = Pump(lambda: due if len(handled) < 2 else None, handle, Turns(Clock()))
        pump.run()
        await turns_of_loop(lambda: len(handled) == 2)

    asyncio.run(story())


def test_a_message_that_cannot_be_handled_ends_its_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        clock = Clock()
        ear = SlowEar(clock)
        server = Server(ear, turns=Turns(clock))
        (bad, wire), (good, _) = connect(server, 1), connect(server, 2)
        monkeypatch.setattr(bad.session, "decode", lambda _: 1 / 0)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        clock.now += MAX_TURN
        server.turns.begin()
        server.turns._began = clock.now - MAX_TURN
        bad.data_received(REPLY)
        good.data_received(REPLY)
        await turns_of_loop(lambda: ear.dpids == [2])
        assert wire.closed
        bad.connection_lost(None)
        await turns_of_loop(lambda: ear.gone == [1])

    asyncio.run(story())


def test_many_messages_are_sent_in_turns_and_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        made = Service(Config(Settings(KEY), port=0), Path("/nonexistent"))
        clock = Clock()
        parts: list[list[tuple[int, ToSwitch]]] = []
        made.server.turns._stopwatch = clock

        def send(messages: list[tuple[int, ToSwitch]]) -> None:
            parts.append(messages)
            clock.now += MAX_TURN

        monkeypatch.setattr(made.server, "send", send)
        messages: list[tuple[int, ToSwitch]] = [
            (1, Echo(number.to_bytes(8, "big"))) for number in range(3 * service.MAX_SENT + 1)
        ]
        told = [messages]
        monkeypatch.setattr(made.controller, "poll_messages", lambda: told.pop() if told else [])
        made._pump.run()
        assert len(parts) == 1
        await turns_of_loop(lambda: len(parts) == 4)
        assert [len(part) for part in parts] == 3 * [service.MAX_SENT] + [1]
        assert [each for part in parts for each in part] == messages

    asyncio.run(story())


def test_changes_are_logged_in_turns() -> None:
    async def story() -> None:
        logged: list[Event] = []
        clock = Clock()

        def log(event: Event) -> None:
            clock.now += MAX_TURN / 10
            logged.append(event)

        made = Service(Config(Settings(KEY), port=0), Path("/nonexistent"), log)
        made.server.turns._stopwatch = clock
        for dpid in range(1, 101):
            made.controller.handle_switch(0.0, Hello(dpid, (), "somewhere"))
        await made.log_changes()
        assert len(logged) == 100
        assert made.server.turns.longest < 1.5 * MAX_TURN
        # Each is told once.
        await made.log_changes()
        assert len(logged) == 100

    asyncio.run(story())
