"""The states of an operation: each move between two is tried by its public way, and those that are not legal are refused."""

import asyncio
from itertools import product

import pytest
from helpers import Probe
from loops import on_virtual_time

from purgatory import OperationReused, OperationState, Purgatory

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

LEGAL_MOVES = {PENDING: {COMPLETED, EXPIRED, CANCELLED}, COMPLETED: set(), EXPIRED: set(), CANCELLED: set()}


async def move(purgatory: Purgatory[Probe], operation: Probe, state: OperationState) -> bool:
    """Takes the public way to `state`; whether that was accepted."""
    if state is COMPLETED:
        return operation.force_complete()
    if state is CANCELLED:
        return operation.cancel()
    if state is EXPIRED:
        before = operation.state
        await asyncio.sleep(10)
        return before is not operation.state
    try:
        purgatory.try_complete_else_watch(operation, ["key"])
    except OperationReused:
        return False
    return True


@on_virtual_time
@pytest.mark.parametrize(("source", "target"), list(product(OperationState, OperationState)))
async def test_every_move_is_made_if_it_is_legal_and_refused_if_not(purgatory, source, target):
    operation = Probe(5)
    purgatory.try_complete_else_watch(operation, ["key"])
    if source is not PENDING:
        assert await move(purgatory, operation, source)
    calls = operation.calls[:]
    legal = target in LEGAL_MOVES[source]
    assert await move(purgatory, operation, target) is legal
    assert operation.state is (target if legal else source)
    assert operation.is_completed is (operation.state is not PENDING)
    assert legal or operation.calls == calls
    assert operation.calls.count("complete") == (operation.state in (COMPLETED, EXPIRED))
    assert operation.calls.count("expire") == (operation.state is EXPIRED)


@on_virtual_time
async def test_the_state_is_final_before_any_hook_runs():
    seen = []
    for end in ("complete", "expire"):
        operation = Probe(
            1,
            completing=lambda operation: seen.append((operation.state, operation.force_complete(), operation.cancel())),
            expiring=lambda operation: seen.append((operation.state, operation.force_complete(), operation.cancel())),
        )
        async with Purgatory() as purgatory:
            purgatory.try_complete_else_watch(operation, ["key"])
            operation.ready = end == "complete"
            purgatory.check_and_complete("key")
            await asyncio.sleep(2)
    assert seen == [(COMPLETED, False, False), (EXPIRED, False, False), (EXPIRED, False, False)]
