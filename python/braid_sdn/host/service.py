"""The running controller: sockets and clock around `Balancer`.

Two sockets, both of Unix: the bridge connects to one (`unix:RUNDIR/BRIDGE.controller` is the only path that Open
vSwitch takes for a bridge's controller), the daemon to the other. The daemon writes desired states and reads
reports, each a line of JSON. Without a daemon the last desired state holds. Commands for the connection tracker go
to the control socket of ovs-vswitchd, in the bridge socket's directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from braid_sdn.host.balancer import Balancer
from braid_sdn.host.connections import Command
from braid_sdn.host.control_socket import ControlError, ControlSocket
from braid_sdn.host.desired import VERSION, parse
from braid_sdn.host.switch_cache import WAIT
from braid_sdn.openflow.flows import FLOW_FIELDS
from braid_sdn.openflow.messages import FromSwitch, Hello, RuleCountersReply
from braid_sdn.openflow.pump import Pump
from braid_sdn.openflow.server import Server

#: Bytes of the daemon's longest message: 64 classes of 2 x 1024 slots, and rules.
MAX_LINE = 4 << 20
#: Bytes for a daemon that it has not read yet, from which on it is given no answers of name servers to judge: a
#: report of many flows, and 1,024 answers beside it.
MAX_UNREAD = 16 << 20


class AlreadyRunsError(Exception):
    """Another controller serves this directory."""


def claim(path: Path) -> TextIO:
    """Take the lock of a run directory's controller; it lasts until the file is closed. Raises AlreadyRunsError."""
    held = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    # Earlier versions made it for all to read, and who can read it can lock it.
    os.fchmod(held.fileno(), 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.close()
        raise AlreadyRunsError(f"another controller holds {path}") from error
    held.write(f"{os.getpid()}\n")
    held.truncate()
    held.flush()
    return held


class HostService:
    """Passes messages between the bridge, the daemon and the balancer."""

    def __init__(self, inside: str) -> None:
        """Create it; `run` opens its sockets. `inside` is the bridge's port towards the host."""
        self.balancer = Balancer(inside)
        self.server = Server(self, FLOW_FIELDS)
        self._loop = asyncio.get_running_loop()
        self._pump = Pump(self._send, self.balancer.handle_timeout, self.server.turns)
        self._daemon: asyncio.StreamWriter | None = None
        self._told: dict[str, Any] = {}
        self._ended = asyncio.Event()
        self._commands: asyncio.Queue[Command] = asyncio.Queue()
        #: Questions for the switch's cache, which do not wait for the reading of connections.
        self._questions: asyncio.Queue[Command] = asyncio.Queue()

    async def run(self, daemon: Path, switch: Path) -> None:
        """Serve until cancelled, or until the daemon ends it."""
        with contextlib.ExitStack() as stack:
            for path in (daemon, switch):
                path.unlink(missing_ok=True)
                stack.callback(path.unlink, missing_ok=True)
            # Nobody but root may be the bridge, or the daemon.
            before = os.umask(0o077)
            stack.callback(os.umask, before)
            bridge = await self.server.listen_unix(switch)
            clients = await asyncio.start_unix_server(self._serve_daemon, daemon, limit=MAX_LINE)
            sys.stderr.write(f"ready: bridge at {switch}, daemon at {daemon}\n")
            sys.stderr.flush()
            silence = self._loop.create_task(self.server.watch_silence())
            socket = ControlSocket(switch.parent)
            executing = [
                self._loop.create_task(self._execute(socket, queue)) for queue in (self._commands, self._questions)
            ]
            try:
                await self._ended.wait()
            finally:
                for task in (silence, *executing):
                    task.cancel()
                self._pump.stop()
                self.server.close()
                bridge.close()
                clients.close()
                if self._daemon is not None:
                    self._daemon.close()

    # The daemon.

    async def _serve_daemon(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._daemon is not None:
            self._daemon.close()
        self._daemon, self._told = writer, {}
        self.balancer.handle_daemon(self._loop.time(), is_there=True)
        self._pump.run_soon()
        self._report(with_flows=True)
        try:
            while line := await reader.readline():
                self._handle_line(line)
        except (OSError, ValueError) as error:
            # A line without an end, or the daemon was killed.
            sys.stderr.write(f"daemon: {error}\n")
        finally:
            if self._daemon is writer:
                self._daemon = None
                self.balancer.handle_daemon(self._loop.time(), is_there=False)
                self._pump.run_soon()
            writer.close()

    def _handle_line(self, line: bytes) -> None:
        told = json.loads(line)
        if not isinstance(told, dict):
            raise ValueError("not an object of JSON")
        if told.get("end"):
            self._ended.set()
            return
        now = self._loop.time()
        try:
            if "forecasts" in told:
                self.balancer.handle_forecasts(told["forecasts"])
            elif "replay" in told:
                self.balancer.handle_replay(now, map(bytes.fromhex, told["replay"]))
            elif "names" in told:
                self.balancer.handle_names(now, told["meaning"], told["names"], told["forgotten"])
            elif "judged" in told:
                self.balancer.handle_judged(now, told["judged"])
            elif "sticky" in told:
                self.balancer.sticky.restore(now, told["sticky"])
            elif "forget_sticky" in told:
                self.balancer.sticky.forget(told["forget_sticky"])
            elif "paths" in told:
                self.balancer.paths.restore(now, told["paths"])
            elif "release" in told:
                for each in told["release"]:
                    self.balancer.handle_release(now, each["number"], is_reset=each["reset"])
            else:
                self.balancer.handle_desired(now, parse(told))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no message that is known: {error!r}") from error
        self._pump.run()

    def _report(self, *, with_flows: bool) -> None:
        """Send the daemon a report: with the flows after each reading of counters, without them at a change."""
        # A daemon that does not read gets the next report once it has read the last one.
        if self._daemon is None or self._daemon.transport.get_write_buffer_size():
            return
        now = self._loop.time()
        told = self.balancer.report(now, with_flows=with_flows)
        state = {key: told[key] for key in ("revision", "connected", "ready")}
        if not with_flows and state == self._told:
            return
        if with_flows:
            told["paths"] = self.balancer.paths.changes(now, all_of_it=not self._told)
            told["sticky"] = self.balancer.sticky.changes(now, all_of_it=not self._told)
        self._told = state
        _write(self._daemon, told)

    def _ask_daemon(self) -> None:
        """Give the daemon answers of name servers to judge. One that does not read gets no more of them."""
        for number, packet in self.balancer.poll_answers():
            if self._daemon is not None and self._daemon.transport.get_write_buffer_size() < MAX_UNREAD:
                told = {"version": VERSION, "answer": {"number": number, "packet": packet.hex()}}
                _write(self._daemon, told)

    # The switch's control socket.

    async def _execute(self, socket: ControlSocket, queue: asyncio.Queue[Command]) -> None:
        """Execute commands, one after another, until cancelled."""
        while True:
            command = await queue.get()
            try:
                answer = await socket.execute(command)
            except ControlError as error:
                # A connection that is gone already, or a switch that is: the next reading shows it.
                self.balancer.handle_refusal(self._loop.time(), command, str(error))
            else:
                self.balancer.handle_answer(self._loop.time(), command, answer)
            self._pump.run_soon()

    # Events of the bridge.

    def connected(self, now: float, hello: Hello) -> None:
        """Handle the bridge, which has completed the handshake."""
        self.balancer.handle_switch(now, hello)
        self._pump.run_soon()

    def disconnected(self, now: float, dpid: int, why: str) -> None:  # noqa: ARG002
        """Handle the end of the bridge's connection."""
        self.balancer.handle_gone()
        self._pump.run_soon()

    def message(self, now: float, dpid: int, message: FromSwitch) -> None:  # noqa: ARG002
        """Handle a message of the bridge."""
        self.balancer.handle(now, message)
        if isinstance(message, RuleCountersReply):
            self._report(with_flows=True)
        self._pump.run_soon()

    def rejected(self, now: float, address: str, code: str, text: str) -> None:  # noqa: ARG002
        """Report a connection that cannot be served."""
        sys.stderr.write(f"{code}: {address} {text}\n")

    # Time.

    def _send(self) -> float | None:
        for dpid in list(self.server.switches):
            self.server.send([(dpid, message) for message in self.balancer.poll_messages()])
        for command in self.balancer.poll_commands():
            (self._questions if command == WAIT else self._commands).put_nowait(command)
        self._ask_daemon()
        self._report(with_flows=False)
        return self.balancer.poll_timeout()


def _write(daemon: asyncio.StreamWriter, told: Mapping[str, Any]) -> None:
    """Write the daemon a message."""
    daemon.write(json.dumps(told, separators=(",", ":")).encode() + b"\n")
