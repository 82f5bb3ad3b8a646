"""`ThresholdPurgatory` with many waits: they are decided at once, and woken a bounded number per
iteration; closing and threads."""

import asyncio
from collections import Counter
from math import inf, nan

import pytest
from helpers import Broken, counts, iterations, start_waits
from invariants import MAX_PER_ITERATION, check, deadlines
from loops import on_virtual_time

from purgatory import (
    OperationCancelled,
    OperationTimeout,
    PurgatoryClosed,
    PurgatoryFull,
    ThresholdPurgatory,
)

# Bounded work in each iteration of the loop


@on_virtual_time
async def test_decided_waits_keep_their_outcome():
    size = 3 * MAX_PER_ITERATION
    loop = asyncio.get_running_loop()
    async with ThresholdPurgatory() as purgatory:
        tasks = await start_waits(purgatory, *[("key", 1, 1.0)] * size)
        late = await start_waits(purgatory, ("key", 2, 30), ("other", 1, 30))
        loop._set_time(
            loop.time() + 5.0
        )  # all deadlines have passed, and the loop has had no iteration yet
        assert purgatory.advance("key", 1) == size
        purgatory.forget("key")
        assert purgatory.fail("key", Broken()) == 1
        assert purgatory.advance("other", 1) == 1
        tasks[-1].cancel()
        assert await asyncio.gather(*tasks[:-1]) == [1] * (size - 1)
        assert isinstance(await tasks[-1], asyncio.CancelledError)
        assert isinstance(await late[0], Broken) and await late[1] == 1
        await iterations(2)
        assert counts(purgatory, "completed", "expired", "cancelled", "failed", "unanswered", "keys") == (
            size + 1, 0, 0, 1, 0, 1,
        )  # fmt: skip
        check(purgatory)
        assert deadlines(purgatory) == 0


@on_virtual_time
async def test_failed_waits_do_not_expire():
    size = 3 * MAX_PER_ITERATION
    loop = asyncio.get_running_loop()
    async with ThresholdPurgatory() as purgatory:
        tasks = await start_waits(purgatory, *[("key", 1, 1.0)] * size)
        loop._set_time(loop.time() + 5.0)
        assert purgatory.fail("key", error := Broken()) == size
        assert await asyncio.gather(*tasks) == [error] * size
        assert counts(purgatory, "failed", "expired", "cancelled") == (size, 0, 0)
        assert deadlines(purgatory) == 0


async def test_later_advance_wakes_after_earlier_burst():
    size, answered = 2 * MAX_PER_ITERATION, []
    async with ThresholdPurgatory() as purgatory:
        await start_waits(purgatory, *[("a", n) for n in range(size)], ("b", 1), log=answered)
        assert purgatory.advance("a", size) == size and purgatory.advance("b", 1) == 1
        assert purgatory.statistics().unanswered == size + 1 - MAX_PER_ITERATION
        await iterations(5)
        assert [number for number, _ in answered] == list(range(size + 1))


# Closing


async def test_aclose_answers_all_and_refuses_new_waits():
    purgatory = ThresholdPurgatory("closing")
    purgatory.advance("key", 1)
    tasks = await start_waits(
        purgatory, *[(key, 2, timeout) for key in ("key", "other") for timeout in (None, 30)] * 400
    )
    assert await purgatory.aclose() == 1600
    results = await asyncio.gather(*tasks)
    assert all(type(result) is OperationCancelled for result in results)
    assert str(results[0]) == ("<wait for 'key' to reach 2> has no result: it was cancelled")
    assert counts(purgatory, "pending", "unanswered", "cancelled", "keys") == (0, 0, 1600, 1)
    for threshold in (1, 2):
        with pytest.raises(
            PurgatoryClosed, match=f"<wait for 'key' to reach {threshold}>: closing is closed"
        ):
            await purgatory.wait("key", threshold)
    assert await purgatory.aclose(5.0) == 0
    assert purgatory.advance("key", 7) == 0 and purgatory.value("key") == 7
    check(purgatory)


async def test_waits_end_by_themselves_during_drain():
    for drain in (30.0, inf):
        purgatory = ThresholdPurgatory()
        tasks = await start_waits(purgatory, ("a", 1, 30), ("b", 1, 0.001), ("c", 1))
        closing = asyncio.create_task(purgatory.aclose(drain))
        await iterations(2)
        again = asyncio.create_task(purgatory.aclose(drain))
        await iterations(2)
        tasks[2].cancel()
        assert purgatory.advance("a", 1) == 1
        assert await closing == await again == 0
        assert await tasks[0] == 1 and isinstance(await tasks[1], OperationTimeout)


@pytest.mark.parametrize("drain", [0.0, 30.0])
async def test_cancelled_aclose_ends_the_rest_at_once(drain):
    purgatory = ThresholdPurgatory()
    tasks = await start_waits(
        purgatory, *[(number % 5 > 0, number, 30) for number in range(5 * MAX_PER_ITERATION)]
    )
    purgatory.advance(False, 10 * MAX_PER_ITERATION)
    closing = asyncio.create_task(purgatory.aclose(drain))
    await iterations()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    completed, cancelled = MAX_PER_ITERATION, 4 * MAX_PER_ITERATION
    assert counts(purgatory, "pending", "completed", "cancelled") == (0, completed, cancelled)
    assert Counter(map(type, await asyncio.gather(*tasks))) == {
        int: completed,
        OperationCancelled: cancelled,
    }
    assert purgatory.statistics().unanswered == 0
    await iterations(2)
    check(purgatory)


# Values from threads


def test_threads_advance_nothing_on_closed_loop():
    purgatory = ThresholdPurgatory()

    async def main():
        purgatory.advance("key", 1)

    asyncio.run(main())
    purgatory.advance_threadsafe("key", 2)
    assert purgatory.value("key") == 1

    async def later():
        return purgatory.advance("key", 1), purgatory.value("key")

    assert asyncio.run(later()) == (0, 1)


async def test_refused_value_of_thread_is_reported_alone(reports):
    async with ThresholdPurgatory("small", max_keys=2) as purgatory:
        purgatory.advance("a", 1)
        assert await purgatory.wait("a", 1) == 1  # which binds it
        with pytest.raises(ValueError, match="cannot advance 'a' to nan"):
            purgatory.advance_threadsafe("a", nan)
        purgatory.advance_threadsafe("a", "text")
        purgatory.advance_threadsafe("a", 2)
        for key in ("b", "c"):
            purgatory.advance_threadsafe(key, 1)
        await iterations(3)
        assert (purgatory.value("a"), purgatory.value("b"), purgatory.value("c")) == (2, 1, None)
    assert [type(report["exception"]) for report in reports] == [TypeError, PurgatoryFull]
    assert (
        reports[0]["message"] == "small: cannot advance 'a' to 'text', as another thread requested"
    )
