"""Files of the state directory: JSON that root alone may read, replaced as a whole, and sealed if there is a key."""

from __future__ import annotations

import base64
import binascii
import json
import os
from pathlib import Path
from typing import Any

from braid_sdn.web.seal import CREDENTIAL, SealError, SealKey

MODE, FOLDER_MODE = 0o600, 0o700


def read(path: Path, seal: SealKey | None = None) -> Any:
    """Return a file's content; None if it does not exist. A file that is not sealed is sealed now, if there is a key.

    Raises OSError, which SealError is, or ValueError if it is no JSON.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    if isinstance(content, dict) and content.keys() == {"sealed"}:
        if seal is None:
            raise SealError(f"{path.name}: sealed, and there is no credential {CREDENTIAL} to open it")
        try:
            sealed = base64.b64decode(content["sealed"], validate=True)
        except (TypeError, binascii.Error):
            sealed = b""
        return json.loads(seal.open(path.name, sealed))
    if seal is not None:
        write(path, content, seal)
    return content


def write(path: Path, content: object, seal: SealKey | None = None) -> None:
    """Replace a file, on the disk as well; raises OSError."""
    if seal is not None:
        content = {"sealed": base64.b64encode(seal.seal(path.name, json.dumps(content).encode())).decode()}
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    made = path.with_suffix(".new")
    made.unlink(missing_ok=True)
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
