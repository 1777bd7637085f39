"""Notification of the service manager, if there is one: `sd_notify(3)`."""

from __future__ import annotations

import os
import socket


def tell_service_manager(state: str) -> None:
    """Send a state such as READY=1; without a service manager nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        # "@" is how the environment writes the zero byte of an abstract address.
        sender.connect("\0" + address[1:] if address.startswith("@") else address)
        sender.sendall(state.encode())
