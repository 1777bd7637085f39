"""The local API over its socket: what edges wait for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric.api import Api

from .virtual import Network, frame, mac


async def asked(socket: Path, path: str) -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body) if body else {}


def test_an_edge_gets_its_next_table_when_there_is_one(tmp_path: Path) -> None:
    async def story() -> None:
        net = Network(two_paths())
        net.connect()
        net.run(5)
        api = Api(net.controller, asyncio.get_running_loop().time)
        socket = tmp_path / "api.sock"
        await api.listen(socket, None)
        try:
            status, table = await asked(socket, "/v1/fabric/edges/ha?unlike=&wait=5")
            assert status == 200
            waits = f"/v1/fabric/edges/ha?unlike={table['revision']}&wait="
            assert await asked(socket, waits + "0.01") == (304, {})
            # A host appears behind the other edge, which is no new plan but a new table.
            waiting = asyncio.create_task(asked(socket, waits + "30"))
            net.send("hb", frame(mac(2), "ff:ff:ff:ff:ff:ff", b"here I am"))
            net.run(2)
            # As often as something happens, until it is heard.
            while not waiting.done():
                api.happened()
                await asyncio.sleep(0)
            status, after = await waiting
            assert status == 200
            assert after["revision"] != table["revision"]
            assert [each["hosts"] for each in after["outward"]] == [[mac(2)]]
            assert (await asked(socket, "/v1/fabric/edges/nobody?unlike=x&wait=1"))[0] == 404
        finally:
            await api.close()

    asyncio.run(asyncio.wait_for(story(), 20))
