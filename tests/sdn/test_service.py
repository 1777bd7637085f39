"""The controller's process from inside: its memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from braid_sdn.fabric import service

#: Objects that a look at old ones may find: those that have grown old since the last one, and the young ones.
MOST = 2 * service.GC_YOUNGEST * (service.GC_YOUNG + 1) * (service.GC_OLD + 1)


class Ring:
    """Garbage that reference counts do not find."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector as the controller has it."""
    before = gc.get_threshold()
    gc.callbacks.append(service._leave_alone)
    try:
        service._look_at_all()
        gc.set_threshold(service.GC_YOUNGEST, service.GC_YOUNG, service.GC_OLD)
        yield
    finally:
        gc.callbacks.remove(service._leave_alone)
        gc.set_threshold(*before)
        gc.unfreeze()


def test_no_look_for_garbage_finds_many_objects_however_many_there_are(collector: None) -> None:  # noqa: ARG001
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == service.MAX_GENERATION:
            found.append(len(gc.get_objects()))

    gc.callbacks.append(note)
    try:
        kept = [Ring() for _ in range(300_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(found) > 5
    assert max(found) < MOST
    assert gc.get_freeze_count() > len(kept)


def test_garbage_that_has_grown_old_is_found_before_the_hour_is_over(collector: None) -> None:  # noqa: ARG001
    rings = [Ring()]
    known = weakref.ref(rings[0])
    while len(rings) < 2 * service.GC_YOUNGEST * (service.GC_YOUNG + 1):
        rings.append(Ring())
    # The first ones are old now, and nobody has looked at them as such.
    assert any(each is rings[0] for each in gc.get_objects(service.MAX_GENERATION))
    rings.clear()
    kept = []
    while known() is not None:
        kept.append(Ring())
        assert len(kept) < 10 * MOST


def test_garbage_of_what_was_old_is_found_each_hour(collector: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setattr(service, "COLLECTION_INTERVAL", 0.01)

    async def story() -> None:
        rings = [Ring()]
        known = weakref.ref(rings[0])
        gc.collect()
        rings.clear()
        gc.collect()
        # It was left alone as something that is in use.
        assert known() is not None
        collecting = asyncio.create_task(service._collect_garbage())
        async with asyncio.timeout(10):
            while known() is not None:
                await asyncio.sleep(0.01)
        assert not collecting.done()
        collecting.cancel()

    asyncio.run(story())
