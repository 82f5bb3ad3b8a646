"""Waits for thresholds: their outcome and order, their cost, and that nothing is left behind."""

import asyncio
import gc
from collections import Counter
from decimal import Decimal
from math import inf, nan, nextafter
from unittest.mock import patch

import pytest
from helpers import Broken, Listener, Spy, counts, iterations, outcome, profiled, start_waits
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import on_every_loop, on_virtual_time

from purgatory import (
    Cause,
    OperationCancelled,
    OperationTimeout,
    PurgatoryFull,
    ThresholdPurgatory,
    ThresholdStatistics,
    WrongLoop,
)
from purgatory._core import thresholds as module
from purgatory._core.threshold_queue import ThresholdQueue
from purgatory._core.thresholds import _Waiter
from purgatory.testing import VirtualTimeLoop

# Outcomes


async def test_advance_completes_reached_waits_in_order():
    log = []
    async with ThresholdPurgatory() as purgatory:
        purgatory.advance("orders", 41)
        tasks = await start_waits(
            purgatory, *[("orders", threshold, 30) for threshold in (42, 60, 45, 42)], log=log
        )
        assert purgatory.pending == 4
        assert purgatory.advance("orders", 47) == 3 and purgatory.pending == 1
        purgatory._check()
        await iterations(2)
        assert log == [(0, 47), (3, 47), (2, 47)]
        assert purgatory.advance("orders", 60) == 1
        assert await tasks[1] == 60
        assert counts(purgatory, "completed", "pending", "unanswered", "keys") == (4, 0, 0, 1)


async def test_reached_threshold_is_answered_at_once():
    async with ThresholdPurgatory() as purgatory:
        purgatory.advance("key", 5)
        for threshold in (-1, 4, 5):
            with pytest.raises(StopIteration) as stop:
                purgatory.wait("key", threshold, 0).send(None)
            assert stop.value.value == 5
        assert counts(purgatory, "completed", "pending", "wake_ups") == (3, 0, 0)


async def test_nothing_falls_between_two_waits():
    async def produce(purgatory):
        for value in range(1, 21):
            purgatory.advance("key", value)
            await iterations(value % 2)

    async with ThresholdPurgatory() as purgatory:
        seen = [0]
        producer = asyncio.create_task(produce(purgatory))
        while seen[-1] < 20:
            seen.append(await purgatory.wait("key", seen[-1] + 1, 30))
            await iterations(seen[-1] % 3)
        await producer
        assert seen == sorted(set(seen)) and seen[-1] == 20


@on_virtual_time
async def test_value_is_kept_and_may_be_repeated():
    async with ThresholdPurgatory() as purgatory:
        assert purgatory.value("a") is None
        assert purgatory.advance("a", 0) == 0
        assert purgatory.advance("b", "text") == purgatory.advance("a", 0) == 0
        assert (purgatory.value("a"), purgatory.value("b"), purgatory.value("c")) == (
            0,
            "text",
            None,
        )
        [task] = await start_waits(purgatory, ("c", 1, 30))
        assert purgatory.value("c") is None
        task.cancel()
    assert purgatory.value("a") == 0


@on_virtual_time
async def test_values_of_any_total_order_work():
    async with ThresholdPurgatory() as purgatory:
        for key, low, high in (
            ("text", "a", "b"),
            ("pair", (1, 2), (1, 3)),
            ("mixed", Decimal(1), 1.5),
            (None, b"", b"x"),
        ):
            [task] = await start_waits(purgatory, (key, high))
            assert purgatory.advance(key, low) == 0
            assert purgatory.advance(key, high) == 1
            assert await task == high


# Refusals


@on_virtual_time
@pytest.mark.parametrize(
    ("value", "error", "why"),
    [
        (46, ValueError, "never go backwards"),
        (nan, ValueError, "NaN is no value"),
        ("x", TypeError, "'<=' not supported"),
    ],
)
async def test_lower_value_is_refused_and_changes_nothing(value, error, why):
    async with ThresholdPurgatory() as purgatory:
        purgatory.advance("orders", 47)
        [task] = await start_waits(purgatory, ("orders", 50, 30))
        before = purgatory.statistics()
        with pytest.raises(error, match=why) as caught:
            purgatory.advance("orders", value)
        assert (
            "'orders'" in str(caught.value)
            and repr(value) in str(caught.value)
            and "47" in str(caught.value)
        )
        assert purgatory.value("orders") == 47 and purgatory.statistics() == before
        purgatory._check()
        assert purgatory.advance("orders", 50) == 1 and await task == 50


