"""Replays the path traces of a round on emulated paths, in real time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from braid_lab.experiment import Run
from braid_lab.experiments.race.rounds import STEP_SECONDS, PathTrace, Round
from braid_lab.net.links import Emulated
from braid_lab.net.paths import PathKey

#: Smaller changes are not sent to the emulator, ms: they are below its accuracy.
MIN_DELAY_CHANGE_MS = 0.25


@contextlib.contextmanager
def path_dynamics(links: Mapping[PathKey, Emulated], drawn: Round) -> Iterator[float]:
    """Let the paths follow a round's traces; yields the round's start (CLOCK_MONOTONIC).

    LabError if a request to an emulator fails.
    """
    over = threading.Event()
    for way, link in links.items():
        _set_path(link, drawn.traces[way], 0.0)
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=1) as pool:
        following = pool.submit(_replay, links, drawn, began, over)
        try:
            yield began
        finally:
            over.set()
        following.result()


def _set_path(link: Emulated, trace: PathTrace, at: float) -> None:
    # Half of the round trip and half of the loss in each direction.
    link.request({"set": {"delay": f"{trace.at(at) / 2:.3f} ms", "loss": f"{100 * trace.loss:.5f} %"}})


def _replay(links: Mapping[PathKey, Emulated], drawn: Round, began: float, over: threading.Event) -> None:
    told = {way: drawn.traces[way].at(0.0) for way in links}
    step = 0
    while not over.wait(max(0.0, began + (step + 1) * STEP_SECONDS - time.monotonic())):
        # A delayed thread continues at the current time.
        step = int((time.monotonic() - began) / STEP_SECONDS)
        for way, link in links.items():
            now = drawn.traces[way].at(step * STEP_SECONDS)
            if abs(now - told[way]) >= MIN_DELAY_CHANGE_MS:
                link.request({"set": {"delay": f"{now / 2:.3f} ms"}})
                told[way] = now


def lateness_ms(run: Run, links: Mapping[PathKey, Emulated]) -> float:
    """Return the 99th percentile of packet lateness on the worst path, ms.

    If an emulator lost packets that it should not lose, the measurement is void (`Run.too_slow`).
    """
    latest = 0.0
    for way, link in links.items():
        stats = link.request({"stats": {}})["stats"]
        for direction in (stats["up"], stats["down"]):
            if direction["kernel_dropped_before"] or direction["device_refused"]:
                run.too_slow(f"the emulator of path {'-'.join(way)} lost packets")
            latest = max(latest, direction["late_us"]["p99"] / 1000)
    return latest
