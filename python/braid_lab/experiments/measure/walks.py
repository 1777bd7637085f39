"""Walks: the capacity of a mobile link, one value a second.

`cellular` changes from one second to the next by 13 to 25 % in the median, as drive tests of cellular and Starlink
links found. `campus` has the shape of [host] Fig. 15 (§6.1), whose data are not published: two minutes indoors with
WiFi of up to 160 Mbit/s and LTE well below 10, then outdoors LTE steady at about 30 and WiFi mostly below that, with
gaps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Seconds of the paper's walk, and of its part indoors.
CAMPUS_SECONDS = 400
INDOORS_SECONDS = 120

#: Rate of a gap, Mbit/s: below what carries a page.
GAP_MBIT = 0.05


@dataclass(frozen=True)
class Campus:
    """The paper's walk: rates in Mbit/s, one a second."""

    wifi: tuple[float, ...]
    lte: tuple[float, ...]
    #: Seconds of it indoors, at its beginning.
    indoors: int


def cellular(seconds: int, seed: int, *, mean: float = 30.0, step: float = 0.28) -> tuple[float, ...]:
    """Return a walk of rates in Mbit/s around `mean`; `step` is the deviation of a second's logarithmic change."""
    draw = random.Random(f"cellular {seed}")
    rate, rates = mean, []
    for _ in range(seconds):
        rates.append(rate)
        # A tenth of the way back to the mean.
        rate = min(4 * mean, max(mean / 10, rate * (mean / rate) ** 0.1 * 2.718 ** draw.gauss(0, step)))
    return tuple(rates)


def campus(seed: int, *, seconds: int = CAMPUS_SECONDS) -> Campus:
    """Return the paper's walk, or one compressed to fewer seconds with the same parts."""
    draw = random.Random(f"campus {seed}")
    indoors = round(seconds * INDOORS_SECONDS / CAMPUS_SECONDS)
    wifi, lte, gap = [], [], 0
    level, outdoors = 80.0, 12.0
    for second in range(seconds):
        if second < indoors:
            level = min(160.0, max(15.0, level * 2.718 ** draw.gauss(0, 0.45)))
            wifi.append(level)
            lte.append(min(9.0, max(1.0, draw.gauss(5.0, 1.8))))
            continue
        # Gaps of two to eight seconds take a quarter of the time outdoors.
        if gap == 0 and draw.random() < 0.06:
            gap = draw.randint(2, 8)
        outdoors = min(45.0, max(1.0, outdoors * (12 / outdoors) ** 0.15 * 2.718 ** draw.gauss(0, 0.4)))
        wifi.append(GAP_MBIT if gap else outdoors)
        gap = max(0, gap - 1)
        lte.append(min(36.0, max(22.0, draw.gauss(30.0, 2.0))))
    return Campus(tuple(wifi), tuple(lte), indoors)