@on_virtual_time
@pytest.mark.parametrize(
    ("known", "value"),
    [
        (5, nan),
        (5, Decimal("nan")),
        (5, Decimal("snan")),
        ((1, 0), (nan,)),
        ((1, 0), (1, nan)),
        ((1, (2, (0, 3))), (1, (2, (nan, 3)))),
    ],
)
async def test_nan_is_neither_value_nor_threshold(known, value):
    async with ThresholdPurgatory() as purgatory:
        for has_value in (False, True):
            if has_value:
                purgatory.advance("key", known)
            for advance in (purgatory.advance, purgatory.advance_threadsafe):
                with pytest.raises((ValueError, TypeError), match="cannot advance 'key' to"):
                    advance("key", value)
            for timeout in (None, 30):
                with pytest.raises((ValueError, TypeError), match="'key'"):
                    await purgatory.wait("key", value, timeout)
            await iterations(3)
            assert counts(purgatory, "keys", "pending") == (has_value, 0)
        [task] = await start_waits(purgatory, ("key", reached := (9, 9) if known != 5 else 9))
        with pytest.raises((ValueError, TypeError), match="'key'"):
            await purgatory.wait("key", value)
        assert purgatory.advance("key", reached) == 1 and await task == reached


@on_virtual_time
async def test_incomparable_threshold_is_refused_and_changes_nothing():
    async with ThresholdPurgatory() as purgatory:
        [task] = await start_waits(purgatory, ("key", 10, 30))
        with pytest.raises(
            TypeError, match="cannot wait for 'key' to reach 'x': others wait there"
        ):
            await purgatory.wait("key", "x")
        purgatory.advance("key", 5)
        with pytest.raises(TypeError, match="whether 'key' has reached 'x': it has 5"):
            await purgatory.wait("key", "x")
        assert purgatory.pending == 1
        purgatory._check()
        purgatory.advance("key", 10)
        assert await task == 10


@on_virtual_time
async def test_partially_ordered_threshold_is_refused():
    low, other = frozenset({1, 2}), frozenset({0, 2})
    async with ThresholdPurgatory() as purgatory:
        [task] = await start_waits(purgatory, ("key", low, 30))
        with pytest.raises(TypeError, match=r"neither below nor past frozenset\(\{1, 2\}\)"):
            await purgatory.wait("key", other)
        purgatory.advance("key", {1})
        with pytest.raises(TypeError, match=r"it has \{1\}, neither below nor past it"):
            await purgatory.wait("key", {2})
        with pytest.raises(ValueError, match=r"cannot advance 'key' to \{2\}: it has \{1\}"):
            purgatory.advance("key", {2})
        assert purgatory.value("key") == {1} and purgatory.pending == 1
        purgatory.advance("key", {1, 2, 3})
        assert await task == {1, 2, 3}


@on_virtual_time
@pytest.mark.parametrize("threshold", [[1], {1}, (1, [2])])
async def test_unhashable_threshold_is_refused_and_changes_nothing(threshold):
    async with ThresholdPurgatory(max_keys=1) as purgatory:
        with pytest.raises(TypeError, match=r"cannot wait for 'key' to reach .*unhashable type"):
            await purgatory.wait("key", threshold, 30)
        assert counts(purgatory, "keys", "pending") == (0, 0) and purgatory._wheel.size == 0
        assert purgatory.advance("other", 1) == 0


