"""No wake-up is lost when the waiting task is cancelled: before its try, in the same iteration, or
after its predicate has taken a value."""

import asyncio
import random

import anyio
import pytest
from helpers import THOROUGHNESS, Broken, Probe, counts, iterations, outcome, raiser, watch_all
from invariants import check
from loops import on_every_loop, on_virtual_time

import purgatory as library
from purgatory import OperationCancelled, OperationState, OperationTimeout, Purgatory

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


def taker(tokens):
    return lambda: tokens.pop() if tokens else None


async def start(*coroutines):
    tasks = [asyncio.create_task(outcome(each)) for each in coroutines]
    await iterations()
    return tasks


# Cancelled, then checked


@pytest.mark.parametrize("is_asynchronous", [False, True])
async def test_a_check_passes_over_a_cancelled_wait_for(purgatory, is_asynchronous):
    async def take():
        return taker(tokens)()

    tokens: list[int] = []
    predicate = take if is_asynchronous else taker(tokens)
    first, second = await start(*[purgatory.wait_for(predicate, ["key"]) for _ in range(2)])
    await iterations(3)
    first.cancel()
    tokens.append(1)
    assert purgatory.check_and_complete("key") == (not is_asynchronous)
    assert await second == 1
    assert isinstance(await first, asyncio.CancelledError)
    assert counts(purgatory, "pending", "completed", "cancelled") == (0, 1, 1)


async def test_deliver_counts_no_cancelled_receiver(purgatory):
    first, second = await start(*[purgatory.receive("key") for _ in range(2)])
    first.cancel()
    assert purgatory.deliver("key", "value") == 1
    assert await second == "value"
    third = asyncio.create_task(purgatory.receive("key"))
    await iterations()
    third.cancel()
    assert purgatory.deliver("key", "value") == 0
    assert purgatory.pending == 0


async def test_cancelled_waits_are_passed_over_in_hooks_too(purgatory):
    tokens: list[int] = []
    first, second = await start(*[purgatory.wait_for(taker(tokens), ["key"]) for _ in range(2)])

    def complete(_):
        first.cancel()
        tokens.append(1)
        purgatory.check_and_complete("key")

    [hook] = watch_all(purgatory, [Probe(completing=complete)], ["other"])
    assert hook.force_complete()
    assert await second == 1 and tokens == []
    await first


@on_virtual_time
async def test_deadline_cancels_wait_of_cancelled_task(purgatory):
    def cancel():
        waiting.cancel()

    asyncio.get_running_loop().call_at(1.0, cancel)
    operation = Probe(deadline=1.0)
    [waiting] = await start(purgatory.wait(operation, ["key"]))
    await asyncio.sleep(2)
    assert operation.state is CANCELLED and operation.calls == ["try"]


# Checked, then cancelled


async def test_give_back_hands_value_to_next_waiter(purgatory):
    tokens: list[int] = []
    wait_for = purgatory.wait_for
    first, second = await start(
        *[wait_for(taker(tokens), ["key"], give_back=tokens.append) for _ in range(2)]
    )
    tokens.append(1)
    assert purgatory.check_and_complete("key") == 1
    first.cancel()
    assert isinstance(await first, asyncio.CancelledError)
    assert await second == 1 and tokens == []


async def test_give_back_ignores_a_returned_value(purgatory):
    given_back: list[int] = []
    [waiting] = await start(purgatory.wait_for(taker([1]), ["key"], give_back=given_back.append))
    assert await waiting == 1
    [failing] = await start(
        purgatory.wait_for(raiser(Broken()), ["key"], give_back=given_back.append)
    )
    assert isinstance(await failing, Exception)
    expired = purgatory.wait_for(lambda: 0, ["key"], 0, give_back=given_back.append)
    assert isinstance(await outcome(expired), OperationTimeout)
    assert given_back == []


async def test_give_back_that_raises_is_reported(purgatory, reports):
    [waiting] = await start(
        purgatory.wait_for(lambda: purgatory.pending == 2, ["key"], give_back=raiser(Broken()))
    )
    [other] = await start(purgatory.wait(Probe(), ["key"]))
    purgatory.check_and_complete("key")
    waiting.cancel()
    assert isinstance(await waiting, asyncio.CancelledError)
    other.cancel()
    await other
    [report] = reports
    assert "give_back of <wait for ['key'] completed> raised" in report["message"]


