"""Ended operations leave no garbage, no callback and no table behind; and an observer is notified
once.

Of an operation one of whose hooks has raised, the traceback of its exception leads back to it, as
everywhere in Python: then the test asserts only that the collector can free it.
"""

import asyncio
import gc
import tracemalloc
import weakref
from collections import Counter

import pytest
from helpers import Broken, Listener, Probe, collector, iterations, outcome, raiser
from loops import on_virtual_time

import purgatory as library
from purgatory import (
    OperationCancelled,
    OperationState,
    OperationTimeout,
    Purgatory,
    ThresholdPurgatory,
)
from purgatory.testing import VirtualTimeLoop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


def fails(*_):
    raise Broken


async def collects_nothing_of(once):
    """Asserts that the garbage collector finds nothing after twenty further calls of `once`."""
    await once()
    with collector(is_on=False):
        for _ in range(20):
            await once()
        await iterations(3)
        assert gc.collect() == 0


async def expired_wait_for(purgatory, thresholds):
    await purgatory.wait_for(lambda: False, ["key"], 0.01)


async def cancelled_operation(purgatory, thresholds):
    asyncio.get_running_loop().call_soon(purgatory.cancel_for_key, "key")
    await purgatory.wait(Probe(30), ["key"])


async def expired_threshold(purgatory, thresholds):
    await thresholds.wait("key", 1, 0.01)


async def failed_threshold(purgatory, thresholds):
    asyncio.get_running_loop().call_soon(thresholds.fail, "key", Broken())
    await thresholds.wait("key", 1, 30)


async def expired_timeout(purgatory, thresholds):
    async with library.timeout(0.01):
        await asyncio.sleep(1)


async def expired_library_wait_for(purgatory, thresholds):
    await library.wait_for(asyncio.sleep(1), 0.01)


async def completed_at_once(purgatory, thresholds):
    assert await purgatory.wait(Probe(30, ready=True, name="value"), ["key"]) == "value"


async def completed_operation(purgatory, thresholds):
    operation = Probe(30, name="value")
    asyncio.get_running_loop().call_soon(operation.force_complete)
    assert await purgatory.wait(operation, ["key"]) == "value"


async def completed_wait_for(purgatory, thresholds):
    values = iter([False, "value"])
    asyncio.get_running_loop().call_soon(purgatory.check_and_complete, "key")
    assert await purgatory.wait_for(lambda: next(values), ["key"], 30) == "value"


async def completed_asynchronous_wait_for(purgatory, thresholds):
    values = iter([False, "value"])

    async def is_true():
        await asyncio.sleep(0)
        return next(values)

    asyncio.get_running_loop().call_soon(purgatory.check_and_complete, "key")
    assert await purgatory.wait_for(is_true, ["key"], 30) == "value"


async def received(purgatory, thresholds):
    asyncio.get_running_loop().call_soon(purgatory.deliver, "key", "value")
    assert await purgatory.receive("key", 30) == "value"


async def reached_threshold(purgatory, thresholds):
    key = object()
    asyncio.get_running_loop().call_soon(thresholds.advance, key, 1)
    assert await thresholds.wait(key, 1, 30) == 1


@pytest.mark.parametrize(
    "wait",
    [
        completed_at_once,
        completed_operation,
        completed_wait_for,
        completed_asynchronous_wait_for,
        received,
        reached_threshold,
    ],
)
async def test_completed_wait_leaves_no_cyclic_garbage(wait):
    async with Purgatory() as purgatory, ThresholdPurgatory() as thresholds:
        await collects_nothing_of(lambda: wait(purgatory, thresholds))


@pytest.mark.parametrize(
    "wait",
    [
        expired_wait_for,
        cancelled_operation,
        expired_threshold,
        failed_threshold,
        expired_timeout,
        expired_library_wait_for,
    ],
)
async def test_failed_wait_leaves_no_cyclic_garbage(
    wait,
):
    async with Purgatory() as purgatory, ThresholdPurgatory() as thresholds:

        async def once():
            try:
                await wait(purgatory, thresholds)
            except (OperationTimeout, OperationCancelled, TimeoutError, Broken):
                return
            raise AssertionError("it ended well")

        await collects_nothing_of(once)


async def expired_asynchronous_wait_for(purgatory, thresholds):
    async def is_true():
        return False

    await purgatory.wait_for(is_true, ["key"], 0.01)


async def cancelled_asynchronous_wait_for(purgatory, thresholds):
    async def is_true():
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
        return False

    await purgatory.wait_for(is_true, ["key"], 30)


async def timeout_left_before_a_failure(purgatory, thresholds):
    async with library.timeout(0.01) as limit:
        limit.reschedule(None)
    await asyncio.sleep(0)
    fails()


@pytest.mark.parametrize(
    "wait",
    [
        expired_wait_for,
        cancelled_operation,
        expired_threshold,
        failed_threshold,
        expired_timeout,
        expired_library_wait_for,
        expired_asynchronous_wait_for,
        cancelled_asynchronous_wait_for,
        timeout_left_before_a_failure,
    ],
)
def test_wait_that_ends_its_task_leaves_no_garbage(loop_factory, wait):
    async def main():
        async with Purgatory() as purgatory, ThresholdPurgatory() as thresholds:

            async def once():
                await asyncio.wait((task := asyncio.create_task(wait(purgatory, thresholds)),))
                assert task.cancelled() or task.exception() is not None

            await collects_nothing_of(once)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