@on_virtual_time
async def test_unhashable_key_is_refused():
    async with ThresholdPurgatory() as purgatory:
        calls = [
            purgatory.advance,
            purgatory.advance_threadsafe,
            purgatory.fail,
            purgatory.forget,
            purgatory.value,
        ]
        for call, arguments in zip(calls, [(1,), (1,), (Broken(),), (), ()], strict=True):
            with pytest.raises(TypeError, match="unhashable"):
                call([], *arguments)
        with pytest.raises(TypeError, match="unhashable"):
            await purgatory.wait([], 1)
        assert counts(purgatory, "keys", "pending") == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (
            {"max_pending": 0},
            ValueError,
            "max_pending must be at least 1, or None for no limit, not 0",
        ),
        ({"max_keys": -1}, ValueError, "max_keys must be at least 1, or None for no limit, not -1"),
        ({"max_keys": 1.5}, TypeError, "max_keys must be a whole number"),
        ({"tick": 0.0}, ValueError, "tick"),
        ({"wheel_size": 1}, ValueError, "wheel_size"),
    ],
)
def test_argument_out_of_bounds_is_refused_by_name(arguments, error, words):
    with pytest.raises(error, match=words):
        ThresholdPurgatory(**arguments)


# Deadlines


@on_virtual_time
@pytest.mark.parametrize("start", [0.0, 0.1234567, 2e7, 1e9])
async def test_wait_expires_within_a_tick_of_deadline(start):
    loop = asyncio.get_running_loop()
    async with ThresholdPurgatory(tick=0.01) as purgatory:
        purgatory.advance("key", 3)
        for timeout in (0.001, 0.01, 0.0151, 1.0, 5000.0):
            began = loop.time()
            with pytest.raises(
                OperationTimeout, match=rf"'key' did not reach 4 within {timeout} s: it has 3"
            ):
                await purgatory.wait("key", 4, timeout)
            assert began + timeout <= loop.time() <= began + timeout + 0.01 + 1e-6
            assert purgatory.pending == 0
            purgatory._check()
        assert counts(purgatory, "expired", "completed", "cancelled") == (5, 0, 0)


@on_every_loop
async def test_wait_is_never_early_by_loop_clock():
    loop = asyncio.get_running_loop()
    async with ThresholdPurgatory() as purgatory:

        async def wait(timeout):
            deadline = loop.time() + timeout
            assert isinstance(await outcome(purgatory.wait("key", 1, timeout)), OperationTimeout)
            assert loop.time() >= deadline

        await asyncio.gather(*[wait(0.001 * (1 + number % 20)) for number in range(100)])
        assert counts(purgatory, "keys", "pending", "expired") == (0, 0, 100)


@pytest.mark.parametrize("timeout", [0, 0.0, -1, -inf])
async def test_wait_without_time_looks_once(timeout):
    async with ThresholdPurgatory() as purgatory:
        with pytest.raises(TimeoutError, match="'key' has not reached 1: it has no value"):
            purgatory.wait("key", 1, timeout).send(None)
        purgatory.advance("key", 1)
        assert await purgatory.wait("key", 1, timeout) == 1
        assert counts(purgatory, "pending", "expired", "keys") == (0, 1, 1)


@on_virtual_time
@pytest.mark.parametrize("timeout", [None, inf, 1e300])
async def test_wait_without_deadline_arms_no_timer(timeout):
    spy = Spy(asyncio.get_running_loop())
    async with ThresholdPurgatory() as purgatory:
        [task] = await start_waits(purgatory, ("key", 1, timeout))
        assert spy.calls["call_at"] == 0
        purgatory._check()
        purgatory.advance("key", 1)
        assert await task == 1


@on_virtual_time
async def test_nan_as_timeout_is_refused():
    async with ThresholdPurgatory() as purgatory:
        purgatory.advance("key", 1)
        for threshold in (1, 2):
            with pytest.raises(ValueError, match="timeout cannot be NaN"):
                await purgatory.wait("key", threshold, nan)
        assert counts(purgatory, "pending", "completed") == (0, 0)


@on_virtual_time
async def test_loop_has_one_callback_per_bucket():
    spy = Spy(asyncio.get_running_loop())
    async with ThresholdPurgatory(tick=1.0) as purgatory:
        tasks = await start_waits(purgatory, *[(number, 1, 30) for number in range(1000)])
        assert spy.calls["call_at"] == spy.armed == 1
        for number in range(1000):
            purgatory.advance(number, 1)
        await asyncio.gather(*tasks)
        await iterations(2)
        assert spy.armed == 0


# Races: exactly once