async def test_value_taken_by_closing_predicate_is_given_back(purgatory):
    def take():
        if tokens and purgatory.pending:
            purgatory.cancel_for_key("key")
            return tokens.pop()
        return None

    tokens: list[int] = []
    [waiting] = await start(purgatory.wait_for(take, ["key"], give_back=tokens.append))
    tokens.append(1)
    purgatory.check_and_complete("key")
    assert isinstance(await waiting, OperationCancelled)
    assert tokens == [1]


# Counted


def with_timeout(purgatory, tokens, limit):
    return purgatory.wait_for(taker(tokens), ["key"], limit, give_back=tokens.append)


async def with_asyncio_timeout(purgatory, tokens, limit):
    async with asyncio.timeout(limit):
        return await with_timeout(purgatory, tokens, None)


async def with_purgatory_timeout(purgatory, tokens, limit):
    async with library.timeout(limit):
        return await with_timeout(purgatory, tokens, None)


async def with_scope(purgatory, tokens, limit):
    with anyio.move_on_after(limit):
        return await with_timeout(purgatory, tokens, None)
    raise TimeoutError


async def with_cancel(purgatory, tokens, limit):
    task = asyncio.current_task()
    handle = asyncio.get_running_loop().call_later(limit, task.cancel)
    try:
        return await with_timeout(purgatory, tokens, None)
    except asyncio.CancelledError:
        task.uncancel()
        raise TimeoutError from None
    finally:
        handle.cancel()


async def asynchronously(purgatory, tokens, limit):
    async def take():
        return tokens.pop() if tokens else None

    async with asyncio.timeout(limit):
        return await purgatory.wait_for(take, ["key"], give_back=tokens.append)


async def with_wait(purgatory, tokens, limit):
    class Take(library.DelayedOperation):
        def try_complete(self):
            return bool(tokens) and self.force_complete()

        def on_complete(self):
            return tokens.pop()

    take = Take()
    try:
        async with asyncio.timeout(limit):
            return await purgatory.wait(take, ["key"])
    except TimeoutError:
        if take.state is COMPLETED:
            return take.result()
        raise


ROWS = {
    "timeout=": (with_timeout, 8, (0.001, 0.003)),
    "asyncio.timeout": (with_asyncio_timeout, 8, (0.001, 0.003)),
    "purgatory.timeout": (with_purgatory_timeout, 8, (0.001, 0.003)),
    "anyio.move_on_after": (with_scope, 8, (0.001, 0.003)),
    "task.cancel": (with_cancel, 8, (0.001, 0.003)),
    "asynchronous": (asynchronously, 8, (0.001, 0.003)),
    "wait": (with_wait, 8, (0.001, 0.003)),
    "crowd": (with_asyncio_timeout, 200, (0.03, 0.06)),
}


async def count(row, seconds):
    """Runs consumers with short limits for some seconds; returns how many tokens were pushed, and
    how many were received or are left."""
    wait, consumers, limits = ROWS[row]
    loop = asyncio.get_running_loop()
    tokens: list[object] = []
    pushed = got = 0
    end = loop.time() + seconds
    seeded = random.Random(row)

    async def consume():
        nonlocal got
        while loop.time() < end:
            try:
                await wait(purgatory, tokens, seeded.uniform(*limits))
            except TimeoutError:
                continue
            got += 1

    async with Purgatory() as purgatory:
        tasks = [asyncio.create_task(consume()) for _ in range(consumers)]
        while loop.time() < end or pushed == 0:  # a busy machine may have no time left
            await asyncio.sleep(seeded.choice([0.0, 0.001, 0.001]))
            pushed += 1
            tokens.append(object())
            purgatory.check_and_complete("key")
        await asyncio.gather(*tasks)
        assert purgatory.pending == purgatory.watched == 0
        check(purgatory)
    return pushed, got + len(tokens)


@on_every_loop
@pytest.mark.parametrize("row", ROWS)
async def test_every_token_is_received_or_left(row):
    pushed, found = await count(row, 0.3)
    assert pushed == found > 0


@pytest.mark.slow
@on_every_loop
@pytest.mark.parametrize("row", ROWS)
async def test_every_token_is_received_or_left_at_length(row):
    pushed, found = await count(row, 3.0 * THOROUGHNESS)
    assert pushed == found > 0
