"""anyio's cancel scopes around and inside every kind of wait."""

import asyncio
from math import inf

import anyio
import pytest
from anyio.lowlevel import checkpoint
from helpers import Probe, iterations
from invariants import MAX_PER_ITERATION

from purgatory import OperationState, Purgatory

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


# Hooks


async def test_hook_may_cancel_scope_of_its_awaiter(purgatory):
    with anyio.CancelScope() as scope:
        operation = Probe(0.005, completing=lambda _: scope.cancel())
        await purgatory.wait(operation, ["key"])
        raise AssertionError("not reached: the scope was cancelled before the answer arrived")
    assert scope.cancelled_caught and operation.state is EXPIRED
