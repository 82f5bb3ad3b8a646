"""`aclose` with and without a drain, called in several ways, and interrupted at any point."""

import asyncio
from math import inf

import pytest
from helpers import Probe, Spy, iterations, outcome
from invariants import MAX_PER_ITERATION, check
from loops import on_virtual_time

from purgatory import (
    OperationCancelled,
    OperationState,
    Purgatory,
    PurgatoryClosed,
    ThresholdPurgatory,
)

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

FEW, MANY = 3 * MAX_PER_ITERATION, 5000


def fill(purgatory, count, timeout=30, keys=lambda number: [number]):
    operations = [Probe(timeout, name=number) for number in range(count)]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, keys(number))
    return operations


KEYS = [
    lambda number: [number],
    lambda number: ["hot"],
    lambda number: [number, "hot", -number - 1],
]
on_any_keys = pytest.mark.parametrize("keys", KEYS, ids=["own keys", "one hot key", "several keys"])


@on_any_keys
@pytest.mark.parametrize("count", [1, 3, MANY])
async def test_closing_answers_and_returns_all_pending_operations(keys, count):
    loop = asyncio.get_running_loop()
    purgatory = Purgatory()
    operations = fill(purgatory, count, keys=keys)
    waiting = [asyncio.create_task(outcome(operation)) for operation in operations[:50]]
    waiting.append(asyncio.create_task(outcome(purgatory.wait(Probe(), ["patient"]))))
    await iterations()
    spy = Spy(loop)
    cancelled = await purgatory.aclose()
    assert len(cancelled) == count + 1 and cancelled[:-1] == operations
    assert all(isinstance(result, OperationCancelled) for result in await asyncio.gather(*waiting))
    assert all(
        operation.state is CANCELLED and operation.calls == ["try"] for operation in operations
    )
    statistics = purgatory.statistics()
    assert (statistics.pending, statistics.watched, statistics.keys, statistics.cancelled) == (
        0,
        0,
        0,
        count + 1,
    )
    await iterations(2)
    assert spy.armed == spy.calls["call_at"] == 0
    check(purgatory)


@on_virtual_time
@pytest.mark.parametrize("drain", [10.0, inf])
async def test_drain_ends_once_nothing_is_pending(drain):
    loop = asyncio.get_running_loop()
    purgatory = Purgatory()
    operations = [*fill(purgatory, 3, timeout=2), *fill(purgatory, 3, timeout=30)]
    loop.call_at(3.0, lambda: [operation.force_complete() for operation in operations[3:5]])
    loop.call_at(4.0, operations[5].cancel)
    spy = Spy(loop)
    assert await purgatory.aclose(drain) == []
    assert loop.time() == 4.0
    assert [operation.state for operation in operations] == [EXPIRED] * 3 + [COMPLETED] * 2 + [
        CANCELLED
    ]
    await iterations(2)
    assert spy.armed == 0


@on_virtual_time
@pytest.mark.parametrize("drain", [0.0, 5.0])
async def test_closing_refuses_new_work_and_finishes_old(drain):
    purgatory = Purgatory()
    operations = fill(purgatory, 3 * MAX_PER_ITERATION)
    closing = asyncio.create_task(purgatory.aclose(drain))
    await iterations()
    for call in (
        lambda: purgatory.try_complete_else_watch(Probe(), ["key"]),
        purgatory.wait(Probe(), ["key"]).send,
    ):
        with pytest.raises(PurgatoryClosed):
            call() if call.__name__ == "<lambda>" else call(None)
    assert isinstance(await outcome(purgatory.wait_for(lambda: True, ["key"])), PurgatoryClosed)
    operations[-1].ready = True
    assert purgatory.check_and_complete(operations[-1].name) == 1
    assert await closing == operations[:-1]


@on_virtual_time
@pytest.mark.parametrize(
    ("drains", "count"),
    [
        *[((0, 0), 1), ((9, 0), 1), ((9, 30), 1), ((inf, 9), 1)],
        *[((0, 9), FEW), ((9, 9), FEW), ((30, 9), FEW), ((0, 0), FEW)],
    ],
)
async def test_concurrent_closes_cancel_once_after_shorter_drain(drains, count):
    loop = asyncio.get_running_loop()
    purgatory = Purgatory()
    operations = fill(purgatory, count, timeout=100)
    first, second = [asyncio.create_task(purgatory.aclose(drain)) for drain in drains]
    cancelled = [*await first, *await second]
    assert len(cancelled) == count and set(cancelled) == set(operations)
    assert loop.time() == min(drains)
    assert await purgatory.aclose() == await purgatory.aclose(5) == []
    assert loop.time() == min(drains)


@pytest.mark.parametrize("drain", [0.0, 50.0])
@pytest.mark.parametrize("waits", [0, 1, 2, 3])
async def test_cancelled_close_still_answers_everything(drain, waits):
    purgatory = Purgatory()
    operations = fill(purgatory, 6 * MAX_PER_ITERATION)
    waiting = [
        asyncio.create_task(outcome(operation)) for operation in (operations[0], operations[-1])
    ]
    closing = asyncio.create_task(purgatory.aclose(drain))
    await iterations(waits + 1)
    closing.cancel()
    assert isinstance(await outcome(closing), asyncio.CancelledError)
    assert purgatory.pending == purgatory.watched == 0
    assert all(isinstance(result, OperationCancelled) for result in await asyncio.gather(*waiting))
    assert all(operation.state is CANCELLED for operation in operations)
    assert await purgatory.aclose() == []
    check(purgatory)


@on_virtual_time
@pytest.mark.parametrize("make", [Purgatory, ThresholdPurgatory])
async def test_closed_purgatory_is_entered_again_when_idle(make):
    home = make("orders")

    def wait():
        waits = home.wait(Probe(30), ["key"]) if make is Purgatory else home.wait("key", 1, 30)
        return asyncio.create_task(outcome(waits))

    waiting = wait()
    await iterations()
    closing = asyncio.create_task(home.aclose(5))
    await iterations(2)
    with pytest.raises(PurgatoryClosed, match="cannot open orders again: it is being closed"):
        await home.__aenter__()
    assert isinstance(await wait(), PurgatoryClosed)
    assert len(await closing if make is Purgatory else [await closing]) == 1
    assert isinstance(await waiting, OperationCancelled)
    async with home:
        waiting = wait()
        await iterations(2)
        assert home.pending == 1
    assert isinstance(await waiting, OperationCancelled)
    check(home)


@on_virtual_time
async def test_close_inside_hook_runs_no_nested_hook():
    purgatory = Purgatory()
    log = []

    def close(_):
        log.append("in")
        forced.force_complete()
        closing = purgatory.aclose()
        # Runs up to the first suspension at once, as an eager task does.
        try:
            closing.send(None)
        except StopIteration:
            pass
        else:
            closing.close()
        log.append("out")

    forced = Probe(30, completing=lambda _: log.append("forced"))
    host = Probe(30, completing=close)
    for operation in (forced, host, *[Probe(30) for _ in range(3)]):
        purgatory.try_complete_else_watch(operation, ["key"])
    host.force_complete()
    await iterations(3)
    await purgatory.aclose()
    assert log == ["in", "out", "forced"] and purgatory.pending == 0
    check(purgatory)
