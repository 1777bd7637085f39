"""Amounts with their unit, as people write them: `10 Mbit/s`, `200 ms`."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Units of rates in bit/s, and of times in seconds.
RATE = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
TIME = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def amount(text: object, units: Mapping[str, float]) -> float | None:
    """Return an amount in its unit's base; None if it is none, or not above 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(\S+)", text) if isinstance(text, str) else None
    if match is None or match[2] not in units or not float(match[1]):
        return None
    return float(match[1]) * units[match[2]]