async def failed_wait_for(purgatory, thresholds):
    await purgatory.wait_for(fails, ["key"], 0.01)


async def wait_for_that_fails_later(purgatory, thresholds):
    tries = []
    asyncio.get_running_loop().call_soon(purgatory.check_and_complete, "key")
    await purgatory.wait_for(lambda: fails() if tries else tries.append(1), ["key"], 30)


async def failed_hook(purgatory, thresholds):
    await purgatory.wait(Probe(0.01, completing=fails), ["key"])


async def failed_expiration(purgatory, thresholds):
    await purgatory.wait(Probe(0.01, expiring=fails), ["key"])


@pytest.mark.parametrize(
    "wait", [failed_wait_for, wait_for_that_fails_later, failed_hook, failed_expiration]
)
async def test_garbage_of_failed_hook_is_collected(wait):
    async with Purgatory() as purgatory, ThresholdPurgatory() as thresholds:
        with collector(is_on=False):
            error = await outcome(wait(purgatory, thresholds))
            assert type(error) is Broken
            reference = weakref.ref(error)
            del error
            await iterations(3)
            gc.collect()
            assert reference() is None


@on_virtual_time
@pytest.mark.parametrize(
    "wait", [expired_wait_for, failed_wait_for, failed_hook, expired_threshold]
)
async def test_expired_wait_schedules_no_callback_of_its_own(wait):
    loop = asyncio.get_running_loop()
    asked, call_soon = Counter(), loop.call_soon

    def counted(callback, *args, **kwargs):
        asked[
            "task"
            if isinstance(getattr(callback, "__self__", None), asyncio.Task)
            or "Task" in repr(callback)
            else "own"
        ] += 1
        return call_soon(callback, *args, **kwargs)

    async with Purgatory() as purgatory, ThresholdPurgatory() as thresholds:
        # Something else waits, so that the wheel has no reason to look whether it may rest.
        purgatory.try_complete_else_watch(Probe(1e6), ["other"])
        other = asyncio.create_task(thresholds.wait("other", 1))
        tasks = [asyncio.create_task(outcome(wait(purgatory, thresholds))) for _ in range(100)]
        loop.call_soon = counted
        await asyncio.wait(tasks)
        loop.call_soon = call_soon
        # The callbacks of the loop are per iteration, not per operation.
        assert asked["own"] <= 110  # each task notifies `asyncio.wait` that it is done
        purgatory.cancel_for_key("other")
        other.cancel()


async def test_unseen_failure_is_reported_after_cancelled_wait(reports):
    async with Purgatory() as purgatory:
        operation = Probe(None, completing=raiser(Broken()))
        purgatory.try_complete_else_watch(operation, ["key"])
        waiting = asyncio.create_task(outcome(operation))
        await iterations(2)
        operation.force_complete()
        waiting.cancel()
        assert isinstance(await waiting, asyncio.CancelledError)
        await iterations(4)
    assert [type(report["exception"]) for report in reports] == [Broken]


@on_virtual_time
@pytest.mark.parametrize(
    ("keys", "timeout"), [("own", None), ("own", 30.0), ("shared", 30.0), ("shared", float("inf"))]
)
async def test_large_table_is_freed_after_operations_left(purgatory, keys, timeout):
    await purgatory.acancel_for_key("bind")
    await iterations(2)
    with collector(is_on=False):
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            operations = [Probe(timeout) for _ in range(10_000)]
            for number, operation in enumerate(operations):
                purgatory.try_complete_else_watch(
                    operation, [number if keys == "own" else number % 100]
                )
            full, _ = tracemalloc.get_traced_memory()
            for operation in operations:
                operation.cancel()
            del operation, operations
            await iterations(3)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < (full - before) / 50


@pytest.mark.parametrize("claim", ["complete", "cancel"])
@pytest.mark.parametrize("when", ["first", "check", "deadline"])
def test_observer_is_notified_once_of_exit_after_claim(reports, claim, when):
    observer = Listener()
    purgatory = Purgatory(observer=observer)
    tries = {"first": 1, "check": 2, "deadline": 2}[when]

    def claim_and_exit(operation):
        if len(operation.calls) == tries:
            assert operation.cancel() if claim == "cancel" else operation.force_complete()
            raise SystemExit

    operation = Probe(5, trying=claim_and_exit)

    async def begin():
        purgatory.try_complete_else_watch(operation, ["key"])
        if when == "check":
            purgatory.check_and_complete("key")
        await asyncio.sleep(10)

    async def rest():
        await iterations(3)

    loop = VirtualTimeLoop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    with pytest.raises(SystemExit):
        loop.run_until_complete(begin())
    loop.run_until_complete(rest())
    loop.close()
    assert observer.ended_ids == [id(operation)]
    assert operation.state is (CANCELLED if claim == "cancel" else COMPLETED)
    assert operation.calls.count("complete") == (claim == "complete")
