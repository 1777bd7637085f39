"""Addresses that the controller listens at, as people write them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def written(host: str, port: int) -> str:
    """Return an address and its port as in the configuration."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def naming_address(option: str, host: str, port: int) -> Iterator[None]:
    """Say of an address that cannot be listened at where it was given, and what shows more."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else str(error)
        raise OSError(f'{option} = "{written(host, port)}": {why} (braid sdn fabric doctor)') from error
