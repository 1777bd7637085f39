"""The control socket of ovs-vswitchd, as ovs-appctl uses it: a JSON-RPC request, and its answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from braid_sdn.host.connections import DATAPATH, Command

#: Seconds for an answer.
TIMEOUT = 20.0
#: Bytes of an answer: a dump of as many connections as a configuration allows by default.
MAX_ANSWER = 128 << 20
_CHUNK = 1 << 18


class ControlError(Exception):
    """The switch refuses a command, or does not answer."""


class ControlSocket:
    """Sends commands, each by a connection of its own: the switch may start anew at any time."""

    def __init__(self, folder: Path) -> None:
        """Create it for the switch whose run directory this is."""
        self._folder = folder

    async def execute(self, command: Command) -> str:
        """Return the answer to a command; raises ControlError."""
        try:
            return await self._ask(command.name, command.words)
        except ControlError as error:
            if command.is_named or "multiple datapaths" not in str(error):
                raise
        return await self._ask(command.name, (DATAPATH, *command.words))

    async def _ask(self, name: str, words: tuple[str, ...]) -> str:
        # Its name holds the process id. One that crashed leaves its socket behind.
        for path in sorted(self._folder.glob("ovs-vswitchd.*.ctl")):
            try:
                reader, writer = await asyncio.open_unix_connection(path, limit=MAX_ANSWER)
            except OSError:
                continue
            try:
                writer.write(json.dumps({"id": 0, "method": name, "params": words}).encode())
                answer = await asyncio.wait_for(_answer(reader), TIMEOUT)
            except (OSError, TimeoutError) as error:
                raise ControlError(f"{path}: {error or 'no answer'}") from error
            finally:
                writer.close()
            if answer.get("error") is not None:
                raise ControlError(str(answer["error"]).strip())
            return str(answer.get("result") or "")
        raise ControlError(f"no ovs-vswitchd answers in {self._folder}")


async def _answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the one message that the switch sends; nothing marks its end but its form."""
    data = bytearray()
    while chunk := await reader.read(_CHUNK):
        data += chunk
        if len(data) > MAX_ANSWER:
            raise ControlError(f"an answer of more than {MAX_ANSWER} bytes")
        if not data.rstrip().endswith(b"}"):
            continue
        try:
            told = json.loads(data)
        except ValueError:
            continue
        if isinstance(told, dict):
            return told
    raise ControlError("the switch ended the connection")
