"""The engine of a threshold purgatory: waits are decided at once, and woken a bounded number per iteration; closing."""

import asyncio
import threading
from collections import Counter
from decimal import Decimal
from math import inf, nan

import pytest
from helpers import Broken, Spy, counts, iterations, start_waits
from loops import on_virtual_time

from purgatory import OperationCancelled, OperationTimeout, PurgatoryClosed, PurgatoryFull, ThresholdPurgatory
from purgatory._loop import MAX_PER_ITERATION

# A bounded amount in each iteration of the loop


async def test_very_many_are_woken_a_bounded_number_per_iteration_in_order_and_all_are_decided_at_once():
    size, log = 10 * MAX_PER_ITERATION + 7, []
    async with ThresholdPurgatory() as purgatory:
        tasks = await start_waits(purgatory, *[("key", 1 + number // 3, 30) for number in range(size)], log=log)
        assert purgatory.advance("key", size) == size
        assert counts(purgatory, "pending", "completed", "unanswered") == (0, size, size - MAX_PER_ITERATION)
        purgatory._check()
        for iteration in range(1, 12):
            woken = len(log)
            await iterations()
            assert len(log) - woken <= MAX_PER_ITERATION
            assert counts(purgatory, "unanswered") == (max(0, size - (iteration + 1) * MAX_PER_ITERATION),)
            purgatory._check()
        await asyncio.gather(*tasks)
        assert log == [(number, size) for number in range(size)]


@on_virtual_time
async def test_what_is_decided_stays_decided_until_it_is_woken():
    size = 3 * MAX_PER_ITERATION
    loop = asyncio.get_running_loop()
    async with ThresholdPurgatory() as purgatory:
        tasks = await start_waits(purgatory, *[("key", 1, 1.0)] * size)
        late = await start_waits(purgatory, ("key", 2, 30), ("other", 1, 30))
        loop._set_time(loop.time() + 5.0)  # all their deadlines have passed, and the loop has had no iteration yet
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
        purgatory._check()
        assert purgatory._engine.wheel.size == 0


async def test_several_bursts_in_one_iteration_wake_a_bounded_number_per_iteration_between_them():
    log = []
    async with ThresholdPurgatory() as purgatory:
        waits = [(key, 1, 30) for key in range(5) for _ in range(MAX_PER_ITERATION)]
        tasks = await start_waits(purgatory, *waits, log=log)
        [small] = await start_waits(purgatory, ("small", 1, 30))
        extra = await start_waits(purgatory, (0, 1, 30))
        for key in range(5):
            assert purgatory.advance(key, 1) == MAX_PER_ITERATION + (key == 0)
        assert purgatory.fail("small", Broken()) == 1
        while not small.done():
            woken = len(log)
            purgatory.advance_threadsafe("other", woken)  # wakes the loop, and nobody else
            await iterations()
            assert len(log) - woken <= MAX_PER_ITERATION
        await asyncio.gather(*tasks, *extra)
        assert [number for number, _ in log] == list(range(len(waits)))
        await iterations(3)
        assert purgatory.value("other") > 0
        purgatory._check()


async def test_of_what_threads_name_a_bounded_number_is_applied_per_iteration():
    async with ThresholdPurgatory() as purgatory:
        purgatory.forget("bound")
        for key in range(3 * MAX_PER_ITERATION):
            purgatory.advance_threadsafe(key, 1)
        keys = [0]
        while keys[-1] < 3 * MAX_PER_ITERATION:
            await iterations()
            keys.append(counts(purgatory, "keys")[0])
            assert keys[-1] - keys[-2] <= MAX_PER_ITERATION
        await iterations()
        purgatory._check()


# The end


async def test_closing_answers_everybody_and_refuses_newcomers():
    purgatory = ThresholdPurgatory("closing")
    purgatory.advance("key", 1)
    tasks = await start_waits(purgatory, *[(key, 2, timeout) for key in ("key", "other") for timeout in (None, 30)] * 400)
    assert await purgatory.aclose() == 1600
    results = await asyncio.gather(*tasks)
    assert all(type(result) is OperationCancelled for result in results)
    assert str(results[0]) == "'key' did not reach 2: closing was closed"
    assert counts(purgatory, "pending", "unanswered", "cancelled", "keys") == (0, 0, 1600, 1)
    for threshold in (1, 2):
        with pytest.raises(PurgatoryClosed, match=f"cannot wait for 'key' to reach {threshold}: closing is closed"):
            await purgatory.wait("key", threshold)
    assert await purgatory.aclose(5.0) == 0
    assert purgatory.advance("key", 7) == 0 and purgatory.value("key") == 7
    purgatory._check()


async def test_closing_wakes_a_bounded_number_per_iteration():
    log = []
    purgatory = ThresholdPurgatory()
    await start_waits(purgatory, *[(number, 1) for number in range(4 * MAX_PER_ITERATION)], log=log)
    await start_waits(purgatory, *[("crowded", number) for number in range(4 * MAX_PER_ITERATION)], log=log)
    closing = asyncio.create_task(purgatory.aclose())
    while not closing.done():
        woken = len(log)
        await iterations()
        assert len(log) - woken <= 2 * MAX_PER_ITERATION
    assert await closing == len(log) == 8 * MAX_PER_ITERATION


async def test_while_it_drains_waits_end_by_themselves():
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


@on_virtual_time
async def test_draining_ends_with_its_time():
    loop = asyncio.get_running_loop()
    purgatory = ThresholdPurgatory()
    [task] = await start_waits(purgatory, ("a", 1))
    assert await purgatory.aclose(5.0) == 1 and loop.time() == 5.0
    assert isinstance(await task, OperationCancelled)


@pytest.mark.parametrize("drain", [0.0, 30.0])
async def test_closing_that_is_cancelled_ends_all_the_rest_at_once(drain):
    purgatory = ThresholdPurgatory()
    tasks = await start_waits(purgatory, *[(number % 5 > 0, number, 30) for number in range(5 * MAX_PER_ITERATION)])
    purgatory.advance(False, 10 * MAX_PER_ITERATION)
    closing = asyncio.create_task(purgatory.aclose(drain))
    await iterations()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    completed, cancelled = MAX_PER_ITERATION, 4 * MAX_PER_ITERATION
    assert counts(purgatory, "pending", "unanswered", "completed", "cancelled") == (0, 0, completed, cancelled)
    assert Counter(map(type, await asyncio.gather(*tasks))) == {int: completed, OperationCancelled: cancelled}
    await iterations(2)
    purgatory._check()


# What threads name


async def test_threads_advance_through_one_wake_up_to_the_greatest_value():
    loop = asyncio.get_running_loop()
    async with ThresholdPurgatory() as purgatory:
        tasks = await start_waits(purgatory, ("a", 1000, 30), ("b", 7, 30))
        spy = Spy(loop)

        def work(first):
            for value in range(first, 1001, 4):
                purgatory.advance_threadsafe("a", value)
            purgatory.advance_threadsafe("b", 7 if first == 2 else 3)

        threads = [threading.Thread(target=work, args=(first,)) for first in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # while the loop is held up
        assert spy.calls["call_soon_threadsafe"] == 1
        assert await asyncio.gather(*tasks) == [1000, 7]
        assert (purgatory.value("a"), purgatory.value("b")) == (1000, 7)
        # One that was overtaken on its way is not news.
        purgatory.advance_threadsafe("a", 5)
        await iterations(3)
        assert purgatory.value("a") == 1000


async def test_what_threads_name_before_first_use_is_there_at_first_use():
    purgatory = ThresholdPurgatory()
    thread = threading.Thread(target=purgatory.advance_threadsafe, args=("key", 5))
    thread.start()
    thread.join()
    assert await purgatory.wait("key", 5, 0) == 5
    await purgatory.aclose()


def test_after_the_loop_is_closed_threads_advance_nothing_and_keep_nothing():
    purgatory = ThresholdPurgatory()

    async def main():
        purgatory.advance("key", 1)

    asyncio.run(main())
    purgatory.advance_threadsafe("key", 2)
    assert purgatory.value("key") == 1

    async def later():
        return purgatory.advance("key", 1), purgatory.value("key")

    assert asyncio.run(later()) == (0, 1)


async def test_a_value_from_a_thread_that_is_refused_is_reported_and_the_others_count(reports):
    async with ThresholdPurgatory("small", max_keys=2) as purgatory:
        purgatory.advance("a", 1)
        for wrong, error in ((nan, ValueError), (Decimal("snan"), TypeError)):
            with pytest.raises(error, match="cannot advance 'a'"):
                purgatory.advance_threadsafe("a", wrong)
        purgatory.advance_threadsafe("a", "text")
        purgatory.advance_threadsafe("a", 2)
        for key in ("b", "c"):
            purgatory.advance_threadsafe(key, 1)
        await iterations(3)
        assert (purgatory.value("a"), purgatory.value("b"), purgatory.value("c")) == (2, 1, None)
    assert [type(report["exception"]) for report in reports] == [TypeError, PurgatoryFull]
    assert reports[0]["message"] == "small: cannot advance 'a' to 'text', as another thread asked for"


# Limits


async def test_a_wait_too_many_and_a_key_too_many_are_refused_and_leave_no_queue_behind():
    async with ThresholdPurgatory("small", max_pending=1, max_keys=1) as purgatory:
        [waiting] = await start_waits(purgatory, ("a", 1))
        for key in ("a", "b"):
            with pytest.raises(PurgatoryFull, match=f"cannot wait for '{key}' to reach 2: 1 waits are pending in small"):
                await purgatory.wait(key, 2)
        assert purgatory.advance("a", 1) == 1 and await waiting == 1
        with pytest.raises(PurgatoryFull, match="cannot wait for 'b' to reach 1: 1 other keys are in small"):
            await purgatory.wait("b", 1)
        with pytest.raises(PurgatoryFull, match="cannot advance 'b' to 1: 1 other keys are in small"):
            purgatory.advance("b", 1)
        assert counts(purgatory, "pending", "keys") == (0, 1)
        purgatory._check()
