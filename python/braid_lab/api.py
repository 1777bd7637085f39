"""The local APIs of daemon and controller, on their Unix sockets."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

#: Longest wait for an answer; `braid` itself waits as long.
ANSWER_SECONDS = 20.0


def get(file: Path, target: str) -> dict[str, Any] | None:
    """Return the answer to `GET target` on a socket, or None if that is an error; OSError if nobody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(ANSWER_SECONDS)
        peer.connect(str(file))
        peer.sendall(f"GET {target} HTTP/1.1\r\nHost: braid\r\nConnection: close\r\n\r\n".encode())
        said = b"".join(iter(lambda: peer.recv(65536), b""))
    head, _, body = said.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        return None
    answer: dict[str, Any] = json.loads(body)
    return answer
