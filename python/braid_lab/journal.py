"""Measurements of a long run that survive its interruption: the same command goes on where it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Journal:
    """Rows in a file, one a line, below the settings that they were measured with."""

    def __init__(self, file: Path, settings: Mapping[str, Any]) -> None:
        """Take up the rows of an interrupted run with the same settings, else begin anew."""
        self._file = file
        self.rows: list[dict[str, Any]] = []
        head = json.dumps(settings, sort_keys=True)
        lines = file.read_text().split("\n") if file.exists() else []
        if lines and lines[0] == head:
            # The text after the last end of a line was cut off.
            self.rows = [json.loads(line) for line in lines[1:-1]]
        file.write_text("".join(f"{line}\n" for line in (head, *map(json.dumps, self.rows))))

    def add(self, row: dict[str, Any]) -> None:
        """Append a row, which outlives this process when this returns."""
        self.rows.append(row)
        with self._file.open("a") as out:
            out.write(json.dumps(row) + "\n")

    def finish(self) -> None:
        """Remove the file: the run is complete."""
        self._file.unlink()
