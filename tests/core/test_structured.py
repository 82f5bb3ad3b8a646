"""anyio's cancel scopes around and inside every kind of wait."""

import asyncio
from math import inf

import anyio
import pytest
from anyio.lowlevel import checkpoint
from helpers import Probe, iterations, outcome

from purgatory import OperationCancelled, OperationState, OperationTimeout, Purgatory
from purgatory._core.loop import MAX_PER_ITERATION

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


def waits(purgatory, operation):
    """The ways to wait, and whether the operation belongs to the wait."""

    async def awaits():
        purgatory.try_complete_else_watch(operation, ["key"])
        return await operation

    def predicate():
        return operation.ready and operation.name

    return {
        "wait": (lambda: purgatory.wait(operation, ["key"]), True),
        "wait_for": (lambda: purgatory.wait_for(predicate, ["key"]), True),
        "await": (awaits, False),
    }


on_every_wait = pytest.mark.parametrize("way", ["wait", "wait_for", "await"])


@on_every_wait
async def test_move_on_after_cancels_owned_operations_only(purgatory, way):
    operation = Probe(30)
    wait, owns = waits(purgatory, operation)[way]
    with anyio.move_on_after(0.005) as scope:
        await wait()
    assert scope.cancelled_caught and purgatory.pending == (not owns)
    assert operation.is_completed is (way == "wait")
    assert asyncio.current_task().cancelling() == 0
    await checkpoint()


@on_every_wait
async def test_fail_after_raises_anyios_own_timeout_error(purgatory, way):
    wait, _ = waits(purgatory, Probe(30))[way]
    with pytest.raises(TimeoutError) as caught:
        with anyio.fail_after(0.005):
            await wait()
    assert not isinstance(caught.value, OperationTimeout)


@on_every_wait
async def test_unreached_scope_changes_nothing(purgatory, way):
    operation = Probe(30, name="answer")
    wait, _ = waits(purgatory, operation)[way]

    async def complete():
        await iterations(3)
        operation.ready = True
        assert purgatory.check_and_complete("key") == 1

    async with anyio.create_task_group() as group:
        group.start_soon(complete)
        with anyio.move_on_after(20) as scope:
            assert await wait() == "answer"
    assert not scope.cancelled_caught and not scope.cancel_called


@on_every_wait
async def test_answer_and_scope_end_in_one_iteration(purgatory, way):
    for answer_first in (True, False):
        operation = Probe(30, name="answer")
        wait, _ = waits(purgatory, operation)[way]
        results = []

        async def waiter():
            with scope:
                results.append(await wait())

        scope = anyio.CancelScope()
        task = asyncio.create_task(waiter())
        await iterations(3)
        operation.ready = True
        for first in (answer_first, not answer_first):
            if first:
                purgatory.check_and_complete("key")
            else:
                scope.cancel()
        await task
        assert results in (["answer"], []) and purgatory.pending == 0
        assert task.cancelling() == 0


async def test_cancelled_task_group_cancels_all_its_waits(purgatory):
    operations = [Probe(30) for _ in range(50)]
    async with anyio.create_task_group() as group:
        for operation in operations:
            group.start_soon(purgatory.wait, operation, ["key"])
        await iterations(2)
        assert purgatory.pending == 50
        group.cancel_scope.cancel()
    assert purgatory.pending == 0
    assert all(operation.state is CANCELLED for operation in operations)


async def test_failing_sibling_ends_the_other_waits(purgatory):

    async def fail():
        await iterations(2)
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as group:
            group.start_soon(purgatory.wait, Probe(30), ["key"])
            group.start_soon(fail)
    assert caught.group_contains(ZeroDivisionError) and len(caught.value.exceptions) == 1
    assert purgatory.pending == 0


async def test_cancelled_operation_is_error_to_task_group(
    purgatory,
):
    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as group:
            group.start_soon(purgatory.wait, Probe(30), ["key"])
            await iterations(2)
            purgatory.cancel_for_key("key")
    assert caught.group_contains(OperationCancelled)


