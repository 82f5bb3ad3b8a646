"""`aclose` with and without a drain, called in several ways, and interrupted at any point."""

import asyncio
from math import inf, nan

import pytest
from helpers import Probe, Spy, iterations, outcome, raiser
from loops import on_virtual_time

from purgatory import OperationCancelled, OperationState, Purgatory, PurgatoryClosed
from purgatory._core.loop import MAX_PER_ITERATION

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
    purgatory._check()


async def test_closed_purgatory_leaves_nothing_on_the_loop():
    spy = Spy(asyncio.get_running_loop())
    purgatory = Purgatory(tick=0.001, wheel_size=4)
    for number in range(50):
        fill(purgatory, 1, timeout=0.5 + number * 1.7, keys=lambda _, number=number: [number])
    assert spy.armed > 1
    await purgatory.aclose()
    await iterations(2)
    assert spy.armed == 0


async def test_crowd_is_cancelled_over_several_iterations():
    purgatory = Purgatory()
    operations = fill(purgatory, MANY)
    loop, left = asyncio.get_running_loop(), []

    def look():
        left.append(purgatory.pending)
        if purgatory.pending:
            loop.call_soon(look)

    loop.call_soon(look)
    assert await purgatory.aclose() == operations
    steps = [before - after for before, after in zip([MANY, *left], left, strict=False)]
    assert max(steps) <= MAX_PER_ITERATION


@on_virtual_time
@pytest.mark.parametrize(
    ("drain", "why"),
    [
        (nan, "drain cannot be NaN"),
        (-1.0, "zero or more seconds, not -1.0"),
        (-inf, "zero or more seconds, not -inf"),
    ],
)
async def test_invalid_drain_is_refused_and_purgatory_stays_open(drain, why):
    async with Purgatory() as purgatory:
        before = purgatory.statistics()
        with pytest.raises(ValueError, match=why):
            await purgatory.aclose(drain)
        assert purgatory.statistics() == before and "open" in repr(purgatory)
        fill(purgatory, 1)


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
async def test_operations_pending_after_the_drain_are_cancelled():
    loop = asyncio.get_running_loop()
    purgatory = Purgatory()
    short, long = fill(purgatory, 2, timeout=2), fill(purgatory, 2, timeout=30)
    assert await purgatory.aclose(5) == long
    assert loop.time() == 5.0 and {operation.state for operation in short} == {EXPIRED}


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


@on_virtual_time
async def test_two_drains_end_once_nothing_is_pending():
    purgatory = Purgatory()
    fill(purgatory, 3, timeout=2)
    assert await asyncio.gather(purgatory.aclose(50), purgatory.aclose(60)) == [[], []]
    assert asyncio.get_running_loop().time() == pytest.approx(2.0, abs=0.002)


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
    purgatory._check()


@on_virtual_time
async def test_close_cancelled_before_its_start_changes_nothing():
    purgatory = Purgatory()
    closing = asyncio.create_task(purgatory.aclose())
    closing.cancel()
    await outcome(closing)
    async with purgatory:
        fill(purgatory, 1)


async def test_context_manager_closes_after_exception_or_cancellation():
    with pytest.raises(ZeroDivisionError):
        async with Purgatory() as purgatory:
            operations = fill(purgatory, 3)
            raise ZeroDivisionError
    assert purgatory.pending == 0 and operations[0].state is CANCELLED

    async def body():
        async with purgatories[-1] as purgatory:
            fill(purgatory, 3 * MAX_PER_ITERATION)
            await asyncio.sleep(30)

    purgatories = [Purgatory()]
    task = asyncio.create_task(body())
    await iterations(2)
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    assert (
        purgatories[0].pending == 0
        and purgatories[0].statistics().cancelled == 3 * MAX_PER_ITERATION
    )


async def test_closing_an_unused_purgatory_needs_nothing():
    purgatory = Purgatory()
    assert await purgatory.aclose() == []
    async with Purgatory():
        pass


async def test_operations_completed_by_closing_hooks_are_answered():
    purgatory = Purgatory()
    operations = fill(purgatory, 3 * MAX_PER_ITERATION, keys=KEYS[1])
    for operation in operations:
        operation.ready = True
    waiting = [asyncio.create_task(outcome(operation)) for operation in operations]
    await iterations()
    purgatory.check_and_complete(
        "hot"
    )  # the first budget is spent at once; the remaining work is in progress at the end
    cancelled = set(await purgatory.aclose())
    results = await asyncio.gather(*waiting)
    for operation, result in zip(operations, results, strict=True):
        if operation in cancelled:
            assert isinstance(result, OperationCancelled)
        else:
            assert result == operation.name
    await iterations(5)
    purgatory._check()


@on_virtual_time
@pytest.mark.parametrize("drain", [0.0, 3.0])
async def test_raising_hooks_do_not_prevent_closing(reports, drain):
    purgatory = Purgatory()
    for number in range(4):
        operation = Probe(2, completing=raiser(ZeroDivisionError()), expiring=raiser(KeyError()))
        purgatory.try_complete_else_watch(operation, [number])
    assert len(await purgatory.aclose(drain)) == (0 if drain else 4)
    await iterations(4)
    assert purgatory.pending == 0
    assert len(reports) == (8 if drain else 0)


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
    purgatory._check()
