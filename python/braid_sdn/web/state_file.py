"""Files of the state directory: JSON that root alone may read, replaced as a whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MODE, FOLDER_MODE = 0o600, 0o700


def read(path: Path) -> Any:
    """Return a file's content; None if it does not exist. Raises OSError, or ValueError if it is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def write(path: Path, content: object) -> None:
    """Replace a file, on the disk as well; raises OSError."""
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