@on_virtual_time
async def test_advance_at_the_deadline_gives_one_outcome():
    loop = asyncio.get_running_loop()
    for delay in (0.999, 1.0, 1.001, 1.002):
        async with ThresholdPurgatory() as purgatory:
            [task] = await start_waits(purgatory, ("key", 1, 1.0))
            advanced = loop.create_future()
            loop.call_later(
                delay,
                lambda purgatory=purgatory, it=advanced: it.set_result(purgatory.advance("key", 1)),
            )
            result = await task
            assert await advanced == (result == 1)
            assert (result == 1) is not isinstance(result, OperationTimeout)
            assert sum(counts(purgatory, "completed", "expired")) == 1


async def test_cancelled_task_leaves_nothing():
    async with ThresholdPurgatory() as purgatory:
        tasks = await start_waits(
            purgatory, *[("key", threshold, 30) for threshold in (1, 1, 1, 2, 3)]
        )
        for task in (tasks[1], tasks[4], tasks[0], tasks[2]):
            task.cancel()
            assert isinstance(await task, asyncio.CancelledError)
            purgatory._check()
        assert counts(purgatory, "pending", "cancelled") == (1, 4)
        tasks[3].cancel()
        await iterations(2)
        assert counts(purgatory, "pending", "cancelled", "keys") == (0, 5, 0)
        purgatory._check()
        assert purgatory._wheel.size == 0


@pytest.mark.parametrize("end", ["advance", "fail", "aclose", "expiry"])
@on_virtual_time
async def test_cancelled_wait_is_passed_over(end):
    loop, listener = asyncio.get_running_loop(), Listener()
    purgatory = ThresholdPurgatory(observer=listener)
    tasks = await start_waits(purgatory, ("key", 1, 30), ("key", 1, 30))
    if end == "expiry":
        loop.call_at(nextafter(30.0, 0.0), tasks[0].cancel)  # in the iteration of the expiry
        await asyncio.sleep(30.5)
    else:
        tasks[0].cancel()
    if end == "advance":
        assert purgatory.advance("key", 1) == 1
    elif end == "fail":
        assert purgatory.fail("key", Broken()) == 1
    elif end == "aclose":
        assert await purgatory.aclose() == 1
    first, second = await asyncio.gather(*tasks)
    assert isinstance(first, asyncio.CancelledError)
    kinds = {
        "advance": int,
        "fail": Broken,
        "aclose": OperationCancelled,
        "expiry": OperationTimeout,
    }
    assert type(second) is kinds[end]
    ended = counts(purgatory, "pending", "completed", "failed", "expired", "cancelled")
    assert ended == (
        0, end == "advance", end == "fail", end == "expiry", 1 + (end == "aclose"),
    )  # fmt: skip
    causes = {
        "advance": Cause.KEY, "fail": Cause.FAILED, "aclose": Cause.CLOSED, "expiry": Cause.DEADLINE,
    }  # fmt: skip
    assert sorted(each.cause.value for each in listener.ended) == sorted(
        [Cause.CANCELLED.value, causes[end].value]
    )
    purgatory._check()


async def test_closed_coroutine_counts_as_cancelled():
    async with ThresholdPurgatory() as purgatory:
        waiting = purgatory.wait("key", 1)
        waiting.send(None)
        waiting.close()
        assert purgatory.pending == 0 and purgatory.statistics().cancelled == 1


async def test_wait_cancelled_after_advance_counts_as_completed():
    async with ThresholdPurgatory() as purgatory:
        tasks = await start_waits(purgatory, ("key", 1, 30), ("key", 1, 30))
        assert purgatory.advance("key", 1) == 2
        tasks[0].cancel()
        first, second = await asyncio.gather(*tasks)
        assert isinstance(first, asyncio.CancelledError) and second == 1
        assert counts(purgatory, "pending", "completed", "cancelled") == (0, 2, 0)
        purgatory._check()


async def test_cancellation_requests_are_not_uncancelled():
    async with ThresholdPurgatory() as purgatory:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.005):
                await purgatory.wait("key", 1, 30)
        assert asyncio.current_task().cancelling() == 0
        with pytest.raises(OperationTimeout):
            async with asyncio.timeout(30):
                await purgatory.wait("key", 1, 0.005)
        assert purgatory.pending == 0


def test_wait_dropped_with_its_loop_is_silent():
    purgatory = ThresholdPurgatory()

    async def main():
        wait = purgatory.wait("key", 1, 30)
        wait.send(None)
        return wait

    with asyncio.Runner() as runner:
        wait = runner.run(main())
    wait.close()
    assert purgatory.pending == 1


