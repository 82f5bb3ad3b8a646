"""`ThresholdPurgatory` with many waits: they are decided at once, and woken a bounded number per
iteration; closing and threads."""

import asyncio
import threading
from collections import Counter
from decimal import Decimal
from math import inf, nan

import pytest
from helpers import Broken, Spy, counts, iterations, outcome, start_waits
from loops import on_virtual_time

from purgatory import (
    OperationCancelled,
    OperationTimeout,
    PurgatoryClosed,
    PurgatoryFull,
    ThresholdPurgatory,
)
from purgatory._core.loop import MAX_PER_ITERATION
from purgatory.testing import VirtualTimeLoop

# Bounded work in each iteration of the loop


async def test_large_advance_wakes_in_order_over_iterations():
    size, log = 10 * MAX_PER_ITERATION + 7, []
    async with ThresholdPurgatory() as purgatory:
        tasks = await start_waits(
            purgatory, *[("key", 1 + number // 3, 30) for number in range(size)], log=log
        )
        assert purgatory.advance("key", size) == size
        assert counts(purgatory, "pending", "completed", "unanswered") == (
            0,
            size,
            size - MAX_PER_ITERATION,
        )
        purgatory._check()
        for iteration in range(1, 12):
            woken = len(log)
            await iterations()
            assert len(log) - woken <= MAX_PER_ITERATION
            assert counts(purgatory, "unanswered") == (
                max(0, size - (iteration + 1) * MAX_PER_ITERATION),
            )
            purgatory._check()
        await asyncio.gather(*tasks)
        assert log == [(number, size) for number in range(size)]


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
        purgatory._check()
        assert purgatory._wheel.size == 0


async def test_several_bursts_share_one_budget():
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
            purgatory.advance_threadsafe("other", woken)  # wakes the loop and no wait
            await iterations()
            assert len(log) - woken <= MAX_PER_ITERATION
        await asyncio.gather(*tasks, *extra)
        assert [number for number, _ in log] == list(range(len(waits)))
        await iterations(3)
        assert purgatory.value("other") > 0
        purgatory._check()


async def test_values_of_threads_are_applied_in_portions():
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
    assert str(results[0]) == "'key' did not reach 2: closing was closed"
    assert counts(purgatory, "pending", "unanswered", "cancelled", "keys") == (0, 0, 1600, 1)
    for threshold in (1, 2):
        with pytest.raises(
            PurgatoryClosed, match=f"cannot wait for 'key' to reach {threshold}: closing is closed"
        ):
            await purgatory.wait("key", threshold)
    assert await purgatory.aclose(5.0) == 0
    assert purgatory.advance("key", 7) == 0 and purgatory.value("key") == 7
    purgatory._check()


async def test_aclose_wakes_a_bounded_number_per_iteration():
    log = []
    purgatory = ThresholdPurgatory()
    await start_waits(purgatory, *[(number, 1) for number in range(4 * MAX_PER_ITERATION)], log=log)
    await start_waits(
        purgatory, *[("crowded", number) for number in range(4 * MAX_PER_ITERATION)], log=log
    )
    closing = asyncio.create_task(purgatory.aclose())
    while not closing.done():
        woken = len(log)
        await iterations()
        assert len(log) - woken <= 2 * MAX_PER_ITERATION
    assert await closing == len(log) == 8 * MAX_PER_ITERATION


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


@on_virtual_time
async def test_draining_ends_with_its_time():
    loop = asyncio.get_running_loop()
    purgatory = ThresholdPurgatory()
    [task] = await start_waits(purgatory, ("a", 1))
    assert await purgatory.aclose(5.0) == 1 and loop.time() == 5.0
    assert isinstance(await task, OperationCancelled)


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
    purgatory._check()


# Values from threads


async def test_threads_wake_the_loop_once():
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
            thread.join()  # while the loop is blocked
        assert spy.calls["call_soon_threadsafe"] == 1
        assert await asyncio.gather(*tasks) == [1000, 7]
        assert (purgatory.value("a"), purgatory.value("b")) == (1000, 7)
        # A lower value, overtaken on its way, is ignored.
        purgatory.advance_threadsafe("a", 5)
        await iterations(3)
        assert purgatory.value("a") == 1000


async def test_value_of_thread_waits_for_first_use():
    purgatory = ThresholdPurgatory()
    thread = threading.Thread(target=purgatory.advance_threadsafe, args=("key", 5))
    thread.start()
    thread.join()
    assert await purgatory.wait("key", 5, 0) == 5
    await purgatory.aclose()


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
    assert (
        reports[0]["message"] == "small: cannot advance 'a' to 'text', as another thread requested"
    )


async def test_flood_of_threads_is_applied_in_order():
    """`next(iter(...))` with `pop` would take quadratic time."""
    async with ThresholdPurgatory() as purgatory:
        purgatory.forget("bound")
        tasks = await start_waits(purgatory, *[(key, 1, 30) for key in range(2000)])
        for key in range(2000):
            purgatory.advance_threadsafe(key, 1)
            purgatory.advance_threadsafe(key, 0)  # too low by then
        values = [0]
        while values[-1] < 2000:
            await iterations()
            values.append(sum(purgatory.value(key) is not None for key in range(2000)))
            assert values[-1] - values[-2] <= MAX_PER_ITERATION
            known = [purgatory.value(key) is not None for key in range(2000)]
            assert known == sorted(known, reverse=True)  # applied in order of arrival
        assert await asyncio.gather(*tasks) == [1] * 2000
        purgatory._check()


async def test_aclose_yields_while_visiting_idle_keys():
    purgatory = ThresholdPurgatory()
    for key in range(20_000):
        purgatory.advance(key, 1)
    [task] = await start_waits(purgatory, (19_999, 2))
    closing = asyncio.create_task(purgatory.aclose())
    turns = 1  # an eager task has taken it
    while not closing.done():
        await iterations()
        turns += 1
    assert turns >= 20_000 / (8 * MAX_PER_ITERATION) and await closing == 1
    assert isinstance(await task, OperationCancelled)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_exit_of_exception_handler_leaves_no_wait_unanswered(error):
    """The observer raises, and the exception handler exits; all waits are answered."""
    size, exits, ended = 2 * MAX_PER_ITERATION, [error()], []

    class Raising:
        def operation_ended(self, event):
            ended.append(event.keys[0])
            raise Broken

        def key_checked(self, *_): ...

    def handle(loop, context):
        if exits:
            raise exits.pop()

    async def begin():
        asyncio.get_running_loop().set_exception_handler(handle)
        tasks = await start_waits(purgatory, *[("key", 1)] * size, ("other", 1))
        purgatory.advance("key", 1)
        purgatory.advance_threadsafe("other", 1)
        return tasks

    async def finish(tasks):
        return await asyncio.gather(*tasks)

    purgatory = ThresholdPurgatory(observer=Raising())
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop, tasks = runner.get_loop(), []
        loop.create_task(begin()).add_done_callback(lambda task: tasks.extend(task.result()))
        with pytest.raises(error):
            loop.run_forever()
        assert runner.run(finish(tasks)) == [1] * (size + 1)
    assert len(ended) == size + 1 and purgatory.pending == 0


@on_virtual_time
async def test_wait_that_cannot_be_armed_leaves_nothing():
    purgatory = ThresholdPurgatory()
    purgatory.advance("other", 1)
    arm, purgatory._wheel._arm = purgatory._wheel._arm, lambda bucket: 1 // 0
    assert isinstance(await outcome(purgatory.wait("key", 5, 30)), ZeroDivisionError)
    purgatory._wheel._arm = arm
    assert counts(purgatory, "pending", "unanswered", "keys") == (0, 0, 1)
    purgatory._check()