@on_every_wait
async def test_shielded_wait_outlasts_its_outer_scope(purgatory, way):
    operation = Probe(30, name="answer")
    wait, _ = waits(purgatory, operation)[way]
    results = []

    async def waiter():
        with anyio.CancelScope(shield=True):
            results.append(await wait())

    async with anyio.create_task_group() as group:
        group.start_soon(waiter)
        await iterations(2)
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await iterations(5)
            assert purgatory.pending == 1
            operation.ready = True
            purgatory.check_and_complete("key")
    assert results == ["answer"]


@on_every_wait
async def test_wait_inside_cancelled_scope_ends_at_once(purgatory, way):
    ended = 0
    with anyio.CancelScope() as scope:
        scope.cancel()
        for _ in range(3):
            operation = Probe(30)
            wait, owns = waits(purgatory, operation)[way]
            assert isinstance(await outcome(wait()), asyncio.CancelledError)
            assert not owns or purgatory.pending == 0
            ended += 1
    assert ended == 3 and asyncio.current_task().cancelling() == 0


async def test_immediate_wait_inside_cancelled_scope_succeeds(purgatory):
    with anyio.CancelScope() as scope:
        scope.cancel()
        assert await purgatory.wait(Probe(name="answer", ready=True), ["key"]) == "answer"
        assert await purgatory.wait_for(lambda: 3, ["key"]) == 3


# aclose


@pytest.mark.parametrize("count", [1, 4 * MAX_PER_ITERATION])
@pytest.mark.parametrize("drain", [0.0, 40.0, inf])
async def test_close_ended_by_scope_still_answers_everything(count, drain):
    purgatory = Purgatory()
    operations = [Probe(50) for _ in range(count)]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [number])
    with anyio.move_on_after(0.005 if drain else 0) as scope:
        await purgatory.aclose(drain)
    assert scope.cancelled_caught is (drain > 0 or count > MAX_PER_ITERATION)
    assert purgatory.pending == 0 and all(operation.state is CANCELLED for operation in operations)
    assert asyncio.current_task().cancelling() == 0
    await checkpoint()


async def test_drain_leaves_no_cancellation_and_respects_shield():
    purgatory = Purgatory()
    purgatory.try_complete_else_watch(operation := Probe(50), ["key"])
    with anyio.CancelScope() as scope:
        scope.cancel()
        with anyio.CancelScope(shield=True):
            assert await purgatory.aclose(0.005) == [operation]
    assert not scope.cancelled_caught and asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)


async def test_context_manager_inside_cancelled_scope_closes():
    with anyio.move_on_after(0.005) as scope:
        async with Purgatory() as purgatory:
            for number in range(3 * MAX_PER_ITERATION):
                purgatory.try_complete_else_watch(Probe(50), [number])
            await anyio.sleep(30)
    assert scope.cancelled_caught and purgatory.pending == 0 and "closed" in repr(purgatory)


# Hooks


async def test_hook_may_cancel_scope_of_its_awaiter(purgatory):
    with anyio.CancelScope() as scope:
        operation = Probe(0.005, completing=lambda _: scope.cancel())
        await purgatory.wait(operation, ["key"])
        raise AssertionError("not reached: the scope was cancelled before the answer arrived")
    assert scope.cancelled_caught and operation.state is EXPIRED


@pytest.mark.parametrize("how", ["asyncio.timeout", "asyncio.wait_for"])
async def test_asyncio_timeouts_treat_waits_like_futures(purgatory, how):
    operation = Probe(30)
    with pytest.raises(TimeoutError):
        if how == "asyncio.timeout":
            async with asyncio.timeout(0.005):
                await purgatory.wait(operation, ["key"])
        else:
            await asyncio.wait_for(purgatory.wait(operation, ["key"]), 0.005)
    assert operation.state is CANCELLED and purgatory.pending == 0
    assert asyncio.current_task().cancelling() == 0
