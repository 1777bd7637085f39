"""Makes emulated paths be what a round says, moment by moment."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from braid_lab.experiment import Run
from braid_lab.experiments.race.rounds import STEP_SECONDS, Course, Round
from braid_lab.net.links import Emulated
from braid_lab.net.paths import Way

#: A change of less than this is not worth telling the emulator, ms: it is that exact.
NOTICEABLE_MS = 0.25


@contextlib.contextmanager
def weather(links: Mapping[Way, Emulated], drawn: Round) -> Iterator[float]:
    """Let the paths follow a round's courses; yields when the round began, by CLOCK_MONOTONIC.

    LabError if an emulator could not be told.
    """
    over = threading.Event()
    for way, link in links.items():
        _tell(link, drawn.courses[way], 0.0)
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=1) as pool:
        following = pool.submit(_follow, links, drawn, began, over)
        try:
            yield began
        finally:
            over.set()
        following.result()


def _tell(link: Emulated, course: Course, at: float) -> None:
    # Half of the round trip and half of the loss either way.
    link.ask({"set": {"delay": f"{course.at(at) / 2:.3f} ms", "loss": f"{100 * course.loss:.5f} %"}})


def _follow(links: Mapping[Way, Emulated], drawn: Round, began: float, over: threading.Event) -> None:
    told = {way: drawn.courses[way].at(0.0) for way in links}
    step = 0
    while not over.wait(max(0.0, began + (step + 1) * STEP_SECONDS - time.monotonic())):
        # A thread that was kept waiting goes on where time is by now.
        step = int((time.monotonic() - began) / STEP_SECONDS)
        for way, link in links.items():
            now = drawn.courses[way].at(step * STEP_SECONDS)
            if abs(now - told[way]) >= NOTICEABLE_MS:
                link.ask({"set": {"delay": f"{now / 2:.3f} ms"}})
                told[way] = now


def lateness_ms(run: Run, links: Mapping[Way, Emulated]) -> float:
    """Return the lateness that 99 of 100 packets of the worst path stayed within, ms.

    If an emulator lost packets that it did not mean to lose, what was measured is void (`Run.too_slow`).
    """
    latest = 0.0
    for way, link in links.items():
        stats = link.ask({"stats": {}})["stats"]
        for direction in (stats["up"], stats["down"]):
            if direction["kernel_dropped_before"] or direction["device_refused"]:
                run.too_slow(f"the emulator of path {'-'.join(way)} lost packets")
            latest = max(latest, direction["late_us"]["p99"] / 1000)
    return latest
