"""Objects at the level of a module, under consecutive lifespans, each on a loop of its own."""

import asyncio
from typing import Any

import pytest
from helpers import iterations

from purgatory import IdleTracker, Purgatory, PurgatoryClosed, PurgatoryFull, ThresholdPurgatory


@pytest.mark.parametrize("kind", [Purgatory, ThresholdPurgatory])
def test_closed_purgatory_opens_with_next_lifespan(run, kind):
    purgatory = kind("module's", max_pending=1)
    is_plain = kind is Purgatory

    def wait(value: int) -> Any:
        return purgatory.receive("key") if is_plain else purgatory.wait("key", value)

    async def lifespan() -> None:
        for number in (1, 2):  # also on the same loop
            async with purgatory:
                waiting = asyncio.create_task(wait(number))
                await iterations(2)
                assert purgatory.pending == 1
                with pytest.raises(PurgatoryFull):
                    await wait(9)
                assert (purgatory.deliver if is_plain else purgatory.advance)("key", number) == 1
                await waiting
                assert is_plain or purgatory.forget("key")
            with pytest.raises(PurgatoryClosed):
                await wait(1)

    for _ in range(2):
        run(lifespan)


def test_closed_idle_tracker_tracks_again_when_entered(virtual):
    idle: list[str] = []
    tracker = IdleTracker(1.0, idle.append)

    async def lifespan() -> None:
        with tracker:
            tracker.touch("id")
            await asyncio.sleep(2)
            tracker.touch("forgotten")
        with pytest.raises(PurgatoryClosed):
            tracker.touch("late")

    for _ in range(2):
        virtual(lifespan)
    assert idle == ["id"] * 2