# Failing and forgetting


async def test_fail_ends_waits_and_keeps_the_value():
    async with ThresholdPurgatory() as purgatory:
        purgatory.advance("key", 1)
        error = Broken("the log is gone")
        tasks = await start_waits(
            purgatory, ("key", 3, 30), ("key", 2, 30), ("other", 2, 30), ("new", 1, 30)
        )
        assert purgatory.fail("key", error) == 2
        assert await asyncio.gather(*tasks[:2]) == [error, error]
        assert purgatory.fail("key", error) == purgatory.fail("nobody", error) == 0
        assert purgatory.fail("new", error) == 1
        assert purgatory.value("key") == 1 and purgatory.value("new") is None
        assert counts(purgatory, "failed", "pending", "keys") == (3, 1, 2)
        purgatory._check()
        assert purgatory.advance("key", 5) == 0 and purgatory.advance("other", 2) == 1
        assert await asyncio.gather(*tasks[2:]) == [2, error]


async def test_fail_above_ends_higher_waits_alone():
    async with ThresholdPurgatory() as purgatory:
        waits = [("key", threshold, 30) for threshold in (1, 2, 3, 3, 4)]
        tasks = await start_waits(purgatory, *waits)
        assert purgatory.fail("key", Broken(), above=9) == 0
        assert purgatory.fail("nobody", Broken(), above=0) == 0
        with pytest.raises(TypeError, match="not supported"):
            purgatory.fail("key", Broken(), above="3")
        assert purgatory.fail("key", error := Broken(), above=2) == 3
        purgatory._check()
        assert await asyncio.gather(*tasks[2:]) == [error] * 3
        assert purgatory.advance("key", 2) == 2
        assert await asyncio.gather(*tasks[:2]) == [2, 2]
        assert counts(purgatory, "failed", "completed", "pending", "keys") == (3, 2, 0, 1)


async def test_shared_exception_keeps_its_traceback_length():
    async with ThresholdPurgatory() as purgatory:
        tasks = await start_waits(purgatory, *[("key", 1, 30)] * 50)
        purgatory.fail("key", error := Broken())
        await asyncio.gather(*tasks)
        depth, traceback = 0, error.__traceback__
        while traceback is not None:
            depth, traceback = depth + 1, traceback.tb_next
        assert depth <= 3


@on_virtual_time
async def test_fail_refuses_an_exception_class():
    async with ThresholdPurgatory() as purgatory:
        await start_waits(purgatory, ("key", 1, 30))
        for wrong in (Broken, "broken", None):
            with pytest.raises(
                TypeError, match=r"cannot fail 'key' with .*: it is not an instance of an exception"
            ):
                purgatory.fail("key", wrong)
        assert purgatory.pending == 1


async def test_forgotten_key_starts_over_and_keeps_waits():
    async with ThresholdPurgatory() as purgatory:
        assert purgatory.forget("key") is False
        purgatory.advance("key", 100)
        [task] = await start_waits(purgatory, ("key", 101, 30))
        assert purgatory.forget("key") is True and purgatory.forget("key") is False
        assert purgatory.value("key") is None and purgatory.pending == 1
        purgatory._check()
        assert purgatory.advance("key", 3) == 0
        [other] = await start_waits(purgatory, ("key", 4, 30))
        assert purgatory.advance("key", 101) == 2
        assert await task == await other == 101
        purgatory.forget("key")
        assert counts(purgatory, "keys") == (0,)


# Limits


async def test_max_pending_refuses_one_more_wait():
    async with ThresholdPurgatory("small", max_pending=2) as purgatory:
        purgatory.advance("key", 1)
        tasks = await start_waits(purgatory, ("key", 2, 30), ("other", 2, 30))
        for _ in range(3):
            with pytest.raises(
                PurgatoryFull,
                match=r"cannot wait for 'key' to reach 3: max_pending \(2\) waits are pending in small",
            ):
                await purgatory.wait("key", 3, 30)
        assert await purgatory.wait("key", 1) == 1
        with pytest.raises(OperationTimeout):
            await purgatory.wait("key", 2, 0)
        for end in range(3):
            if end == 0:
                purgatory.advance("key", 2)
            elif end == 1:
                tasks[0].cancel()
            else:
                purgatory.fail("key", Broken())
            await iterations(2)
            [tasks[0]] = await start_waits(purgatory, ("key", 9, 30))
            with pytest.raises(PurgatoryFull):
                await purgatory.wait("third", 3, 30)
        assert purgatory.pending == 2


