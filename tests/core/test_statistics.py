"""Statistics of purgatories: exact at every moment, also inside hooks, and frozen."""

import asyncio

import pytest
from helpers import Broken, Probe, counts, start_waits
from loops import on_virtual_time

from purgatory import (
    ThresholdPurgatory,
    ThresholdStatistics,
)


async def test_repeated_key_counts_once(purgatory):
    operation = Probe(30)
    purgatory.try_complete_else_watch(operation, ["a", "b", "a", "a", "b"])
    assert counts(purgatory) == (1, 2, 2)
    assert purgatory.check_and_complete("a") == 0 and operation.calls == ["try", "try"]
    assert purgatory.cancel_for_key("a") == [operation] and counts(purgatory) == (0, 0, 0)


@on_virtual_time
async def test_snapshot_does_not_change_later():
    async with ThresholdPurgatory("versions") as purgatory:
        nothing = purgatory.statistics()
        assert nothing == ThresholdStatistics("versions", 0, 0, 0, 0, 0, 0, 0, 0, 0)
        tasks = await start_waits(purgatory, ("a", 1), ("a", 2), ("b", 1, 5), ("b", 2), ("c", 1))
        assert counts(purgatory, "pending", "unanswered", "keys") == (5, 0, 3)
        purgatory.advance("a", 1)
        await purgatory.wait("a", 1)
        purgatory.fail("c", Broken())
        tasks[3].cancel()
        await asyncio.sleep(6)
        last = purgatory.statistics()
        assert (last.pending, last.unanswered, last.keys) == (1, 0, 1)
        assert (last.completed, last.failed, last.expired, last.cancelled) == (
            2,
            1,
            1,
            1,
        ) and last.wake_ups > 0
        with pytest.raises(AttributeError):
            last.pending = 5
        assert nothing.completed == 0
        await purgatory.aclose()
        assert counts(purgatory, "cancelled") == (2,) and last.cancelled == 1
        await asyncio.gather(*tasks, return_exceptions=True)
