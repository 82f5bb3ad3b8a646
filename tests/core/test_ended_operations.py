"""Ended operations leave no callback and no table behind; their failure is reported, and an observer
is notified, once. That no call leaves garbage is tested in `tests/test_soak.py`.
"""

import asyncio
import gc
from collections import Counter

import pytest
from helpers import Broken, Listener, Probe, collector, iterations, outcome, raiser
from loops import on_virtual_time

from purgatory import OperationState, Purgatory, ThresholdPurgatory
from purgatory.testing import VirtualTimeLoop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


def fails(*_):
    raise Broken


async def expired_wait_for(purgatory, thresholds):
    await purgatory.wait_for(lambda: False, ["key"], 0.01)


async def failed_wait_for(purgatory, thresholds):
    await purgatory.wait_for(fails, ["key"], 0.01)


async def failed_hook(purgatory, thresholds):
    await purgatory.wait(Probe(0.01, completing=fails), ["key"])


async def expired_threshold(purgatory, thresholds):
    await thresholds.wait("key", 1, 0.01)


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
@pytest.mark.cpython
@pytest.mark.parametrize(
    ("keys", "timeout"), [("own", None), ("own", 30.0), ("shared", 30.0), ("shared", float("inf"))]
)
async def test_large_table_is_freed_after_operations_left(purgatory, keys, timeout):
    import tracemalloc  # PyPy has none

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