async def test_max_keys_refuses_one_more_key():
    async with ThresholdPurgatory("small", max_keys=2) as purgatory:
        purgatory.advance("a", 1)
        [task] = await start_waits(purgatory, ("b", 1, 30))
        for _ in range(3):
            with pytest.raises(
                PurgatoryFull,
                match=r"cannot advance 'c' to 1: max_keys \(2\) other keys are in small",
            ):
                purgatory.advance("c", 1)
            with pytest.raises(
                PurgatoryFull,
                match=r"cannot wait for 'c' to reach 1: max_keys \(2\) other keys are in small",
            ):
                await purgatory.wait("c", 1, 30)
        purgatory.advance("a", 2)
        assert purgatory.value("a") == 2 and purgatory.value("c") is None
        task.cancel()  # b has no waiter and no value now
        await iterations(2)
        purgatory.advance("c", 1)
        purgatory.forget("a")
        purgatory.advance("b", 1)
        assert counts(purgatory, "keys", "pending") == (2, 0)
        purgatory._check()


# Cost


@on_virtual_time
async def test_advance_cost_ignores_higher_thresholds():
    async with ThresholdPurgatory() as crowded, ThresholdPurgatory() as empty:
        tasks = await start_waits(crowded, *[("key", 10 + number) for number in range(5_000)])
        crowded.advance("key", 0)
        empty.advance("key", 0)
        calls = (
            profiled(lambda: crowded.advance("key", 1)),
            profiled(lambda: empty.advance("key", 1)),
        )
        assert calls[0] == calls[1]
        one, lone = await start_waits(crowded, ("key", 5)), await start_waits(empty, ("key", 5))
        assert (
            profiled(lambda: crowded.advance("key", 6))
            <= profiled(lambda: empty.advance("key", 6)) + 6
        )
        await asyncio.gather(*one, *lone)
        assert not any(task.done() for task in tasks)


# Closing


@on_virtual_time
@pytest.mark.parametrize(
    ("drain", "why"),
    [(-1.0, "drain must be zero or more seconds, not -1.0"), (nan, "drain cannot be NaN")],
)
async def test_drain_out_of_bounds_is_refused(drain, why):
    async with ThresholdPurgatory() as purgatory:
        with pytest.raises(ValueError, match=why):
            await purgatory.aclose(drain)
        await start_waits(purgatory, ("key", 1))
        assert purgatory.pending == 1


@pytest.mark.cpython
async def test_memory_returns_to_its_earlier_level():
    import tracemalloc

    async with ThresholdPurgatory() as purgatory:

        async def everything():
            waits = [(key, threshold, 0.02) for key in range(20) for threshold in range(1, 40)]
            tasks = [
                asyncio.create_task(outcome(purgatory.wait(*arguments))) for arguments in waits
            ]
            await iterations()
            for number, task in enumerate(tasks):
                if number % 7 == 0:
                    task.cancel()
            for key in range(15):
                purgatory.advance(key, 20)
            for key in range(5, 10):
                purgatory.fail(key, Broken())
            await asyncio.gather(*tasks)
            await iterations(3)
            for key in range(15):
                purgatory.forget(key)

        # The collector is off below, since no cycle may keep memory.
        await everything()
        gc.collect()
        others = sum(type(thing) in (_Waiter, ThresholdQueue) for thing in gc.get_objects())
        gc.disable()
        tracemalloc.start()
        try:
            await everything()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(5):
                await everything()
            # 3,900 waits; a leak would cost hundreds of bytes for each.
            assert tracemalloc.get_traced_memory()[0] - before < 100_000
        finally:
            tracemalloc.stop()
            gc.enable()
        assert sum(type(thing) in (_Waiter, ThresholdQueue) for thing in gc.get_objects()) == others
        assert counts(purgatory, "keys", "pending", "unanswered") == (0, 0, 0)


# Loops


