"""The controller's process from inside: its memory."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from braid_sdn.fabric import service


class Ring:
    """Garbage that reference counts do not find."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_that_has_grown_old_is_found_before_the_hour_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "GC_YOUNGEST", 100)
    monkeypatch.setattr(service, "COLLECTION_PAUSE", 0.01)
    monkeypatch.setattr(service, "MAX_UNSEEN_OBJECTS", 5_000)
    before = gc.get_threshold()

    async def story() -> None:
        gc.collect()
        gc.set_threshold(service.GC_YOUNGEST, service.GC_YOUNG, service.GC_NEVER)
        rings = [Ring() for _ in range(100)]
        known = weakref.ref(rings[0])
        while gc.get_count()[2] < 2:
            rings.append(Ring())
        rings.clear()
        collecting = asyncio.create_task(service._collect_garbage())
        await asyncio.sleep(0.05)
        # So few are not worth a look.
        assert known() is not None
        kept = []
        while gc.get_count()[2] * service.GC_YOUNGEST * service.GC_YOUNG <= service.MAX_UNSEEN_OBJECTS:
            kept.append(Ring())
        async with asyncio.timeout(10):
            while known() is not None:
                await asyncio.sleep(0.01)
        assert not collecting.done()
        collecting.cancel()

    try:
        asyncio.run(story())
    finally:
        gc.set_threshold(*before)