def test_thresholds_serve_one_loop_and_one_thread(virtual):
    purgatory = ThresholdPurgatory("bound")

    def calls():
        return [
            lambda: purgatory.advance("key", 1),
            lambda: purgatory.fail("key", Broken()),
            lambda: purgatory.forget("key"),
            lambda: purgatory.wait("key", 1).send(None),
            lambda: purgatory.aclose().send(None),
        ]

    def refused():
        for call in calls():
            with pytest.raises(WrongLoop):
                call()

    async def main():
        purgatory.advance("key", 0)
        await asyncio.to_thread(refused)
        assert counts(purgatory, "keys", "pending") == (1, 0) and purgatory.value("key") == 0
        await asyncio.to_thread(asyncio.run, other())

    async def other():
        refused()

    refused()  # no loop yet
    virtual(main)
    refused()


def test_idle_thresholds_move_to_another_loop(virtual):
    purgatory = ThresholdPurgatory("bound")

    async def main(value):
        with pytest.raises(OperationTimeout):
            await purgatory.wait("key", 10 * value, 0.5)
        purgatory.advance("key", value)
        task = asyncio.create_task(purgatory.wait("key", value + 1, 30))
        await asyncio.sleep(1)
        assert purgatory.advance("key", value + 1) == 1 and await task == value + 1

    for value in (1, 3, 5):
        virtual(main(value))
    assert counts(purgatory, "keys", "pending") == (1, 0)


def test_closed_loop_with_waits_is_wrong_loop():
    purgatory = ThresholdPurgatory("bound")
    loop = asyncio.new_event_loop()
    waits = []

    async def leave_one():
        waits.append(purgatory.wait("key", 1))
        waits[0].send(None)

    loop.run_until_complete(leave_one())
    loop.close()

    async def other():
        with pytest.raises(WrongLoop, match="that loop is closed, and 1 wait there for ever"):
            purgatory.advance("key", 1)

    asyncio.run(other())
    waits[0].close()


# Its repr


@on_virtual_time
async def test_repr_shows_name_and_state():
    async with ThresholdPurgatory("offsets") as purgatory:
        await start_waits(purgatory, ("key", 1))
        assert repr(purgatory) == "<ThresholdPurgatory 'offsets' open pending=1 keys=1>"
        assert (
            type(purgatory.statistics()) is ThresholdStatistics
            and purgatory.statistics().name == "offsets"
        )
    assert repr(purgatory) == "<ThresholdPurgatory 'offsets' closed pending=0 keys=0>"


# Against a model that scans


KEYS = ("a", "b")
ACTION = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from(KEYS), st.integers(0, 12)),
    st.tuples(st.just("fail"), st.sampled_from(KEYS), st.just(0)),
    st.tuples(st.just("forget"), st.sampled_from(KEYS), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 100), st.just(0)),
)
WAIT = st.tuples(
    st.sampled_from(KEYS), st.integers(0, 12), st.sampled_from([None, 0, 0.5, 1.0, 2.0, inf])
)
ITERATION = st.tuples(
    st.lists(WAIT, max_size=6),
    st.lists(ACTION, max_size=4),
    st.sampled_from([0, 0, 0.25, 0.75, 1.25]),
)


class Model:
    """The model: one list of all waits, scanned for every request."""

    def __init__(self):
        self.values = {}
        self.waiting = []
        self.outcomes = {}
        self.counts = Counter()

    def wait(self, number, key, threshold, timeout, now):
        if key in self.values and threshold <= self.values[key]:
            self.end(number, self.values[key], "completed")
        elif timeout is not None and timeout <= 0:
            self.end(number, OperationTimeout, "expired")
        else:
            self.waiting.append(
                (threshold, number, key, now + (inf if timeout is None else timeout))
            )

    def end(self, number, outcome, counted):
        self.outcomes[number] = outcome
        self.counts[counted] += 1

    def end_those(self, chosen, outcome, counted):
        ended = sorted(waiter for waiter in self.waiting if chosen(waiter))
        self.waiting = [waiter for waiter in self.waiting if not chosen(waiter)]
        for waiter in ended:
            self.end(waiter[1], outcome, counted)
        return [waiter[1] for waiter in ended]


HISTORIES = given(st.lists(ITERATION, max_size=12), st.sampled_from([0.0, 0.25]))


@settings(deadline=None, max_examples=100)
@HISTORIES
def test_histories_match_the_model(history, drain):
    ends_as_in_the_model(history, drain)


@pytest.mark.slow
@settings(deadline=None, max_examples=1000)
@HISTORIES
def test_many_histories_match_the_model(history, drain):
    ends_as_in_the_model(history, drain)


def ends_as_in_the_model(history, drain):
    async def main():
        loop = asyncio.get_running_loop()
        model, purgatory, tasks, woken, expected = Model(), ThresholdPurgatory(), [], [], []

        async def wait(number, *arguments):
            result = await outcome(purgatory.wait(*arguments))
            woken.append((number, result))

        for waits, actions, pause in history:
            for arguments in waits:
                model.wait(len(tasks), *arguments, loop.time())
                tasks.append(asyncio.create_task(wait(len(tasks), *arguments)))
            await iterations()
            cancelled = set()
            for action, key, value in actions:
                if action == "advance" and value < model.values.get(key, 0):
                    with pytest.raises(ValueError, match="never go backwards"):
                        purgatory.advance(key, value)
                elif action == "advance":
                    model.values[key] = value
                    model.end_those(
                        lambda w, key=key, value=value, gone=cancelled: (
                            w[2] == key and w[0] <= value and w[1] in gone
                        ),
                        asyncio.CancelledError,
                        "cancelled",
                    )
                    reached = model.end_those(
                        lambda w, key=key, value=value: w[2] == key and w[0] <= value,
                        value,
                        "completed",
                    )
                    assert purgatory.advance(key, value) == len(reached)
                    expected.append(reached)
                elif action == "fail":
                    model.end_those(
                        lambda w, key=key, gone=cancelled: w[2] == key and w[1] in gone,
                        asyncio.CancelledError,
                        "cancelled",
                    )
                    failed = model.end_those(lambda w, key=key: w[2] == key, Broken, "failed")
                    assert purgatory.fail(key, Broken()) == len(failed)
                    expected.append(failed)
                elif action == "forget":
                    assert purgatory.forget(key) is (model.values.pop(key, None) is not None)
                elif tasks and tasks[key % len(tasks)].cancel():
                    cancelled.add(key % len(tasks))
                assert [purgatory.value(key) for key in KEYS] == [
                    model.values.get(key) for key in KEYS
                ]
                assert purgatory.pending == len(model.waiting)
            await iterations()
            # Cancelled tasks have run; waits that were decided earlier are cancelled all the same.
            model.end_those(
                lambda w, gone=cancelled: w[1] in gone, asyncio.CancelledError, "cancelled"
            )
            model.outcomes |= dict.fromkeys(cancelled, asyncio.CancelledError)
            if pause:
                await asyncio.sleep(pause)
                await iterations(2)
                model.end_those(lambda w: w[3] <= loop.time(), OperationTimeout, "expired")
            purgatory._check()
            assert counts(purgatory, *model.counts, "pending") == (
                *model.counts.values(),
                len(model.waiting),
            )
        await asyncio.sleep(0.125)
        model.end_those(lambda w: w[3] <= loop.time(), OperationTimeout, "expired")
        closed_at = loop.time()
        ended = await purgatory.aclose(drain)
        model.end_those(lambda w: w[3] <= closed_at + drain, OperationTimeout, "expired")
        assert ended == len(model.end_those(lambda w: True, OperationCancelled, "cancelled"))
        await asyncio.gather(*tasks)
        for number, result in woken:
            wanted = model.outcomes[number]
            assert type(result) is wanted if isinstance(wanted, type) else result == wanted, (
                number,
                result,
                wanted,
            )
        assert sorted(number for number, _ in woken) == list(range(len(tasks)))
        order = [
            number for number, result in woken if not isinstance(result, asyncio.CancelledError)
        ]
        for together in expected:
            together = [
                number
                for number in together
                if model.outcomes[number] is not asyncio.CancelledError
            ]
            assert [number for number in order if number in together] == together
        purgatory._check()
        at_the_end = (0, 0, len(model.values), *model.counts.values())
        assert counts(purgatory, "pending", "unanswered", "keys", *model.counts) == at_the_end
        assert purgatory._wheel.size == 0

    small = patch.object(module, "MAX_PER_ITERATION", 3)
    with small, asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
